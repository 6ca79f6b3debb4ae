"""Two programs on one GPU: worked out by hand, and what must hold for any two."""

from dataclasses import replace
from itertools import product

import naive_schedule
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import edges_of
from random_programs import programs
from small_graphs import graph_of, scenario_of

import depgraph
from depgraph.analysis.bound import limits_of
from depgraph.analysis.share import joined, joined_graph, share_gpu
from depgraph.errors import ModelError, NotApplicableError
from depgraph.gpu.model import load_gpu
from depgraph.gpu.sm_resources import equal_shares, sm_resources
from depgraph.mechanisms.base import Charges, run_mechanism, serial
from depgraph.mechanisms.shared_gpu import SharedGpu, groups, sizes_of_kernels
from depgraph.parsers.profiles import read_profile
from depgraph.samples import KERNEL_TIMES, sample_path
from depgraph.scenario.of_store import Request
from depgraph.timing.program_times import LaunchModel, LaunchTime

H100 = load_gpu("H100 SXM")


def one_each(graph):
    """Let a block of a kernel take a whole SM."""
    is_kernel = graph.kernel >= 0
    return equal_shares(is_kernel, np.ones(graph.n_operations, np.int64), H100)


def chain(sizes, durations, **more):
    """Return kernels that wait for one another, a block an SM."""
    edges = [((k - 1, 0), (k, 0)) for k in range(1, len(sizes))]
    program = scenario_of(graph_of(sizes, edges), durations, **more)
    return replace(program, resources_of=one_each)


def share(one, other, sms, how):
    found = share_gpu(("a", one), ("b", other), [sms], how)
    return [row.times for row in found.rows]


def on_the_h100(program):
    return replace(program, resources_of=lambda graph: sm_resources(graph, H100))


pairs = st.tuples(programs().map(on_the_h100), programs().map(on_the_h100))


# By hand.


def test_kernels_side_by_side_take_what_each_leaves():
    # Two kernels of one block and 4 us; one kernel of three blocks of 4 us; two SMs.
    one, other = chain([1, 1], [4, 4]), chain([3], [4, 4, 4])
    (streams, parted, blocks) = share(one, other, 2, "streams,partition(1),blocks")
    assert streams.in_turn == 8 + 8
    assert (streams.makespan, streams.speedup) == (12, 16 / 12)
    assert (parted.first.shared, parted.second.shared) == (8, 12)
    assert (parted.first.slowdown, parted.second.slowdown) == (1, 1.5)
    assert blocks.makespan <= 12


def test_each_program_has_a_host_of_its_own():
    launch = LaunchModel(host=LaunchTime(5, "given"), gap=LaunchTime(1, "given"))
    one, other = (chain([1, 1], [2, 2]).with_launch(launch) for _ in range(2))
    (streams,) = share(one, other, 2, "streams")
    assert streams.first.alone == 10 + 1 + 2
    assert streams.first.slowdown == streams.second.slowdown == 1
    (blocks,) = share(one, other, 2, "blocks")
    assert blocks.first.slowdown == blocks.second.slowdown == 1


def test_kernels_and_copies_of_both_keep_their_names_apart():
    one, other = graph_of([1, 2], [((0, 0), (1, 1))]), graph_of([2, 1], [((0, 1), (1, 0))])
    both = joined_graph(one, other)
    assert both.kernel.tolist() == [0, 1, 2, 3]
    assert both.first_block.tolist() == [0, 1, 3, 5, 6]
    assert edges_of(both) == [(0, 2, "RAW"), (4, 5, "RAW")]


# Laws.


@given(pairs)
def test_with_room_for_both_neither_is_slower(pair):
    streams, eclip, blocks = share(*pair, np.inf, "streams,eclip,blocks")
    for times in (streams, eclip, blocks):
        assert times.first.slowdown == times.second.slowdown == pytest.approx(1)
    assert streams.makespan == max(serial(p.on(np.inf)).makespan for p in pair)


