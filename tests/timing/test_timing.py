"""Durations of blocks from measured kernels and blocks, and the model that they make."""

from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from profiles_made import profile_of
from small_graphs import chain_edges, graph_of, kernels_of, scenario_of

from depgraph.analysis.bound import bound
from depgraph.errors import ModelError
from depgraph.footprint.footprints import Footprints
from depgraph.gpu.model import load_gpu
from depgraph.graph.builder import GraphBuilder
from depgraph.mechanisms.base import serial
from depgraph.mechanisms.cuda_graph import CudaGraph
from depgraph.mechanisms.predicted_time import in_microseconds, predicted_time
from depgraph.parsers.profiles import read_profile
from depgraph.samples import KERNEL_TIMES, sample_path
from depgraph.scenario.build_scenario import build_scenario, memory_time, touched_bytes
from depgraph.timing.durations import measured_block_durations, scaled_durations
from depgraph.timing.match import match_profile
from depgraph.timing.matched_profile import AluUse, matched_durations
from depgraph.timing.profile import BlockProfile, KernelProfile
from depgraph.timing.program_times import LaunchChoice, default_durations, kernel_makespans
from depgraph.trace.block_spans import BlockSpans

MEASURED = LaunchChoice("measured", {})


def scaled(graph, times, slots, *, sms=2, kernels=()):
    return scaled_durations(
        graph, times, np.array(slots), unit="us", source="kernels.csv", sms=sms, kernels=kernels
    )


def test_a_kernel_alone_takes_its_measured_time():
    # Three blocks of 1, 2, 3 on two slots take 4; measured 8.
    graph = graph_of([3], [], cost=[1, 2, 3])
    durations = scaled(graph, {0: 8.0}, [2])
    assert durations.values.tolist() == [2, 4, 6]
    assert kernel_makespans(graph, durations.values, np.array([2])).tolist() == [8]


def test_on_another_gpu_blocks_keep_their_durations():
    graph = graph_of([4], [], cost=[1, 1, 1, 1])
    durations = scaled(graph, {0: 10.0}, [4])
    assert serial(scenario_of(graph, durations.values, sms=4)).makespan == 10
    assert serial(scenario_of(graph, durations.values, sms=2)).makespan == 20


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=12), min_size=1, max_size=5),
    st.integers(1, 6),
    st.data(),
)
def test_serial_time_is_the_sum_of_kernel_times(costs, sms, data):
    times = data.draw(
        st.lists(st.floats(0, 1e6), min_size=len(costs), max_size=len(costs)), label="times"
    )
    graph = graph_of([len(c) for c in costs], [], cost=[x for c in costs for x in c])
    occupancy = np.ones(len(costs), np.int64)
    durations = scaled(graph, dict(enumerate(times)), occupancy * sms)
    alone = scenario_of(graph, durations.values, sms=sms)
    assert serial(alone).makespan == pytest.approx(sum(times))


def test_a_kernel_without_a_time_takes_that_of_launches_like_it():
    graph = graph_of([2, 2, 2, 2], [], cost=[1] * 8)
    kernels = kernels_of([2, 2, 2, 2], ["gemm", "gemm", "gemm", "relu"])
    found = scaled(graph, {0: 4.0, 2: 6.0, 3: 100.0}, [2] * 4, kernels=kernels)
    assert found.values[2:4].tolist() == [5, 5]
    assert found.estimated.times == {1: 5}
    assert found.assumptions[-1] == (
        "no measured time of kernel 1: estimated at the median time of launches of the same "
        "function, grid and block (5.000 us in all)"
    )


def test_else_what_the_same_function_takes_beyond_the_shortest_kernel():
    # On two slots, gemm 0 costs 10 and takes 3 us beyond the shortest; gemm 1 costs 30.
    graph = graph_of([2, 6, 2, 2], [], cost=[10] * 8 + [1] * 4)
    kernels = kernels_of([2, 6, 2, 2], ["gemm", "gemm", "relu", "tanh"])
    found = scaled(graph, {0: 5.0, 2: 2.0, 3: 90.0}, [2] * 4, kernels=kernels)
    assert found.estimated.times == {1: pytest.approx(2 + 3 * 30 / 10)}
    assert (
        "the shortest measured time, 2.000 us, and what launches of the same function take beyond "
        "it per instruction (11.00 us in all)"
    ) in found.assumptions[-1]


