"""Blocks that share an SM slow each other: the engine with rates, compared with its slow twin."""

import json
import lzma
from dataclasses import replace
from itertools import pairwise

import naive_sharing
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_programs import programs
from small_graphs import graph_of, resources_of, shares_of

from depgraph.analysis.measured_programs import MeasuredKernel, MeasuredProgram
from depgraph.gpu.model import load_gpu
from depgraph.gpu.sm_resources import sm_resources
from depgraph.gpu.sm_sharing import CarveOuts, SmSharing, sm_sharing
from depgraph.graph.block_graph import Resources, dependent_operations
from depgraph.samples import sample_path
from depgraph.scenario.contention import run_contended
from depgraph.schedule.policy import (
    ALL_ENDED,
    ALL_PLACED,
    HOLDS,
    IGNORED,
    Gates,
    Places,
    Rules,
)
from depgraph.schedule.simulate import largest_gpc, run_rules, where_placed
from depgraph.schedule.sms_jit import room_of, sharing_of
from depgraph.schedule.waits_jit import operations_of


def whole_kernels(graph, **more):
    """Return rules by which a kernel waits for all of those it depends on."""
    return Rules(
        joins=np.full(len(graph.join_kind), IGNORED, np.uint8),
        gates=Gates.between(*dependent_operations(graph), ALL_ENDED),
        **more,
    )


def run(graph, work, resources, sms, sharing, **more):
    rules = whole_kernels(graph, **more)
    return run_rules("shared", rules, graph, work, resources, sms, sharing=sharing)


@st.composite
def sharings(draw, program):
    """Return how blocks slow each other; work is such that no two blocks end at one instant."""
    n = program.graph.n_operations
    load = np.array(draw(st.lists(st.integers(1, 8), min_size=n, max_size=n))) / 4
    carve_outs = None
    resources = program.resources
    if len(resources.capacity) > 1 and draw(st.booleans()):
        sizes = np.array([0.25, 0.5, 1.0]) * resources.capacity[3]
        least = sizes[draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))]
        chosen = sizes[draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))]
        least = np.maximum(least, resources.placed[:, 3]).astype(np.int64)
        carve_outs = CarveOuts(3, least, np.maximum(least, chosen).astype(np.int64))
    side, beside = None, (0.0, 0.0)
    if draw(st.booleans()):
        side = np.array(draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)))
        beside = draw(st.sampled_from([(0.5, 0.0), (0.2, 0.7)]))
    slowdown = draw(st.sampled_from([0.3, 1.0]))
    part, across = None, 1.0
    if draw(st.booleans()):
        part = np.array(draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)))
        across = draw(st.sampled_from([0.0, 0.4]))
    smsps, warps = 1, None
    if draw(st.booleans()):
        smsps = draw(st.sampled_from([2, 4]))
        warps = np.array(draw(st.lists(st.integers(1, 9), min_size=n, max_size=n)))
    return SmSharing(
        slowdown, load, 0.0, 0.0, carve_outs, side, beside,
        take_back=draw(st.sampled_from([0.0, 0.0711, 0.913])),
        fill=draw(st.sampled_from([0.0, 0.0517, 0.317])), part=part, across=across, warps=warps,
        smsps=smsps, cluster_start=draw(st.sampled_from([0.0, 1.117])),
    )  # fmt: skip


@st.composite
def in_gpcs(draw, program):
    """Return the resources of a program on a GPU whose SMs are in GPCs of any sizes."""
    left, sizes = int(program.sms), []
    while left:
        sizes.append(draw(st.integers(1, left)))
        left -= sizes[-1]
    gpu = replace(program.resources.gpu, gpc_sms=tuple(sizes))
    return replace(program.resources, gpu=gpu)


