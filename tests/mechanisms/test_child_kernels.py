"""Rows about child kernels: what they are told, and laws that hold for every program."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from launching import launches_of, launching_programs, with_launches
from small_graphs import graph_of, scenario_of

from depgraph.analysis.bound import limits_of
from depgraph.analysis.compare_mechanisms import charges_of, compare_mechanisms
from depgraph.errors import DeadlockError, ModelError
from depgraph.gpu.model import load_gpu
from depgraph.graph.builder import GraphBuilder
from depgraph.mechanisms import Quantity, find_mechanisms
from depgraph.mechanisms.base import run_mechanism, serial
from depgraph.parsers.workload import read_workload
from depgraph.scenario.build_scenario import build_scenario
from depgraph.scenario.what_if import parse_what_if
from depgraph.store.store import write_store
from depgraph.timing.program_times import LaunchModel, LaunchTime

CLOSE = 1 + 1e-9
FREE = {name: {"stall": Quantity(0, ""), "lane": Quantity(0, "")} for name in ("cdp", "spawn")}
CHEAP = {name: {"stall": Quantity(2, "us"), "lane": Quantity(1, "us")} for name in ("cdp", "spawn")}


def plan_of(name, program, costs=CHEAP):
    (mechanism,) = find_mechanisms([name])
    return run_mechanism(mechanism, program, charges_of(mechanism, costs, program))[0]


def plans_of(name, program, costs=CHEAP):
    """Return the schedule, or None where blocks that wait for children leave them no room."""
    try:
        return plan_of(name, program, costs)
    except DeadlockError:
        return None


def without_waits(launches):
    """Return the launches without those that a block waits for: nothing deadlocks."""
    return replace(launches, join=np.where(launches.join == 1, 0, launches.join).astype(np.uint8))


@given(launching_programs(), st.sampled_from(["cdp", "cdp(4)", "spawn", "flat"]))
def test_work_is_conserved(program, name):
    plan = plans_of(name, program)
    if plan is None:
        return
    launches, found = program.launches, plan.children
    ran = np.bincount(found.launch, weights=found.end - found.start, minlength=len(launches))
    assert ran == pytest.approx(np.where(found.launched, launches.child_work, 0))
    # What was not launched the parents did, on top of their own work and of stalls.
    inline = replace(launches, inline=np.where(found.launched, 0, launches.inline))
    least = inline.inlined(program.own_durations)
    assert (plan.end - plan.start >= least - 1e-9).all()
    if not (found.launched & (launches.join == 1)).any():
        most = least.sum() + 2 * len(launches) + launches.lanes.sum() + launches.inline.sum()
        assert (plan.end - plan.start).sum() <= most * CLOSE


@given(launching_programs(), st.sampled_from(["flat", "cdp", "cdp(best)", "cdp(3)", "spawn"]),
       st.sampled_from([FREE, CHEAP]))  # fmt: skip
def test_nothing_beats_the_upper_bound(program, name, costs):
    plan = plans_of(name, program, costs)
    limits = limits_of(program)
    assert limits.serial * CLOSE >= limits.lower_bound
    if plan is not None:
        assert plan.makespan * CLOSE >= limits.lower_bound


@given(launching_programs())
def test_thresholds_go_from_all_launches_to_none(program):
    program = with_launches(
        replace(program, timing=replace(program.timing, values=program.own_durations)),
        without_waits(program.launches),
    )
    flat, cdp = (plan_of(name, program) for name in ("flat", "cdp"))
    assert plan_of("cdp(0)", program).makespan == cdp.makespan
    assert plan_of("cdp(inf)", program).makespan == flat.makespan
    assert flat.makespan == pytest.approx(serial(program).makespan)
    best = plan_of("cdp(best)", program).makespan
    assert best <= min(flat.makespan, cdp.makespan)
    made = [plan_of(f"cdp({t})", program).children.launched.sum() for t in (0, 3, 6, 100)]
    assert made == sorted(made, reverse=True)
    assert made[0] == len(program.launches)


@given(launching_programs())
def test_spawn_launches_nothing_that_stalls_longer_than_it_saves(program):
    plan = plans_of("spawn", program)
    if plan is not None:
        launches = program.launches
        stall = 2 + 1 * launches.lanes
        assert (stall < launches.inline)[plan.children.launched].all()


@given(launching_programs())
def test_a_slower_launch_keeps_spawn_from_launching_at_all(program):
    dear = {"spawn": {"stall": Quantity(1e6, "us")}}
    plan = plan_of("spawn", program, dear)
    assert not plan.children.launched.any()
    assert plan.makespan == plan_of("flat", program).makespan


@given(launching_programs(), st.integers(1, 32))
def test_rows_pay_for_the_launches_of_the_host_as_serial_does(program, queues):
    program = program.with_launch(LaunchModel(LaunchTime(1.0, "host"), LaunchTime(2.0, "gap")))
    costs = {"cdp": {"queues": Quantity(queues, "")}}
    rows = compare_mechanisms(
        program, [program.sms], find_mechanisms(["serial", "flat", "cdp", "spawn"]), costs=costs
    ).outcomes
    by_name = {row.mechanism: row for row in rows}
    assert by_name["flat"].makespan == pytest.approx(by_name["serial"].makespan)
    for row in rows:
        if not row.deadlock:
            assert 0 <= row.utilization <= row.held * CLOSE <= CLOSE
            assert row.share_of_bound is None or row.share_of_bound <= 1
    flat = by_name["flat"].launching
    assert (flat.made, flat.overhead, flat.child_share) == (0, 0, 0)
    assert flat.possible == len(program.launches)


def test_what_the_columns_count():
    graph = graph_of([1], [])
    rows = [{"block": 0, "child_grid": 2, "child_duration": 5, "inline": 10, "lanes": 2}] * 2
    program = with_launches(scenario_of(graph, [4.0], sms=1), launches_of(rows))
    costs = {"cdp": {**CHEAP["cdp"], "dispatch": Quantity(0, ""), "finish": Quantity(0, "")}}
    (row,) = compare_mechanisms(program, [1], find_mechanisms(["cdp"]), costs=costs).outcomes
    found = row.launching
    # 4 of its own, two stalls of 2 + 2 * 1; children come at 6 and 10, and take turns from 12 on.
    assert (row.makespan, found.made, found.possible, found.overhead) == (32, 2, 2, 8)
    assert found.queueing == (12 - 6) + (17 - 6) + (22 - 10) + (27 - 10)
    assert found.child_share == 20 / 24
    assert row.utilization == 24 / 32


def test_lanes_of_one_instruction_do_the_work_of_their_children_side_by_side():
    row = {"block": 0, "warp": 0, "child_duration": 500, "inline": 1000}
    launches = launches_of([{**row, "items": items} for items in (1, 1, 1, 9)])
    program = with_launches(scenario_of(graph_of([1], []), [100.0], sms=4), launches)
    (found,) = compare_mechanisms(program, [4], find_mechanisms(["cdp(5)"])).outcomes
    assert found.launching.made == 1
    assert found.launching.child_share == 500 / (100 + 1000 + 500)


@pytest.mark.parametrize(
    ("positions", "against", "bound"), [(True, "intra-block", 15), (False, "assumed steps", 20)]
)
def test_blocks_that_wait_inside_can_leave_work_to_children(positions, against, bound):
    builder = GraphBuilder([0, 1], [1, 1], positions=positions)
    builder.add("RAW", [0], [1], needed_at=0.5)
    program = with_launches(
        scenario_of(builder.build(), [10.0, 10.0], sms=2, grid=[(1, 1, 1)] * 2),
        launches_of([{"block": 0, "inline": 100}]),
    )
    (row,) = compare_mechanisms(program, [2], find_mechanisms(["cusync-tile"])).outcomes
    assert (row.against, row.lower_bound) == (against, bound)
    assert limits_of(program).intra_block_bound == (bound if positions else None)


def test_the_gpus_own_constants_are_taken_where_they_were_measured():
    graph = graph_of([1], [])
    row = {"block": 0, "child_grid": 1, "child_duration": 1, "inline": 1}
    program = with_launches(scenario_of(graph, [10.0], sms=1), launches_of([row]))
    gpu = replace(load_gpu("V100"), device_stall_cycles=3060.0, device_lane_cycles=1530.0)
    resources = replace(program.resources, gpu=gpu)
    program = replace(program, resources_of=lambda _: resources)
    assert plan_of("cdp", program, {}).children.issued == pytest.approx([5 + 3])  # at 1530 MHz


WORKLOAD = """
unit = "cycles"