def test_else_what_all_kernels_take_beyond_the_shortest():
    graph = graph_of([1, 1, 1], [], cost=[1, 1, 7])
    found = scaled(graph, {0: 3.0, 1: 5.0}, [1] * 3)
    assert found.values[2] == 3 + 7 * 1  # a median of 1 us an instruction: 0 and 2
    assert "and what all kernels take beyond it" in found.assumptions[-1]


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=6), st.floats(1, 1e6))
def test_no_estimate_is_below_the_shortest_measured_kernel(times, cost):
    graph = graph_of([1] * (len(times) + 1), [], cost=[5.0] * len(times) + [cost])
    found = scaled(graph, dict(enumerate(times)), [1] * (len(times) + 1))
    assert found.estimated.times[len(times)] >= min(times)


def test_half_of_a_real_program_is_estimated_from_the_other_half(sample_store):
    graph, kernels = sample_store.graph(), sample_store.kernels
    slots = np.full(graph.n_operations, 264)
    profile = read_profile(sample_path(KERNEL_TIMES))
    times = match_profile(profile, kernels).duration
    errors = []
    for seed in range(30):
        is_measured = np.random.default_rng(seed).random(len(kernels)) < 1 / 2
        measured = {int(k): times[k] for k in np.flatnonzero(is_measured)}
        found = scaled(graph, measured, slots, kernels=kernels)
        errors.append(abs(sum(found.estimated.times.values()) / times[~is_measured].sum() - 1))
    assert np.mean(errors) < 0.15


def test_a_kernel_without_counts_shares_its_time_evenly():
    graph = graph_of([2, 1], [], cost=[0, 0, 5])
    assert scaled(graph, {0: 6.0, 1: 5.0}, [2, 2]).values.tolist() == [6, 6, 5]


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ({}, "holds no time of a kernel"),
        ({7: 1.0, 8: 1.0}, "kernel 7 is not in the store, nor are 1 more"),
        ({0: -1.0}, "a time is negative or not a number"),
        ({0: float("nan")}, "a time is negative or not a number"),
    ],
)
def test_times_that_make_no_sense(times, message):
    with pytest.raises(ModelError, match=message):
        scaled(graph_of([1], []), times, [1])


def block_times(graph, rows, **options):
    kernel, block, duration = (np.array(column) for column in zip(*rows, strict=True))
    return measured_block_durations(
        graph, kernel, block, duration.astype(float), unit="us", source="blocks.csv", **options
    )


def test_measured_blocks_keep_their_times():
    graph = graph_of([2, 1], [])
    assert block_times(graph, [(1, 0, 9), (0, 1, 4), (0, 0, 3)]).values.tolist() == [3, 4, 9]


def test_a_kernel_without_block_times_is_estimated():
    graph = graph_of([2, 2], [], cost=[1, 3, 1, 1])
    found = block_times(graph, [(0, 0, 2), (0, 1, 6)])
    # Blocks of kernel 0 take 4 us on average, and no kernel is shorter.
    assert found.values.tolist() == [2, 6, 4, 4]
    assert found.estimated.times == {1: 4}
    assert "no measured time of kernel 1: estimated at the shortest" in found.assumptions[0]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(0, 0, 1)], "kernel 0 block 1 has no duration"),
        ([(0, 5, 1)], "kernel 0 block 5 is not in the store"),
        ([(0, 0, 1), (0, 0, 1), (0, 1, 1)], "kernel 0 block 0 has more than one duration"),
        ([(0, 0, -1), (0, 1, 1)], "a duration is negative"),
    ],
)
def test_block_times_that_make_no_sense(rows, message):
    with pytest.raises(ModelError, match=message):
        block_times(graph_of([2], []), rows)


