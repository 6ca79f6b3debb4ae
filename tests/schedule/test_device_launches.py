"""Child kernels on the one schedule: published cases, the slow twin, and laws."""

import naive_launches
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from launching import device_launches, launches_of
from random_programs import programs
from small_graphs import graph_of, shares_of

from depgraph.errors import DeadlockError
from depgraph.schedule.policy import DECIDE, INLINE, LAUNCH, LaunchRules, Rules
from depgraph.schedule.simulate import run_rules

STALL, LANE, WINDOW = 20_000, 1_700, 1024
FEW = [{"block": 0, "child_grid": 8, "child_duration": 50_000, "inline": 400_000}] + [
    {"block": b, "child_grid": 1, "child_duration": 2_000, "inline": 2_000} for b in range(1, 16)
]
MANY = [{"block": b, "child_grid": 2, "child_duration": 2_500, "inline": 5_000} for b in range(64)]


def schedule(rows, mode, *, sms=8, blocks=1, duration=10_000, queues=8, occupancy=1):
    """Run one kernel of equal blocks; at half of each it launches."""
    graph = graph_of([blocks], [])
    launches = launches_of(rows)
    modes = np.broadcast_to(np.uint8(mode), len(launches)).copy()
    rules = Rules(
        waits_for_all=True, launching=LaunchRules(launches, modes, STALL, LANE, queues, WINDOW)
    )
    durations = np.full(blocks, float(duration))
    return run_rules("case", rules, graph, durations, shares_of(graph, occupancy), sms)


@pytest.mark.parametrize(
    ("rows", "blocks", "mode", "time", "made"),
    [
        (FEW, 16, INLINE, 410_000, 0),
        (FEW, 16, LAUNCH, 117_400, 16),
        (FEW, 16, DECIDE, 86_000, 1),
        (MANY, 64, INLINE, 120_000, 0),
        (MANY, 64, LAUNCH, 293_600, 64),
        (MANY, 64, DECIDE, 120_000, 0),
    ],
)
def test_worked_cases_come_out_exactly(rows, blocks, mode, time, made):
    plan = schedule(rows, mode, blocks=blocks)
    assert plan.makespan == time
    assert plan.children.launched.sum() == made


@pytest.mark.parametrize(("lanes", "stall"), [(1, 21_700), (32, 74_400)])
def test_a_launch_stalls_its_warp(lanes, stall):
    row = {"block": 0, "lanes": lanes, "child_grid": 1, "child_duration": 100, "inline": 1}
    plan = schedule([row], LAUNCH)
    assert plan.children.issued.tolist() == [5_000 + stall]
    assert plan.end.tolist() == [10_000 + stall]


def test_lanes_of_one_instruction_launch_together_and_loop_side_by_side():
    lane = {"block": 0, "warp": 0, "child_grid": 1, "child_duration": 10, "inline": 300}
    rows = [lane, {**lane, "inline": 700}, {**lane, "inline": 500}]
    assert schedule(rows, INLINE).makespan == 10_700
    assert schedule(rows, LAUNCH).end.tolist() == [10_000 + STALL + 3 * LANE]
    assert schedule(rows, [LAUNCH, INLINE, LAUNCH]).end.tolist() == [10_700 + STALL + 2 * LANE]


def test_warps_of_a_block_run_side_by_side_and_launches_without_one_in_turn():
    row = {"block": 0, "child_grid": 1, "child_duration": 10, "inline": 300}
    assert schedule([{**row, "warp": 0}, {**row, "warp": 1}], INLINE).makespan == 10_300
    assert schedule([row, row], INLINE).makespan == 10_600


@pytest.mark.parametrize(
    ("join", "ends", "child"), [("none", 31_700, 27_700), ("block", 32_700, 27_700),
                                ("kernel", 31_700, 32_700)],
)  # fmt: skip
def test_who_waits_for_whom(join, ends, child):
    row = {"block": 0, "child_grid": 1, "child_duration": 1_000, "inline": 1, "join": join}
    plan = schedule([row], LAUNCH)
    assert plan.end.tolist() == [ends]
    assert plan.children.end.tolist() == [child]
    assert plan.makespan == max(ends, child)


def test_children_of_one_stream_run_in_order_and_others_side_by_side():
    row = {"block": 0, "warp": 0, "child_grid": 1, "child_duration": 50_000, "inline": 1}
    assert len(set(schedule([row, row], LAUNCH).children.start)) == 1
    first, second = schedule([{**row, "stream": 3}] * 2, LAUNCH).children.start
    assert second == first + 50_000


def test_a_queue_holds_up_those_behind_its_head():
    row = {"block": 0, "warp": 0, "child_grid": 2, "child_duration": 1_000, "inline": 1}
    in_order = [{**row, "stream": 0}, {**row, "stream": 0}, {**row, "stream": 1}]
    one = schedule(in_order, LAUNCH, queues=1).children
    two = schedule(in_order, LAUNCH, queues=2).children
    third = one.launch == 2
    assert one.start[third].min() == one.start[one.launch == 1].min()
    assert two.start[two.launch == 2].min() == two.start[two.launch == 0].min()


def test_blocks_that_wait_for_children_may_leave_them_no_room():
    row = {"child_grid": 1, "child_duration": 1, "inline": 1, "join": "block"}
    rows = [{**row, "block": block} for block in (0, 1)]
    with pytest.raises(DeadlockError, match="block 0 of kernel 0 waits forever"):
        schedule(rows, LAUNCH, blocks=2, sms=2)


@given(st.data())
def test_child_kernels_run_as_the_slow_twin_says(data):
    program = data.draw(programs(most_kernels=2))
    launches = data.draw(device_launches(program))
    modes = np.array(
        data.draw(st.lists(st.sampled_from([INLINE, LAUNCH, DECIDE]), min_size=len(launches),
                           max_size=len(launches))), np.uint8,
    )  # fmt: skip
    stall, lane = data.draw(st.tuples(st.integers(0, 3), st.integers(0, 2)))
    rules = LaunchRules(
        launches, modes, float(stall), float(lane), data.draw(st.integers(1, 3)),
        float(data.draw(st.integers(1, 9))), float(data.draw(st.integers(0, 2))),
        float(data.draw(st.integers(0, 2))),
    )  # fmt: skip
    ends, child_ends, launched, over = naive_launches.run(
        rules, program.graph, program.durations, program.resources, program.sms
    )
    joins = np.zeros(len(program.graph.join_kind), np.uint8)
    try:
        plan = run_rules(
            "any", Rules(waits_for_all=True, joins=joins, launching=rules), program.graph,
            program.durations, program.resources, program.sms,
        )  # fmt: skip
    except DeadlockError:
        assert len(ends) < program.graph.n_blocks
        return
    found = plan.children
    assert found.launched.tolist() == launched
    assert plan.makespan == max(over, *ends.values())
    assert dict(enumerate(plan.end.tolist())) == ends
    keys = zip(found.launch.tolist(), found.block.tolist(), strict=True)
    assert dict(zip(keys, found.end.tolist(), strict=True)) == child_ends
