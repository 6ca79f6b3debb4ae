"""Bounds on the speedup, and the laws that hold between them and schedules."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import graph_of, graphs_with_durations
from small_graphs import scenario_of

import depgraph
from depgraph.analysis.bound import bound, bound_one
from depgraph.errors import ModelError
from depgraph.gpu.model import load_gpu
from depgraph.gpu.sm_resources import sm_resources
from depgraph.scenario.scenario import Scenario
from depgraph.schedule.policy import PRIORITIES
from depgraph.timing.program_times import Durations, LaunchModel, LaunchTime

DATAFLOW = [f"dataflow ({name})" for name in PRIORITIES]

# Two kernels of two blocks; the second block of the second kernel needs the first of the first.
PAIR = [{0: (set(), {1}), 1: (set(), {9})}, {2: (set(), {7}), 3: ({1}, set())}]
TIMES = np.array([2.0, 6.0, 4.0, 3.0])


@st.composite
def programs_on_a_gpu(draw):
    """Draw a graph, durations, occupancies of its kernels, and a number of SMs."""
    graph, durations = draw(graphs_with_durations())
    n = graph.n_operations
    occupancy = np.array(draw(st.lists(st.integers(1, 4), min_size=n, max_size=n)), np.int64)
    return graph, durations, occupancy, draw(st.integers(1, 5))


def test_the_bound_of_two_kernels():
    found = bound_one(scenario_of(graph_of(PAIR), TIMES, sms=2))
    assert found.serial == 6 + 4
    assert found.critical_path == 6
    assert found.work == 15 / 2
    assert (found.lower_bound, found.limited_by) == (7.5, "work")
    assert found.upper_bound == 10 / 7.5
    makespans = {a.mechanism: a.makespan for a in found.schedules}
    assert makespans == {"serial": 10, **dict(zip(DATAFLOW, (9, 10, 9), strict=True))}
    assert found.reached.mechanism == DATAFLOW[0]


def test_with_unlimited_sms_the_critical_path_is_the_bound():
    found = bound_one(scenario_of(graph_of(PAIR), TIMES))
    assert (found.serial, found.work, found.lower_bound) == (10, 0, 6)
    assert found.limited_by == "critical path"
    assert {a.makespan for a in found.schedules} == {10, 6}


def test_two_resident_blocks_halve_the_work():
    found = bound_one(scenario_of(graph_of(PAIR), TIMES, occupancy=2, sms=1))
    assert found.work == 15 / 2
    assert found.serial == 10


def test_what_launches_cost_is_no_part_of_the_bound():
    launch = LaunchModel(gap=LaunchTime(1.5), path=LaunchTime(0.5), graph=LaunchTime(1.0))
    found = bound_one(scenario_of(graph_of(PAIR), TIMES, sms=2, launch=launch))
    assert found.serial == 10
    assert found.lower_bound == 7.5
    assert (found.launches.serial, found.launches.cuda_graph) == (13, 11.5)
    assert found.reached.makespan == 9
    assert bound_one(scenario_of(graph_of(PAIR), TIMES, sms=2)).launches is None


@given(programs_on_a_gpu())
def test_no_schedule_is_shorter_than_the_lower_bound(drawn):
    graph, durations, occupancy, sms = drawn
    found = bound_one(scenario_of(graph, durations, occupancy=occupancy, sms=sms))
    assert [a.mechanism for a in found.schedules] == ["serial", *DATAFLOW]
    assert found.lower_bound == max(found.critical_path, found.work)
    for achieved in found.schedules:
        assert achieved.makespan >= found.lower_bound * (1 - 1e-12)
        assert achieved.speedup <= found.upper_bound * (1 + 1e-12)
        assert 0 <= achieved.utilization <= 1 + 1e-12


@given(graphs_with_durations())
def test_one_slot_gives_the_sum(drawn):
    graph, durations = drawn
    found = bound_one(scenario_of(graph, durations, sms=1))
    assert {a.makespan for a in found.schedules} == {durations.sum()}
    assert found.lower_bound == found.work == durations.sum()


@given(graphs_with_durations())
def test_a_slot_for_every_block_gives_the_critical_path(drawn):
    graph, durations = drawn
    found = bound_one(scenario_of(graph, durations, sms=graph.n_blocks))
    kernels = np.split(durations, graph.first_block[1:-1])
    assert found.serial == sum(kernel.max() for kernel in kernels)
    # The bound counts certain dependences only, schedules honour the possible ones too.
    assert {a.makespan for a in found.schedules[1:]} == {graph.longest_path(durations)}
    assert found.critical_path == graph.certain().longest_path(durations)


@given(programs_on_a_gpu())
def test_leaving_out_dependences_never_raises_the_bound(drawn):
    graph, durations, occupancy, sms = drawn
    scenario = scenario_of(graph, durations, occupancy=occupancy, sms=sms)
    every, raw = bound_one(scenario), bound_one(scenario.with_kinds({"RAW"}))
    assert raw.serial == every.serial
    assert raw.lower_bound <= every.lower_bound
    assert (raw.dependences, every.dependences) == ("RAW", "RAW,WAR,WAW")


def test_a_table_has_a_row_a_size_with_all_dependences_and_with_raw_only():
    graph = graph_of(PAIR)
    table = bound(scenario_of(graph, TIMES), [1, 2, math.inf])
    assert [(b.sms, b.dependences) for b in table.bounds] == [
        (sms, kinds) for sms in (1, 2, math.inf) for kinds in ("RAW,WAR,WAW", "RAW")
    ]
    assert (table.unit, table.basis.durations, table.basis.occupancy) == ("us", "made up", (1, 1))
    frame = table.to_pandas()
    # With unlimited SMs no priority matters.
    assert len(frame) == 4 * 4 + 2 * 2
    first = frame.iloc[0].to_dict()
    assert first["sms"] == 1
    assert first["schedule"] == "serial"
    assert first["makespan"] == first["serial"] == first["work"] == 15
    assert (first["limited_by"], first["upper_bound"], first["unit"]) == ("work", 1, "us")


def test_raw_alone_is_not_said_twice():
    graph = graph_of(PAIR).with_kinds({"RAW"})
    table = bound(scenario_of(graph, TIMES), 2)
    assert [b.dependences for b in table.bounds] == ["RAW"]
    assert any("WAR, WAW dependences left out" in note for note in table.assumptions)


def test_every_report_says_that_the_bound_is_for_fixed_durations():
    graph = graph_of(PAIR)
    notes = bound(scenario_of(graph, TIMES), 2).assumptions
    assert any("fixed durations" in note and "15 %" in note for note in notes)


@pytest.mark.parametrize("sms", [0, -1, 1.5, [80, 0]])
def test_a_gpu_has_whole_sms(sms):
    graph = graph_of(PAIR)
    with pytest.raises(ModelError, match="give whole numbers from 1, or inf"):
        bound(scenario_of(graph, TIMES), sms)


def test_a_graph_without_counts_or_resources_needs_them_given():
    graph = graph_of(PAIR)
    with pytest.raises(ModelError, match="the graph carries no counts: pass durations"):
        bound(graph, 80)
    with pytest.raises(ModelError, match="the graph carries no launch resources"):
        bound(Scenario(graph=graph, timing=Durations(TIMES, "us", "made up")), 80)


def test_the_packaged_trace_says_what_was_assumed(sample_store):
    graph = sample_store.graph()
    table = depgraph.bound(graph, sms=80)
    places = sm_resources(graph, load_gpu("H100 SXM")).occupancy
    assert table.occupancy == (places.min(), places.max())
    assert places.min() < places.max()
    assert any("registers per thread unknown: no limit (24 of 25" in n for n in table.assumptions)
    assert table.unit == "instructions"
    assert table.basis.gpu == "H100 SXM"
    for assumption in ("only ratios mean anything", "no architecture is named", "register"):
        assert any(assumption in note for note in table.assumptions), assumption
    for found in table.bounds:
        for achieved in found.schedules:
            assert achieved.makespan >= found.lower_bound
