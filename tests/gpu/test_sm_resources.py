"""What blocks take of an SM: the one resource model behind bounds and schedules."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from random_programs import programs
from small_graphs import graph_of, kernels_of, resources_of, shares_of

from depgraph.analysis.bound import bound
from depgraph.analysis.compare_mechanisms import compare_mechanisms
from depgraph.gpu.model import load_gpu
from depgraph.gpu.sm_resources import RESOURCES, occupancy, sm_resources
from depgraph.gpu.sm_sharing import sm_sharing
from depgraph.mechanisms import find_mechanisms
from depgraph.scenario.build_scenario import build_scenario
from depgraph.schedule.policy import Rules
from depgraph.schedule.simulate import run_rules

H100 = load_gpu("H100 SXM")


def with_resources(graph, threads, registers, shared_bytes):
    columns = (np.array(column, np.int64) for column in (threads, registers, shared_bytes))
    names = ("threads", "registers", "shared_bytes")
    return replace(
        graph, resources=graph.resources._replace(**dict(zip(names, columns, strict=True)))
    )


# 8 blocks of 168 registers x 256 threads, and 8 of 180 000 bytes of shared memory: alone one of
# either fills an SM, but one of each fit beside each other.
BESIDE = with_resources(graph_of([8, 8], []), [256, 256], [168, 32], [0, 180_000])


def test_registers_and_shared_memory_do_not_add_up():
    taken = sm_resources(BESIDE, H100)
    assert taken.names == RESOURCES
    assert taken.occupancy.tolist() == [1, 1]
    # Of a block of each: 168 x 256 + 32 x 256 of 65 536 registers, and 1 KiB + 177 KiB of 228.
    by_hand = [2 / 32, 16 / 64, (43_008 + 8_192) / 65_536, (1_024 + 181_120) / 233_472]
    per_sm = taken.work_by_resource(BESIDE.operation_of_block, np.ones(16)) / 8
    assert per_sm.tolist() == pytest.approx(by_hand)
    assert taken.work(BESIDE.operation_of_block, np.ones(16), 8) == pytest.approx(0.78125)


def test_the_bound_and_what_mechanisms_reach_agree_on_kernels_that_fit_beside_each_other():
    streams = BESIDE.resources._replace(stream=np.array([0, 1]))
    scenario = build_scenario(replace(BESIDE, resources=streams), kernels_of([8, 8]))
    for found in bound(scenario, 8).bounds:
        assert (found.upper_bound, found.reached.speedup) == (2, 2)
    rows = compare_mechanisms(scenario, [8], find_mechanisms(["streams", "serial"])).outcomes
    assert [(row.speedup, row.share_of_bound) for row in rows] == [(2, 1), (1, 0)]
    assert [row.utilization for row in rows] == pytest.approx([0.78125, 0.390625])


def test_as_many_blocks_of_a_kernel_fit_as_the_occupancy_says():
    graph = with_resources(graph_of([4] * 4, []), [96, 256, 1024, 96], [255, 40, 32, 168],
                           [0, 40_000, 1024, 0])  # fmt: skip
    taken = sm_resources(graph, H100)
    of = graph.resources
    expected = [
        occupancy(H100, threads=t, registers=r, shared_bytes=s).blocks_per_sm
        for t, r, s in zip(of.threads, of.registers, of.shared_bytes, strict=True)
    ]
    assert taken.occupancy.tolist() == expected


def test_registers_that_no_block_can_use_are_not_counted_as_work():
    graph = with_resources(graph_of([1], []), [160], [160], [0])
    # 5 warps of 5 120 registers; a partition of 16 384 holds 3, an SM 12: 2 blocks, not 2.56.
    taken = sm_resources(graph, H100)
    assert taken.occupancy.tolist() == [2]
    assert taken.need[0, 2] == 25_600
    assert taken.placed[0, 2] > 65_536 // 3
    assert taken.work(graph.operation_of_block, np.ones(1), 1) == pytest.approx(25_600 / 65_536)


def test_what_is_not_known_limits_nothing():
    graph = with_resources(graph_of([1], []), [256], [-1], [-1])
    taken = sm_resources(graph, H100)
    assert taken.need.tolist() == [[1, 8, 0, 0]]
    assert any("registers per thread unknown: no limit (1 of 1" in n for n in taken.assumptions)


def test_a_block_that_does_not_fit_takes_a_whole_sm():
    graph = with_resources(graph_of([1, 1], []), [1024, 32], [255, 32], [0, 0])
    taken = sm_resources(graph, H100)
    assert taken.occupancy[0] == 1
    assert any("does not fit on H100 SXM" in note for note in taken.assumptions)


def test_a_stated_occupancy_counts_as_a_part_of_everything():
    graph = with_resources(graph_of([1, 1], []), [256, 256], [40, 40], [0, 0])
    mixed = sm_resources(replace(graph, occupancy=np.array([3, 0])), H100)
    assert mixed.occupancy.tolist() == [3, 6]
    assert (mixed.need[0] / mixed.capacity).tolist() == pytest.approx([1 / 3] * 4, rel=1e-3)
    alone = sm_resources(replace(graph, occupancy=np.array([3, 2])), H100)
    assert (alone.capacity.tolist(), alone.need.tolist()) == ([6], [[2], [3]])


def test_the_warps_of_a_block_are_known_whatever_is_stated_of_others():
    graph = with_resources(graph_of([1, 1, 1], []), [64, 128, 33], [40] * 3, [0] * 3)
    assert sm_resources(graph, H100).warps.tolist() == [2, 4, 2]
    stated = replace(graph, occupancy=np.array([0, 0, 3]))
    assert sm_resources(stated, H100).warps.tolist() == [2, 4, 0]
    beside = sm_resources(graph, H100).beside(shares_of(graph_of([1], []), 3))
    assert beside.warps.tolist() == [2, 4, 2, 0]
    assert sm_sharing(sm_resources(stated, H100), carve_outs=False).warps.tolist() == [2, 4, 4]


def test_copies_leave_the_sub_partitions_of_an_sm_alike():
    graph = with_resources(graph_of([1, 1], []), [128, 0], [40, 0], [0, 0])
    graph = replace(graph, kernel=np.array([0, -1], np.int32))
    sharing = sm_sharing(sm_resources(graph, H100), carve_outs=False)
    assert (sharing.smsps, sharing.warps) == (1, None)


def test_a_fixed_occupancy_needs_no_model_of_the_gpu():
    unknown = replace(BESIDE, resources=BESIDE.resources._replace(architecture=37))
    assert sm_resources(unknown, None, 3).occupancy.tolist() == [3, 3]
    assumed = sm_resources(unknown)
    assert assumed.gpu.name == "H100 SXM"
    assert "names sm_37, of which there is no model" in assumed.assumptions[0]


def test_a_gpu_that_is_asked_for_wins_over_one_without_a_model():
    unknown = replace(BESIDE, resources=BESIDE.resources._replace(architecture=37))
    kernels = kernels_of([8, 8])
    assert bound(build_scenario(unknown, kernels, gpu=load_gpu("V100")), 8).basis.gpu == "V100"
    assert bound(build_scenario(unknown, kernels, fixed_occupancy=2), 8).occupancy == (2, 2)
    assert bound(build_scenario(unknown, kernels), 8).basis.gpu == "H100 SXM"


def test_a_resource_that_never_runs_out_first_is_not_looked_at():
    taken = resources_of([8, 8, 8], [[4, 2, 1], [1, 1, 2]])
    need, capacity = taken.binding
    assert need.tolist() == [[4, 1], [1, 2]]
    assert capacity.tolist() == [8, 8]
    assert resources_of([4, 8], [[1, 2], [2, 4]]).binding[0].shape == (2, 1)


def test_kernels_that_use_different_resources_share_an_sm():
    # One takes all shared memory of an SM, the other most of its threads.
    graph = with_resources(graph_of([1, 1], []), [32, 1024], [32, 32], [200_000, 0])
    plan = run_rules("both", Rules(), graph, np.ones(2), sm_resources(graph, H100), 1)
    assert plan.start.tolist() == [0, 0]


def test_shares_are_whole_numbers():
    taken = shares_of(graph_of([1, 1, 1], []), [2, 3, 7])
    assert (taken.capacity.tolist(), taken.need.tolist()) == ([42], [[21], [14], [6]])
    assert taken.occupancy.tolist() == [2, 3, 7]


@given(programs())
def test_no_block_is_placed_on_less_than_the_hardware_allocates(program):
    taken = program.resources
    assert (taken.placed >= taken.need).all()
    assert (taken.need <= taken.capacity).all()
    one_more = (taken.occupancy + 1)[:, None] * taken.placed
    assert (taken.occupancy[:, None] * taken.placed <= taken.capacity).all()
    assert (one_more > taken.capacity).any(axis=1).all()
