"""Which measured launch is which traced one."""

import lzma
import re
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import profiles_made
import pytest
import small_graphs
from hypothesis import given

from depgraph.errors import ProfileError
from depgraph.graph.block_graph import Resources
from depgraph.parsers.profiles import read_profile
from depgraph.timing.match import match_profile
from depgraph.timing.matched_profile import (
    GUESSED,
    MATCHED,
    UNMATCHED,
    fill_resources,
    memory_operations,
)
from depgraph.timing.measured_run import measured_run
from depgraph.timing.profile import KernelProfile, Where
from depgraph.trace.names import base_name


def kernels_of(*launches, stream=0, context=0):
    """Return kernels from (name, blocks in the grid)."""
    names, sizes = zip(*launches, strict=True) if launches else ((), ())
    facts = {"registers": None, "shared_bytes": None, "stream": stream, "context": context}
    return [replace(kernel, **facts) for kernel in small_graphs.kernels_of(sizes, names)]


def profile_of(*launches, duration=None, **columns):
    """Return a profile from (name, blocks in the grid): 1, 2, 3 us if nothing else is said."""
    times = 1000 * np.arange(1, len(launches) + 1) if duration is None else duration
    columns = {name: np.array(column, np.int64) for name, column in columns.items()}
    return profiles_made.profile_of(kernels_of(*launches), times, **columns)


STEP = [("gemm", 4), ("bias", 2), ("gemm", 8), ("relu", 2)]


def test_every_launch_is_found():
    match = match_profile(profile_of(*STEP), kernels_of(*STEP))
    assert match.status == [MATCHED] * 4
    assert match.duration.tolist() == [1, 2, 3, 4]
    assert match.unit == "us"


def test_what_the_profile_has_more_is_named():
    match = match_profile(profile_of(("memset", 1), *STEP, ("add", 2)), kernels_of(*STEP))
    assert match.status == [MATCHED] * 4
    assert [match.profile.name[row] for row in match.unmatched_rows] == ["memset", "add"]
    assert match.duration.tolist() == [2, 3, 4, 5]
    assert match.share_of_time(UNMATCHED) == pytest.approx(7 / 21)


def test_what_the_trace_has_more_has_no_time():
    match = match_profile(profile_of(*STEP[:2], STEP[3]), kernels_of(*STEP))
    assert match.status == [MATCHED, MATCHED, UNMATCHED, MATCHED]
    assert np.isnan(match.duration).tolist() == [False, False, True, False]


def test_another_grid_is_a_guess():
    match = match_profile(profile_of(STEP[0], ("bias", 3), *STEP[2:]), kernels_of(*STEP))
    assert match.status == [MATCHED, GUESSED, MATCHED, MATCHED]
    assert match.share_of_time(GUESSED) == pytest.approx(2 / 10)


def test_another_name_for_the_same_grid_is_a_guess():
    match = match_profile(profile_of(*STEP[:3], ("clamp", 2)), kernels_of(*STEP))
    assert match.status == [MATCHED, MATCHED, MATCHED, GUESSED]


def test_neither_name_nor_grid_is_no_pair():
    match = match_profile(profile_of(*STEP[:3], ("clamp", 3)), kernels_of(*STEP))
    assert match.status == [MATCHED, MATCHED, MATCHED, UNMATCHED]
    assert match.unmatched_rows.tolist() == [3]


def test_tools_spell_names_in_their_own_ways():
    traced = kernels_of(
        ("void (anonymous namespace)::k<4, float>(float const*, int)", 1), ("_Z3addPfS_", 1)
    )
    measured = profile_of(
        ("<unnamed>::k<(int)4, float>(const float *, int)", 1), ("add(float*, float*)", 1)
    )
    assert match_profile(measured, traced).status == [MATCHED] * 2


def test_template_arguments_decide_between_launches_that_are_otherwise_the_same():
    # A fill that the trace lacks comes before the addition; both are 'elementwise' of one block.
    fill, add = "void elementwise<Fill>(int)", "void elementwise<Add>(int)"
    match = match_profile(
        profile_of(("gemm", 4), (fill, 1), (add, 1)), kernels_of(("gemm", 4), (add, 1))
    )
    assert match.row.tolist() == [0, 2]


THREE_TIMES = profile_of(
    *STEP, *STEP, *STEP,
    duration=[1000, 2000, 3000, 4000, 2000, 3000, 4000, 5000, 9000, 10000, 11000, 12000],
)  # fmt: skip


