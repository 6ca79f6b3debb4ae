"""The native recorder without a GPU: a driver that only calls it (fake_driver.cpp)."""

from __future__ import annotations

import os
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from depgraph.recorder.block_times import block_runs_in
from depgraph.recorder.raw_recording import read_raw_recordings
from depgraph.recorder.toolkit import Toolkit

HERE = Path(__file__).parent
NATIVE = Path(str(files("depgraph.recorder"))) / "native"
TOOLKIT = Toolkit()
NEEDED = TOOLKIT.compiler, TOOLKIT.sanitizer, TOOLKIT.headers
DRIVER = """
int state_of_a_stream(void);
int cuStreamQuery(void *s) { return state_of_a_stream(); }
int cuStreamGetFlags(void *s, unsigned *flags) { *flags = (unsigned long)s & 1; return 0; }
int cuStreamIsCapturing(void *s, int *status) { *status = (long)s == 0x5ca0; return 0; }
int cuCtxPushCurrent_v2(void *c) { return 0; }
int cuCtxPopCurrent_v2(void **c) { return 0; }
"""

pytestmark = pytest.mark.skipif(None in NEEDED, reason="this needs: g++, CUDA, Compute Sanitizer")


@pytest.fixture(scope="module")
def fake_driver(tmp_path_factory):
    folder = tmp_path_factory.mktemp("native")
    (folder / "driver.c").write_text(DRIVER)
    compiler = str(TOOLKIT.compiler)
    library = ["-shared", "-fPIC", "-x", "c", str(folder / "driver.c")]
    subprocess.run([compiler, *library, "-o", str(folder / "libcuda.so.1")], check=True)
    folders = NATIVE, TOOLKIT.sanitizer / "include", TOOLKIT.headers
    includes = [f"-I{folder}" for folder in folders]
    sources = [str(HERE / "fake_driver.cpp"), str(NATIVE / "recorder.cpp")]
    options = ["-std=c++17", "-rdynamic", "-pthread", *includes]
    command = [compiler, *options, *sources, "-o", str(folder / "program"), "-ldl"]
    subprocess.run(command, check=True)
    return folder / "program"


@pytest.fixture
def run(fake_driver, tmp_path):
    """Return a function that runs one of the programs: what was recorded, and what it said."""

    def run_it(program, **settings):
        environment = {
            **os.environ, "DEPGRAPH_RECORD_FOLDER": str(tmp_path),
            "DEPGRAPH_RECORD_GPU_MEMORY": str(64 << 20),
            "LD_LIBRARY_PATH": str(fake_driver.parent), **settings,
        }  # fmt: skip
        done = subprocess.run(
            [str(fake_driver), program], env=environment, capture_output=True, text=True,
            check=True, timeout=60,
        )  # fmt: skip
        (left,) = read_raw_recordings(tmp_path)
        kernels = [event for event in left.events if event["event"] in {"kernel", "opaque"}]
        found = [(e["name"], e.get("state"), e.get("sectors")) for e in kernels]
        return found, done

    return run_it


A, B = ("a", "recorded", 1), ("b", "recorded", 1)


@pytest.mark.parametrize(
    "program",
    [
        "one launch after another",
        "a launch that no event ends",
        "a thread that launches while another one does",
        "a fork between two launches",
        "a capture elsewhere",
    ],
)
def test_both_launches_are_recorded(run, program):
    found, done = run(program)
    assert sorted(found) == [A, B]
    assert done.stderr.count("\n") == (program == "a capture elsewhere")  # which is not waited for


def test_a_forked_process_leaves_the_gpu_alone(run):
    _, done = run("a fork between two launches")
    assert done.stdout == "0\n"


def test_a_context_at_the_address_of_another_is_patched(run):
    found, done = run("a context made again")
    assert found == [A, B]
    assert done.stdout == "2\n"


def test_a_kernel_that_fails_is_named(run):
    found, done = run("a kernel that fails")
    assert found == [("a", "failed", None)]
    assert done.stderr.startswith("depgraph: a ended with ")


def test_launches_that_are_not_recorded_are_told_to_have_no_table(run):
    """What nobody told takes what a graph that is no more has left there."""
    found, done = run("launches that are left out", DEPGRAPH_RECORD_FIRST="1")
    assert found == [B]
    assert done.stdout == "0\n"


def test_host_memory_and_what_a_context_leaves_are_told(run, tmp_path):
    run("memory of a context that ends")
    (left,) = read_raw_recordings(tmp_path)
    told = [(e["event"], e["address"], e["context"]) for e in left.events if "address" in e]
    assert told == [
        ("alloc", 1, 0),
        ("alloc", 2, 0),
        ("free", 1, 0),
        ("free", 2, 0),
        ("alloc", 3, 1),
    ]


def test_what_orders_streams_is_told(run, tmp_path):
    run("streams and events")
    (left,) = read_raw_recordings(tmp_path)
    streams = [(e["stream"], e["kind"]) for e in left.events if e["event"] == "stream"]
    assert streams == [(0, 0), (1, 2), (2, 1)]
    orders = [(e["what"], e.get("id"), e.get("stream")) for e in left.events if "what" in e]
    assert orders == [
        ("record", 0, 1), ("wait", 0, 2), ("record", 1, 2), ("event", 1, None),
        ("event", 1, None), ("stream", None, 2), ("context", None, None),
    ]  # fmt: skip
    graphs = [(e["begins"], e.get("stream")) for e in left.events if e["event"] == "graph"]
    assert graphs == [(1, 0), (0, None)]


def test_nodes_that_nobody_sees_into_are_named(run):
    found, _ = run("a graph")
    assert found[0][:2] == ("a", "recorded")
    assert found[1] == ("elsewhere", "in another context than its graph", None)
    assert found[2][0] == "(a conditional node of a CUDA graph)"
    assert found[3] == B


@pytest.mark.parametrize("program", ["one launch after another", "a graph"])
def test_each_block_has_its_times(run, tmp_path, program):
    run(program, DEPGRAPH_RECORD_BLOCKS="1")
    (left,) = block_runs_in(tmp_path)
    found = {
        name: (spans.begin.tolist(), spans.duration.tolist(), spans.sm.tolist())
        for (name, _), spans in left.launches
        if spans is not None
    }
    assert found == {"a": ([0], [32], [0]), "b": ([0, 0], [32, 64], [0, 1])}
    assert left.clock_ns == 32


def test_more_blocks_than_there_is_room_for_have_no_times(run):
    found, _ = run("a large grid", DEPGRAPH_RECORD_BLOCKS="1")
    assert [state for _, state, _ in found] == ["no table", "recorded"]
