"""From what operators touch to graphs to choose from, and what each reason costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_captures import captured, kernel, memory, operator, workspace

from depgraph.apply.captured import LIBRARY, Node
from depgraph.apply.may_sets import DATA, REUSE, WORKSPACE
from depgraph.apply.order import chain
from depgraph.apply.plan import RECORDED, Layout, Recorded, make_plan

N = 4
X, OUT = memory(0), memory(1)
PARTS = [memory(10 + i) for i in range(N)]
SHARED = workspace(2)


def gemm(source, target, *more):
    return operator("mm", [source], [target]), [kernel("gemm", source, target, *more)]


def ensemble(*more):
    """Return products side by side, and what joins them."""
    return [*(gemm(X, part, *more) for part in PARTS), operator("cat", PARTS, [OUT])]


def test_what_is_independent_has_no_edges():
    plan = make_plan(captured(*ensemble()))
    assert plan.edges == tuple((i, N) for i in range(N))
    assert [each.reason for each in plan.reasons()] == [DATA]


def test_each_reason_says_what_it_costs():
    plan = make_plan(captured(*ensemble(SHARED)), weights=[10.0] * (N + 1))
    assert plan.edges == tuple(chain(N + 1))
    workspaces, data = plan.reasons()
    assert (workspaces.reason, workspaces.edges, data.reason) == (WORKSPACE, N - 1, DATA)
    assert workspaces.costs_us == pytest.approx((N - 1) * 11.0, rel=0.1)
    assert workspaces.examples[0] == ("aten::mm", "aten::mm")


def test_what_lanes_do_away_with_does_not_decide_the_lanes():
    """Streams of their own have workspaces and memory of their own."""
    plan = make_plan(captured(*ensemble(SHARED)))
    assert sorted(plan.lanes(N)[:N]) == list(range(N))
    assert set(plan.lanes(2)) == {0, 1}
    assert set(plan.lanes(1)) == {0}


def test_an_operator_that_only_allocates_goes_where_its_memory_is_used():
    """Memory that is given back is used again on the stream that it was got on."""
    alone = [operator("empty", made=[part]) for part in PARTS]
    steps = [(each, []) for each in alone]
    plan = make_plan(captured(*steps, *ensemble()))
    lanes = plan.lanes(N)
    assert lanes[:N] == lanes[N : 2 * N]
    assert len(set(lanes[:N])) == N


def names_of(plan, layout):
    return [each.name for each in plan.candidates(layout)]


def test_candidates_are_named_by_how_memory_lies():
    plan = make_plan(captured(*ensemble(), gemm(OUT, memory(30)), gemm(OUT, memory(31))))
    assert names_of(plan, Layout()) == ["free, 1 lane"]
    assert names_of(plan, Layout((0, 1), keeps=False)) == [
        "free, 2 lanes, memory used again", "branches, 2 lanes, memory used again",
    ]  # fmt: skip
    free, branches = plan.candidates(Layout((0, 1)))
    assert set(free.edges) == set(plan.edges)
    assert branches.edges == ((0, 2), (1, 3), (2, 4), (3, 4), (4, 5), (4, 6))


def test_graphs_that_are_the_chain_or_one_another_are_not_tried_again():
    line = make_plan(captured(gemm(X, PARTS[0]), gemm(PARTS[0], OUT)))
    assert line.candidates(Layout((0, 1))) == []
    wide = make_plan(captured(*ensemble()))
    assert names_of(wide, Layout(tuple(range(N)))) == ["free, 4 lanes"]


def test_nodes_of_one_operator_stay_in_a_chain():
    long = (operator("mean", [X], [PARTS[0]]), [kernel(), kernel(), kernel()])
    plan = make_plan(captured(long, gemm(X, PARTS[1]), operator("cat", PARTS[:2], [OUT])))
    assert plan.edges == ((0, 1), (1, 2), (2, 4), (3, 4))
    assert plan.unit_weights == [6.0, 2.0, 2.0]


def test_why_nodes_keep_their_place():
    plan = make_plan(captured(gemm(X, PARTS[0]), Node("host function"), kernel("mine")))
    assert plan.fixed == {
        "host function": 1,
        "mine, a kernel of no operator: its machine code is not known": 1,
    }
    assert plan.edges == ((0, 1), (1, 2))
    assert plan.before[1] == {"host function": 1}


def test_memory_that_is_used_again_keeps_things_apart_and_is_named():
    again = replace(memory(40), start=PARTS[0].start)
    plan = make_plan(captured(gemm(X, PARTS[0]), gemm(X, again)))
    assert [each.reason for each in plan.reasons()] == [REUSE]


def test_recorded_dependences_take_the_place_of_what_operators_may_touch():
    """But for memory that is used again now: nothing was said of that."""
    unknown = [operator("mine::mix", [X], [part]) for part in PARTS]
    graph = captured(*unknown)
    assert make_plan(graph).edges == tuple(chain(N))
    recorded = make_plan(graph, recorded=Recorded(((0, 2),), frozenset()))
    assert recorded.edges == ((0, 2),)
    assert [each.reason for each in recorded.reasons()] == [RECORDED]


def test_what_a_recording_did_not_see_waits_as_ever():
    unknown = [operator("mine::mix", [X], [part]) for part in PARTS]
    plan = make_plan(captured(*unknown), recorded=Recorded((), frozenset({1})))
    assert plan.edges == ((0, 1), (1, 2), (1, 3))


def test_a_workspace_that_is_shared_keeps_its_order_in_spite_of_a_recording():
    shared = memory(2, LIBRARY)
    plan = make_plan(captured(*ensemble(shared)), recorded=Recorded((), frozenset()))
    assert plan.edges == tuple(chain(N))


def test_a_kernel_that_nobody_knows_keeps_no_place_where_it_was_recorded():
    """But for memory that it may use after others; and a node that was not seen keeps its place."""
    again = replace(memory(40), start=PARTS[0].start)
    nodes = [kernel("mine", X, PARTS[0]), kernel("mine", X, PARTS[1]), kernel("mine", again)]
    plan = make_plan(captured(*nodes), recorded=Recorded((), frozenset()))
    assert (plan.edges, plan.fixed) == (((0, 2),), {})
    assert [each.reason for each in plan.reasons()] == [REUSE]
    host = captured(*nodes[:2], Node("host function"), gemm(X, OUT))
    plan = make_plan(host, recorded=Recorded((), frozenset({2})))
    assert plan.edges == ((0, 2), (1, 2), (2, 3))