def spans_of(durations, *, patch=0, sm=None):
    """Return blocks that begin together and take so many ns."""
    durations = np.array(durations)
    sms = np.arange(len(durations)) if sm is None else np.array(sm)
    return BlockSpans(np.zeros(len(durations), np.int64), durations, sms, 32, patch)


def launches_of(*spans, names="abc", blocks=2):
    """Return a profile of one launch of 10 us for each, and a graph of the same."""
    n = len(spans)
    column = np.full(n, -1, np.object_)
    column[:] = [-1 if each is None else each for each in spans]
    profile = KernelProfile(
        Path("times.json"), "kineto", "ns", tuple(names[:n]), np.full(n, 10e3), block_spans=column
    )
    graph = graph_of([blocks] * n, [], cost=[1] * blocks * n)
    return graph, match_profile(profile, kernels_of([blocks] * n, list(names[:n])))


def matched(graph, match, occupancy=2):
    return matched_durations(graph, match, np.full(graph.n_operations, occupancy), 1)


def test_blocks_take_their_measured_share_of_their_kernel():
    graph, match = launches_of(spans_of([200, 400]), None)
    found = matched(graph, match)
    assert found.values.tolist() == pytest.approx([5, 10, 10, 10])
    assert found.of_blocks == {0}
    assert found.source == "kernel times and block times of times.json"
    assert (
        "the blocks of 1 of 2 kernels take their measured times, times 25.00 to 25.00, so that "
        "each kernel alone takes its own on 1 SMs; elsewhere the blocks of a kernel share its"
    ) in " ".join(found.assumptions)


def test_what_measuring_takes_is_no_part_of_a_block():
    graph, match = launches_of(spans_of([300, 500], patch=100))
    assert matched(graph, match).values.tolist() == [5, 10]


@pytest.mark.parametrize(
    "spans",
    [spans_of([200, 400, 300]), spans_of([200])],
    ids=["more blocks", "fewer blocks"],
)
def test_block_times_of_another_grid_are_left_out(spans):
    found = matched(*launches_of(spans))
    assert found.values.tolist() == [10, 10]
    assert not found.of_blocks


def test_more_blocks_on_an_sm_than_limits_allow_are_told():
    graph, match = launches_of(spans_of([200, 400], sm=[5, 5]))
    assert match.resident == {0: 2}
    found = build_scenario(graph, match.kernels, profile=match.profile, fixed_occupancy=1)
    assert "of kernel 0: 2 and not 1 of kernel 0" in " ".join(found.assumptions)
    found = build_scenario(graph, match.kernels, profile=match.profile, fixed_occupancy=2)
    assert "were seen to hold more" not in " ".join(found.assumptions)


def test_of_several_iterations_each_block_takes_its_median():
    graph, match = launches_of(spans_of([200, 400]), spans_of([220, 400]), names="aa")
    once = graph_of([2], [], cost=[1, 1])
    again = match_profile(match.profile, kernels_of([2], ["a"]))
    assert matched(once, again).values.tolist() == pytest.approx([10 * 210 / 400, 10])
    assert matched(graph, match).values.tolist() == [5, 10, 5.5, 10]


@given(
    st.lists(st.integers(1, 10**6), min_size=1, max_size=20), st.integers(1, 4), st.integers(0, 99)
)
def test_a_kernel_with_block_times_alone_takes_its_time(durations, slots, patch):
    graph, match = launches_of(spans_of(durations, patch=patch), blocks=len(durations))
    found = matched(graph, match, slots)
    alone = kernel_makespans(graph, found.values, np.array([slots]))
    assert alone.tolist() == pytest.approx([10])


# The model: all of it together.


SIZES = [40, 200, 3]


def program(**columns):
    graph = graph_of(SIZES, chain_edges(SIZES))
    kernels = kernels_of(SIZES)
    return graph, kernels, profile_of(kernels, [4000, 9000, 2000], **columns)


