"""Verdicts: a program for each rule, and what holds for all of them."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from launching import launches_of, with_launches
from programs import programs
from reused_buffers import address, overwriting, traced
from small_graphs import chain_edges, graph_of, kernels_of, scenario_of

from depgraph.analysis.answer import conclude
from depgraph.analysis.buffers import BLOCK_BYTES
from depgraph.analysis.findings import Findings, carve_out_conflicts
from depgraph.analysis.measured_programs import MeasuredKernel, MeasuredProgram
from depgraph.analysis.next_steps import Invocation
from depgraph.analysis.verdict_rules import RULES, Topic
from depgraph.gpu.model import load_gpu
from depgraph.gpu.sm_resources import sm_resources
from depgraph.scenario.scenario import MeasuredSchedule
from depgraph.timing.measured_run import MeasuredRun
from depgraph.timing.program_times import launch_model, parse_launch
from depgraph.trace.records import Allocation

DOCS = Path(__file__).resolve().parents[2] / "docs"


def program(sizes, edges=(), durations=None, *, sms=4, streams=None, names=None):
    """Return kernels of so many blocks, one block per SM, in microseconds."""
    graph = graph_of(sizes, list(edges))
    if streams is not None:
        graph = replace(graph, resources=graph.resources._replace(stream=np.array(streams)))
    durations = np.ones(graph.n_blocks) if durations is None else durations
    return scenario_of(graph, durations, kernels=kernels_of(sizes, names), sms=sms)


def barriers(sizes):
    """Return edges that let every kernel wait for all blocks of the one before it."""
    return [
        ((k, a), (k + 1, b))
        for k in range(len(sizes) - 1)
        for a in range(sizes[k])
        for b in range(sizes[k + 1])
    ]


def profiled(scenario, *, wall, idle, is_graph=False):
    run = MeasuredRun(
        wall=wall, kernel_time=wall - idle, idle=idle, is_graph=is_graph, gap=1.0, interval=1.0,
        host=None, queued_gap=None, unit="us", sms=4, others=0,
    )  # fmt: skip
    return replace(scenario, run=run, measured=MeasuredSchedule(4, wall, 1.0, 0.5))


def cannot_share(edges=()):
    """Return a kernel of many blocks without shared memory, and one of few with much of it.

    As measured on an H100: 59 us one after another, 90 us side by side.
    """
    kernels = [
        MeasuredKernel("add", (4096, 1, 1), (128, 1, 1), 16, 1024, 24.0),
        MeasuredKernel("conv", (100, 1, 1), (64, 1, 1), 96, 9000, 34.0),
    ]
    program_ = MeasuredProgram("pair", "pair", 0, kernels, edges, 59.0, 90.0)
    return program_.scenario(load_gpu("H100 SXM"), "full")


CANNOT_SHARE = cannot_share()
CHAIN = program([1, 1, 1], barriers([1, 1, 1]))
CASES = {
    "launch-bound": (
        profiled(CHAIN, wall=100.0, idle=97.0),
        "Launch-bound: use a CUDA graph. In the profile no kernel runs for 97.0 % of 100.0 us",
    ),
    "short-nodes": (
        profiled(CHAIN, wall=10.0, idle=7.0, is_graph=True),
        "Nodes too short: launched as a CUDA graph, no kernel runs for 70.0 % of 10.00 us",
    ),
    "reused-buffers": (
        # Is compiled: not as the file is imported.
        lambda: traced(overwriting(4), [20.0] * 4, sms=100),
        "2 reused buffers (1.0 KiB, 0x7f0000000000 and 0x7f0000000200), written by 4 of 4 kernels",
    ),
    "nothing-pays": (
        lambda: traced(overwriting(4), [0.3, 0.3, 0.3, 0.3], sms=100),
        "Nothing pays: reused buffers serialize independent kernels, but launching them side by",
    ),
    "already-overlapped": (
        program([2, 2], streams=[7, 8]),
        "Already overlapped by its 2 streams: predicted 2.00x before launch costs,",
    ),
    "enough-waves": (
        program([8, 8], barriers([8, 8])),
        "Nothing to gain from overlap: one after another, the kernels keep 100.0 % of 4 SMs busy",
    ),
    "too-small": (
        CHAIN,
        "Kernels too small: batch, or fuse. They wait for one another, and one after",
    ),
    "tail-waves": (
        program([5, 5], barriers([5, 5]), names=["gemm", "gemm"]),
        "Tail waves cost 37.5 % of the serial time. Last waves: kernels 0, 1 (gemm): 1 of 5 blocks",
    ),
    "ships-today": (
        program([2, 2], durations=np.full(4, 20.0)), "Kernels could overlap: predicted"
    ),
    "gain-lost": (
        program([1] * 5, durations=np.full(5, 0.3)),
        "Kernels could overlap, but launching them costs what it would bring, or more: predicted",
    ),
    "child-kernels": (
        with_launches(
            program([1]), launches_of([{"block": 0, "child_grid": 4, "inline": 400}])
        ),
        "Child kernels could bring the most: upper bound 267x on 4 SMs; if none are",
    ),
    "block-by-block": (
        program([2, 2], chain_edges([2, 2]), [1, 9, 9, 1], sms=2),
        "Only blocks could overlap, not whole kernels: predicted 1.00x",
    ),
    "carve-outs": (
        CANNOT_SHARE,
        "These kernels cannot share SMs, set the preferred carve-out: kernel 1 (conv) needs 100.0",
    ),
}  # fmt: skip


# Of thousands of blocks: long without the compiler.
NAMES = [
    pytest.param(name, marks=pytest.mark.jit_only) if name == "carve-outs" else name
    for name in CASES
]


def scenario_for(name):
    scenario = CASES[name][0]
    return scenario() if callable(scenario) else scenario


def test_there_is_a_case_for_every_rule():
    assert set(CASES) == {rule.name for rule in RULES}


@pytest.mark.parametrize("name", NAMES)
def test_what_each_rule_says(name):
    verdict = conclude(scenario_for(name))
    assert name in verdict.rules
    sentence = verdict.sentences[verdict.rules.index(name)]
    assert sentence.startswith(CASES[name][1])


@pytest.mark.parametrize("name", NAMES)
def test_a_bound_never_stands_without_a_prediction(name):
    verdict = conclude(scenario_for(name))
    assert re.search(r"predicted \d", verdict.text)
    assert re.search(r"upper bound \d", verdict.text)


@pytest.mark.parametrize("name", NAMES)
def test_a_verdict_is_two_sentences_about_two_things_at_most(name):
    verdict = conclude(scenario_for(name))
    topic = {rule.name: rule.topic for rule in RULES}
    topics = [topic[rule] for rule in verdict.rules]
    assert Topic.OVERLAP in topics
    assert len(set(topics)) == len(topics) <= 2
    assert len(verdict.sentences) == len(verdict.rules)


@pytest.mark.parametrize("name", NAMES)
def test_next_steps_ask_about_the_same_program(name):
    asked = Invocation("runs/my store", (("--gpu", "H100 SXM"),))
    for step in conclude(scenario_for(name), asked).steps:
        assert step.text.endswith(":") == bool(step.command)
        if step.command:
            words = shlex.split(step.command)
            assert (words[0], words[2]) == ("depgraph", "runs/my store")
            assert words[1] in {"bound", "show", "report"}


@pytest.mark.parametrize("name", ["reused-buffers", "block-by-block"])
def test_a_program_is_looked_into_on_sms_that_can_be_counted(name):
    scenario = scenario_for(name)
    rule = next(rule for rule in RULES if rule.name == name)
    steps = rule.steps(Findings(replace(scenario, sms=float("inf"))))
    commands = [shlex.split(step.command) for step in steps if step.command]
    assert all("inf" not in words for words in commands if words[1] == "show")
    assert any("inf" in words for words in commands if words[1] == "bound")


def test_each_rule_is_explained():
    text = (DOCS / "verdicts.md").read_text()
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert [h for h in headings if "-" in h] == [rule.name for rule in RULES]


def test_child_kernels_are_named_only_where_the_gain_is_theirs():
    launches = launches_of([{"block": 0, "child_grid": 4, "child_duration": 9, "inline": 1}])
    verdict = conclude(with_launches(scenario_for("block-by-block"), launches))
    assert verdict.rules == ("block-by-block",)
    (step,) = conclude(scenario_for("child-kernels")).steps
    assert "--mechanism flat,cdp,spawn" in step.command


@pytest.mark.jit_only
def test_equal_carve_outs_are_what_is_predicted_without_them():
    found = Findings(CANNOT_SHARE)
    (apart,) = found.conflicts
    assert (apart.first, apart.second) == (0, 1)
    assert apart.set_to < apart.needed
    assert found.together.makespan < 0.95 * found.graph_prediction.makespan
    verdict = conclude(CANNOT_SHARE, Invocation("s", (("--contention", "full"),)))
    assert verdict.rules[-1] == "carve-outs"
    assert verdict.steps[-1].command == (
        "depgraph bound s --mechanism cuda-graph --contention sm --sms 132"
    )
    assert f"predicted {found.together.speedup:.2f}x" in verdict.sentences[-1]


@pytest.mark.jit_only
def test_kernels_that_never_run_at_a_time_need_not_share():
    assert [(each.first, each.second) for each in carve_out_conflicts(cannot_share())] == [(0, 1)]
    assert carve_out_conflicts(cannot_share(edges=[(0, 1)])) == []
    assert carve_out_conflicts(replace(CANNOT_SHARE, contention="sm")) == []


def test_the_smallest_set_of_buffers_that_brings_most_is_named():
    found = Findings(traced(overwriting(4), sms=100))
    assert found.buffer_set.upper_bound == 4
    assert found.renamed_prediction.speedup <= 4


def test_a_recorded_program_can_be_run_with_its_real_edges():
    def steps(**metadata):
        scenario = replace(traced(overwriting(4), [20.0] * 4, sms=100), metadata=metadata)
        return [step for step in conclude(scenario).steps if "parallelize" in step.text]

    assert len(steps(format="recording")) == 1
    assert steps(format="nvbit") == steps() == []


def test_buffers_that_bring_little_are_not_named():
    # Of two kernels that overwrite a buffer one takes nearly all of the time.
    program_ = [{0: (set(), {0})}, {1: (set(), {0})}]
    assert "reused-buffers" not in conclude(traced(program_, [20, 1])).rules
    assert "reused-buffers" in conclude(traced(program_, [2, 1])).rules


def test_buffers_are_not_named_where_addresses_are_not_known():
    edges = [((0, 0), (1, 0), "WAW")]
    assert conclude(program([1, 1], edges)).rules == ("too-small",)


def test_launches_that_are_said_to_cost_nothing_cost_nothing():
    scenario, _ = CASES["ships-today"]
    free = launch_model(parse_launch("0,0,0"), unit="us", gpu=scenario.resources.gpu)
    graph = Findings(scenario.with_launch(free)).best_prediction
    assert graph.speedup == graph.overlap == 2
    assert Findings(scenario).best_prediction.speedup < 2


def test_one_kernel_may_take_nearly_all_of_the_time():
    verdict = conclude(program([1, 1], durations=[20.0, 1.0]))
    assert verdict.rules == ("too-small",)
    assert "One takes 95.2 % of the time, and one after another they keep" in verdict.text


def test_a_program_that_the_memory_bus_limits_has_no_small_kernels():
    verdict = conclude(replace(CHAIN, memory=30.0))
    assert verdict.rules == ("enough-waves",)
    assert "the kernels wait for the memory bus; predicted 1.00x" in verdict.text


def test_buffers_are_named_by_what_allocated_them():
    scenario = traced(overwriting(4), [20.0] * 4, sms=100)
    allocations = [
        Allocation(address(0), BLOCK_BYTES, 0, op="aten::empty", line="model.py(12): forward"),
        Allocation(address(1), BLOCK_BYTES, 0, op="aten::mm"),
    ]
    verdict = conclude(replace(scenario, allocations=allocations))
    named = "allocated by aten::empty at model.py(12): forward, aten::mm"
    assert f"2 reused buffers (1.0 KiB, {named}), written by 4 of 4" in verdict.text
    assert f"keep apart what is {named}: memory of its own for each branch" in [
        step.text for step in verdict.steps
    ]
    unknown = conclude(scenario)
    assert "allocated by" not in str([unknown.text, *(step.text for step in unknown.steps)])


def test_kernels_that_cannot_share_an_sm_are_not_said_to_depend_on_one_another():
    """One needs all shared memory, one none: of 2.00x for fixed durations half is left."""
    scenario = program([132, 132], durations=np.full(264, 50.0), sms=132)
    launch = scenario.graph.resources._replace(shared_bytes=np.array([0, 100_000]))
    graph = replace(scenario.graph, resources=launch)
    resources = sm_resources(graph, load_gpu("H100 SXM"))
    scenario = replace(
        scenario, graph=graph, resources_of=lambda _: resources, contention="full"
    )  # fmt: skip
    verdict = conclude(scenario)
    assert verdict.rules == ("ships-today", "carve-outs")
    found = Findings(scenario).graph_prediction
    assert found.time.high == pytest.approx(found.chain.time, rel=0.1)
    assert found.time.low < 0.8 * found.chain.time


def test_as_good_is_the_cheapest():
    # A CUDA graph and programmatic launches win nothing over one another: the graph is named.
    chain = program([1, 1], barriers([1, 1]), [1000, 1000])
    kernels = [replace(k, programmatic="trigger and wait") for k in chain.kernels]
    found = Findings(replace(chain, kernels=kernels))
    assert [p.policy for p in found.predictions] == ["cuda-graph", "pdl"]
    assert found.best_prediction.policy == "cuda-graph"


def test_streams_leave_what_they_do_not_overlap():
    # Two of three independent kernels are in one stream.
    found = Findings(program([1, 1, 1], durations=np.full(3, 10.0), streams=[0, 0, 1]))
    assert found.launched.streams == 2
    assert found.launched.speedup == pytest.approx(3 / 2)
    assert found.launched.remaining == pytest.approx(2)
    assert conclude(found.scenario).rules == ("ships-today",)
    assert "its 2 streams permit 1.50x" in conclude(found.scenario).text


def test_one_stream_is_serial():
    launched = Findings(CHAIN).launched
    assert (launched.streams, launched.speedup, launched.run) == (1, 1, None)
    assert launched.idle_share == 0


def test_how_it_ran_is_not_said_of_a_changed_program():
    scenario = replace(profiled(CHAIN, wall=100.0, idle=97.0), measured=None)
    assert Findings(scenario).launched.run is None
    assert conclude(scenario).rules == ("too-small",)


def test_unlimited_sms_have_no_tails():
    assert conclude(replace(scenario_for("tail-waves"), sms=float("inf"))).rules == ("too-small",)


@given(programs(max_operations=6, memory=8))
def test_what_is_predicted_is_within_the_bound(program):
    found = Findings(traced(program, sms=2))
    verdict = conclude(found.scenario)
    assert len(verdict.rules) == 1
    for each in found.predictions:
        assert each.gain <= each.overlap <= found.bound.upper_bound * (1 + 1e-9)
        assert each.gain <= each.speedup == each.chain.time / each.time.time
    if found.renamed_prediction is not None:
        assert found.renamed_prediction.overlap <= found.buffer_set.upper_bound * (1 + 1e-9)
