"""`depgraph apply` and `export --what cuda-graph`, without a GPU."""

import csv
import json
import re
import sys
from dataclasses import replace

import pytest

from depgraph.apply.applied import Applied, Tried, write_applied
from depgraph.apply.captured import write_captures
from depgraph.apply.plan import EdgeReason
from depgraph.apply.recorded import captures_of
from depgraph.store.store import Store

LANES = "free, 8 lanes"
FAST = Applied(
    name="Ensemble", gpu="NVIDIA H100", nodes=98, kernels=98,
    tried=(
        Tried("as captured", 97, 270.0, 272.0), Tried(LANES, 40, 50.0, 52.0, orders=11),
        Tried("branches, 8 lanes", 95, 268.0, 265.0, "it differs from the function: call 1"),
    ),
    chosen=LANES, plain_call_us=275.0, call_us=55.0, more_bytes=1 << 20, inputs=3, guards=52,
    edges=(EdgeReason("tensors that one writes and the other uses", 90, 12.5, (("mm", "add"),)),),
    fixed={"host function": 2}, notes=("drawn with seed 7",),
)  # fmt: skip
PROGRAM = """
import os, pathlib, shutil, sys
folder, store = (os.environ["DEPGRAPH_APPLY_" + name] for name in ("REPORT", "STORE"))
if {left!r}:
    shutil.copy({left!r}, pathlib.Path(folder) / "applied-1.json")
print("memory", os.environ.get("DEPGRAPH_APPLY_MEMORY"))
sys.exit({code})
"""


@pytest.fixture
def applying(tmp_path, sample_store):
    """Return the words that apply a program which leaves what came of it."""
    store = sample_store.path
    write_captures(captures_of(store), [], store=sample_store.identity)

    def words(found=(FAST,), code=0):
        left = tmp_path / "left.json"
        write_applied(left, list(found))
        path = tmp_path / "infer.py"
        path.write_text(PROGRAM.format(left=str(left) if found else "", code=code))
        return [str(store), "--", sys.executable, str(path)]

    yield words
    captures_of(store).unlink()


def test_predicted_stands_beside_measured(program, applying):
    words = applying()
    result = program("apply", "--details", *words)
    assert result.code == 0, result.err
    first = "Ensemble: 55.00 us a call instead of 275.0 us: 5.00x, predicted 5.40x"
    assert result.out.splitlines()[0] == first
    said = " ".join(result.out.split())
    assert "compared with the function on 3 inputs, in 11 orders of its kernels" in said
    assert "2 nodes in place (host function)" in said
    assert "is not used: it differs from the function: call 1" in said
    assert "drawn with seed 7" in said
    (row,) = json.loads(program("apply", "--format", "json", *words).out)["programs"]
    assert (row["applied_measured_us"], row["call_us"], row["orders"]) == (52.0, 55.0, 11)


def test_details_show_every_graph_and_what_keeps_kernels_in_order(program, applying):
    words = applying()
    assert "branches" not in program("apply", *words).out.split("the graph")[0]
    shown = program("apply", "--details", *words).out
    assert re.search(r"free, 8 lanes +40 +50.00 +52.00 +11 +used", shown)
    assert re.search(r"tensors that one writes and the +90 +12.50 +mm before add", shown)


def test_predicted_times_have_their_range_where_it_is_known(program, applying):
    ranged = replace(FAST, tried=tuple(
        replace(each, predicted_low=45.0, predicted_high=58.5) for each in FAST.tried
    ))  # fmt: skip
    rows = json.loads(program("apply", "--format", "json", *applying([ranged])).out)["graphs"]
    assert [row["predicted_us"] for row in rows] == [each.predicted for each in FAST.tried]
    assert {(row["predicted_low_us"], row["predicted_high_us"]) for row in rows} == {(45.0, 58.5)}


def test_what_gained_nothing_says_so(program, applying):
    plain = replace(FAST, chosen="as captured", call_us=275.0)
    said = program("apply", *applying([plain])).out
    assert said.startswith("Ensemble: 275.0 us a call: nothing to gain\n")