@given(st.data())
def test_blocks_run_as_in_the_slow_twin(data):
    program = data.draw(programs())
    sharing = data.draw(sharings(program))
    graph, sms = program.graph, int(program.sms)
    work = program.durations * (1 + 0.01 * np.sqrt(2 + np.arange(graph.n_blocks)))
    waits_for = [set() for _ in range(graph.n_operations)]
    for source, target in zip(*dependent_operations(graph), strict=True):
        waits_for[target].add(source)
    resources, cluster = data.draw(in_gpcs(program)), None
    if data.draw(st.booleans()):
        sizes = [[c for c in (1, 2, 3) if blocks % c == 0] for blocks in np.diff(graph.first_block)]
        cluster = np.array([data.draw(st.sampled_from(each)) for each in sizes])
        cluster = np.where(cluster <= largest_gpc(resources.gpu, sms), cluster, 1)
    found = run(graph, work, resources, sms, sharing, cluster=1 if cluster is None else cluster)
    start, end, sm = naive_sharing.shared_schedule(
        graph, work, resources, sms, sharing, waits_for, cluster=cluster
    )
    np.testing.assert_allclose(found.start, start, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.end, end, rtol=1e-9)
    np.testing.assert_array_equal(found.sm, sm)


KERNELS = st.lists(
    st.tuples(st.integers(1, 5), st.sampled_from([1, 2, 3]), st.integers(1, 4), st.integers(1, 6)),
    min_size=2, max_size=5,
)  # fmt: skip


