"""The native recorder without a GPU: a driver that only calls it (fake_driver.cpp)."""

import os
import re
import subprocess
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from depgraph.parsers.recording.archive import SECTORS
from depgraph.recorder.raw_recording import first_fault_in, read_raw_recordings
from depgraph.recorder.times import block_runs_in
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

/* Graph 0x10: a kernel, behind it a graph, 0x20, of one kernel, and beside that an empty node;
   graph 0x30 cannot be read. Graph 0x40: a kernel behind another, and once it is destroyed a node
   between them and one that waits for no end. */
int cuGraphGetNodes(long graph, long *nodes, long *n) {
    if (graph == 0x30) return 1;
    *n = graph == 0x10 ? 3 : graph == 0x40 ? 2 : 1;
    if (nodes && graph == 0x40) nodes[0] = 0x400, nodes[1] = 0x401;
    if (nodes && graph == 0x10) nodes[0] = 0x100, nodes[1] = 0x110, nodes[2] = 0x120;
    if (nodes && graph == 0x20) nodes[0] = 0x200;
    return 0;
}
int cuGraphGetEdges_v2(long graph, long *from, long *to, char (*ports)[8], long *n) {
    *n = graph == 0x10 ? 2 : graph == 0x40;
    if (from && graph == 0x40) from[0] = 0x400, to[0] = 0x401, ports[0][0] = 0;
    if (from && graph == 0x10) {
        from[0] = from[1] = 0x100, to[0] = 0x110, to[1] = 0x120;
        ports[0][0] = 0, ports[1][0] = 2;
    }
    return 0;
}
int cuGraphNodeGetDependencies_v2(long node, long *before, char (*ports)[8], long *n) {
    *n = node == 0x411 || node == 0x412 || node == 0x413;
    if (before) before[0] = node == 0x411 ? 0x412 : 0x410, ports[0][0] = node == 0x413 ? 2 : 0;
    return 0;
}
int cuGraphNodeGetType(long node, int *type) { *type = node == 0x110 ? 4 : 0; return 0; }
int cuGraphChildGraphNodeGetGraph(long node, long *graph) { *graph = 0x20; return 0; }
int cuGraphMemcpyNodeGetParams(long node, int *what) { what[8] = node == 0x500 ? 3 : 2; return 0; }
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


# Names that API 12.9, 13.1 or both do not have.
NEWER = re.compile(
    "TMA_LOAD|CBID_MEMCPY_BATCH_|BATCH_MEMOP_WAIT|(_v2|_v2_ptsz) += 8[23]|WithAttr|FLAG_SCOPE_"
)


def test_an_older_api_will_do_without_loads_of_tiles(tmp_path):
    for header in (TOOLKIT.sanitizer / "include").glob("*.h"):
        lines = header.read_text().splitlines(keepends=True)
        (tmp_path / header.name).write_text("".join(x for x in lines if not NEWER.search(x)))
    includes = [f"-I{folder}" for folder in (tmp_path, NATIVE, TOOLKIT.headers)]
    options = ["-std=c++17", "-fsyntax-only", "-DDEPGRAPH_NO_TILES", *includes]
    subprocess.run([str(TOOLKIT.compiler), *options, str(NATIVE / "recorder.cpp")], check=True)


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
        left = read_raw_recordings(tmp_path)[0]
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


def test_a_large_table_is_read_piece_by_piece(run, tmp_path):
    found, _ = run("a kernel that touches 96 MB of sectors", DEPGRAPH_RECORD_GPU_MEMORY="268435456")
    assert found == [("a", "recorded", 3_000_000), B]
    (left,) = read_raw_recordings(tmp_path)
    first, second = (event for event in left.events if event["event"] == "kernel")
    rows = np.frombuffer(left.tables.tobytes(), SECTORS)
    assert np.array_equal(rows["number"][:-1], 4096 + np.arange(3_000_000, dtype=np.uint64))
    assert second["sectors_at"] == first["sectors_at"] + rows[:-1].nbytes
    assert rows[-1]["launch"] == second["number"]


def test_a_table_that_cannot_be_read_costs_its_kernel_alone(run, tmp_path):
    found, _ = run("a table that cannot be read")
    assert [state for _, state, _ in found] == ["failed", "recorded"]
    assert first_fault_in(tmp_path) == "reading: an error"


def test_what_a_process_did_before_it_runs_another_program_is_kept(run, tmp_path):
    run("a program that runs another in its place")
    found = [
        [event["name"] for event in left.events if event["event"] == "kernel"]
        for left in read_raw_recordings(tmp_path)
    ]
    assert sorted(found) == [["a"], ["a", "b"]]


def test_files_that_the_program_opens_where_it_closed_ours_are_its_own(run, tmp_path):
    found, _ = run("a program that closes all files")
    assert found == [A, B]
    assert [(tmp_path / name).read_bytes() for name in ("own-1", "own-2")] == [b"", b""]


def test_a_program_with_a_limit_of_file_sizes_runs_on(run, tmp_path):
    found, _ = run("files that may be no larger than a megabyte")
    assert [state for _, state, _ in found] == ["failed", "failed"]
    assert first_fault_in(tmp_path) == "writing: File too large"


def test_a_kernel_outlives_its_context(run):
    assert run("a context that ends while a kernel runs in it")[0] == [A]


