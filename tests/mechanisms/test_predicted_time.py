"""The one prediction: what hardware may do either way, what launches cost, families."""

import itertools
import json
import lzma
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from random_programs import programs
from small_graphs import chain_edges, graph_of, scenario_of

from depgraph.analysis.measured_programs import MeasuredKernel, MeasuredProgram
from depgraph.gpu.model import load_gpu
from depgraph.gpu.sm_resources import sm_resources
from depgraph.mechanisms import find_mechanisms
from depgraph.mechanisms import predicted_time as predicted_time_module
from depgraph.mechanisms.base import Quantity, run_mechanism
from depgraph.mechanisms.cuda_graph import CudaGraph
from depgraph.mechanisms.predicted_time import (
    in_microseconds,
    predicted_chain,
    predicted_schedule,
    predicted_time,
)
from depgraph.samples import sample_path
from depgraph.scenario.contention import contended_bound
from depgraph.timing.program_times import launch_model, parse_launch

H100 = load_gpu("H100 SXM")
# A CUDA graph's node, path, fork and root cost nothing but what a test says.
FREE = "0,0,0"


def program(sizes, edges, durations, launch=FREE, **more):
    graph = graph_of(sizes, edges)
    model = launch_model(parse_launch(launch), unit="us", gpu=H100)
    return scenario_of(
        graph, durations, resources=sm_resources(graph, H100), sms=132, launch=model, **more
    )


@pytest.mark.parametrize(
    ("sizes", "durations", "expected"),
    [
        # On 2 SMs: the long block beside the others, or behind them.
        ([1, 4], [4.0, 2, 2, 2, 2], (6, 7, 8)),
        # It is last neither in launch order nor in the opposite one, but in one of four orders.
        ([2, 1, 2], [2.0, 2, 4, 2, 2], (6, 6.5, 8)),
        # Where all are alike, the order does not matter.
        ([1, 1, 1, 1], [2.0, 2, 2, 2], (4, 4, 4)),
    ],
)
def test_branches_are_predicted_in_several_orders(sizes, durations, expected):
    scenario = scenario_of(graph_of(sizes, []), durations, sms=2)
    scenario = scenario.with_launch(launch_model(parse_launch(FREE), unit="us", gpu=H100))
    found = predicted_time(CudaGraph(), scenario)
    assert (found.low, found.time, found.high) == expected


