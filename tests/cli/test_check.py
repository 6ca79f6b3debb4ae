"""``depgraph check``: what is in a trace, what is missing, what is wrong; nothing is written."""

import json
import lzma

import pytest
from click.testing import CliRunner
from published import WORKLOADS

from depgraph.cli import main
from depgraph.cli.commands.check import command
from depgraph.extraction.check import check_trace
from depgraph.parsers import open_trace
from depgraph.samples import sample_path

HEAD = "MEMTRACE: CTX 0x0000000033c98dc0 - "
ADDRESSES = " ".join(f"0x{0x7F0000000000 + 4 * lane:016x}" for lane in range(32))
ZEROS = " ".join(["0x0000000000000000"] * 32)


def launch(identifier, grid=2, registers=16):
    return (
        f"{HEAD}LAUNCH - Kernel pc 0x00007f4d5a105000 - Kernel name step - grid launch id "
        f"{identifier} - grid size {grid},1,1 - block size 32,1,1 - nregs {registers} - shmem 0 - "
        "cuda stream id 0\n"
    )


def access(identifier, block, opcode="LDG.E", addresses=ADDRESSES):
    return (
        f"{HEAD}grid_launch_id {identifier} - CTA {block},0,0 - warp 0 - {opcode} - {addresses} \n"
    )


def check(tmp_path, text):
    path = tmp_path / "trace.log"
    path.write_text(text)
    return check_trace(open_trace(path))


def found(checkup, *, is_error):
    return {p.found: p.place for p in checkup.problems if p.is_error is is_error}


def test_a_clean_trace_has_no_problems(tmp_path):
    checkup = check(tmp_path, launch(0) + access(0, 0) + access(0, 1, "STG.E"))
    assert checkup.problems == []
    (kernel,) = checkup.kernels
    assert (kernel.blocks, kernel.active_blocks, kernel.accesses) == (2, 2, 2)


def test_kernels_that_read_by_ldgsts_are_counted(tmp_path):
    asynchronous = access(0, 0, "LDGSTS.E.LTC128B") + access(2, 1, "LDGSTS.E.LTC128B")
    text = launch(0) + launch(1) + launch(2) + asynchronous + access(1, 0) + access(1, 1)
    (problem,) = [p for p in check(tmp_path, text).problems if "LDGSTS" in p.found]
    assert (problem.is_error, problem.count) == (False, 2)
    assert problem.found.startswith("kernels that read by LDGSTS (cp.async)")
    assert problem.place == "kernels 0, 2"


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        (launch(0) + access(0, 0), "blocks of the grid without an instruction in the trace"),
        (
            launch(0) + access(0, 0) + access(0, 1) + launch(1),
            "no instruction in the trace",
        ),
        (
            launch(0, 1) + access(0, 0) + launch(1, 1) + access(1, 0, "LDS"),
            "no global-memory access in the trace",
        ),
        (launch(0, 1, registers=0) + access(0, 0), "registers per thread unknown"),
    ],
)
def test_remarks_on_kernels_are_warnings(tmp_path, text, remark):
    checkup = check(tmp_path, text)
    assert list(found(checkup, is_error=False)) == [f"kernels with: {remark}"]
    assert checkup.errors == 0


@pytest.mark.parametrize(
    ("text", "fault", "line"),
    [
        (launch(0, 1) + 200 * access(0, 0) + access(0, 0)[:120], "the last line is cut", 202),
        (
            launch(0, 1) + 2 * access(0, 7) + access(0, 8),
            (
                "block (7,0,0) is outside the grid (1, 1, 1) of kernel 0; 3 instructions from "
                "here on in such blocks"
            ),
            1,
        ),
        (
            launch(0, 1) + access(0, 0) + access(5, 0),
            "1 access from here on with launch id 5, which no launch line announces",
            1,
        ),
    ],
)
def test_what_makes_a_graph_wrong_is_an_error_with_its_line(tmp_path, text, fault, line):
    checkup = check(tmp_path, text)
    assert found(checkup, is_error=True) == {fault: f"{tmp_path}/trace.log:{line}"}


def test_launches_of_other_contexts_and_processes_are_warned_of(tmp_path):
    other = (launch(0, 1) + access(0, 0)).replace("33c98dc0", "33c98dc1")
    text = launch(0, 1) + access(0, 0)
    assert not found(check(tmp_path, text), is_error=False)
    (warning,) = found(check(tmp_path, text + other), is_error=False)
    assert "memory of its own" in warning
    (warning,) = found(check(tmp_path, text + text), is_error=False)
    assert "memory of its own" in warning


def test_a_grid_beyond_memory_is_a_problem_not_a_crash(tmp_path, monkeypatch):
    monkeypatch.setattr("depgraph.extraction.check.default_limit", lambda: 64 << 20)
    (fault,) = found(check(tmp_path, launch(0, 1 << 30)), is_error=True)
    assert "kernel 0 has a grid of 1073741824 blocks" in fault


