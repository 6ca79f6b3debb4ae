"""Schedules for Accel-Sim: its list, streams and dependences, read back by the C++ in the docs."""

import gzip
import lzma
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from programs import edges_of
from random_programs import programs
from small_graphs import graph_of, kernels_of, scenario_of

from depgraph.errors import OutputError, OutputExistsError
from depgraph.graph.program import Copy
from depgraph.mechanisms import Charges, find_mechanisms
from depgraph.mechanisms.base import run_mechanism, serial
from depgraph.reports.export.accel_sim import streams_of, write_accel_sim
from depgraph.samples import sample_path
from depgraph.store.store import Store
from depgraph.trace.records import MEMSET, TO_DEVICE

HEADER = Path(__file__).resolve().parents[2] / "docs" / "simulators" / "dependences.h"
MAIN = """\
#include "dependences.h"
#include <cstdio>
int main(int, char **argv) {
    Dependences d(argv[1]);
    for (auto &o : d.operations)
        printf("operation %ld %ld %ld %s\\n", o.first, o.blocks, o.stream, o.command.c_str());
    for (auto &join : d.joins)
        for (long s : join.sources) for (long a : d.sets[s])
            for (long t : join.targets) for (long b : d.sets[t])
                printf("edge %ld %ld\\n", a, b);
    std::vector<bool> done(d.waits.size());
    for (bool goes_on = true; goes_on;) {
        goes_on = false;
        for (size_t b = 0; b < done.size(); b++)
            if (!done[b] && d.ready(b))
                d.ended(b), done[b] = goes_on = true, printf("ran %zu\\n", b);
    }
}
"""