def test_of_several_iterations_the_median_is_taken():
    match = match_profile(THREE_TIMES, kernels_of(*STEP))
    assert match.rows.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert match.iteration == "median"
    assert match.duration.tolist() == [2, 3, 4, 5]
    assert match_profile(THREE_TIMES, kernels_of(*STEP), Where(iteration="mean")).duration[0] == 4


def test_how_far_iterations_are_apart_is_noted():
    match = match_profile(THREE_TIMES, kernels_of(*STEP))
    # Kernel 0 takes 1 to 9 us, its median is 2.
    assert match.spread.tolist() == [8 / 2, 8 / 3, 8 / 4, 8 / 5]
    assert (
        "iterations of the profile: 3, the median of each kernel is taken (--iteration); together "
        "the kernels take 10.00 to 42.00 us an iteration; from its shortest to its longest time a "
        "kernel differs by 233.3 % of its median, in the median"
    ) in match.notes


def test_one_iteration_has_no_spread():
    match = match_profile(profile_of(*STEP), kernels_of(*STEP))
    assert match.spread.tolist() == [0] * 4
    assert not any("iterations" in note for note in match.notes)


def test_the_spread_is_of_kernels_that_were_measured():
    profile = profile_of(*STEP, *STEP[:3], ("tanh", 9), duration=[1000] * 8)
    match = match_profile(profile, kernels_of(*STEP))
    assert match.spread[:3].tolist() == [0] * 3


@pytest.mark.parametrize(
    ("iteration", "expected"),
    [("min", [1, 2, 1, 2]), ("last", [3, 4, 1, 2]), ("0", [1, 2, 3, 4]), ("1", [3, 4, 1, 2])],
)
def test_an_iteration_is_picked(iteration, expected):
    profile = profile_of(*STEP, *STEP, duration=[1000, 2000, 3000, 4000, 3000, 4000, 1000, 2000])
    match = match_profile(profile, kernels_of(*STEP), Where(iteration=iteration))
    assert match.duration.tolist() == expected


def test_a_warm_up_between_iterations_does_not_shift_them():
    rows = [("init", 9), *STEP, ("add", 2), *STEP, ("add", 2), *STEP]
    match = match_profile(profile_of(*rows), kernels_of(*STEP))
    assert match.rows.tolist() == [[1, 2, 3, 4], [6, 7, 8, 9], [11, 12, 13, 14]]


def test_an_iteration_that_was_cut_off_is_left_out():
    match = match_profile(profile_of(*STEP, *STEP, *STEP[:3]), kernels_of(*STEP))
    assert len(match.rows) == 2
    assert any("incomplete iterations of the profile left out: 1" in note for note in match.notes)


def test_an_iteration_that_is_not_there():
    with pytest.raises(ProfileError, match="no iteration 2; it has 2, numbered from 0"):
        match_profile(profile_of(*STEP, *STEP), kernels_of(*STEP), Where(iteration="2"))
    with pytest.raises(ProfileError, match="'fast' cannot be taken; give median, mean, min, last"):
        match_profile(profile_of(*STEP), kernels_of(*STEP), Where(iteration="fast"))


@pytest.mark.parametrize("what", ["device", "process", "context"])
def test_kernels_of_several_places_need_a_choice(what):
    profile = profile_of(*STEP, *STEP, **{what: [0] * 4 + [3] * 4})
    with pytest.raises(ProfileError, match=rf"0 \(4 kernels\), 3 \(4 kernels\); .*--{what} N"):
        match_profile(profile, kernels_of(*STEP))
    chosen = match_profile(profile, kernels_of(*STEP), Where(**{what: 3}))
    assert chosen.duration.tolist() == [5, 6, 7, 8]


def test_several_streams_need_no_choice():
    profile = profile_of(*STEP, ("ncclAllReduce", 2), stream=[7, 7, 13, 13, 20])
    match = match_profile(profile, kernels_of(*STEP))
    assert match.status == [MATCHED] * 4
    assert any("streams 7, 13, 20: --stream N picks one" in note for note in match.notes)


def test_a_profile_without_grids_is_matched_by_name():
    profile = replace(profile_of(("memset", 1), *STEP), grid=None, block=None)
    match = match_profile(profile, kernels_of(*STEP))
    assert match.status == [MATCHED] * 4
    assert match.row.tolist() == [1, 2, 3, 4]
    assert any("no grids" in note for note in match.notes)