def test_unknown_opcodes_and_lanes_at_address_zero_are_counted(tmp_path):
    checkup = check(
        tmp_path,
        launch(0, 1) + access(0, 0) + access(0, 0, "FROB.E") + access(0, 0, "LDG.E", ZEROS),
    )
    assert any("not known" in reason for reason in checkup.skipped)
    assert any("all 0" in warning for warning in found(checkup, is_error=False))


def run(*words):
    return CliRunner().invoke(command, list(words))


def test_the_sample_is_usable_and_nothing_is_written(tmp_path, sample_trace, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(str(sample_trace), "--format", "json")
    content = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (content["verdict"], content["n_kernels"], content["n_blocks"]) == ("usable", 25, 189)
    assert len(content["kernels"]) == 25
    assert list(tmp_path.iterdir()) == []


def test_warnings_fail_only_when_asked(sample_trace):
    assert run(str(sample_trace)).exit_code == 0
    assert run(str(sample_trace), "--strict").exit_code == 1


def test_a_cut_trace_is_not_to_be_trusted(tmp_path, sample_trace):
    path = tmp_path / "cut.log"
    path.write_bytes(lzma.decompress(sample_trace.read_bytes())[:100_000])
    result = run(str(path))
    assert result.exit_code == 1
    assert "not to be trusted" in " ".join(result.stdout.split())
    assert "the last line is cut" in result.stdout


@pytest.mark.parametrize(
    ("options", "block", "code"), [((), 0, 0), (("--strict",), 0, 1), ((), 7, 1)]
)
def test_the_program_exits_with_the_verdict(tmp_path, options, block, code):
    path = tmp_path / "trace.log"
    path.write_text(launch(0, registers=0) + access(0, block))
    with pytest.raises(SystemExit) as exit_:
        main(["check", str(path), *options])
    assert (exit_.value.code or 0) == code


@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown"])
def test_every_form_can_be_written(sample_trace, form):
    assert run(str(sample_trace), "--format", form).stdout


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        (
            launch(0) + launch(1),
            "2 kernels launched, and no access to global memory (0",
        ),
        (
            launch(0, 1) + access(0, 0, "LDS"),
            "1 kernel launched, and no access to global memory (1",
        ),
    ],
)
def test_a_trace_without_any_access_is_refused_unless_that_is_meant(tmp_path, program, text, seen):
    path = tmp_path / "trace.log"
    path.write_text(text)
    checked = program("check", path, "--format", "json")
    assert checked.code == 1
    (problem,) = [p for p in json.loads(checked.out)["problems"] if p["severity"] == "error"]
    assert problem["found"].startswith(f"the tracer saw nothing: {seen}")
    refused = program("extract", path)
    assert refused.code == 1
    assert refused.err.startswith(f"depgraph: error: {path}: the tracer saw nothing: {seen}")
    assert refused.err.count("\n") == 1
    assert [item.name for item in tmp_path.iterdir()] == ["trace.log"]
    assert program("check", path, "--allow-empty").code == 0
    assert program("extract", path, "--allow-empty").code == 0


def test_findings_are_whole_however_long_they_are(tmp_path, program):
    folder = tmp_path / ("a-long-name-" * 12)
    folder.mkdir()
    path = folder / "trace.log"
    path.write_text(launch(0, 1) + 63 * access(0, 0) + access(0, 0, "LDG.E", "first address 0x10"))
    result = program("check", path, "--details")
    assert result.code == 1
    assert f"{path}:65" in result.out
    assert "\N{HORIZONTAL ELLIPSIS}" not in result.out
    rows = result.out[result.out.index("Problems") : result.out.index("Kernels")]
    words = [word for word in rows.split() if str(path) not in word]
    found = "access line has no address where mem_trace prints them; 1 of 64 access lines are"
    assert found in " ".join(words)


def test_a_program_that_copies_by_tma_alone_is_told_to_be_recorded(tmp_path):
    text = launch(0).replace("Kernel name step", "Kernel name nvjet_hsh_128x256_64x4_TNT")
    (fault,) = found(check(tmp_path, text), is_error=True)
    assert "opaque kernels: 1 of 1 (copies by TMA" in fault
    assert "Compute Sanitizer" in fault


def test_an_endless_launch_id_is_a_damaged_line(tmp_path):
    tma = access(0, 0, "UTMALDG.2D")
    text = launch(0) + access(0, 0) + access(0, 1) + tma
    text += tma.replace("grid_launch_id 0", f"grid_launch_id {'9' * 5000}")
    (tmp_path / "trace.log").write_text(text)
    result = CliRunner().invoke(command, [str(tmp_path / "trace.log")])
    assert result.exception is None or isinstance(result.exception, SystemExit)


@pytest.mark.usefixtures("sample_trace")
def test_what_most_kernels_have_is_said_once(program):
    out = program("check", sample_path()).out
    assert out.count("registers per thread") == 1
    assert len(out.splitlines()) <= 25
    rows = json.loads(program("check", sample_path(), "--format", "json").out)["kernels"]
    assert sum("registers per thread unknown" in row["remarks"] for row in rows) == 24


def test_a_described_program_is_no_trace_to_check(program):
    done = program("check", WORKLOADS / "conccl.toml")
    assert done.code == 2
    assert "conccl.toml describes a program: extract says what is wrong in it" in done.err
