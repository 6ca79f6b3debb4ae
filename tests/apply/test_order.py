"""Edges as bits: the fewest that keep an order, branches, and orders that turn pairs around."""

from __future__ import annotations

import itertools

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depgraph.apply.order import (
    adversarial_orders,
    along_branches,
    branches_of,
    chain,
    masks_of,
    nodes_of,
    postponing,
    reduced,
)

N = 7
PAIRS = list(itertools.combinations(range(N), 2))
edges = st.lists(st.sampled_from(PAIRS), unique=True)
DIAMOND = [(0, 1), (0, 2), (1, 3), (2, 3)]


def graph_of(found):
    graph = nx.DiGraph(found)
    graph.add_nodes_from(range(N))
    return graph


@given(edges)
def test_reduction_and_closure_are_those_of_networkx(found):
    less, closed = reduced(masks_of(N, found))
    graph = graph_of(found)
    assert set(less) == set(nx.transitive_reduction(graph).edges)
    assert [set(nodes_of(mask)) for mask in closed] == [
        nx.ancestors(graph, node) for node in range(N)
    ]


@given(edges, st.integers(0, N - 1))
def test_a_node_that_is_postponed_comes_after_all_that_need_not_wait_for_it(found, node):
    less, closed = reduced(masks_of(N, found))
    order = postponing(node, less, closed)
    place = {each: i for i, each in enumerate(order)}
    assert sorted(order) == list(range(N))
    assert all(place[a] < place[b] for a, b in found)
    waiting = nx.descendants(graph_of(found), node)
    assert all(place[other] < place[node] for other in range(N) if other not in {node, *waiting})


@given(edges)
def test_every_pair_that_is_free_is_turned_around_in_some_order(found):
    less, closed = reduced(masks_of(N, found))
    orders, left = adversarial_orders(less, closed, N)
    assert left == 0
    graph = graph_of(found)
    for a, b in PAIRS:
        turned = any(order.index(b) < order.index(a) for order in orders)
        assert turned != nx.has_path(graph, a, b)


def test_pairs_that_no_order_turned_are_counted():
    less, closed = reduced([0] * N)
    orders, left = adversarial_orders(less, closed, 0)
    assert (orders, left) == ([], len(PAIRS))


def test_a_chain_has_no_other_order():
    assert adversarial_orders(*reduced(masks_of(N, chain(N))), 9) == ([], 0)


@pytest.mark.parametrize(
    ("width", "expected"), [(1, [0, 0, 0, 0]), (2, [0, 0, 1, 1]), (8, [0, 0, 1, 1])]
)
def test_nodes_go_to_branches_as_to_streams(width, expected):
    assert branches_of(4, DIAMOND, [1.0, 1.0, 2.0, 1.0], width) == expected


def test_a_branch_that_is_idle_is_used_before_another_is_opened():
    assert branches_of(3, [(0, 1)], [1.0, 5.0, 1.0], 3) == [0, 0, 1]
    assert branches_of(4, [(0, 1), (0, 2), (2, 3)], [1.0, 1.0, 1.0, 1.0], 3) == [0, 0, 1, 1]


def test_along_branches_nodes_follow_one_another():
    assert along_branches([0, 1, 0, 1, 1]) == [(0, 2), (1, 3), (3, 4)]