def test_a_profile_of_times_alone_is_matched_by_order():
    profile = replace(profile_of(*STEP), grid=None, block=None, name=("",) * 4)
    match = match_profile(profile, kernels_of(*STEP))
    assert match.status == [GUESSED] * 4
    with pytest.raises(ProfileError, match="4 kernels where the store has 3"):
        match_profile(profile, kernels_of(*STEP[:3]))


def test_launch_numbers_that_fit_are_taken():
    profile = replace(profile_of(("gemm", 8)), kernel=np.array([2]))
    match = match_profile(profile, kernels_of(*STEP))
    assert match.status == [UNMATCHED, UNMATCHED, MATCHED, UNMATCHED]


def test_launch_numbers_that_do_not_fit_are_not():
    # A simulator that skipped kernel 0 counts from its own first one.
    profile = replace(profile_of(*STEP[1:]), kernel=np.arange(3), format="simlog")
    assert match_profile(profile, kernels_of(*STEP)).row.tolist() == [-1, 0, 1, 2]


def test_a_table_of_ones_own_must_name_kernels_of_the_store():
    profile = replace(
        profile_of(("", 1)), name=("",), grid=None, block=None, kernel=np.array([9]),
        format="kernels-csv",
    )  # fmt: skip
    with pytest.raises(ProfileError, match=r"kernel 9 is not in the store; .* kernels 0 to 3"):
        match_profile(profile, kernels_of(*STEP))


def test_another_program_is_refused_by_name():
    with pytest.raises(ProfileError, match="it has softmax, topk, the store gemm, bias and 1 more"):
        match_profile(profile_of(("softmax", 1), ("topk", 1)), kernels_of(*STEP))


def test_wall_time_and_gaps_are_those_of_the_matched_kernels():
    # Kernels of 2, 2, 2 us; gaps of 1 and 3 us; another kernel after the last one.
    start = 1_700_000_000_000_000_000 + np.array([0, 3000, 8000, 50_000])
    profile = profile_of(*STEP[:3], ("copy", 1), duration=[2000] * 4, start=start)
    run = measured_run(match_profile(profile, kernels_of(*STEP[:3])))
    assert (run.wall, run.gap, run.unit, run.others) == (10, 2, "us", 0)


def test_a_kernel_that_the_trace_lacks_counts_in_the_gaps():
    profile = profile_of(
        STEP[0], ("memset", 1), STEP[1], duration=[1000, 1000, 1000], start=[0, 1000, 2000]
    )
    run = measured_run(match_profile(profile, kernels_of(*STEP[:2])))
    assert (run.wall, run.gap, run.others) == (3, 0, 1)


def test_kernels_that_overlap_have_no_gap():
    profile = profile_of(*STEP[:3], duration=[9000, 1000, 1000], start=[0, 1000, 3000])
    run = measured_run(match_profile(profile, kernels_of(*STEP[:3])))
    assert (run.wall, run.gap) == (9, 0)


def test_without_starts_there_is_no_wall_time():
    assert measured_run(match_profile(profile_of(*STEP), kernels_of(*STEP))) is None


def resources_of(registers, shared_bytes, stream):
    n = len(registers)
    columns = (np.array(column, np.int64) for column in (registers, shared_bytes, stream))
    return Resources(np.full(n, 128), *columns, 90)


def test_the_profile_fills_what_the_trace_does_not_know():
    match = match_profile(
        profile_of(*STEP, registers=[96, 96, 96, 96], shared_bytes=[13824, 64, 64, 64]),
        kernels_of(*STEP),
    )
    filled, notes = fill_resources(match, resources_of([0, 32, 40, 40], [0, 512, -1, 512], [0] * 4))
    assert filled.registers.tolist() == [96, 32, 40, 40]
    # Kernel 0 was not loaded when it was traced: neither number is right.
    assert filled.shared_bytes.tolist() == [13824, 512, 64, 512]
    assert [note.split(" taken ")[0] for note in notes] == [
        "registers of 1 kernel", "shared memory of 2 kernels",
    ]  # fmt: skip


