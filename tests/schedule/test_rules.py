"""The one schedule under all mechanisms, compared with its slow twin."""

import csv

import naive_schedule
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from random_programs import programs
from small_graphs import graph_of, resources_of, shares_of

from depgraph.errors import ModelError, NotApplicableError
from depgraph.mechanisms.base import serial
from depgraph.schedule.policy import (
    ALL_ENDED,
    ALL_PLACED,
    ALL_TRIGGERED,
    HOLDS,
    IGNORED,
    PLACES,
    Gates,
    Places,
    Rules,
)
from depgraph.schedule.simulate import run_rules


@st.composite
def rules_for(draw, program):
    """Return rules that cannot wait for each other: all gates go forward in program order."""
    graph = program.graph
    n = graph.n_operations
    gates = Gates.none()
    for target in range(1, n):
        for source in range(target):
            if draw(st.booleans()):
                gates += Gates.between(
                    [source], [target],
                    draw(st.sampled_from([ALL_PLACED, ALL_TRIGGERED, ALL_ENDED])),
                    holds=draw(st.booleans()), lead=draw(st.integers(0, 3)),
                )  # fmt: skip
    joins = np.array(
        draw(st.lists(st.integers(0, 2), min_size=len(graph.join_kind),
                      max_size=len(graph.join_kind))), np.uint8,
    )  # fmt: skip
    # Blocks that hold a slot are safe if all before them are placed.
    if (joins == HOLDS).any() or gates.holds.any():
        gates += Gates.between(np.arange(n - 1), np.arange(1, n), ALL_PLACED)
    costs = st.lists(st.integers(0, 2), min_size=n, max_size=n).map(lambda c: np.array(c, float))
    joins_need = st.lists(
        st.integers(0, 4), min_size=len(joins), max_size=len(joins)
    ).map(lambda c: np.array(c, float) / 4)  # fmt: skip
    shares = st.sampled_from([0.25, 0.5, 1.0])
    turns = draw(st.integers(1, 3))
    window = draw(st.sampled_from([0, 1, 2]))
    entry = None if window else draw(st.none() | st.permutations(range(n)).map(np.array))
    return Rules(
        trigger=np.array(draw(st.lists(shares, min_size=n, max_size=n))),
        turn=np.arange(n) % turns,
        turns=(turns, 2.0),
        cluster=draw(clusters_for(graph, joins)),
        workers=draw(st.sampled_from([0, 0, 1, 2])),
        joins=joins,
        join_need=draw(st.none() | joins_need),
        member_need=draw(st.sampled_from([None, graph.first_use])),
        gates=gates,
        waits_for_all=np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n))),
        launch=draw(costs),
        enter=draw(costs),
        entry=entry,
        window=window,
        in_order=draw(st.booleans()),
        strict=draw(st.booleans()),
    )


@st.composite
def clusters_for(draw, graph, joins):
    """Return sizes of clusters: of kernels whose blocks become ready together."""
    sizes = np.array([
        draw(st.sampled_from([c for c in (1, 2, 3) if blocks % c == 0]))
        for blocks in np.diff(graph.first_block)
    ])  # fmt: skip
    sizes[graph.join_target_operation[joins == PLACES]] = 1
    return sizes


@given(st.data())
def test_any_rules_give_the_schedule_of_the_slow_twin(data):
    program = data.draw(programs(positions=True))
    rules = data.draw(rules_for(program))
    try:
        fast = run_rules(
            "any", rules, program.graph, program.durations, program.resources, program.sms
        )
    except NotApplicableError:
        assume(False)  # noqa: FBT003 - a cluster that fits nowhere
    except ModelError:
        fast = None
    start, end, sm = naive_schedule.run_rules(
        rules, program.graph, program.durations, program.resources, program.sms
    )
    if fast is None:
        assert None in end
        return
    assert fast.start.tolist() == start
    assert fast.end.tolist() == end
    assert fast.sm.tolist() == sm


@given(st.data())
def test_operations_that_start_in_turn_give_the_schedule_of_the_slow_twin(data):
    program = data.draw(programs())
    n, ignored = program.graph.n_operations, np.full(len(program.graph.join_kind), IGNORED)
    pairs = [(a, b) for b in range(n) for a in range(b)]
    ends = data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    times = st.lists(st.integers(0, 3), min_size=n, max_size=n).map(lambda t: np.array(t, float))
    rules = Rules(
        joins=IGNORED,
        gates=Gates.between(*np.array(ends, np.int32).reshape(-1, 2).T, ALL_ENDED),
        starting=data.draw(times),
        launch=data.draw(times),
        enter=data.draw(times),
        entry=data.draw(st.permutations(range(n)).map(np.array)),
        first_come=data.draw(st.booleans()),
        cluster=data.draw(clusters_for(program.graph, ignored)),
        strict=data.draw(st.booleans()),
    )
    try:
        fast = run_rules(
            "turns", rules, program.graph, program.durations, program.resources, program.sms
        )
    except NotApplicableError:
        assume(False)  # noqa: FBT003 - a cluster that fits nowhere
    start, end, sm = naive_schedule.run_rules(
        rules, program.graph, program.durations, program.resources, program.sms
    )
    assert fast.start.tolist() == start
    assert fast.end.tolist() == end
    assert fast.sm.tolist() == sm