def test_serial_time_on_the_measured_gpu_is_the_sum_of_the_profile():
    graph, kernels, profile = program(measured_sms=np.array([132] * 3))
    scenario = build_scenario(graph, kernels, profile=profile)
    table = bound(scenario, 132)
    assert table.unit == "us"
    assert table.bounds[0].serial == pytest.approx(15)


def test_counts_of_arithmetic_go_with_their_kernels():
    graph, kernels, profile = program(
        alu_utilization=np.array([1234, -1, 10_000]), alu_counter="sm__throughput"
    )
    scenario = build_scenario(graph, kernels, profile=profile)
    assert scenario.alu == AluUse("sm__throughput", {0: 0.1234, 2: 1.0})
    assert build_scenario(graph, kernels).alu is None


def test_times_of_kernels_that_were_launched_one_by_one_have_wider_ranges():
    sizes = [264, 264]
    kernels = kernels_of(sizes)
    ranges = {}
    for calls in ([1, 2], [7, 7]):
        profile = profile_of(kernels, [30_000, 30_000], correlation=np.array(calls))
        scenario = build_scenario(
            graph_of(sizes, []), kernels, profile=profile, gpu=load_gpu("H200")
        ).on(132)
        found = in_microseconds(predicted_time(CudaGraph(), scenario), CudaGraph(), scenario)
        said = any("are wider for it" in note for note in scenario.assumptions)
        assert said == scenario.is_eager
        ranges[said] = found
        other = build_scenario(graph_of(sizes, []), kernels, profile=profile, gpu=load_gpu("A100"))
        unknown = any("was not measured on this GPU" in note for note in other.assumptions)
        assert unknown == scenario.is_eager
    eager, graph = ranges[True], ranges[False]
    assert eager.us == graph.us
    assert eager.high_us > graph.high_us
    assert eager.low_us <= graph.low_us


def test_another_gpu_does_not_change_how_the_measured_one_is_scaled():
    graph, kernels, profile = program(device=np.zeros(3, int), device_names={0: "NVIDIA H100 PCIe"})
    here = build_scenario(graph, kernels, profile=profile)
    there = build_scenario(graph, kernels, profile=profile, gpu=load_gpu("GTX 1080"))
    assert here.resources.gpu.name == "H100 PCIe"
    assert there.resources.gpu.name == "GTX 1080"
    assert there.durations.tolist() == here.durations.tolist()


def test_an_occupancy_that_was_given_holds_on_the_gpu_that_was_measured_as_well():
    graph, kernels, profile = program(device=np.zeros(3, int), device_names={0: "NVIDIA H100 PCIe"})
    there = build_scenario(
        graph, kernels, profile=profile, gpu=load_gpu("GTX 1080"), fixed_occupancy=2
    )
    measured_on = there.measured_on(graph)
    assert measured_on.gpu.name == "H100 PCIe"
    assert measured_on.occupancy.tolist() == there.occupancy.tolist() == [2, 2, 2]


def test_a_model_that_goes_by_the_name_in_the_profile_is_of_the_gpu_that_was_measured():
    """A calibrated model: its constants say how much of a measured time is contention."""
    graph, kernels, profile = program(device=np.zeros(3, int), device_names={0: "NVIDIA H100 PCIe"})
    mine = replace(load_gpu("H100 PCIe"), name="Mine", aliases=("H100 PCIe",), contention=0.9)
    scenario = build_scenario(graph, kernels, profile=profile, gpu=mine)
    assert scenario.resources.gpu == mine
    assert scenario.measured_on(graph).gpu == mine


def test_a_gpu_without_a_model_is_named():
    graph, kernels, profile = program(device=np.zeros(3, int), device_names={0: "Radeon VII"})
    scenario = build_scenario(graph, kernels, profile=profile)
    assert scenario.resources.gpu.name == "H100 SXM"
    assert any(
        "of Radeon VII, of which there is no model" in n for n in scenario.resources.assumptions
    )


