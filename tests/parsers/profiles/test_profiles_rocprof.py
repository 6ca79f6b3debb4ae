"""Kernel traces of rocprofv3: columns of all its versions, and the GPU that they lead to."""

import json
import sqlite3
from pathlib import Path

import pytest

from depgraph.errors import ProfileError
from depgraph.parsers.profiles import read_profile

TODAY = (
    '"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name",'
    '"Correlation_Id","Start_Timestamp","End_Timestamp","LDS_Block_Size","Scratch_Size",'
    '"VGPR_Count","Accum_VGPR_Count","SGPR_Count","Workgroup_Size_X","Workgroup_Size_Y",'
    '"Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"\n'
)
ROWS = (
    '"KERNEL_DISPATCH","Agent 1",1,3,70,1,33,"gemm(float*, int)",5,1000,3500,1024,0,64,8,48,256,1,'
    "1,16384,64,1\n"
    '"KERNEL_DISPATCH","Agent 1",1,3,70,2,34,"scale(float*)",6,4000,5000,0,0,32,0,16,100,1,1,3250,'
    "1,1\n"
)
FIRST = (
    '"Kind","Agent_Id","Queue_Id","Kernel_Id","Kernel_Name","Correlation_Id","Start_Timestamp",'
    '"End_Timestamp","Private_Segment_Size","Group_Segment_Size","Workgroup_Size_X",'
    '"Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"\n'
    '"KERNEL_DISPATCH",4,1,15,"transpose(float*, int)",0,671599758568,671599825328,0,512,4,4,1,'
    "1024,1024,1\n"
)
AGENTS = (
    '"Node_Id","Logical_Node_Id","Agent_Type","Cu_Count","Name","Product_Name"\n'
    '0,0,"CPU",192,"AMD EPYC 9654","AMD EPYC 9654"\n'
    '1,1,"GPU",304,"gfx942","AMD Instinct MI300X"\n'
)


TWO_GPUS = (  # of a node with two processors, as rocprofv3 has it there
    '"Node_Id","Logical_Node_Id","Agent_Type","Cu_Count","Name","Product_Name"\n'
    '0,0,"CPU",64,"AMD EPYC 9575F","AMD EPYC 9575F"\n'
    '1,1,"CPU",64,"AMD EPYC 9575F","AMD EPYC 9575F"\n'
    '2,2,"GPU",256,"gfx950","AMD Instinct MI350X"\n3,3,"GPU",38,"gfx942","AMD Instinct MI300X"\n'
)


@pytest.fixture
def trace(tmp_path):
    def written(text, agents=None):
        (tmp_path / "42_kernel_trace.csv").write_text(text)
        if agents is not None:
            (tmp_path / "42_agent_info.csv").write_text(agents)
        return tmp_path / "42_kernel_trace.csv"

    return written


def test_what_a_row_says(trace):
    profile = read_profile(trace(TODAY + ROWS, AGENTS))
    assert (profile.format, profile.unit, profile.notes) == ("rocprofv3", "ns", ())
    assert profile.name == ("gemm(float*, int)", "scale(float*)")
    assert profile.duration.tolist() == [2500, 1000]
    assert profile.start.tolist() == [1000, 4000]
    # Grids count threads: the last work-group of the second is not whole.
    assert profile.grid.tolist() == [[64, 64, 1], [33, 1, 1]]
    assert profile.block.tolist() == [[256, 1, 1], [100, 1, 1]]
    assert profile.registers.tolist() == [72, 32]
    assert profile.shared_bytes.tolist() == [1024, 0]
    assert (profile.stream.tolist(), profile.device.tolist()) == ([3, 3], [1, 1])
    assert profile.device_names == {1: "AMD Instinct MI300X"}


def test_the_first_version_and_other_spellings(trace):
    profile = read_profile(trace(FIRST))
    assert profile.shared_bytes.tolist() == [512]
    assert profile.grid.tolist() == [[256, 256, 1]]
    assert profile.registers is None
    converted = FIRST.replace('"Kind"', '"Guid","Kind"').replace('"KERN', '"0-1","KERN')
    assert read_profile(trace(converted)).duration.tolist() == profile.duration.tolist()