@given(pairs, st.integers(1, 3), st.integers(1, 3))
def test_a_partition_is_two_smaller_gpus(pair, first, second):
    (times,) = share(*pair, first + second, f"partition({first})")
    assert times.first.shared == serial(pair[0].on(first)).makespan
    assert times.second.shared == serial(pair[1].on(second)).makespan


@given(programs(), programs(), st.tuples(st.booleans(), st.booleans()))
def test_blocks_take_as_much_of_an_sm_as_alone(one, other, are_stated):
    # Of a described program only the occupancy may be known, of a traced one registers and threads.
    both = [
        replace(p, resources_of=one_each) if stated else on_the_h100(p)
        for p, stated in zip((one, other), are_stated, strict=True)
    ]
    found = joined(*both).resources
    assert found.occupancy.tolist() == [o for p in both for o in p.occupancy.tolist()]
    shares = [(p.resources.need / p.resources.capacity).max(axis=1) for p in both]
    assert found.largest_shares == pytest.approx(np.concatenate(shares))


def test_stated_occupancies_of_any_two_programs_are_kept():
    one, other = chain([1], [1]), chain([1], [1])
    pair = [
        replace(p, resources_of=lambda g, o=o: equal_shares(g.kernel >= 0, np.array([o]), H100))
        for p, o in ((one, 3), (other, 5))
    ]
    assert joined(*pair).resources.occupancy.tolist() == [3, 5]


@given(pairs, st.integers(2, 4))
def test_no_way_to_share_is_below_the_bounds(pair, sms):
    both = limits_of(joined(*pair).on(sms)).lower_bound
    own = [limits_of(program.on(sms)).lower_bound for program in pair]
    for times in share(*pair, sms, "streams,partition(1),eclip,blocks"):
        assert times.makespan >= both * (1 - 1e-9)
        assert times.first.shared >= own[0] * (1 - 1e-9)
        assert times.second.shared >= own[1] * (1 - 1e-9)


# What cannot be.


def test_programs_of_different_gpus_units_or_sizes_are_refused():
    one, other = chain([1], [1]), chain([1], [1])
    with pytest.raises(NotApplicableError, match="leaves the second program none of 2 SMs"):
        share(one, other, 2, "partition(2)")
    with pytest.raises(ModelError, match="one program's durations are us, the other's cycles"):
        joined(one, replace(other, timing=replace(other.timing, unit="cycles")))
    launched = other.with_launch(LaunchModel(host=LaunchTime(5, "given")))
    with pytest.raises(ModelError, match="each program has launch costs of its own"):
        joined(one, launched)
    v100 = replace(other, resources_of=lambda g: sm_resources(g, load_gpu("V100"), 1))
    with pytest.raises(ModelError, match="not H100 SXM and V100"):
        joined(one, v100)
    with pytest.raises(ModelError, match="contention is none for one program and full for the"):
        joined(one, replace(other, contention="full"))
    counted = replace(one, timing=replace(one.timing, unit="instructions"))
    nvbit, recording = (replace(counted, metadata={"format": f}) for f in ("nvbit", "recording"))
    assert joined(nvbit, nvbit).unit == "instructions"
    with pytest.raises(ModelError, match="in one way by nvbit, in another by recording: give each"):
        joined(nvbit, recording)


# With contention.


