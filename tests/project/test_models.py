"""Public models: which are there, how others put operators on streams, and the page's tables."""

import json
import runpy
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from small_captures import captured, kernel, memory, operator  # noqa: E402

from depgraph.apply.may_sets import units_of  # noqa: E402
from depgraph.apply.order import masks_of, reduced  # noqa: E402
from depgraph.samples.models.rules import (  # noqa: E402
    nimble_streams,
    on_streams,
    opara_streams,
    operator_edges,
)
from depgraph.samples.models.zoo import MODELS, TRAINED, TWENTY  # noqa: E402

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
A, B, C, D, E, F = (memory(i) for i in range(6))


def test_there_are_sixty_models_twenty_beside_others_ten_trained():
    assert len(MODELS) >= 60
    assert len(set(TWENTY)) == 20
    assert len(set(TRAINED)) == 10
    assert {*TWENTY, *TRAINED} <= MODELS.keys()
    assert {each.package for each in MODELS.values()} == {
        "torchvision", "timm", "transformers", "torch_geometric", "torchaudio", "torch.nn",
    }  # fmt: skip


@pytest.mark.parametrize("name", [n for n, m in MODELS.items() if m.package == "torch.nn"])
def test_a_model_of_pytorch_takes_its_inputs(name):
    for batch in (1, 2):
        given_ = dict(MODELS[name].inputs(batch))
        with torch.no_grad():
            MODELS[name].make().eval()(*given_.pop("args", ()), **given_)


def test_edges_of_operators_are_those_of_whole_tensors():
    steps = [
        operator("relu", [A], [B]), operator("relu", [A], [C]), operator("add", [B, C], [D]),
        operator("add_", [C], [C]), kernel("k", A), operator("relu", [A], [E]),
    ]  # fmt: skip
    graph = captured(*steps)
    found = operator_edges(graph, units_of(graph, {}))
    assert found == [(0, 2), (0, 4), (1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4), (4, 5)]


FORK = [(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4)]


def test_an_operator_takes_the_stream_of_the_first_that_has_not_given_it_away():
    assert opara_streams(5, FORK) == [0, 0, 1, 2, 0]
    assert opara_streams(4, [(0, 1), (1, 2), (2, 3)]) == [0, 0, 0, 0]
    assert opara_streams(4, [(0, 2), (1, 2), (1, 3)]) == [0, 1, 0, 1]


def test_chains_of_a_matching_are_streams():
    assert nimble_streams(5, FORK) == [0, 0, 1, 2, 0]
    # A greedy choice of 0 -> 2 would leave three chains.
    assert len(set(nimble_streams(4, [(0, 2), (0, 3), (1, 2)]))) == 2
    assert on_streams(FORK, [0, 0, 1, 2, 0]) == FORK


def most_matched(n, edges):
    """Return the size of a maximum matching by trying all."""
    if not edges:
        return 0
    (a, b), *rest = edges
    left = [(c, d) for c, d in rest if c != a and d != b]
    return max(most_matched(n, rest), 1 + most_matched(n, left))


graphs = st.integers(1, 6).flatmap(
    lambda n: st.tuples(
        st.just(n),
        st.lists(st.sampled_from([(a, b) for b in range(n) for a in range(b)] or [(0, 0)]))
        .map(lambda edges: sorted({(a, b) for a, b in edges if a < b})),
    )
)  # fmt: skip


@given(graphs)
def test_there_are_as_few_chains_as_there_can_be_and_each_follows_edges(graph):
    n, edges = graph
    fewest, _ = reduced(masks_of(n, edges))
    streams = nimble_streams(n, edges)
    assert len(set(streams)) == n - most_matched(n, fewest)
    for stream in set(streams):
        chain = [node for node in range(n) if streams[node] == stream]
        assert all(pair in fewest for pair in pairwise(chain))


@given(graphs)
def test_streams_of_either_rule_keep_all_edges(graph):
    n, edges = graph
    for rule in (opara_streams, nimble_streams):
        _, closed = reduced(masks_of(n, on_streams(edges, rule(n, edges))))
        assert all(closed[b] >> a & 1 for a, b in edges)


