"""Kernels and pairs by function, operator, module, line or range."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from programs import graphs
from small_graphs import chain_edges, graph_of, kernels_of, scenario_of

from depgraph.analysis.kernel_groups import (
    GROUPINGS,
    group_kernels,
    group_names,
    group_pairs,
)
from depgraph.errors import ModelError
from depgraph.timing.profile import Site

SIZES = [2, 3, 1]
NAMES = ["void gemm<float>(int)", "relu", "void gemm<half>(int)"]
SITES = {0: Site(op="aten::mm", module="Net/Linear_0"), 1: Site(op="aten::relu")}


def program(sites=None):
    graph = graph_of(SIZES, [*chain_edges(SIZES), ((0, 0), (2, 0), "WAR")])
    return scenario_of(graph, kernels=kernels_of(SIZES, NAMES), sites=sites or {})


def test_functions_are_told_by_their_bare_names():
    assert group_names(program(), "name") == {0: "gemm", 1: "relu", 2: "gemm"}
    found = group_kernels(program(), "name")
    assert [(g.group, g.kernels, g.blocks, g.time) for g in found] == [
        ("gemm", 2, 3, None), ("relu", 1, 3, None),
    ]  # fmt: skip
    assert found[0].read_bytes == 4 * 3


def test_what_no_profile_tells_is_unknown():
    assert group_names(program(SITES), "module") == {0: "Net/Linear_0", 1: "unknown", 2: "unknown"}


@pytest.mark.parametrize(
    ("by", "hint"),
    [("module", "with_stack=True"), ("range", "record_function"), ("op", "ProfilerActivity.CPU")],
)
def test_it_is_said_how_to_get_a_profile_that_tells(by, hint):
    with pytest.raises(ModelError, match=f"no profile says the {by} of a kernel: pass.*{hint}"):
        group_names(program(), by)


def test_there_is_no_other_group():
    with pytest.raises(ModelError, match="grouped by name, op, module, line, range, not 'x'"):
        group_names(program(), "x")
    assert len(GROUPINGS) == 5


def test_pairs_are_added_up():
    scenario = program()
    found = group_pairs(scenario.graph.pairs(), group_names(scenario, "name"))
    assert [(g.source, g.target, g.pairs, g.raw, g.war) for g in found] == [
        ("gemm", "relu", 1, 2, 0), ("gemm", "gemm", 1, 0, 1), ("relu", "gemm", 1, 1, 0),
    ]  # fmt: skip


def test_copies_of_one_kind_are_a_group():
    scenario = program()
    pairs = [replace(pair, source=-1 - i) for i, pair in enumerate(scenario.graph.pairs())]
    copies = {-1: "memset", -2: "memcpy HtoD", -3: "memset"}
    found = group_pairs(pairs, group_names(scenario, "name") | copies)
    assert {g.source for g in found} == {"memset", "memcpy HtoD"}


@given(graphs())
def test_no_edge_is_lost(graph):
    pairs = graph.pairs()
    groups = dict(enumerate("ab" * graph.n_operations))
    found = group_pairs(pairs, groups)
    assert sum(g.edges for g in found) == sum(p.edges for p in pairs)
    counts = Counter((groups[p.source], groups[p.target]) for p in pairs)
    assert {(g.source, g.target): g.pairs for g in found} == counts


def test_nodes_of_networkx_know_name_duration_and_place():
    result = replace(program(SITES), sms=2).to_networkx()
    assert result.nodes[0] == {
        "blocks": 2, "name": "gemm", "duration": 1.0, "op": "aten::mm", "module": "Net/Linear_0",
    }  # fmt: skip
    # Three blocks on two SMs, one at a time each.
    assert result.nodes[1]["duration"] == 2
    assert "op" not in result.nodes[2]
    assert program().to_networkx().nodes[1]["duration"] == 1
    assert program().to_networkx("block").nodes[1, 2] == {"duration": 1.0}
