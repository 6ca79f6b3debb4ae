"""The program as a process: standard input and output, signals, others at the same place."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT
from program_runs import LOG, files, run, start, wrote
from programs import PACKERS, edges_of

import depgraph
from depgraph.cli.app import main
from depgraph.parsers import open_trace
from depgraph.store.store import Store

pytestmark = pytest.mark.jit_only
MORE_THAN_A_PIPE_HOLDS = b"what the program says itself\n" * 10_000


def test_what_is_made_at_the_output_path_meanwhile_is_left_alone(tmp_path):
    process = start("extract", "-", "-q", cwd=tmp_path)
    process.stdin.write(LOG + MORE_THAN_A_PIPE_HOLDS)  # when this returns, it is reading
    process.stdin.flush()
    (tmp_path / "depgraph.out").mkdir()
    (tmp_path / "depgraph.out" / "thesis.tex").write_text("years of work")
    _, err = process.communicate()
    assert process.returncode == 1
    assert err.decode() == (
        "depgraph: error: depgraph.out: was made by something else while this ran, and is left as "
        "it is; the result is depgraph.out.1\n"
    )
    assert files(tmp_path / "depgraph.out") == ["thesis.tex"]
    assert edges_of(Store(tmp_path / "depgraph.out.1").graph()) == [(1, 6, "RAW")]
    assert files(tmp_path) == ["depgraph.out", "depgraph.out.1"]


def test_of_two_extractions_to_one_place_neither_is_lost(tmp_path):
    both = [start("extract", "-", "-q", cwd=tmp_path) for _ in range(2)]
    for process in both:
        process.stdin.write(LOG + MORE_THAN_A_PIPE_HOLDS)
        process.stdin.flush()
    said = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 1]
    assert said[0] == b""
    assert b"the result is depgraph.out.1" in said[1]
    for name in ("depgraph.out", "depgraph.out.1"):
        assert edges_of(Store(tmp_path / name).graph()) == [(1, 6, "RAW")]


@pytest.mark.parametrize("pack", [bytes, PACKERS["zst"]])
def test_standard_input(tmp_path, pack):
    result = run("extract", "-", "--format", "json", cwd=tmp_path, input=pack(LOG))
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["edges"] == 1
    assert Store(tmp_path / "depgraph.out").metadata["sources"] == []


def test_progress_is_for_terminals_alone(log):
    result = run("extract", log.name, cwd=log.parent)
    assert wrote(result.stderr.decode(), "depgraph.out")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing_behind(tmp_path, number):
    process = start("extract", "-", cwd=tmp_path)
    process.stdin.write(LOG * 1000)  # more than a pipe holds: when this returns, it is reading
    process.stdin.flush()
    process.send_signal(number)
    out, err = process.communicate()
    assert process.returncode == 130
    assert (out, err) == (b"", b"depgraph: interrupted\n")
    assert files(tmp_path) == []


def test_an_interrupt_while_writing_leaves_nothing_behind(log):
    script = """
import os, signal, sys
import pyarrow.parquet as pq
from depgraph.cli import main
pq.ParquetWriter.write_table = lambda *_, **__: os.kill(os.getpid(), signal.SIGINT)
main(sys.argv[1:])
"""
    result = subprocess.run(
        [sys.executable, "-c", script, "extract", log.name],
        cwd=log.parent, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True,
        check=False,
    )  # fmt: skip
    assert result.returncode == 130
    assert (result.stdout, result.stderr) == (b"", b"depgraph: interrupted\n")
    assert files(log.parent) == ["some.log"]


def test_output_that_nobody_reads_is_no_error_to_tell(log):
    depgraph.extract(open_trace(log), log.parent / "depgraph.out")
    process = start("show", "kernels", cwd=log.parent)
    process.stdout.close()
    _, err = process.communicate()
    assert process.returncode == 1
    assert err == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_output_that_cannot_be_written(log):
    depgraph.extract(open_trace(log), log.parent / "depgraph.out")
    with Path("/dev/full").open("wb") as full:
        result = run("show", "kernels", cwd=log.parent, stdout=full, stderr=subprocess.PIPE)
    assert result.returncode == 1
    assert result.stderr == b"depgraph: error: No space left on device\n"


def test_a_program_that_a_command_runs_is_told_nothing_of_our_threads(monkeypatch):
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    with pytest.raises(SystemExit):
        main(["gpus"])
    assert "OPENBLAS_NUM_THREADS" not in os.environ
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    with pytest.raises(SystemExit):
        main(["gpus"])
    assert os.environ["OPENBLAS_NUM_THREADS"] == "3"


THREADS = """
import os
from depgraph.cli.options.model import _read_names
from depgraph.cli.options.values import reading
reading(_read_names)(None, None, "pdl")
print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads as Linux does")
def test_an_option_that_needs_numpy_starts_no_thread_for_each_core():
    found = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, check=True)
    assert found.stdout == b"1\n"


ENDS = """
import atexit, sys, threading, time
from depgraph.cli import main

atexit.register(print, "at exit")
print("unwritten", end=" ")
sys.argv[1:] = {words!r}
main()
"""


@pytest.mark.parametrize(("words", "code"), [(["--version"], 0), (["bound", "nothing"], 1)])
def test_a_process_that_ends_at_once_writes_all_and_runs_what_is_to_be_run_at_exit(words, code):
    done = subprocess.run(
        [sys.executable, "-c", ENDS.format(words=words)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code
    assert done.stdout.startswith("unwritten ")
    assert done.stdout.endswith("at exit\n")