def test_a_gpu_that_is_not_named_is_said(trace):
    (note,) = read_profile(trace(TODAY + ROWS)).notes
    assert note == (
        "no agent_info.csv beside it names the GPU: taken for an AMD Instinct MI300X (--gpu)"
    )


def test_rows_that_are_not_whole_are_counted(trace):
    memory = ROWS.replace("KERNEL_DISPATCH", "MEMORY_COPY", 1)
    profile = read_profile(trace(TODAY + memory + '"KERNEL_DISPATCH","Agent 1",1\n'))
    assert (len(profile), profile.skipped) == (1, {"rows that are no whole kernel dispatch": 2})
    with pytest.raises(ProfileError, match=r"no kernel with a time.*rocprofv3 --kernel-trace"):
        read_profile(trace(TODAY))


def test_it_leads_to_an_answer_of_its_gpu(trace, program):
    done = program("bound", trace(TODAY + ROWS, AGENTS), "--format", "json")
    content = json.loads(done.out)
    assert (done.code, content["gpu"], content["sms"]) == (0, "MI300X", 304)
    text = program("bound", trace(TODAY + ROWS, AGENTS), "--details").out
    assert "as a HIP graph" in text
    assert "CUDA graph" not in text
    assert "depgraph record" not in text  # which needs a GPU of NVIDIA
    assert "predictions on MI300X are not validated" in " ".join(text.split())


def test_the_example_of_its_documentation():
    profile = read_profile(Path(__file__).parent / "data" / "rocprofv3_kernel_trace.csv")
    assert (
        profile.name[0]
        == "void addition_kernel<float>(float*, float const*, float const*, int, int)"
    )
    assert profile.duration.tolist()[:2] == [16157, 10464]
    assert profile.grid.tolist()[0] == [16, 1024, 1]
    assert profile.stream.tolist() == [1] * 4 + [2] * 4


@pytest.mark.parametrize("agent", ["GPU 1", "Agent 3", "3"])
def test_agents_are_named_in_three_ways(trace, agent):
    profile = read_profile(trace((TODAY + ROWS).replace("Agent 1", agent), TWO_GPUS))
    assert [*profile.device_names.values()] == ["AMD Instinct MI300X"]
    assert profile.measured_sms.tolist() == [38, 38]  # a part of the GPU


def test_a_gpu_without_a_model_is_still_one_of_amd(trace, program):
    profile = trace((TODAY + ROWS).replace("Agent 1", "Agent 2"), TWO_GPUS)
    content = json.loads(program("bound", profile, "--format", "json").out)
    assert (content["gpu"], content["sms"]) == ("MI300X", 256)
    text = " ".join(program("bound", profile).out.split())
    assert "there is no model of AMD Instinct MI350X: launch costs are those of MI300X" in text
    assert "depgraph record" not in text


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ('"Correlation_Id","Dispatch_Id","Agent_Id","Kernel_Name","Counter_Name"', "counters"),
        ('"Name","Calls","TotalDurationNs","AverageNs","Percentage"', "a summary of rocprofv3"),
        ('"Kind","Direction","Stream_Id","Correlation_Id","Start_Timestamp"', "another table"),
        ('"Guid","Domain","Function","Correlation_Id","Start_Timestamp"', "another table"),
    ],
)
def test_other_files_of_rocprofv3_are_named(tmp_path, program, header, found):
    path = tmp_path / "1_other.csv"
    path.write_text(header + "\n")
    done = program("bound", path)
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert found in done.err
    assert "--kernel-trace" in done.err


def test_its_database_can_be_converted(tmp_path, program):
    with sqlite3.connect(tmp_path / "1_results.db") as database:
        database.execute("CREATE TABLE rocpd_kernel_dispatch_0000ddb5 (id INTEGER)")
    done = program("bound", tmp_path / "1_results.db")
    assert "rocpd convert --output-format csv -i" in done.err


@pytest.mark.jit_only
def test_mechanisms_of_nvidia_are_no_rows(program, sample_store):
    words = ("bound", sample_store.path, "--gpu", "MI300X", "--mechanism", "all", "--format", "csv")
    rows = {line.partition(",")[0] for line in program(*words).out.splitlines()}
    assert rows
    assert not rows & {"pdl", "green-contexts", "clusters", "clc"}