def test_the_profiles_registers_count_for_the_occupancy():
    graph, kernels, profile = program(registers=np.array([200] * 3))
    unknown = replace(graph, resources=graph.resources._replace(registers=np.full(3, -1, np.int64)))
    without = build_scenario(unknown, kernels)
    with_profile = build_scenario(unknown, kernels, profile=profile)
    assert (with_profile.occupancy < without.occupancy).all()
    assert any(
        "registers of 3 kernels taken from the profile" in n
        for n in with_profile.resources.assumptions
    )
    assert not any("registers per thread unknown" in n for n in with_profile.resources.assumptions)


def test_a_simulated_launch_is_no_part_of_the_kernel():
    graph, kernels, profile = program(measured_sms=np.array([132] * 3), launch_latency=1000.0)
    scenario = build_scenario(graph, kernels, profile=profile)
    assert bound(scenario, 132).bounds[0].serial == pytest.approx(12)


def test_the_measured_run_is_a_row_beside_the_schedules():
    graph, kernels, profile = program(
        start=np.array([0, 6000, 16_000]), measured_sms=np.array([132] * 3)
    )
    scenario = build_scenario(graph, kernels, profile=profile)
    assert (scenario.measured.sms, scenario.measured.wall) == (132, 18)
    assert scenario.measured.speedup == pytest.approx(15 / 18)
    assert scenario.launch.is_off
    assert any(
        "median gap between kernels of 1.5 us is left out (--launch measured)" in n
        for n in scenario.timing.assumptions
    )


def test_a_short_measured_gap_is_the_gpus():
    graph, kernels, profile = program(
        start=np.array([0, 6000, 16_000]), measured_sms=np.array([132] * 3)
    )
    scenario = build_scenario(graph, kernels, profile=profile, launch=MEASURED)
    assert (scenario.launch.host.value, scenario.launch.gap.value) == (0, 1.5)
    table = bound(scenario, 132)
    found = table.bounds[0]
    assert found.serial == pytest.approx(15)
    assert found.launches.serial == pytest.approx(15 + 3 * 1.5)


def test_a_long_measured_gap_is_the_hosts():
    graph, kernels, profile = program(
        start=np.array([0, 40_000, 80_000]), measured_sms=np.array([132] * 3)
    )
    scenario = build_scenario(graph, kernels, profile=profile, launch=MEASURED)
    assert scenario.launch.host.value == 40
    assert scenario.launch.gap.value == 1.8
    assert any("no launch calls" in note for note in scenario.launch.notes)


def test_launch_calls_tell_host_and_gpu_apart():
    # The second was called for while the first ran, the third long after the second had ended.
    graph, kernels, profile = program(
        start=np.array([10_000, 15_500, 60_000]), issued=np.array([4000, 7000, 55_000]),
        stream=np.array([7, 7, 7]), measured_sms=np.array([132] * 3),
    )  # fmt: skip
    scenario = build_scenario(graph, kernels, profile=profile, launch=MEASURED)
    assert scenario.launch.host.value == (3 + 48) / 2
    first_ended = 10 + profile.duration[0] / 1000
    assert scenario.launch.gap.value == pytest.approx(15.5 - first_ended)


def test_a_measured_gap_needs_starts():
    graph, kernels, profile = program()
    with pytest.raises(ModelError, match="need a profile that says when kernels started"):
        build_scenario(graph, kernels, profile=profile, launch=MEASURED)


def test_block_times_of_a_simulator_follow_its_own_launch_numbers():
    # The simulator skipped kernel 0: its launch 0 is kernel 1 of the trace.
    kernels = kernels_of([1, 2], ["warm_up", "gemm"])
    launches = replace(
        profile_of(kernels[1:], [7]), format="simlog", unit="cycles", kernel=np.array([0])
    )
    blocks = BlockProfile(
        Path("sim.log"), "simlog", "cycles", np.array([0, 0]), np.array([0, 1]),
        np.array([3.0, 7.0]), kernels=launches,
    )  # fmt: skip
    scenario = build_scenario(graph_of([1, 2], []), kernels, profile=blocks, allow_mismatch=True)
    assert scenario.durations[1:].tolist() == [3, 7]
    assert scenario.timing.unit == "cycles"


