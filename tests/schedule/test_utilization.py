"""How busy the SMs are, worked out by hand and by a slow twin."""

from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from small_graphs import chain_edges, graph_of, scenario_of

from depgraph.analysis.kernel_groups import kernel_loads
from depgraph.mechanisms.base import serial
from depgraph.schedule.policy import Schedule, running_part, slots_on_sm, utilization_over_time


def schedule_of(*rows):
    start, end, sm = (np.array(column, float) for column in zip(*rows, strict=True))
    return Schedule("test", start, end, sm.astype(np.int32))


def test_utilization_is_the_share_of_sms_that_is_busy_between_two_instants():
    # SM 0 is busy from 0 to 4, SM 1 from 1 to 2.
    schedule = schedule_of((0, 4, 0), (1, 2, 1))
    edges = np.array([0.0, 1.0, 2.0, 4.0, 5.0])
    found = utilization_over_time(schedule, np.ones(2), 2, edges)
    assert found.tolist() == [0.5, 1.0, 0.5, 0.0]


def test_a_block_that_waits_in_a_slot_runs_at_the_end_of_its_stay():
    held = schedule_of((0, 4, 0), (1, 3, 1))
    running = running_part(held, np.array([1.0, 5.0]))
    assert running.start.tolist() == [3, 1]
    assert running.end.tolist() == [4, 3]


def test_an_interval_without_length_is_not_busy():
    schedule = schedule_of((0, 4, 0))
    assert utilization_over_time(schedule, np.ones(1), 1, np.array([1.0, 1.0])).tolist() == [0]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20), st.sampled_from([0.25, 0.5, 1.0])),
             min_size=1, max_size=20)
)  # fmt: skip
def test_utilization_agrees_with_adding_up_the_overlaps(rows):
    start = np.array([r[0] for r in rows], float)
    end = start + [r[1] for r in rows]
    shares = np.array([r[2] for r in rows])
    schedule = Schedule("test", start, end, np.zeros(len(rows), np.int32))
    edges = np.linspace(0, 70, 8)
    expected = [
        sum(max(0, min(b, e) - max(a, s)) * w for s, e, w in zip(start, end, shares, strict=True))
        / (3 * (b - a))
        for a, b in pairwise(edges)
    ]
    assert utilization_over_time(schedule, shares, 3, edges) == pytest.approx(expected, abs=1e-9)


def test_a_tail_wave_is_what_is_left_after_the_full_ones():
    graph = graph_of([10], [])
    (load,) = kernel_loads(scenario_of(graph, np.ones(10), occupancy=2, sms=2))
    assert (load.slots, load.full_waves, load.tail_blocks) == (4, 2, 2)
    assert load.tail_utilization == 0.5
    assert load.time == 3
    assert load.utilization == pytest.approx(10 / 12)


def test_full_waves_have_no_tail():
    (load,) = kernel_loads(scenario_of(graph_of([8], []), np.ones(8), sms=4))
    assert (load.full_waves, load.tail_blocks, load.tail_utilization) == (2, 0, 1.0)


def test_utilization_of_a_serial_schedule_averages_to_work_over_makespan():
    sizes = [5, 3, 9]
    graph = graph_of(sizes, chain_edges(sizes))
    durations = np.arange(1.0, 18.0)
    scenario = scenario_of(graph, durations, occupancy=[1, 2, 3], sms=2)
    schedule, shares = serial(scenario), scenario.shares
    whole = utilization_over_time(schedule, shares, 2, np.array([0.0, schedule.makespan]))
    assert whole[0] == pytest.approx((durations * shares).sum() / 2 / schedule.makespan)


def test_blocks_in_one_slot_of_an_sm_never_overlap():
    rng = np.random.default_rng(0)
    start = rng.integers(0, 100, 300).astype(float)
    end = start + rng.integers(0, 30, 300)
    schedule = Schedule("test", start, end, rng.integers(0, 3, 300).astype(np.int32))
    slot = slots_on_sm(schedule)
    for sm in range(3):
        for number in range(slot.max() + 1):
            inside = np.flatnonzero((schedule.sm == sm) & (slot == number))
            inside = inside[np.lexsort((end[inside], start[inside]))]
            assert (start[inside][1:] >= end[inside][:-1]).all()
        at_once = max(((start <= t) & (t < end) & (schedule.sm == sm)).sum() for t in start)
        assert slot[schedule.sm == sm].max() <= at_once