def test_static_and_dynamic_shared_memory_add_up():
    profile = profile_of(*STEP, static_shared_bytes=[8] * 4, dynamic_shared_bytes=[100] * 4)
    match = match_profile(profile, kernels_of(*STEP))
    filled, _ = fill_resources(match, resources_of([32] * 4, [-1] * 4, [0] * 4))
    assert filled.shared_bytes.tolist() == [108] * 4


def test_streams_are_filled_where_the_trace_has_one_alone():
    match = match_profile(profile_of(*STEP, stream=[7, 7, 13, 13]), kernels_of(*STEP))
    known = resources_of([32] * 4, [0] * 4, [0] * 4)
    assert fill_resources(match, known)[0].stream.tolist() == [7, 7, 13, 13]
    several = known._replace(stream=np.array([1, 1, 2, 2]))
    assert fill_resources(match, several)[0].stream.tolist() == [1, 1, 2, 2]


def test_kernels_measured_on_gpus_of_different_size_need_a_choice():
    match = match_profile(profile_of(*STEP, measured_sms=[80, 80, 132, 132]), kernels_of(*STEP))
    with pytest.raises(ProfileError, match="on 80, 132 SMs; pass --measured-sms N"):
        _ = match.measured_sms


launches = st.lists(
    st.tuples(st.sampled_from(["gemm", "bias", "relu"]), st.integers(1, 2)), min_size=1, max_size=12
)


@given(launches, launches)
def test_pairs_keep_the_order_and_agree_in_the_name_or_the_grid(traced, measured):
    try:
        match = match_profile(profile_of(*measured), kernels_of(*traced))
    except ProfileError:
        assert not {n for n, _ in traced} & {n for n, _ in measured}
        return
    rows = match.rows.ravel()
    assert (np.diff(rows[rows >= 0]) > 0).all()
    for line, guesses in zip(match.rows, match.guessed, strict=True):
        for launch, row, guessed in zip(traced, line, guesses, strict=True):
            if row >= 0 and not guessed:
                assert launch == measured[row]
            elif row >= 0:
                assert launch[0] == measured[row][0] or launch[1] == measured[row][1]


@given(launches, st.integers(1, 4))
def test_repeating_the_program_changes_nothing(traced, times):
    profile = profile_of(*traced * times, duration=[1000] * len(traced) * times)
    match = match_profile(profile, kernels_of(*traced))
    assert match.status == [MATCHED] * len(traced)
    assert len(match.rows) == times
    assert not len(match.unmatched_rows)


@given(launches)
def test_shares_of_time_add_up_to_the_whole(traced):
    match = match_profile(profile_of(*traced, ("memset", 9)), kernels_of(*traced, ("late", 5)))
    shares = [match.share_of_time(status) for status in (MATCHED, GUESSED, UNMATCHED)]
    assert sum(shares) == pytest.approx(1)


@pytest.mark.jit_only
@pytest.mark.parametrize(
    ("name", "traced", "measured"),
    [
        pytest.param("gpt2_d256", 16, 16, marks=pytest.mark.slow),
        ("streams4", 14, 14),
        ("lstm_h128", 12, 12),
        pytest.param("mlp_m256", 5, 5, marks=pytest.mark.slow),  # 1.9 GB of text
        ("gru_train", 25, 29),
    ],
)
def test_real_profiles_match_real_traces(shared_data, name, traced, measured):
    profile = read_profile(shared_data / "timing" / f"{name}.kineto.json")
    kernels = [
        replace(kernel, grid_x=x, grid_y=y, grid_z=z, block_x=bx, block_y=by, block_z=bz)
        for kernel, (x, y, z), (bx, by, bz) in launches_of(shared_data / "nvbit" / f"{name}.log.xz")
    ]
    match = match_profile(profile, kernels)
    assert match.status == [MATCHED] * traced
    assert (len(profile), len(match.unmatched_rows)) == (measured, measured - traced)
    unmatched = profile.duration[match.unmatched_rows].sum() / 1000
    assert match.duration.sum() == pytest.approx(profile.duration.sum() / 1000 - unmatched)
    if name == "gru_train":
        names = {base_name(profile.name[row]) for row in match.unmatched_rows}
        assert names == {"vectorized_elementwise_kernel"}
    if name == "streams4":
        pairs = zip(kernels, profile.stream[match.row].tolist(), strict=True)
        assert len({(kernel.stream, stream) for kernel, stream in pairs}) == 5