def footprints_of(*rows):
    block, start, end = (np.array(column) for column in zip(*rows, strict=True))
    return Footprints(
        block.astype(np.int32), np.zeros(len(block), np.uint8), start.astype(np.uint64),
        end.astype(np.uint64),
    )  # fmt: skip


def test_every_touched_byte_counts_once():
    graph = graph_of([2, 1], [])
    footprints = footprints_of((0, 100, 200), (1, 150, 250), (2, 0, 10), (2, 240, 260))
    assert touched_bytes(footprints, graph) == 160 + 10


def test_equal_addresses_of_two_contexts_are_different_bytes():
    graph = replace(graph_of([1, 1, 1], []), space=np.array([0, 1, 0], np.int32))
    footprints = footprints_of((0, 100, 200), (1, 150, 250), (2, 180, 220))
    assert touched_bytes(footprints, graph) == 120 + 100


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), min_size=1, max_size=12))
def test_touched_bytes_are_those_of_the_union(ranges):
    rows = [(0, start, start + size) for start, size in ranges]
    union = {byte for _, start, end in rows for byte in range(start, end)}
    assert touched_bytes(footprints_of(*rows), graph_of([1], [])) == len(union)


def test_bytes_over_bandwidth():
    assert memory_time(3_000_000, 3000, "us", None) == pytest.approx(1)
    assert memory_time(3_000_000, 3000, "cycles", 1500) == pytest.approx(1500)
    assert memory_time(3_000_000, 3000, "cycles", None) is None
    assert memory_time(3_000_000, 3000, "instructions", None) is None


def test_memory_bandwidth_bounds_the_time_and_is_named():
    graph, kernels, profile = program(measured_sms=np.array([132] * 3))
    scenario = build_scenario(
        graph, kernels, profile=profile, memory_gb_per_s=1.0,
        footprints=lambda: footprints_of((0, 0, (50 << 20) + 30_000)),
    )  # fmt: skip
    table = bound(scenario, 132)
    assert (table.bounds[0].lower_bound, table.bounds[0].limited_by) == (30, "memory bandwidth")
    assert table.bounds[0].serial == 30
    assert all(row.share_of_bound is None for row in table.bounds[0].schedules)
    assert any("52458800 distinct bytes" in n and "1 GB/s" in n for n in table.assumptions)


def test_bytes_that_the_l2_cache_holds_need_not_cross_the_bus():
    graph, kernels, profile = program(measured_sms=np.array([132] * 3))
    scenario = build_scenario(
        graph, kernels, profile=profile, memory_gb_per_s=1.0,
        footprints=lambda: footprints_of((0, 0, 50 << 20)),
    )  # fmt: skip
    assert scenario.memory == 0
    unknown = replace(load_gpu("H100 SXM"), l2_bytes=None)
    with pytest.raises(ModelError, match=r"states no L2 size \(l2_bytes\)"):
        build_scenario(
            graph, kernels, profile=profile, memory_gb_per_s=1.0, gpu=unknown,
            footprints=lambda: footprints_of((0, 0, 1)),
        )  # fmt: skip


def test_memory_bandwidth_means_nothing_for_instructions():
    graph, kernels, _ = program()
    scenario = build_scenario(
        graph, kernels, memory_gb_per_s="gpu", footprints=lambda: footprints_of((0, 0, 30))
    )
    assert scenario.memory == 0
    assert any("durations are instructions, not times" in n for n in scenario.timing.assumptions)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_stated_durations_that_are_none_are_given_others(bad):
    builder = GraphBuilder([0, 1, -1], [3, 2, 1])
    graph = replace(
        builder.build(), duration=np.array([1.0, bad, 5.0, bad, bad, bad]),
        duration_unit="us", cost=np.array([2, 2, 2, 4, 0, 0]),
    )  # fmt: skip
    found = default_durations(graph)
    assert found.values.tolist() == [1, 3, 5, 6, 1.5, 0]
    assert "for 3 of 5 blocks (kernel 0 block 1 and 2 more)" in found.assumptions[0]