def test_what_comes_first_is_placed_first():
    """The second and third kernel wait for the only SM; the third has waited longer."""
    graph = graph_of([1, 1, 1], [])
    for first_come, start in ((False, [0.0, 4.0, 7.0]), (True, [0.0, 7.0, 4.0])):
        rules = Rules(launch=np.array([0.0, 2.0, 1.0]), first_come=first_come)
        found = run_rules("come", rules, graph, np.array([4.0, 3.0, 3.0]), shares_of(graph, 1), 1)
        assert found.start.tolist() == start


def test_copies_go_past_what_finds_no_room_and_have_no_clusters():
    graph = graph_of([1, 1, 2], [])
    resources = resources_of([1], [[1], [1], [0]])
    rules = Rules(cluster=np.array([1, 1, 2]))
    found = run_rules("copy", rules, graph, np.array([4.0, 3.0, 2.0, 2.0]), resources, 1)
    assert found.start.tolist() == [0.0, 4.0, 0.0, 0.0]


def test_what_waits_for_one_operation_starts_in_turn():
    graph = graph_of([1, 1, 1, 1], [])
    gates = Gates.between([0, 0, 0], [3, 1, 2])
    rules = Rules(gates=gates, launch=np.array([0, 1, 1, 1]), starting=0.5)
    found = run_rules("turns", rules, graph, np.ones(4), resources_of([8], np.ones((4, 1), int)), 1)
    assert found.start.tolist() == [0.0, 2.5, 3.0, 2.0]


@given(programs(), st.integers(1, 3))
def test_stages_give_the_schedule_of_the_slow_twin(program, ahead):
    finish, _ = program.graph.earliest_finish(np.ones(program.graph.n_blocks))
    rules = Rules(stage=finish.astype(np.int32) - 1, stages_ahead=ahead, strict=False)
    fast = run_rules("any", rules, program.graph, program.durations, program.resources, program.sms)
    start, _, _ = naive_schedule.run_rules(
        rules, program.graph, program.durations, program.resources, program.sms
    )
    assert fast.start.tolist() == start


@given(programs(), st.booleans())
def test_several_resources_give_the_schedule_of_the_slow_twin(program, strict):
    n = program.graph.n_operations
    need = np.random.default_rng(n).integers(1, 5, (n, 3))
    room = resources_of([8, 8, 8], need)
    rules = Rules(strict=strict)
    fast = run_rules("any", rules, program.graph, program.durations, room, program.sms)
    start, _, sm = naive_schedule.run_rules(
        rules, program.graph, program.durations, room, program.sms
    )
    assert fast.start.tolist() == start
    assert fast.sm.tolist() == sm


@st.composite
def places_for(draw, program):
    """Return SMs, copy engines and links for operations; each link holds one block at least."""
    n, sms = program.graph.n_operations, program.sms
    columns = st.lists(st.integers(0, sms), min_size=n, max_size=n)
    first, last = np.array(draw(columns)), np.array(draw(columns))
    first, last = np.minimum(first, last), np.maximum(first, last)
    last = np.where(first == sms, sms, np.minimum(last, sms - 1))
    link = np.array(draw(st.lists(st.integers(-1, 1), min_size=n, max_size=n)))
    taken = np.array(draw(st.lists(st.integers(1, 2), min_size=n, max_size=n)))
    return Places(first, last, link, taken, np.array([2, 3]), first == sms)


@given(st.data(), st.booleans())
def test_places_give_the_schedule_of_the_slow_twin(data, strict):
    program = data.draw(programs())
    rules = Rules(strict=strict, places=data.draw(places_for(program)))
    fast = run_rules("any", rules, program.graph, program.durations, program.resources, program.sms)
    start, end, sm = naive_schedule.run_rules(
        rules, program.graph, program.durations, program.resources, program.sms
    )
    assert fast.start.tolist() == start
    assert fast.end.tolist() == end
    assert fast.sm.tolist() == sm


def places_of(first, last, **more):
    """Return places of a computation and of a communication that share nothing but the SMs."""
    both = np.array
    return Places(
        both(first), both(last), both([-1, 0]), both([0, 1]), both([2]), both([False, True]), **more
    )


@pytest.mark.parametrize(
    ("first", "last", "starts"),
    [
        ((0, 0), (3, 3), [0, 0, 0, 0, 10, 10, 10, 10, 20, 20]),  # behind the computation
        ((0, 2), (1, 3), [0, 0, 10, 10, 20, 20, 30, 30, 0, 0]),  # two SMs each
        ((0, 4), (3, 4), [0, 0, 0, 0, 10, 10, 10, 10, 0, 0]),  # a copy engine
    ],
)
def test_a_communication_runs_where_it_is_put(first, last, starts):
    graph = graph_of([8, 2], [])
    durations = np.array([10.0] * 8 + [20.0] * 2)
    rules = Rules(places=places_of(first, last))
    plan = run_rules("put", rules, graph, durations, shares_of(graph), 4)
    assert plan.start.tolist() == starts


