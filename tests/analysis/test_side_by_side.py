"""What a picture puts side by side: the schedules that the predicted times are of."""

from dataclasses import replace

import numpy as np
import pytest
from reused_buffers import overwriting, traced
from small_graphs import graph_of, kernels_of, scenario_of

import depgraph
from depgraph.analysis.study import study
from depgraph.parsers.profiles import read_profile
from depgraph.samples import KERNEL_TIMES, sample_path


def program(edges, streams=(0, 0, 0)):
    """Return kernels of one block that take 5, 4 and 3 us."""
    graph = graph_of([1, 1, 1], edges)
    graph = replace(graph, resources=graph.resources._replace(stream=np.array(streams)))
    return scenario_of(graph, kernels=kernels_of([1, 1, 1]), sms=4).with_durations(
        np.array([5.0, 4.0, 3.0])
    )


def shown(scenario):
    found = study(scenario).side_by_side
    return {s.name: s.makespan for s in found.schedules}, found.gain


def test_a_chain_has_no_change():
    schedules, gain = shown(program([((0, 0), (1, 0)), ((1, 0), (2, 0))]))
    assert schedules == {"one kernel after another": 12}
    assert gain is None


def test_independent_kernels_are_put_side_by_side():
    schedules, gain = shown(program([((0, 0), (2, 0))]))
    assert schedules["with independent branches side by side"] == 8
    assert gain == 12 / 8


def test_what_the_program_s_own_streams_let_overlap_is_no_change():
    schedules, gain = shown(program([((0, 0), (2, 0))], streams=[0, 1, 0]))
    assert schedules == {"one kernel after another": 12, "in its 2 streams": 8}
    assert gain is None


def test_buffers_to_separate_are_the_change():
    found = study(traced(overwriting(6), np.full(6, 20.0), sms=8))
    assert found.verdict.names_buffers
    chain, changed = found.side_by_side.schedules
    assert changed.name.startswith("with 2 reused buffers (")
    assert chain.makespan / changed.makespan == found.side_by_side.gain > 1.2


@pytest.mark.jit_only
def test_they_end_at_the_times_that_are_predicted(sample_store):
    request = depgraph.Request(times=sample_path(KERNEL_TIMES), read_profile=read_profile)
    found = study(depgraph.Scenario.of_store(sample_store, request).on(132))
    times, (as_graph, changed) = found.conclusion.times, found.side_by_side.schedules
    assert (as_graph.name, as_graph.makespan) == ("as a CUDA graph", times.as_graph.us)
    assert (changed.name, changed.makespan) == (times.change, times.changed.us)