[[kernel]]
name = "expand"
grid = 3
duration = [10, 20, 30]
occupancy = 1

[[kernel]]
name = "next"
grid = 2
duration = 5
occupancy = 1

[[dependence]]
from = "expand"
to = "next"
pattern = "all"

[[launch]]
parent = "expand"
block = [2, 0]
at = 0.5
lanes = [2, 1]
warp = 3
child_grid = 4
child_duration = [7, 8]
inline = 90
join = "kernel"
stream = 1
items = [11, 12]

[[launch]]
parent = "next"
block = 1
child_grid = 1
child_duration = 3
inline = 4
"""


def test_a_store_answers_as_its_toml_does(tmp_path):
    path = tmp_path / "launching.toml"
    path.write_text(WORKLOAD, encoding="utf-8")
    extraction = read_workload(path)
    store = write_store(extraction, tmp_path / "store")
    direct = build_scenario(extraction.graph, extraction.kernels).on(2)
    stored = build_scenario(store.graph(), store.kernels).on(2)
    for name in ("block", "at", "warp", "lanes", "child_duration", "join", "stream", "items"):
        assert getattr(stored.launches, name).tolist() == getattr(direct.launches, name).tolist()
    assert direct.launches.block.tolist() == [0, 2, 4]
    assert direct.launches.items.tolist() == [12, 11, 128]
    for name in ("flat", "cdp", "spawn"):
        assert plan_of(name, stored, {}).makespan == plan_of(name, direct, {}).makespan


@pytest.mark.parametrize(
    "asked", [{"contention": "sm"}, {"what_ifs": [parse_what_if("kernel=0 duration*=2")]}]
)
def test_what_cannot_count_child_kernels_is_refused(tmp_path, asked):
    path = tmp_path / "launching.toml"
    path.write_text(WORKLOAD, encoding="utf-8")
    extraction = read_workload(path)
    with pytest.raises(ModelError, match="do not count child kernels"):
        build_scenario(extraction.graph, extraction.kernels, **asked)


@pytest.mark.parametrize("name", ["cdp(-1)", "cdp(x)", "cdp(1,2)", "flat(1)", "spawn(best)"])
def test_parameters_that_make_no_sense(name):
    with pytest.raises(ModelError):
        find_mechanisms([name])


def test_queues_that_there_cannot_be():
    graph = graph_of([1], [])
    row = {"block": 0, "child_grid": 1, "child_duration": 1, "inline": 1}
    program = with_launches(scenario_of(graph, [10.0], sms=1), launches_of([row]))
    with pytest.raises(ModelError, match="give a whole number from 1 to 32"):
        plan_of("cdp", program, {"cdp": {"queues": Quantity(33, "")}})
    with pytest.raises(ModelError, match=r"cost 'queues' is 2\.7: give a whole number"):
        plan_of("cdp", program, {"cdp": {"queues": Quantity(2.7, "")}})


def test_children_go_out_one_after_another_and_are_known_to_end_later():
    graph = graph_of([1, 1], [])
    row = {"block": 0, "warp": 0, "child_grid": 1, "child_duration": 1, "inline": 1}
    program = with_launches(scenario_of(graph, [2.0, 2.0], sms=4), launches_of([row] * 3))
    costs = {"stall": 2, "lane": 1, "dispatch": 4, "finish": 10}
    plan = plan_of("cdp", program, {"cdp": {k: Quantity(v, "us") for k, v in costs.items()}})
    # Three lanes stall for 5 from 1 on; the last child runs from 6 + 3 * 4 = 18 to 19.
    assert plan.children.start.tolist() == [10, 14, 18]
    assert plan.start.tolist() == [0, 29]
    assert plan.makespan == 31