def test_what_is_mapped_is_told(run, tmp_path):
    run("memory at several addresses")
    (left,) = read_raw_recordings(tmp_path)
    told = [(e["event"], e.get("address"), e["memory"]) for e in left.events if "memory" in e]
    assert told == [("map", 1 << 21, 7), ("multicast", None, 9), ("multicast", None, 9)]


def test_a_copy_of_an_array_is_opaque(run, tmp_path):
    """The API tells nothing of it; one that fails, or is captured, is none."""
    found, _ = run("copies of rows and of an array")
    copy = ("(a copy of an array)", None, None)
    assert found == [A, *5 * [copy]]
    (left,) = read_raw_recordings(tmp_path)
    stream_of = [event["stream"] for event in left.events if event["event"] == "opaque"]
    assert stream_of == [0, 1, 2, 1, 1]  # the default one, that of the copy, and that of the thread


def test_a_copy_of_an_array_by_a_node_of_a_graph_is_opaque(run, tmp_path):
    found, _ = run("a graph that copies an array")
    copy = ("(a copy of an array)", None, None)
    assert found == [A, copy, copy]
    (left,) = read_raw_recordings(tmp_path)
    assert [event["from"] for event in left.events if event["event"] == "copy"] == [16]


def test_a_kernel_may_have_no_name(run):
    assert run("a kernel without a name")[0] == [("", "recorded", 1)]


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
    assert streams == [(0, 0), (1, 2), (2, 1), (3, 1)]
    orders = [(e["what"], e.get("id"), e.get("stream")) for e in left.events if "what" in e]
    assert orders == [
        ("record", 0, 1), ("wait", 0, 2), ("record", 1, 2), ("event", 1, None),
        ("event", 1, None), ("record", 2, 0), ("record", 3, 3), ("stream", None, 2),
        ("context", None, None),
    ]  # fmt: skip
    graphs = [(e["begins"], e.get("stream")) for e in left.events if e["event"] == "graph"]
    assert graphs == [(1, 0), (0, None)]


def test_edges_of_graphs_are_told_with_nodes(run, tmp_path):
    run("graphs with edges")
    (left,) = read_raw_recordings(tmp_path)
    told = [
        (e["event"], e.get("pairs", e.get("node")), e.get("graph"))
        for e in left.events
        if e["event"] in {"edges", "kernel"} or e.get("begins")
    ]
    # The graph inside lies between nodes 1 and 3; the other edge is no order of what they touch.
    first = [[1, 3], [1, 2], [2, 3], [0, 1]]
    gone = [[0, 1], [2, 4], [4, 3]]  # of other handles, with a node between that launches nothing
    assert told == [
        ("edges", first, 0), ("graph", None, 0), ("kernel", 0, 1), ("kernel", 2, 1),
        ("graph", None, 0), ("kernel", 0, 1), ("kernel", None, 1),
        ("graph", None, None), ("kernel", None, 1),
        ("edges", [[0, 1]], 2), ("graph", None, 2), ("kernel", 0, 1), ("kernel", 1, 1),
        ("edges", gone, 2), ("graph", None, 2),
        ("kernel", 2, 1), ("kernel", 3, 1), ("kernel", 5, 1),
        ("graph", None, 2), ("kernel", 2, 1), ("kernel", 3, 1),
        ("graph", None, None), ("kernel", None, 1),
    ]  # fmt: skip
    turns = [(e["what"], e["id"]) for e in left.events if e["event"] == "sync"]
    taken = [0, 0, 1, 2, 2, 2]
    assert turns == [(what, turn) for turn in taken for what in ("wait", "record")]


def test_what_another_thread_does_stands_beside_a_launch_of_a_graph(run, tmp_path):
    run("a launch of another thread beside a graph")
    (left,) = read_raw_recordings(tmp_path)
    told = [e.get("name", e["event"]) for e in left.events if e["event"] in {"kernel", "graph"}]
    assert told == ["b", "graph", "a", "c", "graph"]


def test_nodes_that_nobody_sees_into_are_named(run):
    found, _ = run("a graph")
    assert found[0][:2] == ("a", "recorded")
    assert found[1] == ("elsewhere", "in another context than its graph", None)
    assert found[2][0] == "(a conditional node of a CUDA graph)"
    assert found[3] == B


def test_nodes_of_a_graph_need_nothing_that_is_copied_for_them_alone(run, tmp_path):
    found, _ = run("a graph whose nodes begin before what is copied for them")
    assert found == [("a", "recorded", 2), ("b", "recorded", 2)]  # which share a table
    (left,) = read_raw_recordings(tmp_path)
    rows = np.frombuffer(left.tables.tobytes(), SECTORS)
    assert rows["launch"].tolist() == [e["grid_id"] for e in left.events if e["event"] == "kernel"]


@pytest.mark.parametrize(
    "program",
    [
        "one launch after another",
        "a graph",
        "a graph whose nodes begin before what is copied for them",
    ],
)
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


@pytest.mark.parametrize(
    ("program", "states"),
    [
        ("a large grid", ["no table", "recorded"]),
        ("a graph that is filled by one of its nodes", ["recorded", "no table"]),
    ],
)
def test_more_blocks_than_there_is_room_for_have_no_times(run, program, states):
    found, _ = run(program, DEPGRAPH_RECORD_BLOCKS="1")
    assert [state for _, state, _ in found] == states