def test_rows_are_added_to_a_file(program, applying, tmp_path):
    for _ in range(2):
        assert program("apply", "--add-to", "rows.jsonl", *applying()).code == 0
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["speedup"] for row in rows] == [275 / 55] * 2
    assert all(row["bit_equal"] for row in rows)


def test_memory_is_handed_on(program, applying):
    for size in ("64MiB", "32MiB", "0"):
        assert program("apply", "--max-extra-memory", size, *applying()).code == 0
    wrong = program("apply", "--max-extra-memory", "much", *applying())
    assert wrong.code == 2
    assert "--max-extra-memory" in wrong.err


def test_a_program_must_be_given(program):
    result = program("apply")
    assert result.code == 2
    assert "give the program behind --" in result.err


def test_a_program_that_is_not_there_is_one_line(program):
    result = program("apply", "--", "no-such-program")
    assert result.code == 1
    assert result.err.startswith("depgraph: error: no-such-program: No such file")
    assert result.err.count("\n") == 1


def test_a_store_of_another_program_is_refused(program, sample_store):
    result = program("apply", str(sample_store.path), "--", "true")
    assert result.code == 1
    assert "recorded without depgraph.torch.parallelize" in result.err
    assert result.err.count("\n") == 1


def test_a_program_that_does_not_call_it_is_told(program, applying):
    result = program("apply", *applying(found=()))
    assert result.code == 1
    assert "did not call depgraph.torch.parallelize" in result.err


def test_the_code_of_the_program_is_the_command_s(program, applying):
    assert program("apply", *applying(code=7)).code == 7


def exported(program, store, form):
    result = program("export", str(store), "--what", "cuda-graph", "--to", form, "-o", "-")
    assert result.code == 0, result.err
    return result.out


def test_edges_of_a_cuda_graph_order_all_that_depends(program, sample_store):
    """Whatever depends on something comes after it, by edges none of which others imply."""
    rows = list(csv.DictReader(exported(program, sample_store.path, "csv").splitlines()))
    edges = [(int(row["source_kernel"]), int(row["target_kernel"])) for row in rows]
    after = {}
    for source, target in sorted(edges, key=lambda e: e[1]):
        after.setdefault(target, set()).update({source}, after.get(source, ()))
    pairs = {(p.source, p.target) for p in Store(sample_store.path).pairs}
    assert pairs <= {(a, b) for b, sources in after.items() for a in sources}
    assert set(edges) <= pairs
    assert len(edges) < len(pairs)


def test_streams_and_events_bring_every_edge(program, sample_store):
    """Walk the listing as a GPU would: a launch is behind its stream's last, and what it awaits."""
    nodes = json.loads(exported(program, sample_store.path, "json"))["nodes"]
    done, last = {}, {}
    for node in nodes:
        behind = set()
        for other in (last.get(node["stream"]), *node["waits_for"]):
            if other is not None:
                behind |= done[other] | {other}
        done[node["kernel"]] = behind
        last[node["stream"]] = node["kernel"]
        assert set(node["depends_on"]) <= behind
    text = exported(program, sample_store.path, "txt")
    waiting = next(node for node in nodes if len(node["waits_for"]) == 1)
    (awaited,) = waiting["waits_for"]
    line = f"// kernel {waiting['kernel']} on stream {waiting['stream']}, wait for kernel {awaited}"
    assert line in text
    assert f"cudaStreamWaitEvent(s{waiting['stream']}, e{awaited}, 0);" in text
    assert text.count("cudaEventRecord(") == len({n for each in nodes for n in each["waits_for"]})


def test_a_cuda_graph_obeys_all_dependences(program, sample_store):
    words = ["--what", "cuda-graph", "-o", "g.csv", "--deps", "raw"]
    refused = program("export", str(sample_store.path), *words)
    assert refused.code == 2
    assert "--deps does not go with --what cuda-graph" in refused.err
