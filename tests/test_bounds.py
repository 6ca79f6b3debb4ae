"""Bounds on the gain, and the laws that hold between them and schedules."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import graph_of, graphs_with_durations

import depgraph
from depgraph.bounds import bound, bound_one, fixed_occupancies, gpu_occupancies
from depgraph.errors import ModelError
from depgraph.gpu import load_gpu
from depgraph.schedules import PRIORITIES
from depgraph.timing import Durations

# Two kernels of two blocks; the second block of the second kernel needs the first of the first.
PAIR = [{0: (set(), {1}), 1: (set(), {9})}, {2: (set(), {7}), 3: ({1}, set())}]
TIMES = np.array([2.0, 6.0, 4.0, 3.0])
ONE = np.ones(2, np.int64)


@st.composite
def programs_on_a_gpu(draw):
    """Draw a graph, durations, occupancies of its kernels, and a number of SMs."""
    graph, durations = draw(graphs_with_durations())
    n = graph.n_operations
    occupancy = np.array(draw(st.lists(st.integers(1, 4), min_size=n, max_size=n)), np.int64)
    return graph, durations, occupancy, draw(st.integers(1, 5))


def test_the_bound_of_two_kernels():
    found = bound_one(graph_of(PAIR), TIMES, ONE, 2)
    assert found.serial == 6 + 4
    assert found.critical_path == 6
    assert found.work == 15 / 2
    assert (found.lower_bound, found.limited_by) == (7.5, "work")
    assert found.gain == 10 / 7.5
    makespans = {a.schedule: a.makespan for a in found.schedules}
    assert makespans == {
        "serial": 10,
        "dataflow, oldest-first": 9,
        "dataflow, newest-first": 10,
        "dataflow, longest-path-first": 9,
    }


def test_with_unlimited_sms_the_critical_path_is_the_bound():
    found = bound_one(graph_of(PAIR), TIMES, ONE, math.inf)
    assert (found.serial, found.work, found.lower_bound) == (10, 0, 6)
    assert found.limited_by == "critical path"
    assert {a.makespan for a in found.schedules} == {10, 6}


def test_two_resident_blocks_halve_the_work():
    found = bound_one(graph_of(PAIR), TIMES, 2 * ONE, 1)
    assert found.work == 15 / 2
    assert found.serial == 10


def test_a_launch_gap_is_lost_before_each_kernel():
    found = bound_one(graph_of(PAIR), TIMES, ONE, 2, launch_gap=1.5)
    assert found.serial == 13
    assert found.lower_bound == 7.5


@given(programs_on_a_gpu())
def test_no_schedule_is_shorter_than_the_lower_bound(drawn):
    graph, durations, occupancy, sms = drawn
    found = bound_one(graph, durations, occupancy, sms)
    assert [a.schedule for a in found.schedules] == [
        "serial",
        *(f"dataflow, {p}" for p in PRIORITIES),
    ]
    assert found.lower_bound == max(found.critical_path, found.work)
    for achieved in found.schedules:
        assert achieved.makespan >= found.lower_bound * (1 - 1e-12)
        assert achieved.gain <= found.gain * (1 + 1e-12)
        assert 0 <= achieved.utilization <= 1 + 1e-12


@given(graphs_with_durations())
def test_one_slot_gives_the_sum(drawn):
    graph, durations = drawn
    found = bound_one(graph, durations, np.ones(graph.n_operations, np.int64), 1)
    assert {a.makespan for a in found.schedules} == {durations.sum()}
    assert found.lower_bound == found.work == durations.sum()


@given(graphs_with_durations())
def test_a_slot_for_every_block_gives_the_critical_path(drawn):
    graph, durations = drawn
    ones = np.ones(graph.n_operations, np.int64)
    found = bound_one(graph, durations, ones, graph.n_blocks)
    kernels = np.split(durations, graph.first_block[1:-1])
    assert found.serial == sum(kernel.max() for kernel in kernels)
    # What is only possible does not bound, and is obeyed.
    assert found.critical_path == graph.certain().earliest_finish(durations)[0].max()
    reached = graph.earliest_finish(durations)[0].max()
    assert {a.makespan for a in found.schedules[1:]} == {reached}
    assert reached >= found.critical_path


@given(programs_on_a_gpu())
def test_leaving_out_dependences_never_raises_the_bound(drawn):
    graph, durations, occupancy, sms = drawn
    every = bound_one(graph, durations, occupancy, sms)
    raw = bound_one(graph.with_kinds({"RAW"}), durations, occupancy, sms)
    assert raw.serial == every.serial
    assert raw.lower_bound <= every.lower_bound
    assert (raw.dependences, every.dependences) == ("RAW", "RAW,WAR,WAW")


def in_units(graph, times=TIMES):
    return {
        "durations": Durations(np.asarray(times), "us", "made up"),
        "occupancy": fixed_occupancies(graph, 1, load_gpu("A100 40GB")),
    }


def test_a_table_has_a_row_a_size_with_all_dependences_and_with_raw_alone():
    graph = graph_of(PAIR)
    table = bound(graph, [1, 2, math.inf], **in_units(graph))
    assert [(b.sms, b.dependences) for b in table.bounds] == [
        (sms, kinds) for sms in (1, 2, math.inf) for kinds in ("RAW,WAR,WAW", "RAW")
    ]
    assert (table.unit, table.durations, table.occupancy) == ("us", "made up", (1, 1))
    frame = table.to_pandas()
    assert len(frame) == 6 * 4
    first = frame.iloc[0].to_dict()
    assert first["sms"] == 1
    assert first["schedule"] == "serial"
    assert first["makespan"] == first["serial"] == first["work"] == 15
    assert (first["limited_by"], first["bound_on_gain"], first["unit"]) == ("work", 1, "us")


def test_raw_alone_is_not_said_twice():
    graph = graph_of(PAIR).with_kinds({"RAW"})
    table = bound(graph, 2, **in_units(graph))
    assert [b.dependences for b in table.bounds] == ["RAW"]
    assert any("WAR, WAW dependences were left out" in note for note in table.assumptions)


def test_every_report_says_that_the_bound_is_for_fixed_durations():
    graph = graph_of(PAIR)
    notes = bound(graph, 2, **in_units(graph)).assumptions
    assert any("fixed durations" in note and "15 %" in note for note in notes)


@pytest.mark.parametrize("sms", [0, -1, 1.5, [80, 0]])
def test_a_gpu_has_whole_sms(sms):
    graph = graph_of(PAIR)
    with pytest.raises(ModelError, match="give whole numbers from 1, or inf"):
        bound(graph, sms, **in_units(graph))


def test_a_graph_without_counts_or_resources_needs_them_given():
    graph = graph_of(PAIR)
    with pytest.raises(ModelError, match="the graph carries no counts: pass durations"):
        bound(graph, 80)
    with pytest.raises(ModelError, match="carries no launch resources: pass occupancies"):
        bound(graph, 80, durations=Durations(TIMES, "us", "made up"))


def test_the_packaged_trace_says_what_was_assumed(sample_store):
    graph = sample_store.graph()
    table = depgraph.bound(graph, sms=80)
    places = gpu_occupancies(graph, "H100 SXM").values
    assert table.occupancy == (places.min(), places.max())
    assert places.min() < places.max()
    assert any("registers per thread unknown: no limit (24 of 25" in n for n in table.assumptions)
    assert table.unit == "instructions"
    assert table.gpu == "H100 SXM"
    for assumption in ("only ratios mean anything", "names no architecture", "register"):
        assert any(assumption in note for note in table.assumptions), assumption
    for found in table.bounds:
        for achieved in found.schedules:
            assert achieved.makespan >= found.lower_bound
