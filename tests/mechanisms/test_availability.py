"""Which mechanisms a GPU has: others get a row only where they are named, or asked for."""

from dataclasses import replace

import pytest
from small_graphs import graph_of, kernels_of, scenario_of

from depgraph.analysis.compare_mechanisms import compare_mechanisms
from depgraph.analysis.findings import Findings
from depgraph.gpu.model import load_gpu
from depgraph.gpu.sm_resources import equal_shares
from depgraph.mechanisms import Quantity, find_mechanisms
from depgraph.reports.tables.mechanism_tables import comparison_report

LACKING = {
    "V100": {"pdl", "cuda-graph(programmatic)", "clusters(8)", "clc", "hsa-queues"},
    "A100": {"pdl", "cuda-graph(programmatic)", "clusters(8)", "clc", "hsa-queues"},
    "MI300X": {"pdl", "cuda-graph(programmatic)", "clusters(8)", "clc", "green-contexts"},
    "H100": {"pdl", "cuda-graph(programmatic)", "clc", "hsa-queues"},
    "B200": {"pdl", "cuda-graph(programmatic)", "hsa-queues"},
}


def program_on(name, *programmatic, architecture=90):
    """Return two kernels, one after the other, whose code has what is given of each."""
    graph, gpu = graph_of([4, 4], [((0, b), (1, b)) for b in range(4)]), load_gpu(name)
    resources = equal_shares(graph.kernel >= 0, graph.kernel * 0 + 1, gpu)
    kernels = [
        replace(kernel, architecture=architecture, programmatic=code)
        for kernel, code in zip(kernels_of([4, 4]), programmatic or (None, None), strict=True)
    ]
    return scenario_of(graph, kernels=kernels, durations=[10.0] * 8, resources=resources, sms=8)


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
    assert found.best(8) is None
    assert comparison_report(found).vital == [f"Hypothetical: pdl ({note.partition(': ')[2]})."]


def test_what_is_hypothetical_heads_nothing_and_stands_behind_the_others():
    mechanisms = find_mechanisms(["pdl", "streams", "serial"])
    costs = {"pdl": {"preamble": Quantity(10, "us")}}
    found = compare_mechanisms(program_on("H100"), [8], mechanisms, costs=costs)
    times = {row.mechanism: row.makespan for row in found.outcomes}
    assert times["pdl"] < times["serial"]
    assert found.best(8).mechanism != "pdl"
    table = next(t for t in comparison_report(found).tables if t.key == "mechanisms")
    assert [row[1] for row in table.rows][-1] == "pdl"


@pytest.mark.parametrize(("name", "policies"), [("V100", 1), ("MI300X", 1), ("H100", 2)])
def test_a_verdict_proposes_nothing_that_the_gpu_lacks(name, policies):
    assert len(Findings(program_on(name, "trigger", "wait")).predictions) == policies


def test_a_verdict_proposes_nothing_that_the_code_lacks():
    assert [each.policy for each in Findings(program_on("H100")).predictions] == ["cuda-graph"]


BOTH, WAITS = "trigger and wait", "wait"


@pytest.mark.parametrize(
    ("name", "codes", "why"),
    [
        # The first kernel waits for none, and none waits for the last.
        ("pdl", ("trigger", "wait"), ""),
        ("pdl", ("trigger and wait", ""), BOTH + " (griddepcontrol): 1 of 2 do not"),
        ("pdl", ("", ""), BOTH + " (griddepcontrol): 2 of 2 do not"),
        ("pdl", ("trigger", None), BOTH + " (griddepcontrol): their code was not read"),
        ("pdl(end)", ("", "wait"), ""),
        ("pdl(end)", ("", "trigger"), WAITS + " (griddepcontrol): 1 of 2 do not"),
        ("cuda-graph", ("", ""), ""),
        ("cuda-graph(programmatic)", ("trigger", "wait"), ""),
        ("cuda-graph(programmatic)", ("wait", "wait"), BOTH + " (griddepcontrol): 1 of 2 do not"),
        ("cuda-graph(launch-order)", ("wait", "wait"), ""),
        ("cuda-graph(launch-order)", (None, None), "their code was not read"),
    ],
)
def test_early_starts_need_triggers_and_waits_in_the_code(name, codes, why):
    (mechanism,) = find_mechanisms([name])
    said = mechanism.lacking_for(program_on("H100", *codes))
    assert why in said
    assert bool(said) == bool(why)


def test_code_for_older_gpus_has_neither():
    (mechanism,) = find_mechanisms(["pdl"])
    program = program_on("H100", "trigger", "wait", architecture=80)
    assert "2 of 2 do not" in mechanism.lacking_for(program)


def test_without_dependences_no_edge_of_a_graph_fires_early():
    program = program_on("H100")
    (mechanism,) = find_mechanisms(["cuda-graph(programmatic)"])
    apart = program.with_graph(graph_of([4, 4], []))
    assert mechanism.lacking_for(apart) == ""
