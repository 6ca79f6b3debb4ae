"""The one schedule under all mechanisms, held against its slow twin."""

import csv
from dataclasses import replace

import naive_schedule
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_programs import programs
from small_graphs import graph_of

from depgraph.bounds import occupancies
from depgraph.errors import ModelError
from depgraph.gpu import load_gpu
from depgraph.room import Room, most_room, shares, sm_room
from depgraph.rules import ALL_ENDED, ALL_PLACED, HOLDS, Gates, Rules, run_rules
from depgraph.schedules import serial


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
                    [source], [target], draw(st.sampled_from([ALL_PLACED, ALL_ENDED])),
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
    return Rules(
        joins=joins,
        join_need=draw(st.none() | joins_need),
        member_need=draw(st.sampled_from([None, graph.first_use])),
        gates=gates,
        waits_for_all=np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n))),
        launch=draw(costs),
        enter=draw(costs),
        window=draw(st.sampled_from([0, 1, 2])),
        in_order=draw(st.booleans()),
        strict=draw(st.booleans()),
    )


@given(st.data())
def test_any_rules_give_the_schedule_of_the_slow_twin(data):
    program = data.draw(programs(positions=True))
    rules = data.draw(rules_for(program))
    try:
        fast = run_rules("any", rules, program.graph, program.durations, program.room, program.sms)
    except ModelError:
        fast = None
    start, end, sm = naive_schedule.run_rules(
        rules, program.graph, program.durations, program.room, program.sms
    )
    if fast is None:
        assert None in end
        return
    assert fast.start.tolist() == start
    assert fast.end.tolist() == end
    assert fast.sm.tolist() == sm


@given(programs(), st.integers(1, 3))
def test_stages_give_the_schedule_of_the_slow_twin(program, ahead):
    finish, _ = program.graph.earliest_finish(np.ones(program.graph.n_blocks))
    rules = Rules(stage=finish.astype(np.int32) - 1, stages_ahead=ahead, strict=False)
    fast = run_rules("any", rules, program.graph, program.durations, program.room, program.sms)
    start, _, _ = naive_schedule.run_rules(
        rules, program.graph, program.durations, program.room, program.sms
    )
    assert fast.start.tolist() == start


@given(programs(), st.booleans())
def test_several_resources_give_the_schedule_of_the_slow_twin(program, strict):
    n = program.graph.n_operations
    need = np.random.default_rng(n).integers(1, 5, (n, 3))
    room = Room(np.array([8, 8, 8]), need)
    rules = Rules(strict=strict)
    fast = run_rules("any", rules, program.graph, program.durations, room, program.sms)
    start, _, sm = naive_schedule.run_rules(
        rules, program.graph, program.durations, room, program.sms
    )
    assert fast.start.tolist() == start
    assert fast.sm.tolist() == sm


@given(programs())
def test_waiting_for_all_before_is_serial(program):
    args = program.graph, program.durations
    fast = run_rules("serial", Rules(waits_for_all=True), *args, program.room, program.sms)
    assert fast.makespan == serial(*args, program.occupancy, program.sms).makespan


def test_a_block_that_holds_its_slot_waits_there():
    graph = graph_of([2, 1], [((0, 1), (1, 0))])
    rules = Rules(joins=np.array([HOLDS], np.uint8))
    plan = run_rules("hold", rules, graph, np.array([1.0, 5, 2]), shares(graph.kernel,
                     np.ones(2, int)), 3)  # fmt: skip
    assert plan.start.tolist() == [0, 0, 0]
    assert plan.end.tolist() == [1, 5, 7]
    assert plan.waiting == 5


@pytest.mark.parametrize(("strict", "starts"), [(True, [0, 1, 2]), (False, [0, 1, 0])])
def test_a_block_that_fits_nowhere_holds_up_those_behind_it(strict, starts):
    graph = graph_of([1, 1, 1], [])
    room = shares(graph.kernel, np.array([2, 1, 2]))
    plan = run_rules("leftover", Rules(strict=strict), graph, np.ones(3), room, 1)
    assert plan.start.tolist() == starts


def test_rules_that_wait_for_each_other_are_named():
    graph = graph_of([1, 1], [])
    rules = Rules(gates=Gates.between([0, 1], [1, 0], ALL_ENDED))
    with pytest.raises(ModelError, match="mine: block 0 of kernel 0 waits for ever"):
        run_rules("mine", rules, graph, np.ones(2), shares(graph.kernel, np.ones(2, int)), 1)


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


def test_blocks_are_placed_as_seen_on_hardware(shared_data):
    with (shared_data / "papers" / "placement_mostroom.csv").open() as file:
        cases = list(csv.DictReader(file))
    assert {case["case"] for case in cases} == set(PLACEMENTS)
    for case in cases:
        resident, threads, slots, order = PLACEMENTS[case["case"]]
        free = [[slots - (n > 0), (threads - n) // 32] for n in resident]
        need = [1, -(-int(case["new_tb_threads"]) // 32)]
        placed = most_room(free, need, list(order), int(case["n_new_tb"]))
        assert placed == naive_schedule.place_blocks(free, need, list(order), len(placed))
        seen = case["placement_paper"]
        if seen.startswith("last!="):
            assert placed[-1] != int(seen.removeprefix("last!="))
        else:
            assert placed == [int(sm) for sm in seen.split("|")]


def test_as_many_blocks_of_a_kernel_fit_as_the_occupancy_says():
    graph = graph_of([4, 4, 4], [])
    resources = replace(
        graph.resources, threads=np.array([96, 256, 1024]), registers=np.array([255, 40, 32]),
        shared_bytes=np.array([0, 40_000, 1024]),
    )  # fmt: skip
    graph = replace(graph, resources=resources)
    resident = occupancies(graph, load_gpu("H100 SXM"))
    room = sm_room(graph, resident)
    assert len(room.capacity) == 4
    fits = (room.capacity // np.maximum(room.need, 1)).min(axis=1)
    assert fits.tolist() == resident.values.tolist()


def test_kernels_that_use_different_resources_share_an_sm():
    # One takes all shared memory of an SM, the other most of its threads.
    graph = graph_of([1, 1], [])
    resources = replace(
        graph.resources, threads=np.array([32, 1024]), registers=np.array([32, 32]),
        shared_bytes=np.array([200_000, 0]),
    )  # fmt: skip
    graph = replace(graph, resources=resources)
    resident = occupancies(graph, load_gpu("H100 SXM"))
    plan = run_rules("both", Rules(), graph, np.ones(2), sm_room(graph, resident), 1)
    assert plan.start.tolist() == [0, 0]