@pytest.mark.jit_only
def test_blocks_have_the_work_that_they_have_alone(sample_store):
    times = sample_path(KERNEL_TIMES)
    request = Request(times=times, read_profile=read_profile)
    program = depgraph.Scenario.of_store(sample_store, request).on(80)
    both = joined(program, program).on(80)
    assert both.contended.durations == pytest.approx(np.tile(program.contended.durations, 2))
    assert both.contended.sharing.load.tolist() == 2 * program.contended.sharing.load.tolist()
    (row,) = share_gpu(("a", program), ("b", program), [80], "streams").rows
    assert row.predicted_us.in_turn == pytest.approx(2 * row.predicted_us.first.alone)
    assert row.predicted_us.first.slowdown >= 1
    launched = program.with_launch(LaunchModel(host=LaunchTime(5, "given")))
    for each in (program, launched):
        found = share_gpu(("a", each), ("b", each), [80], "partition(40),eclip,blocks")
        for row in found.rows:
            longest = max(row.predicted_us.first.shared, row.predicted_us.second.shared)
            assert row.predicted_us.makespan == pytest.approx(longest)
            assert row.times.makespan >= limits_of(both).lower_bound * (1 - 1e-9)


# ECLIP.


def test_each_group_of_kernels_gets_what_the_neediest_needs():
    # On 7 SMs there are streams of 1 to 7. The first program's kernels need 1, 2 and 1 of them.
    one = chain([1, 2, 1], [4.0] * 4)
    other = chain([5, 5], [4.0] * 10)
    both = joined(one, other).on(7)
    assert sizes_of_kernels(both, 3).tolist() == [1, 2, 1, 5, 5]
    (eclip,) = share(one, other, 7, "eclip")
    assert eclip.first.slowdown == eclip.second.slowdown == 1


def test_a_switch_between_streams_costs_an_event():
    launch = LaunchModel(event=LaunchTime(3, "given"))
    one = chain([1, 2, 1], [4.0] * 4).with_launch(launch)
    found = share_gpu(("a", one), ("b", chain([1], [4.0]).with_launch(launch)), [7], "eclip")
    assert found.rows[0].times.first.shared == 12 + 2 * 3
    assert found.assumptions[-1] == (
        "eclip: streams of 1, 2, 3, 4, 5, 6, 7 SMs; the first program switches 2 times, the "
        "second 0"
    )


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), min_size=1, max_size=5),
    st.integers(0, 4),
)
def test_groups_hold_sms_for_the_least_time(kernels, switches):
    need, time = (np.array(column) for column in zip(*kernels, strict=True))
    sizes = np.array([2, 3, 7])
    found = groups(need, time.astype(float), sizes, switches)
    assert (found >= need).all()
    assert np.count_nonzero(np.diff(found)) <= switches

    def held(places):
        return int((sizes[list(places)] * time).sum())

    allowed = [
        places
        for places in product(range(3), repeat=len(need))
        if (np.array(places) >= need).all() and np.count_nonzero(np.diff(places)) <= switches
    ]
    assert held(found) == min(map(held, allowed))


@given(pairs, st.integers(1, 9))
def test_eclip_runs_as_the_slow_twin(pair, sms):
    both = joined(*pair).on(sms)
    way = SharedGpu(pair[0].graph.n_operations, "eclip")
    schedule, rules = run_mechanism(way, both, Charges(()))
    expected = naive_schedule.run_rules(
        rules, both.graph, both.durations, both.resources, sms
    )  # fmt: skip
    assert schedule.start.tolist() == pytest.approx(expected[0])
    assert schedule.end.tolist() == pytest.approx(expected[1])


@given(pairs, st.integers(2, 9))
def test_eclip_keeps_kernels_to_their_streams_and_alone_slows_none(pair, sms):
    both = joined(*pair).on(sms)
    split = pair[0].graph.n_operations
    sizes = sizes_of_kernels(both, split)
    schedule, _ = run_mechanism(SharedGpu(split, "eclip"), both, Charges(()))
    operation = both.graph.operation_of_block
    is_first = operation < split
    assert (schedule.sm[is_first] < sizes[operation[is_first]]).all()
    assert (schedule.sm[~is_first] >= sms - sizes[operation[~is_first]]).all()
    nobody = scenario_of(graph_of([1], []), [0.0], resources=None)
    (times,) = share(pair[0], on_the_h100(nobody), sms, "eclip")
    assert times.first.slowdown == pytest.approx(1)
