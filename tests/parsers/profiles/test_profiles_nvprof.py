"""nvprof: its table of GPU operations."""

import pytest
from text_files import writes

from depgraph.errors import ProfileError
from depgraph.parsers.profiles import read_profile

TABLE = """\
==2119== NVPROF is profiling process 2119, command: ./bench
==2119== Profiling application: ./bench
==2119== Profiling result:
"Start","Duration","Grid X","Grid Y","Grid Z","Block X","Block Y","Block Z",\
"Registers Per Thread","Static SMem","Dynamic SMem","Size","Throughput","SrcMemType","DstMemType",\
"Device","Context","Stream","Name"
ms,us,,,,,,,,KB,B,MB,GB/s,,,,,,
245.1,1.152,,,,,,,,,,0.000004,0.003,"Pageable","Device","V100 (0)","1","7","[CUDA memcpy HtoD]"
246.5,12.5,80,2,1,128,1,1,24,4.125000,512,,,,,"V100 (0)","1","14","b(float*, int) [122]"
246.1,10.5,40,1,1,64,1,1,16,0.000000,0,,,,,"V100 (0)","1","7","a(float*) [120]"
"""


log = writes("nvprof.csv")


def test_table(log):
    profile = read_profile(log(TABLE))
    assert profile.format == "nvprof"
    assert profile.name == ("a(float*)", "b(float*, int)")
    assert profile.duration.tolist() == [10500.0, 12500.0]
    assert profile.start.tolist() == [246100000, 246500000]
    assert profile.grid.tolist() == [[40, 1, 1], [80, 2, 1]]
    assert profile.block.tolist() == [[64, 1, 1], [128, 1, 1]]
    assert profile.registers.tolist() == [16, 24]
    assert profile.static_shared_bytes.tolist() == [0, 4224], "a KB of nvprof is 1024 bytes"
    assert profile.dynamic_shared_bytes.tolist() == [0, 512]
    assert profile.correlation.tolist() == [120, 122]
    assert profile.device_names == {0: "V100"}
    assert (profile.devices, profile.contexts, profile.streams) == ((0,), (1,), (7, 14))
    assert profile.memory.name == ("[CUDA memcpy HtoD]",)
    assert profile.memory.duration.tolist() == [1152.0]


def test_a_column_of_correlation_ids(log):
    lines = TABLE.splitlines()
    lines[3] += ',"Correlation_ID"'
    lines[4] += ","
    lines[5:] = [f"{line.replace(' [12', ' <12')},{n}" for n, line in enumerate(lines[5:], 7)]
    profile = read_profile(log("\n".join(lines) + "\n"))
    assert profile.correlation.tolist() == [8, 9]
    assert profile.name[0] == "b(float*, int) <122]"


def test_output_of_the_program_between_rows(log):
    text = TABLE.replace("246.1,", "result: 42, ok\n\n==2119== Warning: 3 records\n246.1,")
    assert len(read_profile(log(text))) == 2


def test_several_processes_in_one_log_are_refused(log):
    with pytest.raises(ProfileError, match=r"nvprof.csv:12: a second table"):
        read_profile(log(TABLE + TABLE))


def test_cut_off(log):
    profile = read_profile(log(TABLE[:-3]))
    assert len(profile) == 1
    assert profile.skipped == {"unfinished last lines": 1}
    with pytest.raises(ProfileError, match="the table of GPU operations is cut off"):
        read_profile(log(TABLE.partition("us,,")[0]))
