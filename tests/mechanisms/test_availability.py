"""Which mechanisms a GPU has: others get a row only where they are named, or asked for."""

import pytest
from small_graphs import graph_of, scenario_of

from depgraph.analysis.compare_mechanisms import compare_mechanisms
from depgraph.analysis.findings import Findings
from depgraph.gpu.model import load_gpu
from depgraph.gpu.sm_resources import equal_shares
from depgraph.mechanisms import find_mechanisms

LACKING = {
    "V100": {"pdl", "cuda-graph(programmatic)", "clusters(8)", "clc", "hsa-queues"},
    "A100": {"pdl", "cuda-graph(programmatic)", "clusters(8)", "clc", "hsa-queues"},
    "MI300X": {"pdl", "cuda-graph(programmatic)", "clusters(8)", "clc", "green-contexts"},
    "H100": {"clc", "hsa-queues"},
    "B200": {"hsa-queues"},
}


def program_on(name):
    """Return two kernels that depend on nothing, on a GPU of that name."""
    graph, gpu = graph_of([4, 4], []), load_gpu(name)
    resources = equal_shares(graph.kernel >= 0, graph.kernel * 0 + 1, gpu)
    return scenario_of(graph, durations=[10.0] * 8, resources=resources, sms=8)


@pytest.mark.parametrize("name", LACKING)
def test_all_are_those_that_the_gpu_has(name):
    scenario = program_on(name)
    found = compare_mechanisms(scenario, [8], find_mechanisms(["all"]))
    left_out = {m for m, why in found.left_out.items() if "--hypothetical" in why}
    assert left_out == LACKING[name]
    assert not left_out & {row.mechanism for row in found.outcomes}


@pytest.mark.parametrize("name", LACKING)
def test_all_others_are_shown_if_asked_for_and_marked(name):
    scenario = program_on(name)
    found = compare_mechanisms(scenario, [8], find_mechanisms(["all"], hypothetical=True))
    marked = {row.mechanism for row in found.outcomes if "hypothetical: " in str(row.assumptions)}
    assert marked | {"green-contexts"} == LACKING[name] | {"green-contexts"}


def test_one_that_is_named_is_shown_and_marked():
    found = compare_mechanisms(program_on("V100"), [8], find_mechanisms(["pdl"]))
    (row,) = found.outcomes
    note = "hypothetical: needs compute capability 9.0: the V100 has 7.0"
    assert row.assumptions[0].startswith(note)


@pytest.mark.parametrize(("name", "policies"), [("V100", 1), ("MI300X", 1), ("H100", 2)])
def test_a_verdict_proposes_nothing_that_the_gpu_lacks(name, policies):
    assert len(Findings(program_on(name)).predictions) == policies
