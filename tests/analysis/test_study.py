"""What the reports are made from: slack, the matrix of a pair, curves, what each kind costs."""

import numpy as np
import pytest
from small_graphs import chain_edges, graph_of, kernels_of, scenario_of

from depgraph.analysis.study import study, sweep_sizes
from depgraph.errors import ModelError
from depgraph.graph.queries import clearest_pair, kernel_slacks, pair_matrix


def study_of(graph, sms=2, **options):
    sizes = np.diff(graph.first_block).tolist()
    return study(scenario_of(graph, kernels=kernels_of(sizes), sms=sms), **options)


def test_a_kernel_off_the_critical_path_has_slack():
    # 0 -> 2 takes 5 + 1; kernel 1 takes 2 and nothing waits for it.
    graph = graph_of([1, 1, 1], [((0, 0), (2, 0))])
    slacks = kernel_slacks(graph, np.array([5.0, 2.0, 1.0]))
    assert [s.slack for s in slacks] == [0, 4, 0]
    assert [s.critical_blocks for s in slacks] == [1, 0, 1]


def test_slack_is_that_of_the_tightest_block():
    graph = graph_of([2, 2], [((0, 0), (1, 0)), ((0, 1), (1, 1))])
    slacks = kernel_slacks(graph, np.array([3.0, 1.0, 1.0, 1.0]))
    assert [(s.slack, s.critical_blocks, s.blocks) for s in slacks] == [(0, 1, 2), (0, 1, 2)]


def test_the_matrix_of_a_pair_has_a_one_for_each_edge():
    edges = [((0, 0), (1, 0)), ((0, 1), (1, 0)), ((0, 2), (1, 1)), ((0, 2), (1, 1), "WAW")]
    matrix = pair_matrix(graph_of([3, 2], edges), 0, 1)
    assert matrix.density.tolist() == [[1, 1, 0], [0, 0, 1]]
    assert not matrix.is_binned


def test_a_large_matrix_is_binned_to_the_share_of_edges():
    sizes = [6, 4]
    graph = graph_of(sizes, [((0, b), (1, b)) for b in range(4)])
    matrix = pair_matrix(graph, 0, 1, size=2)
    assert matrix.density == pytest.approx(np.array([[2 / 6, 0], [1 / 6, 1 / 6]]))
    assert matrix.is_binned


def test_an_inexact_matrix_agrees_where_no_edge_is_of_two_kinds(monkeypatch):
    graph = graph_of([60, 40], [((0, b), (1, b)) for b in range(40)])
    exact = pair_matrix(graph, 0, 1, size=16)
    monkeypatch.setattr("depgraph.graph.queries._EXACT_CELLS", 0)
    assert pair_matrix(graph, 0, 1, size=16).density == pytest.approx(exact.density)


def test_a_pair_that_does_not_exist_is_named():
    with pytest.raises(ModelError, match="no kernel 7"):
        pair_matrix(graph_of([1, 1], []), 7, 1)


def test_the_telling_pair_is_no_all_to_all_if_there_is_another():
    all_to_all = [((0, a), (1, b)) for a in range(3) for b in range(3)]
    pairs = graph_of([3, 3, 3], [*all_to_all, *[((1, b), (2, b)) for b in range(3)]]).pairs()
    assert clearest_pair(pairs) == (1, 2)
    assert clearest_pair([]) is None


def test_what_each_kind_costs():
    # Without WAR, kernels 0 and 1 run side by side.
    graph = graph_of([1, 1], [((0, 0), (1, 0), "WAR")])
    costs = {cost.name: cost for cost in study_of(graph).costs}
    assert costs["RAW"].upper_bound == costs["RAW + WAW"].upper_bound == 2
    assert costs["RAW + WAR"].upper_bound == costs["RAW + WAR + WAW"].upper_bound == 1
    assert costs["RAW + WAR"].edges == 1


def test_false_sharing_is_what_a_coarser_graph_adds():
    fine = graph_of([2, 2], [((0, 0), (1, 0))])
    coarse = graph_of([2, 2], [((0, 0), (1, 0)), ((0, 1), (1, 0))], cost=[1, 1, 1, 1])
    last = study_of(fine, coarse=coarse).costs[-1]
    assert (last.name, last.edges) == ("with false sharing", 2)


def test_the_curve_bends_where_work_equals_the_critical_path():
    sizes = [6, 6]
    found = study_of(graph_of(sizes, chain_edges(sizes)))
    assert found.bend == 6
    assert {curve.name for curve in found.curves} == {
        "upper bound", "upper bound, RAW only",
        "best dataflow", "best dataflow, RAW only",
    }  # fmt: skip
    for bound, reached in zip(found.curves[::2], found.curves[1::2], strict=True):
        assert all(b >= r - 1e-9 for b, r in zip(bound.speedup, reached.speedup, strict=True))


@pytest.mark.parametrize("sms", [1, 3, 80, 132])
def test_a_sweep_is_ascending_and_holds_the_size_asked_for(sms):
    sizes = sweep_sizes(sms)
    assert sizes == sorted(set(sizes))
    assert {1, sms} <= set(sizes)
    assert sizes[-1] >= 4 * sms