_LAUNCH = re.compile(
    r"Kernel name (.*) - grid launch id \d+ - grid size (\S+) - block size (\S+) "
    r"- nregs \d+ - shmem \d+ - cuda stream id (-?\d+)"
)


def launches_of(trace):
    """Yield the kernels of an NVBit log with their grids and blocks, without its accesses."""
    with lzma.open(trace, "rt", encoding="utf-8", errors="replace") as lines:
        found = [_LAUNCH.search(line) for line in lines if " - LAUNCH - " in line]
    for match in found:
        (kernel,) = kernels_of((match[1], 1), stream=int(match[4]))
        yield kernel, *(tuple(map(int, match[i].split(","))) for i in (2, 3))


def test_wall_time_is_kernels_and_idle_time():
    profile = profile_of(
        *STEP,
        duration=[1000, 1000, 2000, 1000],
        start=[0, 500, 4000, 8000],
        correlation=[1, 2, 3, 4],
    )
    run = measured_run(match_profile(profile, kernels_of(*STEP)))
    # The first two overlap: kernels run from 0 to 1.5, 4 to 6 and 8 to 9 us.
    assert (run.wall, run.kernel_time, run.idle) == (9, 5, 4.5)
    assert not run.is_graph


@pytest.mark.parametrize(
    ("correlation", "is_graph"), [([7, 7, 7, 8], True), ([1, 1, 2, 3], False), (None, False)]
)
def test_kernels_of_one_launch_call_are_a_graph(correlation, is_graph):
    columns = {} if correlation is None else {"correlation": correlation}
    profile = profile_of(*STEP, start=[0, 2000, 5000, 9000], **columns)
    run = measured_run(match_profile(profile, kernels_of(*STEP)))
    assert run.is_graph is is_graph


def memory_of(*operations):
    """Return memsets and copies from (name, start, duration in us)."""
    names, starts, times = zip(*operations, strict=True)
    return KernelProfile(
        source=Path("run.json"), format="kineto", unit="ns", name=names,
        start=np.array(starts), duration=np.array(times) * 1e3,
    )  # fmt: skip


def test_memsets_and_copies_stand_before_the_kernel_that_starts_next():
    kernels = profile_of(*STEP, ("tanh", 9), start=[100, 200, 300, 400, 500])
    memory = memory_of(
        ("set", 90, 1.0), ("set", 210, 2.0), ("copy", 220, 4.0), ("set", 250, 2.5),
        ("copy", 410, 8.0), ("copy", 600, 16.0),
    )  # fmt: skip
    match = match_profile(replace(kernels, memory=memory), kernels_of(*STEP))
    assert [(m.name, m.before, m.count, m.time) for m in memory_operations(match)] == [
        ("set", 0, 1, 1.0),
        ("copy", 2, 1, 4.0),
        ("set", 2, 2, 4.5),
        ("copy", None, 2, 24.0),  # before a kernel that the trace lacks, and after all
    ]


def test_memsets_are_those_of_an_iteration():
    kernels = profile_of(*STEP, *STEP, *STEP, start=list(range(100, 1300, 100)))
    memory = memory_of(
        *(("set", start, time) for start, time in ((50, 1.0), (450, 3.0), (850, 9.0)))
    )
    match = match_profile(replace(kernels, memory=memory), kernels_of(*STEP))
    (found,) = memory_operations(match)
    assert (found.before, found.count, found.time) == (0, 1, 3.0)
    last = match_profile(match.profile, kernels_of(*STEP), Where(iteration="last"))
    assert memory_operations(last)[0].time == 9.0


def test_without_starts_memsets_have_no_place():
    memory = replace(memory_of(("set", 0, 1.0), ("set", 0, 2.0)), start=None)
    match = match_profile(replace(profile_of(*STEP), memory=memory), kernels_of(*STEP))
    assert [(m.before, m.count, m.time) for m in memory_operations(match)] == [(None, 2, 3.0)]
    assert memory_operations(match_profile(profile_of(*STEP), kernels_of(*STEP))) == []


@pytest.mark.jit_only
def test_memsets_of_split_products_in_a_real_profile(shared_data):
    profile = read_profile(shared_data / "timing/lstm_h128.kineto.json")
    gemms = [i for i, name in enumerate(profile.name) if "gemm" in name]
    memory = profile.memory
    after = np.searchsorted(profile.start, memory.start)
    assert (len(memory), memory.duration.sum()) == (8, 7392)
    assert after.tolist() == gemms
