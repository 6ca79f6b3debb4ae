"""Programmatic launches, clusters, queues, stages, megakernels: cases worked out by hand, laws."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from published import outcomes
from random_programs import one_row, programs
from small_graphs import graph_of, resources_of, scenario_of, shares_of

from depgraph.analysis.bound import limits_of
from depgraph.analysis.compare_mechanisms import compare_mechanisms
from depgraph.errors import ModelError, NotApplicableError
from depgraph.gpu.model import available_gpus
from depgraph.mechanisms import Charges, Quantity, find_mechanisms
from depgraph.mechanisms.base import run_mechanism
from depgraph.mechanisms.mega import workers_of
from depgraph.mechanisms.queues import chain_of_each
from depgraph.timing.program_times import LaunchModel, LaunchTime

CLOSE = 1 + 1e-9
SYSTEMS = [
    "pdl(0.5)", "cuda-graph(programmatic)", "cuda-graph(programmatic,0.5)", "clusters(2)",
    "hsa-queues(1)", "horizontal-fusion", "ios(2,2)", "mega(task)", "mega(ready)", "mega(kernel)",
    "clc", "clc(static)", "green-contexts",
]  # fmt: skip


def run(name, program, costs=None, **launches):
    (mechanism,) = find_mechanisms([name])
    model = LaunchModel(**{name: LaunchTime(time, "given") for name, time in launches.items()})
    none = Quantity(0, "us")
    free = {"sync": Quantity(0, "share"), "task": none, "start": none, "packet": none}
    changed = {"quantum": Quantity(3, "us"), **free, **(costs or {})}
    known = {c.name for c in mechanism.costs}
    changed = {n: q for n, q in changed.items() if n in known}
    return run_mechanism(mechanism, program, Charges(mechanism.costs, changed, launches=model))


def makespan(name, program, costs=None, **launches):
    return run(name, program, costs, **launches)[0].makespan


def kernels(durations, edges, sms, **facts):
    """Return kernels of one block each."""
    graph = graph_of([1] * len(durations), [((s, 0), (t, 0)) for s, t in edges])
    return scenario_of(graph, durations, sms=sms, **{"grid": one_row(graph), **facts})


# Programmatic launches.


@pytest.mark.parametrize(
    ("trigger", "end"), [("early", 22), ("0", 22), ("0.5", 22), ("0.9", 23), ("1", 24), ("end", 24)]
)
def test_a_launch_is_hidden_as_far_as_its_trigger_allows(trigger, end):
    # The first kernel runs from 2 to 12, and triggers at 2, 7, 11 or 12; the second needs 2 more.
    program = kernels([10, 10], [(0, 1)], 2)
    rule = {"slot": Quantity(2, "us"), "release": Quantity(0, "us")}
    assert makespan(f"pdl({trigger})", program, rule, gap=2) == end


def test_a_launch_takes_what_was_measured():
    # On an H100 and an H200 each kernel of a chain took 0.35 us more than it takes itself, in
    # graphs 0.15 without a trigger and next to nothing with one.
    program = kernels([10, 10], [(0, 1)], 2)
    assert makespan("pdl(end)", program, gap=2) == pytest.approx(2 + 10 + 0.35 + 10)
    assert makespan("pdl", program, gap=2) == pytest.approx(2 + 10 + 0.35 + 10)
    assert makespan("cuda-graph(launch-order)", program, path=2) == pytest.approx(20.05)
    assert makespan("cuda-graph(programmatic,1)", program, path=2) == pytest.approx(20.15)
    # A slot is taken no later than the launch model's gap would have it.
    assert makespan("pdl(end)", program, gap=0.2) == pytest.approx(0.2 + 10 + 0.35 + 10)


@pytest.mark.parametrize(
    ("ports", "end"),
    [("end", 22), ("launch-order", 20), ("programmatic,0.5", 20), ("programmatic,0.9", 21)],
)
def test_an_edge_of_a_cuda_graph_fires_where_its_port_says(ports, end):
    program = kernels([10, 10], [(0, 1)], 2)
    rule = {"slot": Quantity(2, "us"), "release": Quantity(0, "us")}
    assert makespan(f"cuda-graph({ports})", program, rule if ports != "end" else {}, path=2) == end


def test_blocks_that_wait_in_their_slots_keep_others_out():
    # The second kernel's first block holds the SM that the last could have run on.
    graph = graph_of([1, 2, 1, 1], [((0, 0), (1, 0)), ((0, 0), (1, 1)), ((2, 0), (3, 0))])
    program = scenario_of(graph, [10, 5, 5, 1, 10], sms=2)
    assert makespan("cuda-graph", program) == 16
    assert makespan("cuda-graph(programmatic)", program) == 25


def test_a_block_triggers_after_its_wait():
    program = kernels([10, 10, 10], [(0, 1), (1, 2)], 3)
    found = run("pdl(0.5)", program)[0]
    assert found.start.tolist() == [0, 5, 15]
    assert found.end.tolist() == [10, 20, 30]


# Megakernels.


def test_a_megakernel_takes_three_waves_where_launches_take_four():
    names = ["serial", "mega(task)", "mega(ready)", "mega(kernel)"]
    assert list(
        outcomes("cusync_toy", 4, names, {"mega": {"task": Quantity(0, "us")}})[0].values()
    ) == [4, 3, 3, 4]
    task = {"mega": {"task": Quantity(0.5, "us")}}
    assert outcomes("cusync_toy", 4, ["mega(task)"], task)[0]["mega(task)"] == 4.5


def test_what_a_task_fetches_before_it_waits_is_hidden():
    program = kernels([10, 10], [(0, 1)], 2)
    assert makespan("mega(task)", program) == 20
    assert makespan("mega(task)", program, {"prefetch": Quantity(0.3, "share")}) == 17


def test_a_worker_takes_the_most_of_each_resource():
    graph = graph_of([1, 1], [])
    room = resources_of([8, 8], [[4, 1], [1, 4]])
    assert workers_of(scenario_of(graph, [1, 1], resources=room, sms=1)) == 2
    room = resources_of([8, 8], [[4, 1], [1, 8]])
    program = scenario_of(graph, [1, 1], resources=room, sms=1)
    assert workers_of(program) == 1
    assert makespan("dataflow", program) == 2
    rules = run("mega(ready)", program)[1]
    assert rules.assumptions == ("workers of an SM: 1; the largest occupancy of a kernel is 2",)


# Clusters.


def test_a_cluster_waits_for_room_in_one_gpc():
    # 12 blocks on 6 SMs: two waves; of clusters of 4 only one fits at a time.
    program = scenario_of(graph_of([12], []), np.full(12, 10.0), sms=6)
    assert makespan("serial", program) == 20
    assert makespan("clusters(4)", program) == 30
    assert makespan("clusters(3)", program) == 20
    # Two GPCs of 18 SMs hold two clusters of 8 each: 36 SMs count as 32.
    program = scenario_of(graph_of([72], []), np.full(72, 10.0), sms=36)
    plan = run("clusters(8)", program)[0]
    assert plan.makespan == 30
    for cluster in plan.sm.reshape(-1, 8):
        assert len(set(cluster // 18)) == 1


@pytest.mark.jit_only
@pytest.mark.parametrize(
    ("size", "at_once"),
    [(1, 132), (2, 66), (3, 39), (4, 30), (5, 22), (6, 17), (7, 15), (8, 15), (9, 9), (10, 7),
     (12, 7), (16, 7)],
)  # fmt: skip
def test_as_many_clusters_run_at_once_as_on_an_h200(size, at_once):
    # What cudaOccupancyMaxActiveClusters says of blocks that fill an SM (block_placement.cu).
    graph = graph_of([133 * size], [])
    room = shares_of(graph, gpu="H200")
    program = scenario_of(graph, np.ones(133 * size), resources=room, sms=132)
    starts = run(f"clusters({size})", program)[0].start
    assert np.count_nonzero(starts == 0) == at_once * size


def test_a_cluster_that_fits_nowhere_has_no_row():
    program = scenario_of(graph_of([16], []), np.ones(16), sms=8)
    with pytest.raises(NotApplicableError, match="cluster of 16 blocks of kernel 0 fits into no"):
        run("clusters(16)", program)
    found = compare_mechanisms(program, [8], find_mechanisms(["serial", "clusters(16)"]))
    assert list(found.left_out) == ["clusters(16)"]
    with pytest.raises(ModelError, match="not a whole number from 1 to 16"):
        find_mechanisms(["clusters(17)"])


# Green contexts.


def test_streams_own_their_part_of_the_sms():
    # Two chains of kernels of 16 blocks on 16 SMs: a part of 8 each takes two waves a kernel.
    graph = graph_of([16, 16, 16], [((0, 0), (2, 0))])
    room = shares_of(graph, gpu="H100 SXM")
    program = scenario_of(graph, np.full(48, 10.0), resources=room, sms=16)
    plan, rules = run("green-contexts", program)
    assert plan.makespan == 40
    assert makespan("serial", program) == 30
    assert rules.assumptions == ("SMs of the parts: 8, 8",)
    of_chain = plan.sm[:16], plan.sm[16:32], plan.sm[32:]
    assert [set(sm // 8) for sm in of_chain] == [{0}, {1}, {0}]


def test_a_long_kernel_keeps_no_others_waiting_in_their_part():
    # One block of 100 beside a chain of small ones: the part of 8 SMs is theirs alone.
    graph = graph_of([8, 8, 1], [((0, 0), (1, 0))])
    durations = [10.0] * 16 + [100.0]
    program = scenario_of(graph, durations, resources=shares_of(graph), sms=16)
    assert run("green-contexts", program)[0].end[:16].max() == 20


@pytest.mark.parametrize(
    ("gpu", "sms", "parts"),
    [("H100 SXM", 132, "64, 68"), ("A100 80GB", 108, "54, 54"), ("V100", 80, "40, 40"),
     ("RTX 3070", 46, "22, 24")],
)  # fmt: skip
def test_parts_are_as_equal_as_the_gpu_allows(gpu, sms, parts):
    graph = graph_of([1], [])
    program = scenario_of(graph, [1.0], resources=shares_of(graph, gpu=gpu), sms=sms)
    assert run("green-contexts", program)[1].assumptions == (f"SMs of the parts: {parts}",)


def test_parts_that_do_not_fit_have_no_row():
    graph = graph_of([1], [])
    program = scenario_of(graph, [1.0], resources=shares_of(graph), sms=15)
    with pytest.raises(NotApplicableError, match="2 parts of at least 8 SMs each do not fit on 15"):
        run("green-contexts", program)
    single = {"granularity": Quantity(1, "count")}
    assert run("green-contexts(15)", program, single)[0].makespan == 1


# Queues.


def test_queues_take_turns():
    quantum = {"quantum": Quantity(100, "us")}
    program = kernels([120, 10, 10], [(0, 1)], 3)
    # The first queue has the turns from 0 and 200 on, the second that from 100 on.
    found = run("hsa-queues(1)", program, quantum)[0]
    assert found.start.tolist() == [0, 200, 100]
    assert makespan("hsa-queues(2)", program, quantum) == 130


def test_kernels_of_other_queues_cost_a_barrier_packet():
    program = kernels([10, 10, 10], [(0, 2), (1, 2)], 2)
    assert chain_of_each(program.graph).tolist() == [0, 1, 1]
    packet = {"packet": Quantity(4.4, "us")}
    assert makespan("hsa-queues", program, packet) == pytest.approx(4.4 + 10 + 2 * 4.4 + 10)


# Stages.


def test_stages_on_a_kernel_graph():
    # Of three kernels of 3, 5 and 4 the last waits for the first.
    program = kernels([3, 5, 4], [(0, 2)], 2)
    expected = {
        "serial": 12, "cuda-graph": 7, "horizontal-fusion": 5 + 4, "ios": 7,
        "ios(1,8)": 3 + 5, "ios(1,1)": 12,
    }  # fmt: skip
    assert {name: makespan(name, program) for name in expected} == expected
    assert makespan("horizontal-fusion", program, gap=1, host=1) == 1 + 1 + 5 + 1 + 4
    # Of two chains each fused launch has a kernel, and none waits for the launches of later ones.
    chains = kernels([10] * 20, [(k, k + 1) for k in range(19) if k != 9], 8)
    assert makespan("horizontal-fusion", chains, host=10) == 10 * 10 + 10
    assert run("horizontal-fusion", program)[1].assumptions == ("launches: 2 of 3 kernels",)


# The next tile.


def test_the_next_tile_needs_no_start():
    program = scenario_of(graph_of([6], []), np.full(6, 10.0), sms=2)
    start = {"start": Quantity(2, "us")}
    assert makespan("clc", program) == 30
    assert makespan("clc", program, start) == 10 + 8 + 8


def test_tiles_that_were_dealt_out_do_not_change_hands():
    program = scenario_of(graph_of([4], []), [10, 1, 1, 1], sms=2)
    assert makespan("clc", program) == 10
    assert makespan("clc(static)", program) == 11


# Laws.


@given(programs(), st.sampled_from(SYSTEMS), st.integers(0, 2))
def test_no_system_is_below_its_bound(program, name, cost):
    times = {"pdl": "preamble", "mega": "task", "clc": "start"}
    (mechanism,) = find_mechanisms([name])
    changed = {"green-contexts": {"granularity": Quantity(1, "count")}}
    changed |= {kind: {time: Quantity(cost, "us")} for kind, time in times.items()}
    changed = {kind: costs for kind, costs in changed.items() if kind == mechanism.name}
    found = compare_mechanisms(program, [program.sms], [mechanism], costs=changed)
    assume(not found.left_out)
    (row,) = found.outcomes
    assert row.makespan * CLOSE >= row.lower_bound
    assert row.share_of_bound is None or row.share_of_bound <= 1
    assert row.utilization <= 1
    assert row.held <= 1
    if row.against == "block":
        assert row.makespan * CLOSE >= limits_of(program).lower_bound


@given(programs(), st.sampled_from(SYSTEMS), st.sampled_from(["sm", "full"]))
def test_no_prediction_is_below_the_bound_of_predictions(program, name, contention):
    mechanisms = find_mechanisms([name])
    found = compare_mechanisms(replace(program, contention=contention), [program.sms], mechanisms)
    assume(not found.left_out)
    (row,) = found.outcomes
    if row.against == "block":
        assert row.predicted * CLOSE >= found.limits[0].contended


IDENTITIES = [
    ("pdl(1)", "streams"),
    ("cuda-graph(launch-order)", "cuda-graph(programmatic)"),
    ("clusters(1)", "serial"),
    ("ios(1,1)", "serial"),
    ("green-contexts(1)", "serial"),
    ("clc", "serial"),
]


@given(programs(), st.sampled_from(IDENTITIES))
def test_systems_without_costs_are_what_they_reduce_to(program, names):
    any_part = {"granularity": Quantity(1, "count")}
    one, other = (makespan(name, program, any_part) for name in names)
    assert one == other


@given(programs())
def test_queues_enough_are_a_graph_where_no_branch_takes_slots_of_another(program):
    free = replace(program, sms=np.inf)
    assert makespan("hsa-queues(100)", free) == makespan("cuda-graph", free)


@given(programs())
def test_megakernels_of_equal_slots_are_what_they_reduce_to(program):
    equal = replace(program, resources_of=lambda graph: shares_of(graph, 2))
    assert makespan("mega(ready)", equal) == makespan("dataflow", equal)
    assert makespan("mega(kernel)", equal) == makespan("serial", equal)
    assert makespan("mega(task)", equal) <= makespan("cusync-row", equal) * CLOSE


STRONGER = [
    ("pdl", "pdl(end)"),
    ("pdl(0.5)", "serial"),
    ("cuda-graph(programmatic,0.5)", "cuda-graph"),
    ("cuda-graph(programmatic)", "cuda-graph(programmatic,0.5)"),
    ("cuda-graph", "horizontal-fusion"),
    ("cuda-graph", "ios"),
    ("ios", "serial"),
    ("horizontal-fusion", "serial"),
    ("hsa-queues(2)", "hsa-queues(1)"),
    ("mega(ready)", "mega(kernel)"),
]


@given(programs(), st.sampled_from(STRONGER))
def test_where_sms_do_not_count_less_waiting_is_never_slower(program, names):
    free = replace(program, sms=np.inf)
    costs = {"release": Quantity(0, "us")}
    launches = {} if names[0] == "cuda-graph" else {"gap": 1, "path": 1, "fork": 1}
    assume(names[0] != "hsa-queues(2)" or _turns_divide(program))
    one, other = (makespan(name, free, costs, **launches) for name in names)
    assert one <= other * CLOSE


def _turns_divide(program):
    """Tell whether one set of turns is part of the other: with two queues there is one turn."""
    return chain_of_each(program.graph).max() < 2


@given(programs())
def test_chains_follow_dependences_and_keep_their_order(program):
    graph = program.graph
    chain = chain_of_each(graph)
    pairs = {(p.source, p.target) for p in graph.pairs()}
    for number in set(chain):
        members = np.flatnonzero(chain == number)
        assert {(int(s), int(t)) for s, t in pairwise(members)} <= pairs


def test_gpcs_add_up_to_their_gpu():
    stated = [gpu for gpu in available_gpus() if gpu.gpc_sms is not None]
    assert stated
    assert all(sum(gpu.gpc_sms) == gpu.sms for gpu in stated)
