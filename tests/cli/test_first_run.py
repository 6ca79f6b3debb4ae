"""Every command and every format as right after an installation: nothing has been compiled yet.

Each runs in a process of its own with an empty cache. Together they take minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import NamedTuple

import pytest
from checkout import ROOT, copy_packages
from faults import inputs
from program_runs import LOG
from programs import edges_of
from small_logs import edges_in

import depgraph
from depgraph.cli.app import COMMANDS
from depgraph.cli.progress import FIRST_RUN
from depgraph.samples import KERNEL_TIMES, sample_path

pytestmark = [pytest.mark.slow, pytest.mark.jit_only]


class FirstRun(NamedTuple):
    """What a process with an empty cache printed, and how many functions it has kept."""

    out: str
    err: list[str]
    kept: int


def environment(**changes):
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA", "DEPGRAPH"))}
    # What an installation brings is not for who tells numba something.
    return keep | {"NUMBA_OPT": "3"} | changes


def finished(command, folder, variables, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "depgraph", *map(str, command)],
        check=False, capture_output=True, text=True, cwd=folder, env=variables, timeout=300,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def first_run(tmp_path):
    """Return a function that runs a command with an empty cache of compiled code."""

    def run(*command, code=0):
        cache = tmp_path / "compiled"
        assert not cache.exists(), "not the first run"
        done = finished(command, tmp_path, environment(NUMBA_CACHE_DIR=str(cache)), code)
        return FirstRun(done.stdout, done.stderr.splitlines(), len(list(cache.rglob("*.code"))))

    return run


def said_so(run):
    """Check that the user has been told once if anything was compiled, and only then."""
    assert run.err.count(FIRST_RUN) == (run.kept > 0), run.err
    return True


# More text than is interpreted.
COMPILED_FOR = 100_000


def nvbit_log(folder, *, of_size=0):
    """Write a log, with lines of the program's own up to a number of bytes."""
    path = folder / "small.log"
    path.write_bytes(LOG + b"a line of the program\n" * (of_size // 20))
    return path


@pytest.mark.parametrize("name", inputs.traces())
def test_extract_of_every_format(first_run, tmp_path, name):
    trace = inputs.write_trace(tmp_path, name)
    run = first_run("extract", trace, "-o", "it.out", "--format", "json")
    assert json.loads(run.out)
    assert said_so(run)
    assert edges_of(depgraph.Store(tmp_path / "it.out").graph()) == edges_in(trace)


@pytest.mark.parametrize("name", inputs.traces())
def test_check_of_every_format(first_run, tmp_path, name):
    assert said_so(first_run("check", inputs.write_trace(tmp_path, name)))


def test_extract_of_a_described_program(first_run, tmp_path):
    run = first_run("extract", sample_path("workloads/cusync_toy.toml"), "-o", "it.out")
    assert said_so(run)
    assert sum(p.edges for p in depgraph.Store(tmp_path / "it.out").graph().pairs()) == 12


def test_extract_of_the_packaged_trace(first_run, tmp_path, sample_trace, sample_store):
    run = first_run("extract", sample_trace, "-o", "sample.out")
    assert said_so(run)
    ours = depgraph.Store(tmp_path / "sample.out").graph()
    assert ours.pairs() == sample_store.graph().pairs()


@pytest.mark.parametrize("trace", ["nvbit/lstm_h128.log.xz", "public/accelsim/mgpusim_bfs_v3"])
def test_extract_of_a_trace_too_large_to_be_interpreted(first_run, tmp_path, shared_data, trace):
    run = first_run("extract", shared_data / trace, "-o", "large.out")
    assert run.err.count(FIRST_RUN) == 1
    assert run.kept > 5
    assert depgraph.Store(tmp_path / "large.out").graph().pairs()


@pytest.fixture(scope="module")
def large_store(tmp_path_factory):
    """Return a store of 60 000 blocks."""
    folder = tmp_path_factory.mktemp("large")
    (folder / "large.toml").write_text(
        'name = "large"\n'
        + "".join(
            f'[[kernel]]\nname = "{name}"\ngrid = [30000]\nduration = 1\noccupancy = 1\n'
            for name in ("producer", "consumer")
        )
        + '[[dependence]]\nfrom = "producer"\nto = "consumer"\npattern = "all"\n'
    )
    done = finished(["extract", "large.toml"], folder, environment())
    assert "60000 thread blocks" in done.stdout
    return folder / "depgraph.out"


def test_bound_of_a_store_too_large_to_be_interpreted(first_run, large_store):
    run = first_run("bound", large_store, "--sms", "80", "--format", "json")
    assert run.kept > 0
    assert said_so(run)
    assert json.loads(run.out)


STORE_COMMANDS = {
    "bound": "bound {store} --sms 8",
    "bound, all mechanisms": "bound {store} --sms 8 --mechanism all",
    "bound, measured times": "bound {store} --sms 8,80 --timing {times}",
    "report, all mechanisms": "report {store} --sms 8 -o report --mechanism all",
    "show kernels": "show {store} kernels",
    "show pairs": "show {store} pairs --cusync",
    "show path": "show {store} path",
    "show block": "show {store} block 5:0",
    "export edges": "export {store} --what edges -o edges.csv",
    "export graph": "export {store} --what graph -o graph.graphml",
    "export schedule": "export {store} --what schedule --sms 8 -o schedule.csv",
    "compare": "compare {store} {store} --sms 8",
    "timing": "timing {times} {store}",
    "overlap": "overlap {ranks}",
    "mechanisms": "mechanisms",
    "gpus": "gpus",
    "reproduce": "reproduce spawn",
    "sweep-hints": "sweep-hints {store} --sms 8",
    "demo": "demo",
}


@pytest.mark.parametrize("words", STORE_COMMANDS.values(), ids=STORE_COMMANDS)
def test_commands(first_run, sample_store, words):
    ranks = ROOT / "samples" / "timing" / "overlap" / "rank0.json.gz"
    words = words.format(store=sample_store.path, times=sample_path(KERNEL_TIMES), ranks=ranks)
    assert said_so(first_run(*words.split()))


def test_every_command_is_run_here():
    here = {words.split()[0] for words in STORE_COMMANDS.values()} | {"extract", "check"}
    need_a_gpu = {"apply", "calibrate", "record"}
    assert here | need_a_gpu == set(COMMANDS)


def test_who_asks_for_silence_is_told_nothing(first_run, tmp_path):
    run = first_run("extract", nvbit_log(tmp_path, of_size=COMPILED_FOR), "-q")
    assert run.kept > 0
    assert run.err == []


def test_compiled_code_is_kept_beside_the_sources_where_no_folder_is_named(tmp_path):
    copy_packages(tmp_path)
    variables = environment(PYTHONPATH=str(tmp_path))
    log = nvbit_log(tmp_path, of_size=COMPILED_FOR)
    first = finished(["extract", log, "-o", "first.out"], tmp_path, variables)
    assert first.stderr.splitlines().count(FIRST_RUN) == 1
    assert list((tmp_path / "parsers").rglob("__pycache__/*.code"))
    second = finished(["extract", log, "-o", "second.out"], tmp_path, variables)
    assert FIRST_RUN not in second.stderr


def test_python_code_compiles_in_silence(tmp_path):
    script = (
        "import depgraph\nfrom depgraph import parsers\n"
        f"depgraph.extract(parsers.open_trace({str(nvbit_log(tmp_path))!r}), 'it.out')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=True, capture_output=True, text=True, cwd=tmp_path,
        env=environment(NUMBA_CACHE_DIR=str(tmp_path / "compiled")),
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("", "")