@pytest.fixture
def program(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return runpy.run_path(str(BENCHMARKS / "models.py"))


def row(model, came, **more):
    return {
        "model": model,
        "type": "fp32",
        "batch": 1,
        "kind": "call",
        "came": came,
        "alone": True,
        "gpu": "NVIDIA H100 80GB HBM3",
        **more,
    }


ROWS = [
    row("a", "re-edged", captured=True, plain_call_us=20.0, call_us=10.0, nodes=3, graph="free"),
    row("b", "plain", captured=True, plain_call_us=20.0, call_us=20.0, nodes=3, graph="plain"),
    row("c", "refused", captured=True, why="draws random numbers on the CPU"),
    row("d", "refused", captured=False, why="cannot be captured: /v/site-packages/a.py:3: x.item()",
        not_captured="CUDA error"),
    row("e", "error", why="exit code 1"),
    row("f", "re-edged", captured=True, plain_call_us=9.0, call_us=1.0, nodes=3, graph="free")
    | {"alone": False},
    row("e", "re-edged", captured=True, plain_call_us=40.0, call_us=20.0, nodes=3, graph="free"),
    {
        **row("a", ""), "kind": "peers", "gpu": "NVIDIA H100 80GB HBM3",
        "ways": {
            "ours": {"us": 10.0, "bits_equal": True, "graph": "free", "graph_us": 8.0},
            "ours, compiled": {"why": "no compiler"},
            "eager": {"us": 40.0, "bits_equal": True}, "torch.compile": {"us": 6.0},
            "max-autotune": {"us": 5.0},
        },
    },
]  # fmt: skip


def test_the_tables_say_how_many_came_to_what(program, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in ROWS))
    text = program["tables"](program["read_rows"](path))
    assert "| calls | fp32 | 1 | 6 | 5 | 4 (80 %) | 3 | 1 | 2.00x |" in text
    assert "| f |  | calls | fp32 | 1 | 3 | - | - | - | free |" in text
    assert "| c |  | calls | fp32 | 1 | - | - | - | - | draws random numbers on the CPU |" in text
    assert (
        "| d |  | calls | fp32 | 1 | - | - | - | - | cannot be captured: a.py:3: x.item() |" in text
    )
    assert "| a | H100 | 10.0 | - | 40.0 | (6.0) | (5.0) |" in text
    assert "| the best of torch.compile | 1 | 0.50x | a |" in text
    assert "| eager | 1 | 4.00x | none |" in text
    assert "| max-autotune | 1 | 0.50x | a |" in text
    assert "- a, ours, compiled: no compiler" in text
    assert "- a, ours: the graph (free) takes 8.0 us by itself; the rest are guards" in text


def test_the_page_gets_its_tables_and_a_figure(program, tmp_path):
    rows, page = tmp_path / "rows.jsonl", tmp_path / "models.md"
    rows.write_text("".join(json.dumps(each) + "\n" for each in ROWS))
    page.write_text("a\n<!-- tables: begin -->\n<!-- tables: end -->\nb\n")
    program["main"](["--rows", str(rows), "--write", str(page)])
    assert "## Coverage" in page.read_text()
    assert "<svg" in page.with_suffix(".svg").read_text()
    once = page.with_suffix(".svg").read_bytes()
    program["main"](["--rows", str(rows), "--write", str(page)])
    assert page.with_suffix(".svg").read_bytes() == once


def test_what_ends_badly_is_a_row_and_what_is_there_is_not_measured_again(program, tmp_path):
    rows = tmp_path / "rows.jsonl"
    job = ("lstm", "fp32", 1, "call")
    program["measure"].__globals__["_MEASURE"] = "no_such_module"
    program["measure_all"]([job], rows, float("inf"), 60.0, 1)
    (found,) = program["read_rows"](rows).values()
    assert (found["came"], found["model"]) == ("error", "lstm")
    assert found["why"].endswith("No module named no_such_module")
    jobs = list(program["jobs"](["call"], ["lstm", "dlrm"]))
    waiting = [each for each in jobs if each not in program["read_rows"](rows)]
    assert job in jobs
    assert waiting == [each for each in jobs if each != job]
