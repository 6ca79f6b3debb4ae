"""Predictions with contention: what a kernel alone takes, what no schedule can be below."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_programs import programs
from small_graphs import chain_edges, graph_of, scenario_of

from depgraph.analysis.compare_mechanisms import compare_mechanisms
from depgraph.gpu.model import load_gpu
from depgraph.gpu.sm_resources import sm_resources
from depgraph.mechanisms import find_mechanisms
from depgraph.mechanisms.serial import serial

LEAD = 0.5  # of an H100, in microseconds


def contended(sizes, edges, durations, **more):
    """Return a scenario on an H100, as measured there."""
    graph = graph_of(sizes, edges)
    resources = sm_resources(graph, load_gpu("H100 SXM"))
    return scenario_of(
        graph, durations, resources=resources, sms=132, contention="full", **more
    )  # fmt: skip


def predicted(scenario, *names):
    found = compare_mechanisms(scenario, [scenario.sms], find_mechanisms(names))
    return [outcome.predicted for outcome in found.outcomes], found.limits[0]


@pytest.mark.jit_only
@pytest.mark.parametrize("blocks", [1, 100, 132, 500, 3000, 9000])
def test_a_kernel_alone_takes_its_measured_time(blocks):
    scenario = contended([blocks], [], np.full(blocks, 20.0))
    (time,), _ = predicted(scenario, "serial")
    # Of many blocks that end at nearly one time, rounding decides which is first.
    assert time == pytest.approx(serial(scenario).makespan, rel=5e-3)


def test_a_chain_takes_what_its_kernels_take_one_after_another():
    sizes = [500, 40, 3000]
    scenario = contended(sizes, chain_edges(sizes), np.full(sum(sizes), 8.0))
    times, _ = predicted(scenario, "serial", "cuda-graph")
    assert times == pytest.approx([serial(scenario).makespan] * 2)


def test_kernels_that_fill_all_sms_gain_little_side_by_side():
    """Fixed durations would let both run at full speed: 2x."""
    sizes = [264, 264]
    scenario = contended(sizes, [], np.full(sum(sizes), 50.0))
    (serial_time, time), limits = predicted(scenario, "serial", "cuda-graph")
    assert limits.upper_bound == 2
    assert 1 < serial_time / time < 1.6
    assert serial_time / time <= limits.contended_upper_bound


def test_another_gpu_is_uncalibrated_and_says_so():
    scenario = contended([4], [], np.ones(4))
    scenario = replace(
        scenario, resources_of=lambda graph: sm_resources(graph, load_gpu("A100 40GB"))
    )
    assert scenario.sharing.assumptions == (
        "contention on A100 40GB is uncalibrated: constants of the H100 SXM",
    )
    assert contended([4], [], np.ones(4)).sharing.assumptions == ()


def test_counts_of_instructions_are_no_times():
    scenario = replace(scenario_of(graph_of([2], [])), contention="full", sms=4)
    assert scenario.unit == "instructions"
    assert scenario.sharing is None


@given(programs(), st.sampled_from(["sm", "full"]))
def test_no_prediction_is_below_its_bound(program, contention):
    program = replace(program, contention=contention)
    names = ["serial", "streams", "cuda-graph", "acs-sw", "pdl", "dataflow(best)"]
    found = compare_mechanisms(program, [program.sms], find_mechanisms(names))
    (limits,) = found.limits
    for outcome in found.outcomes:
        if outcome.against == "block":
            assert outcome.predicted >= limits.contended * (1 - 1e-9)
