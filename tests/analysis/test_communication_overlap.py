"""What profiles alone show of computation beside communication."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles_made import kineto, nsys

from depgraph.analysis.communication_overlap import _Cover, overlapped
from depgraph.errors import ModelError, ProfileError
from depgraph.parsers.profiles import read_profile
from depgraph.samples import sample_path

GEMM, REDUCE = "gemm", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def of(path, *, isolated=(), **more):
    return overlapped([read_profile(path)], [read_profile(p) for p in isolated], **more)


def test_an_iteration_by_hand(tmp_path):
    """A product alone, then one that takes half as long again beside an all-reduce of 120 us."""
    path = kineto(
        tmp_path / "t.json",
        [(GEMM, 10, 100, 132), (GEMM, 110, 150, 132), (REDUCE, 110, 120, 24)],
        steps=[("ProfilerStep#3", 0, 200)],
    )
    (found,) = of(path).iterations
    assert (found.rank, found.name) == ("t.json", "ProfilerStep#3")
    assert (found.computation, found.communication) == (200, 120)
    assert (found.serial, found.ideal, found.time, found.idle) == (320, 200, 250, 0)
    assert (found.speedup, found.ideal_speedup) == (1.28, 1.6)
    assert found.share == pytest.approx(0.28 / 0.6)
    assert (found.exposed, found.sms) == (0, 24)


def test_what_no_computation_hides_is_exposed(tmp_path):
    path = kineto(tmp_path / "t.json", [(GEMM, 10, 100, 132), (REDUCE, 60, 120, 200)])
    (found,) = of(path).iterations
    assert (found.exposed, found.time, found.idle) == (70, 170, 0)
    assert found.sms == 132  # no more than there are


def test_copies_between_gpus_are_communication_that_takes_no_sm(tmp_path):
    path = kineto(tmp_path / "t.json", [(GEMM, 10, 100, 132)], copies=[(20, 50)])
    (found,) = of(path).iterations
    assert (found.communication, found.exposed, found.sms) == (50, 0, 0)
    assert found.share == 1


def test_clocks_that_count_from_1970_lose_no_time(tmp_path):
    path = kineto(tmp_path / "t.json", [(GEMM, 10, 0.5, 132), (REDUCE, 10.25, 0.5, 24)])
    trace = json.loads(path.read_text())
    path.write_text(json.dumps({**trace, "baseTimeNanoseconds": 1790857026000000000}))
    (found,) = of(path).iterations
    assert (found.time, found.exposed) == (0.75, 0.25)


def test_steps_and_ranks(tmp_path):
    kernels = [(GEMM, 10, 100, 132), (REDUCE, 60, 60, 24), (GEMM, 210, 80, 132)]
    steps = [("ProfilerStep#1", 0, 200), ("ProfilerStep#2", 200, 300), ("batch 7", 201, 250)]
    paths = [kineto(tmp_path / f"{rank}.json", kernels, steps=steps, rank=rank) for rank in (1, 0)]
    found = overlapped([read_profile(path) for path in paths])
    assert [(each.rank, each.name) for each in found.iterations] == [
        ("rank 1", "ProfilerStep#1"), ("rank 1", "ProfilerStep#2"),
        ("rank 0", "ProfilerStep#1"), ("rank 0", "ProfilerStep#2"),
    ]  # fmt: skip
    assert [each.time for each in found.iterations] == [110, 80, 110, 80]
    assert found.iterations[1].share is None  # nothing to overlap
    assert [(each.rank, each.time) for each in found.ranks] == [("rank 1", 80), ("rank 0", 80)]
    assert [(k.rank, k.count, k.blocks) for k in found.kernels] == [
        ("rank 1", 1, 24), ("rank 0", 1, 24),
    ]  # fmt: skip


def test_processes_of_one_file_are_ranks(tmp_path):
    path = nsys(
        tmp_path / "t.sqlite",
        [(GEMM, 10, 100, 132, 5), (REDUCE, 60, 60, 24, 5), (GEMM, 10, 90, 132, 6)],
        steps=[("train step 0", 0, 500, 5), ("step: 0", 0, 500, 6), ("forward", 0, 400, 6)],
        copies=[(20, 30, 6)],
    )
    found = of(path).iterations
    assert [(each.rank, each.name) for each in found] == [
        ("t.sqlite, process 5", "train step 0"), ("t.sqlite, process 6", "step: 0"),
    ]  # fmt: skip
    assert [(each.communication, each.exposed) for each in found] == [(60, 10), (30, 0)]


def test_times_alone_come_from_an_isolated_profile(tmp_path):
    path = kineto(tmp_path / "t.json", [(GEMM, 10, 150, 132), (REDUCE, 10, 120, 24)])
    alone = kineto(tmp_path / "alone.json", [(GEMM, 10, 100, 132), (REDUCE, 200, 80, 24)])
    (found,) = of(path, isolated=[alone]).iterations
    assert (found.computation, found.communication, found.time) == (100, 80, 150)
    assert found.speedup == pytest.approx(1.2)


def test_shares_above_one_are_kept_and_said(tmp_path):
    path = kineto(tmp_path / "t.json", [(GEMM, 10, 90, 132), (REDUCE, 10, 60, 24)])
    alone = kineto(tmp_path / "alone.json", [(GEMM, 10, 100, 132), (REDUCE, 200, 80, 24)])
    found = of(path, isolated=[alone])
    assert found.iterations[0].share == pytest.approx((180 / 90 - 1) / (180 / 100 - 1))
    assert "above 100 %: the collective itself changed (t.json all)" in found.notes


def test_what_was_assumed_is_said(tmp_path):
    path = kineto(tmp_path / "t.json", [(GEMM, 10, 150, 132), (REDUCE, 10, 120, 24)])
    other = kineto(tmp_path / "o.json", [(REDUCE, 10, 80, 24), (REDUCE, 100, 60, 24)])
    assert any("1 launch of kernels that never ran without" in note for note in of(path).notes)
    notes = of(path, isolated=[other]).notes
    assert any("1 launch of kernels that the isolated profile has another" in n for n in notes)
    assert any("1 launch of kernels that the isolated profile lacks" in n for n in notes)
    alone = kineto(tmp_path / "a.json", [(GEMM, 10, 150, 132)])
    assert "no kernel communicates: give --communication REGEX if some do" in of(alone).notes


def test_other_kernels_can_be_named_as_communication(tmp_path):
    path = kineto(tmp_path / "t.json", [(GEMM, 10, 100, 132), ("my_ring", 10, 50, 8)])
    assert of(path).iterations[0].communication == 0
    assert of(path, communication="my_").iterations[0].communication == 50
    with pytest.raises(ModelError, match="no regular expression"):
        of(path, communication="(")


@pytest.mark.parametrize(
    "name",
    [
        "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*)",
        "void tensorrt_llm::kernels::oneShotAllReduceKernel<half, 8, true>(Params)",
        "void c10d::symmetric_memory::(anonymous namespace)::multimem_all_reduce_kernel<16>(int)",
        "void c10d::<unnamed>::two_shot_all_reduce_kernel<float>(float*)",
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    ],
)
def test_collectives_are_known_in_their_namespaces(tmp_path, name):
    path = kineto(tmp_path / "t.json", [(GEMM, 10, 100, 132), (name, 10, 50, 8)])
    assert of(path).iterations[0].communication == 50


def test_a_name_is_no_collective_by_what_it_works_on(tmp_path):
    name = "void gemm_after<ns::cross_device_reduce>(float*)"
    path = kineto(tmp_path / "t.json", [(name, 10, 50, 8)])
    assert of(path).iterations[0].communication == 0


def test_named_kernels_are_found_in_their_namespaces(tmp_path):
    path = kineto(tmp_path / "t.json", [("void my::ring_step<4>(int)", 10, 50, 8)])
    for said in ("ring_", "void my::ring_", "other|ring_"):
        assert of(path, communication=said).iterations[0].communication == 50
    with pytest.raises(ModelError, match="no regular expression"):
        of(path, communication="a)|(b")


def test_what_makes_no_sense_is_refused(tmp_path):
    profile = read_profile(kineto(tmp_path / "t.json", [(GEMM, 10, 100, 132)]))
    with pytest.raises(ProfileError, match="does not say when its kernels ran"):
        overlapped([replace(profile, start=None)])
    with pytest.raises(ModelError, match="1 rank, but 2 isolated"):
        overlapped([profile], [profile, profile])


TIMES = st.lists(
    st.tuples(st.booleans(), st.integers(10, 400), st.integers(1, 120)), min_size=1, max_size=12
)


@given(TIMES)
def test_laws_where_times_alone_are_those_measured(tmp_path_factory, times):
    """Time is at least either side, at most their sum, and the speedup at most the ideal one."""
    path = kineto(
        tmp_path_factory.mktemp("laws") / "t.json",
        # Each kernel is another one, so that none tells what another one takes alone.
        [(f"{REDUCE if talks else GEMM}{i}", start, length, 8)
         for i, (talks, start, length) in enumerate(times)],
    )  # fmt: skip
    (found,) = of(path).iterations
    clock = np.zeros((2, 600), bool)
    for talks, start, length in times:
        clock[int(talks), start : start + length] = True
    assert (found.computation, found.communication) == tuple(clock.sum(axis=1))
    assert found.time == clock.any(axis=0).sum()
    assert found.exposed == (clock[1] & ~clock[0]).sum()
    assert found.ideal <= found.time <= found.serial
    assert found.speedup <= found.ideal_speedup
    assert found.share is None or 0 <= found.share <= 1


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=9), st.integers(0, 70))
def test_a_union_of_intervals(intervals, time):
    start = np.array([a for a, _ in intervals], float)
    cover = _Cover(start, start + [length for _, length in intervals])
    clock = np.zeros(70, bool)
    for a, length in intervals:
        clock[a : a + length] = True
    assert cover.length == clock.sum()
    assert cover.before(np.array([float(time)]))[0] == clock[:time].sum()


def test_real_steps_of_two_ranks():
    """Recorded on two H200s: layers of products, an all-reduce behind each pair."""
    folder = sample_path("timing/overlap")
    found = overlapped([read_profile(folder / f"rank{rank}.json.gz") for rank in (0, 1)])
    assert [each.rank for each in found.iterations] == ["rank 0"] * 3 + ["rank 1"] * 3
    assert found.sms == 132
    for each in found.iterations:
        assert each.sms == 24
        assert 0.4 < each.share < 0.6
        assert each.ideal < each.time < each.serial