@given(KERNELS, st.lists(st.integers(1, 3), min_size=2, max_size=3))
def test_kernels_go_past_clusters_that_wait_for_room_as_in_the_slow_twin(kernels, gpcs):
    number, cluster, need, times = np.array(kernels).T
    cluster = np.minimum(cluster, max(gpcs))
    graph = graph_of(list(number * cluster), [])
    resources = resources_of([4], need[:, None])
    resources = replace(resources, gpu=replace(resources.gpu, gpc_sms=tuple(gpcs)))
    work = np.repeat(times, number * cluster) * (1 + 0.01 * np.sqrt(2 + np.arange(graph.n_blocks)))
    sharing = SmSharing(0.5, np.ones(len(need)), 0.0, 0.0, cluster_start=1.117)
    found = run(graph, work, resources, sum(gpcs), sharing, cluster=cluster)
    start, _, sm = naive_sharing.shared_schedule(
        graph, work, resources, sum(gpcs), sharing, [set() for _ in need], cluster=cluster
    )
    np.testing.assert_allclose(found.start, start, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(found.sm, sm)


@given(st.data())
def test_blocks_do_what_they_can_before_they_wait_as_in_the_slow_twin(data):
    program = data.draw(programs())
    sharing = data.draw(sharings(program))._replace(side=None)
    graph, sms, n = program.graph, int(program.sms), program.graph.n_operations
    work = program.durations * (1 + 0.01 * np.sqrt(2 + np.arange(graph.n_blocks)))
    ahead = np.array(data.draw(st.lists(st.integers(1, 9), min_size=n, max_size=n))) / 1.7
    before, after = np.arange(n - 1), np.arange(1, n)
    gates = Gates.between(before, after, ALL_PLACED)
    holds = Gates.between(before, after, ALL_ENDED, holds=True)
    rules = Rules(joins=np.full(len(graph.join_kind), IGNORED, np.uint8), gates=gates)
    in_wave = waves(program, sharing, rules)
    holds = replace(holds, lead=(ahead * in_wave)[1:])
    rules = replace(rules, gates=gates + holds)
    found = run_rules("early", rules, graph, work, program.resources, sms, sharing=sharing)
    start, end, sm = naive_sharing.shared_schedule(
        graph, work, program.resources, sms, sharing, [set(range(k)[-1:]) for k in range(n)], ahead
    )
    np.testing.assert_allclose(found.start, start, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.end, end, rtol=1e-9)
    np.testing.assert_array_equal(found.sm, sm)


def waves(program, sharing, rules):
    """Return how many times as long blocks of each kernel take beside those of their wave."""
    graph = program.graph
    placed = where_placed(rules, graph, program.resources, sharing, program.sms, None)
    operations = operations_of(rules, graph, graph.n_operations)
    sharing_of(operations, room_of(operations, placed), placed)
    return operations["in_wave"].copy()


def test_what_a_block_does_in_its_place_slows_those_that_it_waits_for():
    """Two blocks on one SM: the second one does 4 of its 10 units of work before it waits."""
    graph = graph_of([1, 1], [])
    sharing = SmSharing(0.5, np.ones(2), 0.0, 0.0)
    gates = Gates.between([0], [1], ALL_PLACED)
    gates += Gates.between([0], [1], ALL_ENDED, holds=True, lead=6.0)  # of 1.5 times as long
    for first, ends in ((10.0, [17.0, 26.0]), (2.0, [4.0, 16.0])):
        work = np.array([first, 10.0])
        rules = Rules(gates=gates)
        found = run_rules("early", rules, graph, work, shares_of(graph, 2), 1, sharing=sharing)
        assert found.end.tolist() == ends


@pytest.mark.parametrize(
    ("least", "take_back", "start"),
    [(2, 0.5, 1.5), (2, 5.0, 3.0), (1, 0.0, 0.0)],
    ids=["taken back one by one", "no longer than the kernel runs", "at once"],
)
def test_blocks_of_another_kernel_wait_until_those_before_are_taken_back(least, take_back, start):
    graph = graph_of([3, 2], [])
    resources = resources_of([1, 1, 1, 2], [[0, 0, 0, 1]] * 2)
    cuts = CarveOuts(3, np.array([1, least]), np.array([1, 2]))
    sharing = SmSharing(0.5, np.ones(2), 0.0, 0.0, cuts, take_back=take_back)
    found = run(graph, np.full(5, 2.0), resources, 8, sharing)
    assert found.start.tolist() == [0, 0, 0, start, start]


@pytest.mark.parametrize(("fill", "blocks"), [(0.0, [3, 3]), (0.1, [3, 1, 1, 1])])
def test_while_an_sm_takes_further_blocks_others_fall_empty_that_share_the_rest(fill, blocks):
    """Six blocks, of which an SM holds three, wait for four SMs of another carve-out."""
    graph = graph_of([4, 6], [])
    resources = resources_of([1, 1, 1, 6], [[0, 0, 0, 1], [0, 0, 0, 2]])
    cuts = CarveOuts(3, np.array([1, 6]), np.array([1, 6]))
    sharing = SmSharing(0.5, np.ones(2), 0.0, 0.0, cuts, fill=fill)
    found = run(graph, np.full(10, 2.0), resources, 4, sharing)
    assert sorted(np.unique_counts(found.sm[4:]).counts.tolist(), reverse=True) == blocks


def test_copies_do_not_count_as_blocks_that_an_sm_takes():
    graph = graph_of([1, 1, 1], [])
    resources = resources_of([1, 1, 1, 2], [[0, 0, 0, 2], [0, 0, 0, 0], [0, 0, 0, 2]])
    cuts = CarveOuts(3, np.full(3, 2), np.full(3, 2))
    sharing = SmSharing(0.5, np.array([1.0, 0.0, 1.0]), 0.0, 0.0, cuts, fill=0.5)
    rules = whole_kernels(graph, launch=np.array([0.0, 0.0, 0.1]))
    found = run_rules("copy", rules, graph, np.ones(3), resources, 2, sharing=sharing)
    assert found.start.tolist() == [0.0, 0.0, 0.1]


def test_blocks_go_to_sms_that_fall_empty_one_by_one_as_was_measured():
    """samples/validation/placement.py on an H200, ends of blocks 0 to 256 ns apart.

    As many SMs get some, to one, as in some of 21 replays in 96 of 100 settings, and as in the
    median, to 15 % or two, in 76; if all went to the first ones, in 71 and 47.
    """
    with lzma.open(sample_path("validation/measured/h200-placement.jsonl.xz"), "rt") as lines:
        rows = [row for row in map(json.loads, lines) if row["what"] == "gradual"]
    gpu = load_gpu("H200")
    seen = close = 0
    for row in rows:
        (n, threads, shared), (more, *other) = row["kernels"]
        sizes = [np.array(pair) for pair in zip((threads, shared), other, strict=True)]
        graph = graph_of([n, more], [])
        taken = Resources(sizes[0], np.full(2, 16), sizes[1], np.zeros(2, np.int64), 90)
        resources = sm_resources(replace(graph, resources=taken), gpu)
        sharing = sm_sharing(resources, carve_outs=True)
        sharing = sharing._replace(slowdown=0.0, lead=0.0, take_back=0.0)
        work = np.append(7 + row["apart"] / 1000 * (np.arange(n) * 53 % n), np.full(more, 9.0))
        rules = Rules(joins=IGNORED, launch=np.array([0.0, 0.2]), first_come=True)
        found = run_rules("gradual", rules, graph, work, resources, gpu.sms, sharing=sharing)
        sms, median = len(np.unique(found.sm[n:])), np.median(row["sms"])
        seen += min(row["sms"]) - 1 <= sms <= max(row["sms"]) + 1
        close += abs(sms - median) <= max(2, 0.15 * median)
    assert len(rows) == 100
    assert seen >= 95
    assert close >= 75


def test_kernels_that_keep_other_parts_of_an_sm_busy_slow_each_other_less():
    """Both take 1 + 0.5 (1 + 0.4) times as long beside each other, and 1.5 times alone."""
    graph = graph_of([1, 1], [])
    sharing = SmSharing(0.5, np.ones(2), 0.0, 0.0, part=np.array([0, 1]), across=0.4)
    found = run(graph, np.array([1.0, 2.0]), shares_of(graph, 2), 1, sharing)
    assert found.end.tolist() == pytest.approx([1.7, 1.7 + 1.5])


def test_behind_clusters_that_find_no_room_blocks_start_where_none_can_stand():
    """120 SMs are taken; of a cluster of eight only four blocks would find room in one GPC."""
    graph = graph_of([120, 8, 12], [])
    sharing = SmSharing(0.5, np.ones(3), 0.0, 0.0, cluster_start=0.01)
    rules = whole_kernels(graph, cluster=np.array([1, 8, 1]), launch=np.array([0, 1, 2]))
    found = run_rules(
        "behind", rules, graph, np.full(140, 6.0), shares_of(graph, 1), 132, sharing=sharing
    )
    assert found.start[120:].tolist() == [9] * 8 + [2] * 8 + [9] * 4
    assert sorted(found.sm[128:136].tolist()) == list(range(124, 132))


def test_each_block_of_a_cluster_takes_an_sm_of_its_own_as_was_measured():
    """samples/validation/placement.py on an H200: also where an SM has room for many."""
    with lzma.open(sample_path("validation/measured/h200-placement.jsonl.xz"), "rt") as lines:
        rows = [row for row in map(json.loads, lines) if row["what"] == "standing"]
    gpu = load_gpu("H200")
    for row in rows:
        graph = graph_of([row["blocks"]], [])
        taken = (np.full(1, value) for value in (128, 16, row["shared"], 0))
        resources = sm_resources(replace(graph, resources=Resources(*taken, 90)), gpu)
        rules = whole_kernels(graph, cluster=row["cluster"])
        found = run_rules("standing", rules, graph, np.ones(row["blocks"]), resources, gpu.sms)
        clusters = np.sort(found.sm.reshape(-1, row["cluster"]), axis=1)
        assert (np.diff(clusters, axis=1) > 0).all()
        assert row["most"] == 1
        assert len(np.unique(found.sm)) == row["sms"]
    assert len(rows) == 24


def test_blocks_behind_large_clusters_go_where_none_of_these_can_stand():
    """On an H100 a cluster of four fits in no GPC of two: in the last eight SMs."""
    graph = graph_of([8, 12], [])
    outside = set(range(124, 132))
    sharing = SmSharing(0.5, np.ones(2), 0.0, 0.0, cluster_start=1.0)
    for cluster, late, expected in ((4, 0.0, True), (8, 0.9, True), (4, 1.1, False), (2, 0, False)):
        rules = whole_kernels(graph, cluster=np.array([cluster, 1]), launch=np.array([0, late]))
        found = run_rules(
            "beside", rules, graph, np.full(20, 5.0), shares_of(graph, 1), 132, sharing=sharing
        )
        assert (set(found.sm[8:].tolist()) > outside) is expected


def test_two_blocks_on_one_sm_take_longer_than_one():
    graph = graph_of([2], [])
    sharing = SmSharing(0.5, np.array([1.0]), 0.0, 0.0)
    alone = run(graph, np.array([6.0, 6.0]), shares_of(graph, 1), 2, sharing)
    together = run(graph, np.array([6.0, 6.0]), shares_of(graph, 2), 1, sharing)
    assert alone.end.tolist() == [9, 9]  # a rate of 1 / 1.5
    assert together.end.tolist() == [12, 12]  # a rate of 1 / 2


def test_a_block_speeds_up_when_its_neighbour_has_ended():
    graph = graph_of([2], [])
    sharing = SmSharing(1.0, np.array([1.0]), 0.0, 0.0)
    found = run(graph, np.array([2.0, 4.0]), shares_of(graph, 2), 1, sharing)
    assert found.end.tolist() == [6, 10]  # a third of the speed for 6, then half for 4


def test_what_a_block_does_before_it_waits_is_slowed_too():
    """The second block needs the first after half of its work; each is alone on an SM."""
    graph = graph_of([1, 1], [((0, 0), (1, 0))])
    sharing = SmSharing(0.5, np.array([2.0, 2.0]), 0.0, 0.0)
    rules = Rules(joins=np.array([HOLDS], np.uint8), join_need=np.array([0.5]))
    for first, end in ((6.0, 20.0), (10.0, 20.0), (12.0, 22.0), (20.0, 30.0)):
        # At a rate of 1 / 2 of its 10 units of work 5 are done after 10.
        work = np.array([first / 2, 10.0])
        found = run_rules("shared", rules, graph, work, shares_of(graph, 1), 2, sharing=sharing)
        assert found.end.tolist() == [first, end]


def test_a_block_that_waits_twice_is_slowed_in_between():
    """The last block needs one from its start on, which ends at 80, another one at 90 %."""
    graph = graph_of([1, 1, 1], [((0, 0), (2, 0)), ((1, 0), (2, 0))])
    sharing = SmSharing(0.5, np.full(3, 2.0), 0.0, 0.0)
    rules = Rules(joins=np.full(2, HOLDS, np.uint8), join_need=np.array([0.0, 0.9]))
    work = np.array([40.0, 50.0, 50.0])
    found = run_rules("shared", rules, graph, work, shares_of(graph, 1), 3, sharing=sharing)
    assert found.end.tolist() == [80, 100, 180]


def test_what_a_copy_engine_moves_is_not_slowed_as_blocks_on_an_sm_are():
    """Two blocks of 6 units of work take 9 each alone on an SM, and as long on a copy engine."""
    graph = graph_of([2], [])
    sharing = SmSharing(0.5, np.array([1.0]), 0.0, 0.0)
    on_engine = Places(*(np.array([n]) for n in (1, 1, 0, 1, 2)), np.array([True]))
    found = run_rules(
        "copies", Rules(places=on_engine), graph, np.array([6.0, 6.0]), shares_of(graph, 1), 1,
        sharing=sharing,
    )  # fmt: skip
    np.testing.assert_allclose(found.end, [9, 9])


def test_without_slowdown_the_schedule_is_that_of_fixed_durations():
    graph = graph_of([3, 2], [((0, 0), (1, 0))])
    work = np.array([1.0, 2.5, 3.25, 4.5, 5.125])
    fixed = run(graph, work, shares_of(graph, 2), 1, None)
    shared = run(graph, work, shares_of(graph, 2), 1, SmSharing(0.0, np.ones(2), 0.0, 0.0))
    np.testing.assert_allclose(shared.end, fixed.end)


def test_a_kernel_waits_for_an_empty_sm_where_the_carve_out_is_too_small():
    graph = graph_of([1, 1], [])
    resources = resources_of([4, 8], [[1, 1], [1, 4]])
    carve_outs = CarveOuts(1, least=np.array([2, 8]), chosen=np.array([2, 8]))
    sharing = SmSharing(0.0, np.ones(2), 0.0, 0.0, carve_outs)
    found = run(graph, np.array([3.0, 3.0]), resources, 1, sharing)
    assert found.start.tolist() == [0, 3]
    larger = sharing._replace(carve_outs=carve_outs._replace(chosen=np.array([8, 8])))
    assert run(graph, np.array([3.0, 3.0]), resources, 1, larger).start.tolist() == [0, 0]


def test_a_host_copy_sets_no_carve_out():
    graph = graph_of([1, 2], [])
    resources = resources_of([4, 8], [[0, 0], [1, 4]])
    carve_outs = CarveOuts(1, least=np.array([0, 8]), chosen=np.array([0, 8]))
    sharing = SmSharing(0.5, np.array([0.0, 1.0]), 0.0, 0.0, carve_outs)
    found = run(graph, np.array([0.0, 2.0, 2.0]), resources, 2, sharing)
    assert found.sm[1:].tolist() == [0, 1]
    assert found.end.tolist() == [0, 3, 3]


@given(st.data())
def test_more_contention_never_makes_blocks_faster_that_are_placed_at_once(data):
    n = data.draw(st.integers(1, 8))
    work = np.array(data.draw(st.lists(st.integers(1, 9), min_size=n, max_size=n)), float)
    graph = graph_of([1] * n, [])
    ends = [
        run(graph, work, shares_of(graph, n), 2, SmSharing(a, np.ones(n), 0.0, 0.0)).end
        for a in (0.0, 0.5, 1.0)
    ]
    assert (ends[0] <= ends[1] * (1 + 1e-12)).all()
    assert (ends[1] <= ends[2] * (1 + 1e-12)).all()


def test_blocks_of_few_warps_slow_those_alone_on_the_same_sub_partitions():
    """Two blocks of two warps do not meet; a third is dealt to where the first is."""
    sharing = SmSharing(1.0, np.full(1, 0.5), 0.0, 0.0, smsps=4, warps=np.array([2]))
    ends = [
        run(graph_of([n], []), np.ones(n), shares_of(graph_of([n], []), 8), 1, sharing).end
        for n in (1, 2, 3)
    ]
    assert ends[0].tolist() == [2.0]
    assert ends[1].tolist() == [2.0, 2.0]
    assert ends[2].tolist() == [3.0, 2.0, 3.0]


def test_a_copy_takes_no_turn_of_warps():
    sharing = SmSharing(
        1.0, np.array([0.5, 0.0, 0.5]), 0.0, 0.0, smsps=4, warps=np.array([2, 1, 2])
    )
    graph = graph_of([1, 1, 1], [])
    resources = resources_of([8], [[4], [0], [4]])
    assert run(graph, np.ones(3), resources, 1, sharing).end.tolist() == [2.0, 1.0, 2.0]


def test_more_blocks_of_few_warps_are_a_load_of_whole_warps_for_the_busiest_sub_partition():
    sharing = SmSharing(
        1.0, np.array([0.5, 1.0, 5.0]), 0.0, 0.0, smsps=4, warps=np.array([2, 4, 5])
    )
    assert sharing.load_of(1).tolist() == [1.0, 1.0, 8.0]
    assert sharing.load_of(np.array([3, 3, 4])).tolist() == [2.0, 3.0, 20.0]
    assert sharing._replace(smsps=1, warps=None).load_of(2).tolist() == [1.0, 2.0, 10.0]


def test_warps_were_measured_to_go_to_the_sub_partitions_in_turn():
    """samples/validation/subpartitions.cu on an H200: a warp's number modulo 4."""
    with lzma.open(sample_path("validation/measured/h200-subpartitions.jsonl.xz"), "rt") as lines:
        rows = [row for row in map(json.loads, lines) if "on_sm_0" in row]
    for row in rows:
        turns = [kernel["threads"] // 32 % 4 or 1 for kernel in row["kernels"]]
        blocks = sorted(row["on_sm_0"])  # of both kernels, if two
        for (kernel, *_, warps), (*_, others) in pairwise(blocks):
            assert (others[0] - warps[0] - turns[kernel]) % 4 == 0
        for *_, warps in blocks:
            assert (np.diff(warps) % 4 == 1).all()
    assert len(rows) == 356


def test_blocks_of_an_sm_take_as_long_as_measured_on_its_sub_partitions():
    """samples/validation/subpartitions.cu on an H200: sums that do not wait for one another."""
    with lzma.open(sample_path("validation/measured/h200-subpartitions.jsonl.xz"), "rt") as lines:
        rows = [row for row in map(json.loads, lines) if row["what"] == "one wave"]
    rows = [row for row in rows if row["kernels"][0]["sums"] == 8]
    alone = max(end for *_, end, _ in rows[0]["on_sm_0"])
    for row in rows:
        warps, n = row["kernels"][0]["threads"] // 32, len(row["on_sm_0"])
        graph = graph_of([n], [])
        # A warp is a load of 1 for its sub-partition, which it keeps busy to four fifths.
        sharing = SmSharing(4.0, np.array([warps / 4]), 0.0, 0.0, smsps=4, warps=np.array([warps]))
        found = run(graph, np.full(n, 0.2), shares_of(graph, 64), 1, sharing)
        measured = max(end for *_, end, _ in row["on_sm_0"]) / alone
        assert found.makespan == pytest.approx(measured, rel=0.06)
    assert len(rows) == 78


def test_an_sm_does_most_when_it_is_full():
    sharing = SmSharing(0.5, np.ones(1), 0.0, 0.0)
    assert sharing.full_time(np.array([16.0])) == pytest.approx(10.0)


@pytest.mark.parametrize(
    "work", [(10.0, 0.0), (0.0, 10.0), (10.0, 10.0), (10.0, 0.1), (3.0, 7.0), (10.0, 1e-15)]
)
@pytest.mark.parametrize("across", [0.0, 0.5, 1.0])
def test_a_full_sm_shares_its_parts_so_that_both_end_at_one_time(work, across):
    sharing = SmSharing(0.5, np.ones(2), 0.0, 0.0, part=np.array([0, 1]), across=across)
    shares = np.linspace(0, 1, 100_001)  # of the load that one part holds
    least = np.zeros(len(shares))
    for own, does in ((shares, work[0]), (1 - shares, work[1])):
        if does:
            rate = 8 * own / (1 + 0.5 * 8 * (own + across * (1 - own)))
            least = np.maximum(least, does / np.maximum(rate, 1e-12))
    assert sharing.full_time(np.array(work)) == pytest.approx(least.min(), rel=1e-4)


def test_what_comes_behind_a_kernel_that_waits_starts_before_it_where_it_was_measured_to():
    """samples/validation/placement.py on an H200: of 12 settings in the two behind clusters."""
    with lzma.open(sample_path("validation/measured/h200-placement.jsonl.xz"), "rt") as lines:
        rows = [row for row in map(json.loads, lines) if row["what"] == "waiting"]
    overtaken = []
    for row in (row for row in rows if row["kernels"][0] == [132, 256, 122880, 20]):
        kernels = [
            MeasuredKernel("spy", (blocks, 1, 1), (threads, 1, 1), 16, shared, 1.0 * us)
            for blocks, threads, shared, us, *_ in row["kernels"]
        ]
        clusters = [kernel[4] if len(kernel) > 4 else 1 for kernel in row["kernels"]]
        program = MeasuredProgram("waiting", "waiting", 1, kernels, [], 1.0, 1.0)
        scenario = program.scenario(load_gpu("H200"), "full").contended
        rules = Rules(launch=np.array([0.0, 2.7, 4.7]), cluster=np.array(clusters))
        found = run_contended("waiting", rules, scenario)
        start, _ = found.of_operations(scenario.graph.first_block)
        assert (start[2] < start[1] - 1) == (row["third"][2] < row["second"][2] - 1)
        if start[2] < start[1] - 1:
            third = found.sm[scenario.graph.first_block[2] :]
            assert len(set(third.tolist())) == row["third"][0] == 8
            overtaken.append(clusters[1])
    assert overtaken == [4, 8]