def test_what_runs_beside_communication_takes_longer_until_it_ends():
    """The second wave has done two thirds when the copies end after 25, and goes on in full."""
    graph = graph_of([8, 2], [])
    durations = np.array([10.0] * 8 + [20.0] * 2)
    rules = Rules(places=places_of((0, 4), (3, 4), beside=(0.5, 0.25)))
    plan = run_rules("beside", rules, graph, durations, shares_of(graph), 4)
    np.testing.assert_allclose(plan.end, [15.0] * 4 + [25 + 10 / 3] * 4 + [25.0] * 2)


@given(programs())
def test_waiting_for_all_before_is_serial(program):
    fast = run_rules(
        "serial", Rules(waits_for_all=True), program.graph, program.durations, program.resources,
        program.sms,
    )  # fmt: skip
    assert fast.makespan == serial(program).makespan


def test_a_block_that_holds_its_slot_waits_there():
    graph = graph_of([2, 1], [((0, 1), (1, 0))])
    rules = Rules(joins=np.array([HOLDS], np.uint8))
    plan = run_rules("hold", rules, graph, np.array([1.0, 5, 2]), shares_of(graph), 3)
    assert plan.start.tolist() == [0, 0, 0]
    assert plan.end.tolist() == [1, 5, 7]
    assert plan.waiting == 5


@pytest.mark.parametrize(("strict", "starts"), [(True, [0, 1, 2]), (False, [0, 1, 0])])
def test_a_block_that_fits_nowhere_holds_up_those_behind_it(strict, starts):
    graph = graph_of([1, 1, 1], [])
    room = shares_of(graph, [2, 1, 2])
    plan = run_rules("leftover", Rules(strict=strict), graph, np.ones(3), room, 1)
    assert plan.start.tolist() == starts


def test_rules_that_wait_for_each_other_are_named():
    graph = graph_of([1, 1], [])
    rules = Rules(gates=Gates.between([0, 1], [1, 0], ALL_ENDED))
    with pytest.raises(ModelError, match="mine: block 0 of kernel 0 waits forever"):
        run_rules("mine", rules, graph, np.ones(2), shares_of(graph), 1)


def evens_then_odds(n):
    return [*range(0, n, 2), *range(1, n, 2)]


PLACEMENTS = {
    # name: SMs, threads resident on each, threads an SM, block slots, SM order
    "gilman-1": ([0, 256, 256, 256, 256], 2048, 32, range(5)),
    "gilman-2": ([0, 1024, 1024, 1024, 1024], 2048, 32, range(5)),
    "gilman-3": ([0, 1024, 1024, 1024, 1024], 2048, 32, range(5)),
    "gilman-4": ([512] * 67 + [0], 1024, 16, evens_then_odds(68)),
    "gilman-5": ([512] * 67 + [0], 1024, 16, evens_then_odds(68)),
    "gilman-6": ([512] * 67 + [0], 1024, 16, evens_then_odds(68)),
}


def placed_beside(resident, capacity, warps, n, order):
    """Return where new blocks go while others reside on some SMs, by what ran before on each."""
    # One block of the first kernel on each SM, in the device's order; those of idle SMs soon end.
    graph = graph_of([len(resident), n], [])
    in_order = [resident[sm] for sm in order]
    taken = [1, max(resident) // 32]
    durations = np.array([9.0 if threads else 1.0 for threads in in_order] + [1.0] * n)
    rules = Rules(launch=np.array([0.0, 2.0]), strict=False)
    plan = run_rules(
        "placed", rules, graph, durations, resources_of(capacity, [taken, [1, warps]]),
        len(resident),
    )  # fmt: skip
    assert plan.sm[: len(order)].tolist() == list(range(len(order)))
    assert set(plan.start[len(order) :].tolist()) == {2}
    return [order[sm] for sm in plan.sm[len(order) :]]


def test_blocks_are_placed_as_seen_on_hardware(shared_data):
    with (shared_data / "papers" / "placement_mostroom.csv").open() as file:
        cases = list(csv.DictReader(file))
    assert {case["case"] for case in cases} == set(PLACEMENTS)
    for case in cases:
        resident, threads, slots, order = PLACEMENTS[case["case"]]
        placed = placed_beside(
            resident, [slots, threads // 32], -(-int(case["new_tb_threads"]) // 32),
            int(case["n_new_tb"]), list(order),
        )  # fmt: skip
        seen = case["placement_paper"]
        if seen.startswith("last!="):
            assert placed[-1] != int(seen.removeprefix("last!="))
        else:
            assert placed == [int(sm) for sm in seen.split("|")]