@pytest.fixture(scope="session")
def reader(tmp_path_factory):
    """Compile the reader of the docs."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++ to compile the reader with")
    folder = tmp_path_factory.mktemp("reader")
    (folder / "main.cpp").write_text(MAIN)
    words = [compiler, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-I", str(HEADER.parent)]
    subprocess.run([*words, "main.cpp", "-o", "reader"], cwd=folder, check=True)
    return folder / "reader"


def read_back(reader, folder):
    """Return operations, edges and the order in which blocks were released."""
    out = subprocess.run(
        [reader, folder / "dependences.txt"], check=True, capture_output=True, text=True
    ).stdout
    lines = [line.split() for line in out.splitlines()]
    return (
        [tuple(words) for kind, *words in lines if kind == "operation"],
        {(int(a), int(b)) for kind, a, *rest in lines if kind == "edge" for b in rest},
        [int(b) for kind, b, *_ in lines if kind == "ran"],
    )


def pairs_of(graph):
    return {(source, target) for source, target, _ in edges_of(graph)}


def test_the_headers_of_the_docs_have_some_fifty_lines():
    for header in HEADER.parent.iterdir():
        lines = [line for line in header.read_text().splitlines() if line[:2] not in ("", "//")]
        assert len(lines) <= 60, header.name


def test_the_reader_finds_the_dependences_of_the_store(reader, sample_store, tmp_path):
    graph = sample_store.graph()
    program = scenario_of(graph, kernels=sample_store.kernels, sms=8)
    write_accel_sim(serial(program), program, sample_store.copies, tmp_path / "sim")
    operations, edges, ran = read_back(reader, tmp_path / "sim")
    assert edges == pairs_of(graph)
    assert sorted(ran) == list(range(graph.n_blocks))
    place = np.empty(graph.n_blocks, int)
    place[ran] = np.arange(graph.n_blocks)
    assert all(place[a] < place[b] for a, b in edges)
    assert [int(first) for first, *_ in operations] == graph.first_block[:-1].tolist()
    assert {stream for _, _, stream, _ in operations} == {"0"}


def test_a_list_has_copies_and_kernels_in_the_order_of_the_schedule(tmp_path):
    graph = graph_of([1] * 5, [((0, 0), (2, 0)), ((1, 0), (3, 0))])
    graph.kernel[:] = [-1, 0, 1, 2, -2]
    kernels = [k for k in kernels_of([1] * 5) if 0 < k.operation < 4]
    program = scenario_of(
        graph, [1, 5, 2, 2, 0], kernels=kernels, sms=2, metadata={"sources": [
            {"path": "/traces/kernel-3.traceg.xz"}, {"path": "/traces/kernelslist.g"},
        ]},
    )  # fmt: skip
    kernels[:] = [k.__class__(**{**_row(k), "trace_id": k.operation}) for k in kernels]
    (mechanism,) = find_mechanisms(["cuda-graph"])
    plan, _ = run_mechanism(mechanism, program, Charges(mechanism.costs))
    copies = [
        Copy(copy=0, operation=0, block=0, address=0x7F0000, size=64, source=None, what=TO_DEVICE),
        Copy(copy=1, operation=4, block=4, address=1, size=2, source=None, what=MEMSET),
    ]
    across = write_accel_sim(plan, program, copies, tmp_path / "sim")
    assert (tmp_path / "sim" / "kernelslist.g").read_text().split() == [
        "MemcpyHtoD,0x00000000007f0000,64", "kernel-1.traceg", "kernel-2.traceg",
        "kernel-3.traceg.xz",
    ]  # fmt: skip
    assert across == 0
    assert "operation 1 -1 unlisted:memset,2" in (
        (tmp_path / "sim" / "dependences.txt").read_text().splitlines()
    )


def _row(kernel):
    return {name: getattr(kernel, name) for name in kernel.__slots__}


@given(programs())
def test_no_two_kernels_of_a_stream_overlap(program):
    (mechanism,) = find_mechanisms(["dataflow"])
    plan, _ = run_mechanism(mechanism, program, Charges(mechanism.costs))
    first = program.graph.first_block[:-1]
    begin, end = np.minimum.reduceat(plan.start, first), np.maximum.reduceat(plan.end, first)
    stream = streams_of(begin, end, np.empty((0, 2), np.int32), program.is_kernel)
    for i in range(len(begin)):
        for j in range(i):
            assert stream[i] != stream[j] or end[i] <= begin[j] or end[j] <= begin[i]
    most = max(sum(b <= t < e for b, e in zip(begin, end, strict=True)) for t in begin)
    assert stream.max() + 1 == most


@pytest.mark.jit_only
@pytest.mark.skipif(shutil.which("xz") is None, reason="there is no xz to unpack traces with")
def test_traces_are_given_the_streams_of_the_schedule(program, tmp_path):
    traces = sample_path("accelsim/gru_train")
    assert program("extract", traces, "-o", "gru.out", "-q").code == 0
    words = ["export", "gru.out", "--what", "schedule", "--sms", 8, "--to", "accel-sim"]
    words.append("--as-is")
    found = program(*words, "-o", "sim")
    assert found.code == 0
    assert "between kernels of different streams" in found.err
    assert "0842752" in found.err
    assert "made up" not in found.err
    subprocess.run([tmp_path / "sim" / "set-streams.sh", traces], check=True)
    lines = (tmp_path / "sim" / "set-streams.sh").read_text().splitlines()
    streams = dict(line.split()[1:] for line in lines if line.startswith("trace kernel"))
    assert len(set(streams.values())) > 1
    for name, stream in streams.items():
        with lzma.open(tmp_path / "sim" / name, "rt") as file:
            header = [next(file) for _ in range(8)]
        assert f"-cuda stream id = {stream}\n" in header
    assert program("extract", "sim", "-o", "again.out", "-q").code == 0
    read = {f"kernel-{k.trace_id}.traceg.xz": str(k.stream) for k in Store("again.out").kernels}
    assert read == streams
    assert program(*words, "-o", "sim").code == 1
    assert program(*words, "-o", "sim", "--force").code == 0
    assert program(*words, "-o", "-").code == 2


@pytest.mark.jit_only
def test_copies_of_traces_are_mended_and_have_the_same_dependences(program, tmp_path):
    traces = sample_path("accelsim/gru_train")
    assert program("extract", traces, "-o", "gru.out", "-q").code == 0
    words = ["export", "gru.out", "--what", "schedule", "--sms", 8, "--to", "accel-sim"]
    found = program(*words, "-o", "sim")
    assert found.code == 0
    assert "EXIT masks 1" in found.err
    assert "kernel-7.traceg.xz: EXIT masks: 1" in (tmp_path / "sim/mended.txt").read_text()
    assert not (tmp_path / "sim/set-streams.sh").exists()
    assert program("extract", "sim", "-o", "again.out", "-q").code == 0
    first, again = Store("gru.out"), Store("again.out")
    assert edges_by_trace(first) == edges_by_trace(again)
    assert {k.architecture for k in again.kernels} == {80}
    (tmp_path / "elsewhere").mkdir()
    gone = program(*words, "-o", "other", "--traces", "elsewhere")
    assert (gone.code, (tmp_path / "other").exists()) == (1, False)
    assert "--as-is" in gone.err
    assert program(*words, "-o", "other", "--traces", traces, "--as-is").code == 2


def edges_by_trace(store):
    ids = {kernel.kernel: kernel.trace_id for kernel in store.kernels}
    graph = store.graph()
    kernel, index = graph.block_names()
    return {
        frozenset([(ids[kernel[s]], index[s]), (ids[kernel[t]], index[t])])
        for s, t in pairs_of(graph)
    }


RULE = """\
#include "block_rule.h"
#include <cstdio>
#include <deque>
int main(int, char **argv) {
    BlockRule rule(argv[1]);
    std::deque<long> running;
    for (long turn = 0;; turn++) {
        long block = rule.next([](long) { return true; });
        if (block >= 0 && running.size() < 5) {
            rule.issued(block), running.push_back(block), printf("begin %ld\\n", block);
            if (rule.index_of(block) < 0) return 1;
        } else if (!running.empty()) {
            long last = turn % 2 ? running.back() : running.front();
            turn % 2 ? running.pop_back() : running.pop_front();
            printf("end %ld\\n", last), rule.ended(last);
        } else break;
    }
}
"""


def test_the_rule_begins_every_block_once_all_it_waits_for_have_ended(sample_store, tmp_path):
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++ to compile the rule with")
    graph = sample_store.graph()
    scenario = scenario_of(graph, kernels=sample_store.kernels, sms=8)
    write_accel_sim(serial(scenario), scenario, sample_store.copies, tmp_path / "sim")
    (tmp_path / "rule.cpp").write_text(RULE)
    words = [compiler, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-I", str(HEADER.parent)]
    subprocess.run([*words, "rule.cpp", "-o", "rule"], cwd=tmp_path, check=True)
    out = subprocess.run(
        [tmp_path / "rule", tmp_path / "sim/dependences.txt"],
        check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    when = {line: i for i, line in enumerate(out)}
    is_kernel = scenario.is_kernel[graph.operation_of_block]
    for block in np.flatnonzero(is_kernel).tolist():
        assert when[f"begin {block}"] < when[f"end {block}"]
    for a, b in pairs_of(graph):
        if is_kernel[a] and is_kernel[b]:
            assert when[f"end {a}"] < when[f"begin {b}"]


KERNEL = '[[kernel]]\nname = "{}"\ngrid = 2\nduration = 9\n'
LAUNCH = """\
[[launch]]
parent = "b"
block = 0
child_grid = 1
child_duration = 5
inline = 20
"""


@pytest.fixture
def described(program, tmp_path):
    """Return a function that exports a described program of two kernels for Accel-Sim."""

    def export(launch, *words):
        text = KERNEL.format("a") + KERNEL.format("b") + launch
        (tmp_path / "p.toml").write_text(text)
        assert program("extract", "p.toml", "-o", "p.out", "-q").code == 0
        words = ["--what", "schedule", "--to", "accel-sim", "--sms", 2, "-o", "sim", *words]
        found = program("export", "p.out", *words)
        assert (tmp_path / "sim").exists() == (found.code == 0)
        return found.code, " ".join(found.err.split())

    return export


def test_child_kernels_have_no_trace(described):
    code, said = described(LAUNCH, "--mechanism", "cdp")
    assert code == 1
    assert "Accel-Sim launches no child kernels" in said


def test_merged_kernels_have_no_trace(described):
    code, said = described("", "--what-if", "merge=0,1")
    assert code == 1
    assert "merged kernels have no trace" in said


def test_it_is_said_that_a_described_program_has_no_traces(described):
    code, said = described("")
    assert code == 0
    assert "names in kernelslist.g are made up" in said


@pytest.mark.skipif(shutil.which("gzip") is None, reason="there is no gzip to unpack traces with")
def test_traces_that_cannot_be_copied_end_the_script(tmp_path):
    program = scenario_of(
        graph_of([1], []), kernels=kernels_of([1]), sms=1,
        metadata={"sources": [{"path": "kernel-1.traceg.gz"}]},
    )  # fmt: skip
    write_accel_sim(serial(program), program, [], tmp_path / "sim")
    (tmp_path / "traces").mkdir()
    trace, copied = (tmp_path / name / "kernel-1.traceg.gz" for name in ("traces", "sim"))

    def said(folder):
        words = [tmp_path / "sim" / "set-streams.sh", tmp_path / folder]
        found = subprocess.run(words, capture_output=True, text=True, check=False)
        assert found.returncode == (1 if found.stderr else 0)
        return found.stderr

    assert said("traces") == f"set-streams.sh: cannot read {trace}\n"
    assert not copied.exists()
    trace.write_bytes(b"no gzip")
    assert f"set-streams.sh: cannot unpack {trace}\n" in said("traces")
    assert not copied.exists()
    trace.write_bytes(gzip.compress(b"-cuda stream id = 7\n#\n"))
    assert said("traces") == ""
    assert gzip.decompress(copied.read_bytes()) == b"-cuda stream id = 0\n#\n"
    assert "not this one" in said("sim")
    assert gzip.decompress(copied.read_bytes()) == b"-cuda stream id = 0\n#\n"


def test_a_folder_of_something_else_is_not_replaced(tmp_path):
    graph = graph_of([1], [])
    program = scenario_of(graph, kernels=kernels_of([1]), sms=1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(OutputExistsError):
        write_accel_sim(serial(program), program, [], tmp_path / "mine")
    with pytest.raises(OutputError, match=r"has no dependences\.txt"):
        write_accel_sim(serial(program), program, [], tmp_path / "mine", force=True)