@pytest.mark.parametrize(("branches", "is_first"), [(2, True), (6, True), (6, False), (7, False)])
def test_branches_out_of_one_node_start_in_launch_order_if_few_else_in_the_opposite(
    branches, is_first
):
    # On 2 SMs, after the root: a long block beside the short ones, which take as long together.
    sizes, long = [1] * (1 + branches), 2.0 * (branches - 1)
    edges = [((0, 0), (1 + i, 0)) for i in range(branches)]
    times = [2.0] * branches
    times[0 if is_first else -1] = long
    scenario = scenario_of(graph_of(sizes, edges), [1.0, *times], sms=2)
    scenario = scenario.with_launch(launch_model(parse_launch(FREE), unit="us", gpu=H100))
    found = predicted_time(CudaGraph(), scenario)
    at_once = is_first == (branches <= 6)
    behind = 2.0 * ((branches - 1) // 2) + long
    assert found.low == found.time == found.high == 1 + (long if at_once else behind)


def first_on_one_sm(edges, copies=()):
    """Return the nodes of a graph of kernels of one block, as they start on one SM."""
    size = 1 + max(target for _, target in edges)
    graph = graph_of([1] * size, [((source, 0), (target, 0)) for source, target in edges])
    kernel = graph.kernel.copy()
    for number, (node, _) in enumerate(copies):
        kernel[node] = -1 - number
    whats = {-1 - number: what for number, (_, what) in enumerate(copies)}
    scenario = scenario_of(replace(graph, kernel=kernel, copies=whats), np.full(size, 5.0), sms=1)
    scenario = scenario.with_launch(launch_model(parse_launch(FREE), unit="us", gpu=H100))
    schedule, _ = run_mechanism(CudaGraph(), scenario)
    return np.argsort(schedule.start, kind="stable").tolist()


@pytest.mark.parametrize("inner", [3, 7])
def test_each_fork_of_a_graph_has_an_order_of_its_own(inner):
    """Two nodes wait for the root, and `inner` for the first of these."""
    order = first_on_one_sm([(0, 1), (0, 2), *((1, 3 + i) for i in range(inner))])
    assert order[:3] == [0, 1, 2]
    assert order[3:] == sorted(order[3:], reverse=inner > 6)


def test_edges_that_others_imply_count_for_the_order():
    """Streams that fork from one wait for its first kernel, whatever else they wait for."""
    few = [(0, 1), (0, 2), (1, 3), (1, 4), (2, 5), (2, 6), (2, 7)]
    assert first_on_one_sm(few)[:3] == [0, 1, 2]
    assert first_on_one_sm([*few, *((0, node) for node in range(3, 8))])[:3] == [0, 2, 1]


@pytest.mark.parametrize(("what", "is_reversed"), [("memset", False), ("memcpy DtoD", True)])
def test_copies_count_for_the_order_but_no_memsets(what, is_reversed):
    order = first_on_one_sm([(0, 1 + i) for i in range(7)], [(7, what)])
    kernels = [node for node in order if 1 <= node <= 6]
    assert kernels == sorted(kernels, reverse=is_reversed)


@pytest.mark.parametrize(("gpu", "forks"), [("h100", 1040), ("h200", 1556)])
def test_what_waits_for_one_node_was_measured_to_start_in_that_order(gpu, forks):
    """samples/validation/forks.cu: of each node those that it is the last to let start."""
    with lzma.open(sample_path(f"validation/measured/{gpu}-forks.jsonl.xz"), "rt") as lines:
        graphs = [row for row in map(json.loads, lines) if row["what"] != "machine"]
    found = 0
    for graph in graphs:
        after = [needs for _, _, needs in graph["nodes"]]
        blocks = [size for size, _, _ in graph["nodes"]]  # none of a memset, less of a copy
        last = [max(needs, key=graph["end"].__getitem__, default=-1) for needs in after]
        for node in range(len(after)):
            starts = [graph["start"][i] for i, j in enumerate(last) if j == node and blocks[i] > 0]
            waiting = sum(node in needs for needs, size in zip(after, blocks, strict=True) if size)
            if waiting > 6:
                starts.reverse()
            assert all(b - a > -0.1 for a, b in itertools.pairwise(starts))
            found += len(starts) > 1
    assert found == forks


def test_replays_that_the_host_paces_are_not_in_the_time_without_launches(monkeypatch):
    def makespans(_, scenario, __):
        return [2.0] if scenario.launch.is_off else [1.0]

    monkeypatch.setattr(predicted_time_module, "_makespans", makespans)
    monkeypatch.setattr(predicted_time_module, "_replays_on_idle_gpu", lambda *_: [9.0])
    found = predicted_time(CudaGraph(), program([1], [], [1.0], launch="gpu"))
    assert (found.time, found.free) == (5.5, 2.0)


@pytest.mark.parametrize("launch", ["gpu", "none", "0,0,0", "3,2,1.5"])
@pytest.mark.parametrize("sizes", [[8], [8, 8, 8]])
def test_a_chain_is_the_graph_of_its_edges(sizes, launch):
    scenario = program(sizes, chain_edges(sizes), np.full(sum(sizes), 6.0), launch)
    assert predicted_chain(CudaGraph(), scenario) == predicted_time(CudaGraph(), scenario)


@pytest.mark.parametrize(("time", "path"), [(20.0, 0.4), (2.0, 0.2)])
def test_short_kernels_hide_the_path_to_them(time, path):
    scenario = program([1, 1, 1], chain_edges([1, 1, 1]), np.full(3, time), "gpu,node=0,graph=0")
    assert predicted_time(CudaGraph(), scenario).time == pytest.approx(3 * time + 2 * path)


@pytest.mark.parametrize(("roots", "more"), [(1, 0), (2, 2)])
def test_an_edge_costs_more_from_branch_to_branch_of_several_roots(roots, more):
    # 0 before 1 and 2, both before 3: one of each pair goes on in its branch.
    edges = [((0, 0), (1, 0)), ((0, 0), (2, 0)), ((1, 0), (3, 0)), ((2, 0), (3, 0))]
    sizes = [1] * (3 + roots)
    scenario = program(sizes, edges, np.full(len(sizes), 10.0))
    plain = predicted_time(CudaGraph(), scenario).time
    dear = program(sizes, edges, np.full(len(sizes), 10.0), "none,fork=2")
    assert predicted_time(CudaGraph(), dear).time == pytest.approx(plain + more)


def test_free_launches_make_no_program_slower():
    # All at once, blocks of the convolution go where no cluster of the product can stand.
    kernels = [
        MeasuredKernel("nvjet_sm90_tst_64x24_64x16_2x4_h_bz_NNT", (8, 6, 1), (384, 1, 1), 168,
                       197076, 5.2),
        MeasuredKernel("fprop", (2, 49, 1), (64, 1, 1), 92, 6528, 15.7),
    ]  # fmt: skip
    pair = MeasuredProgram("pair", "pair", 0, kernels, [], 23, 20).scenario(
        load_gpu("h200"), "full"
    )
    found = predicted_time(CudaGraph(), pair)
    assert found.free <= found.time < found.high


def test_the_second_of_two_roots_comes_a_time_of_its_own_later():
    scenario = program([1, 1], [], np.full(2, 50.0), "none,root=1,leaf=0.5,second=0.25")
    assert predicted_time(CudaGraph(), scenario).time == 50.25


@pytest.mark.parametrize(("roots", "leaves"), [(3, 2), (3, 1), (4, 4)])
def test_each_root_waits_for_all_leaves_of_the_replay_before(roots, leaves):
    # The leaves wait for the last root alone, all else runs beside it.
    own = max(leaves - roots + 1, 1)
    sizes = [1] * (roots + own)
    edges = [((roots - 1, 0), (roots + i, 0)) for i in range(own)]
    scenario = program(sizes, edges, np.full(len(sizes), 50.0), "none,root=1,leaf=0.5")
    assert len(sizes) - len({source for (source, _), _ in edges}) == roots - 1 + own
    later = (roots - 1) * (1 + 0.5 * (roots - 1 + own))
    assert predicted_time(CudaGraph(), scenario).high == pytest.approx(100 + later)


def test_the_wait_for_leaves_does_not_grow_beyond_what_was_measured():
    """Else each of a hundred thousand roots would wait for 8 ms, and their graph take minutes."""
    scenario = program([1] * 500, [], np.full(500, 0.1), "none,leaf=0.08")
    assert predicted_time(CudaGraph(), scenario).high == pytest.approx(0.1 + 499 * 32 * 0.08)


def test_a_host_that_is_slower_than_a_graph_keeps_its_replays_apart():
    scenario = program([1] * 10, [], np.full(10, 2.0), "none,leaf=1,issue=4")
    found = predicted_time(CudaGraph(), scenario)
    # Launched every 40 us, or 9 further roots after waits for 10 leaves.
    assert (found.low, found.high) == (40, 2 + 9 * 10)
    fast = program([1] * 10, [], np.full(10, 2.0), "none,leaf=1,issue=0.1")
    assert predicted_time(CudaGraph(), fast).low == 2 + 9 * 10


@given(programs())
def test_nothing_is_predicted_faster_because_launches_cost_more(scenario):
    found = predicted_time(CudaGraph(), scenario)
    assert found.free <= found.time * (1 + 1e-9)
    assert found.low <= found.time <= found.high * (1 + 1e-9)


@given(programs())
def test_a_picture_of_a_prediction_ends_when_it_does(scenario):
    time = predicted_time(CudaGraph(), scenario).time
    assert predicted_schedule(CudaGraph(), scenario, time).makespan == time


@pytest.mark.parametrize(
    ("sizes", "edges", "family"),
    [
        ([2, 2], [((0, 0), (1, 0))], "chains"),
        ([2, 2], [], "fans"),
        ([1] * 4, [((0, 0), (1, 0)), ((2, 0), (3, 0))], "branches"),
        ([1] * 3, [((0, 0), (1, 0)), ((0, 0), (2, 0))], "re-edged graphs"),
    ],
)
def test_the_edges_of_a_graph_tell_its_family(sizes, edges, family):
    scenario = program(sizes, edges, np.full(sum(sizes), 6.0))
    assert CudaGraph().family_of(scenario) == family


def test_independent_kernels_of_two_functions_are_a_pair():
    scenario = program([2, 2], [], np.full(4, 6.0), functions=["gemm", "add"])
    assert CudaGraph().family_of(scenario) == "pairs"


def test_what_nobody_measured_has_no_range():
    scenario = program([2, 2], [], np.full(4, 6.0), contention="full")
    fan = in_microseconds(predicted_time(CudaGraph(), scenario), CudaGraph(), scenario)
    assert fan.low_us < fan.us < fan.high_us
    (mega,) = find_mechanisms(["mega"])
    shown = in_microseconds(predicted_time(mega, scenario), mega, scenario)
    assert (shown.low_us, shown.high_us, shown.family) == (None, None, "megakernels")


@pytest.mark.jit_only
@pytest.mark.parametrize("name", ["cuda-graph(programmatic)", "cuda-graph(launch-order)"])
def test_early_starts_are_predicted_no_faster_than_any_schedule_can_be(name):
    # Two blocks of the third kernel, which waits for the first, share an SM.
    sizes = [
        (7, 256, 16, 0, 333.0), (700, 32, 32, 100_000, 2.5), (133, 64, 16, 100_000, 333.0),
        (133, 128, 32, 20_000, 0.2),
    ]  # fmt: skip
    kernels = [
        MeasuredKernel(f"k{blocks}", (blocks, 1, 1), (threads, 1, 1), registers, shared, time)
        for blocks, threads, registers, shared, time in sizes
    ]
    scenario = MeasuredProgram("p", "p", 0, kernels, [(0, 2)], 1, 1).scenario(H100, "full")
    (early,) = find_mechanisms([name])
    assert predicted_time(early, scenario).low >= contended_bound(scenario.contended)


def test_early_ports_may_have_a_preamble():
    (graph,) = find_mechanisms(["cuda-graph(programmatic)"])
    scenario = program([1, 1], chain_edges([1, 1]), [10.0, 10.0])
    costs = {"release": Quantity(0, "us"), "preamble": Quantity(4, "us")}
    assert predicted_time(graph, scenario, {graph.name: costs}).time == pytest.approx(16)


def chain_of(per_sm, time):
    """Return a chain of 12 kernels of so many blocks an SM, of which 16 fit."""
    kernel = MeasuredKernel("k", (132 * per_sm, 1, 1), (128, 1, 1), 16, 0, time)
    links = [(i, i + 1) for i in range(11)]
    return MeasuredProgram("chain", "chain", 0, [kernel] * 12, links, 1, 1).scenario(H100, "full")


@pytest.mark.jit_only
@pytest.mark.parametrize("name", ["pdl", "cuda-graph(programmatic)"])
def test_early_blocks_stay_even_over_sms_or_pile_up_where_some_find_no_slot(name):
    (early,) = find_mechanisms([name])
    for per_sm, is_even in ((8, True), (16, True), (6, False), (10, False)):
        scenario = chain_of(per_sm, 15.0)
        found, chain = predicted_time(early, scenario), predicted_chain(early, scenario).time
        assert found.low <= chain * 1.03
        assert (found.high <= chain * 1.06) == is_even


@pytest.mark.jit_only
@pytest.mark.parametrize(("per_sm", "preamble"), [(1, 9.0), (4, 9.0), (8, 4.0), (8, 9.0)])
@pytest.mark.parametrize("name", ["pdl", "cuda-graph(programmatic)"])
def test_what_blocks_do_before_they_wait_slows_the_kernel_before(name, per_sm, preamble):
    """Longer than if it took no time, and shorter than if it had to wait, too."""
    (early,) = find_mechanisms([name])

    def chain(work, **also):
        costs = {"release": Quantity(0, "us")} | also
        return predicted_time(early, chain_of(per_sm, work), {early.name: costs}).time

    found = chain(18.0, preamble=Quantity(preamble, "us"))
    if_free = chain(18.0 - preamble)
    assert if_free * (1.03 if per_sm == 1 else 1.1) < found < chain(18.0)


@pytest.mark.jit_only
@pytest.mark.parametrize("blocks", [200_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_very_many_blocks_are_predicted(blocks):
    sizes = [blocks // 2] * 2
    scenario = program(sizes, chain_edges(sizes), np.full(blocks, 8.0), contention="full")
    found = predicted_time(CudaGraph(), scenario)
    assert found.time == pytest.approx(predicted_chain(CudaGraph(), scenario).time)


def products(cluster, sms=None):
    """Return four products side by side, of 96 blocks that fill an SM, as cuBLAS names them."""
    kernels = [
        MeasuredKernel(f"nvjet_sm90_tst_64x48_64x15_{cluster}_h_bz_NNT", (8, 12, 1), (384, 1, 1),
                       168, 200_000, 6.0)
        for _ in range(4)
    ]  # fmt: skip
    program = MeasuredProgram("fan", "fan", 0, kernels, [], 24.0, 23.0)
    scenario = program.scenario(load_gpu("H100 SXM"), "full")
    return scenario if sms is None else scenario.on(sms)


@pytest.mark.jit_only
def test_clusters_of_a_matrix_product_leave_room_that_no_other_one_fits_into():
    single, pairs, eights = (
        predicted_time(CudaGraph(), products(named)).time for named in ("1x1", "1x2", "2x4")
    )
    assert single == pairs < eights
    chain = predicted_chain(CudaGraph(), products("2x4")).time
    assert chain == predicted_chain(CudaGraph(), products("1x1")).time


def test_clusters_count_on_no_gpu_too_small_for_them():
    times = [predicted_time(CudaGraph(), products(c, sms=4)).time for c in ("1x1", "2x4")]
    assert times[0] == times[1]
