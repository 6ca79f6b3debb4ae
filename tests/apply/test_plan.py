"""Graphs of fake programs: whatever order their edges allow, the results are the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fake_graphs import OTHER, POOL, FakeProgram, Kernel, Placed, any_order
from hypothesis import given
from hypothesis import strategies as st

from depgraph.apply.order import chain, reachable
from depgraph.apply.recorded import is_patched, recording_folder

SHIFT = 1 << 20
OWN = 0x7D0000000000

# Kernels read and write within one allocation, or one after another: a pointer into the middle of
# another range that begins where an allocation may is left out.
piece = st.tuples(
    st.sampled_from([0, 32, 512, 544, 1024, 1536, -512, -1024]), st.sampled_from([32, 64])
)
rarely = st.sampled_from([False] * 7 + [True])
kernels = st.builds(
    Kernel, reads=st.lists(piece, max_size=2), writes=st.lists(piece, min_size=1, max_size=2),
    hands_on=st.lists(piece, max_size=1),
    is_opaque=rarely, hides=rarely,
)  # fmt: skip
programs = st.builds(
    FakeProgram,
    kernels=st.lists(kernels, min_size=1, max_size=10),
    kept=st.sampled_from([[], [(0, 512)], [(512, 64), (1536, 512)]]),
)


@given(programs, st.integers(0, 1000), st.sampled_from([512, 2048, 1 << 20]))
def test_every_candidate_gives_the_results_of_the_chain_in_any_order(program, seed, most_bytes):
    plan = program.plan()
    chance = np.random.default_rng(seed)
    values = plan.values_within(most_bytes)
    assert sum(value.size for value in values) <= most_bytes
    placed = Placed(plan.recorded, program.captured(SHIFT), {0: 0, 1: 1})
    wanted = program.results(program.run(range(plan.n), shift=SHIFT), SHIFT)
    for candidate in plan.candidates(values):
        moved = [value for value in values if value.number in candidate.moved]
        used = placed.words_of(moved, OWN)
        for _ in range(3):
            order = any_order(plan.n, candidate.edges, chance.integers)
            found = program.run(order, used, SHIFT)
            assert program.results(found, SHIFT) == wanted, candidate
            # What a graph on a GPU is compared by: all bytes but those of values that have moved.
            gone = plan.reuse.left_empty(candidate.moved)
            for address, byte in program.run(range(plan.n), shift=SHIFT).items():
                if not any(start <= address - SHIFT < end for start, end in gone):
                    assert found[address] == byte


@pytest.fixture
def pairs():
    """Return eight pairs of kernels, each of which hands a value over in the same workspace."""
    return FakeProgram(
        [
            kernel
            for i in range(8)
            for kernel in (Kernel([(-64, 8)], [(0, 64)]), Kernel([(0, 64)], [(-512 * (i + 2), 8)]))
        ]
    )


def test_memory_of_their_own_frees_kernels_that_share_a_buffer(pairs):
    plan = pairs.plan()
    assert plan.edges() == chain(16)
    values = [value for value in plan.reuse.values if value.can_move]
    assert len(values) == 8
    assert plan.edges({v.number for v in values[1:]}) == [(i, i + 1) for i in range(0, 16, 2)]


def test_no_more_is_moved_than_matters_or_there_is_room_for(pairs):
    plan = pairs.plan()
    values = plan.fewest(plan.values_within(1 << 20))
    everything = {v.number for v in plan.reuse.values}
    time = plan.estimate(plan.edges({v.number for v in values}))
    assert time <= 1.001 * plan.estimate(plan.edges(everything)) < plan.estimate(chain(16))
    for value in values:
        without = {v.number for v in values if v is not value}
        assert plan.estimate(plan.edges(without)) > time
    (bought,) = plan.bought_by(values)
    assert (bought.values, bought.more_bytes) == (len(values), len(values) * 512)
    assert bought.saved > 0
    assert len(plan.values_within(2 * 512 + 511)) == 2
    assert plan.values_within(511) == []


def test_what_is_read_before_it_is_written_stays():
    """The next run reads what this one leaves."""
    program = FakeProgram([Kernel([(0, 64)], [(512, 64)]), Kernel([(512, 64)], [(0, 64)])])
    can_move = {value.start - POOL: value.can_move for value in program.plan().reuse.values}
    assert can_move == {0: False, 512: True}


def test_a_pointer_that_begins_a_value_moves_with_it_even_if_another_is_used():
    make, take = Kernel([], [(0, 64)]), Kernel([(0, 0), (32, 32)], [(-512, 8)])
    plan = FakeProgram([make, take, make, take]).plan()
    assert [v.words[v.nodes[1]] for v in plan.reuse.values if v.can_move] == [((0, 0), (1, 0))] * 2


def test_two_equal_pointers_to_the_end_of_a_value_and_the_start_of_another():
    """Nobody knows which of them is which: both values stay."""
    first = Kernel([], [(0, 512)])
    both = Kernel([(0, 512), (512, 0)], [(512, 32)])
    plan = FakeProgram([first, both, first, both]).plan()
    assert not any(v.can_move for v in plan.reuse.values)


def test_results_inside_what_is_written_are_kept():
    kernels = [
        Kernel([], [(0, 1024)]), Kernel([(0, 64)], [(-512, 8)]),
        Kernel([], [(0, 1024)]), Kernel([(0, 64)], [(-1024, 8)]),
    ]  # fmt: skip
    plan = FakeProgram(kernels, kept=[(512, 512)]).plan()
    can_move = {value.nodes: value.can_move for value in plan.reuse.values if len(value.nodes) > 1}
    assert can_move == {(0, 1): True, (2, 3): False}


def test_sums_that_are_split_inside_kernels_share_a_workspace_no_more():
    split = [Kernel([], [(-512 * (i + 2), 8)], hands_on=[(0, 64)]) for i in range(4)]
    plan = FakeProgram(split).plan()
    assert plan.edges() == chain(4)
    assert plan.edges({value.number for value in plan.values_within(1 << 20)}) == []


def test_what_was_written_before_a_kernel_hands_it_on_is_read_there():
    """It may be a flag that must be clear: no memory of its own takes the dependence away."""
    clear, hand_on = Kernel([], [(0, 64)]), Kernel([], [(-512, 8)], hands_on=[(0, 64)])
    plan = FakeProgram([clear, hand_on, clear, hand_on]).plan()
    moved = {value.number for value in plan.values_within(1 << 20)}
    assert {(0, 1), (2, 3)} <= set(plan.edges(moved))
    assert (1, 2) not in plan.edges(moved)


def test_all_pointers_into_what_a_node_touches_move_together():
    """A kernel that splits its sum counts in one half of a value and waits on the other half."""
    clear, wait = Kernel([], [(0, 16)]), Kernel([(0, 8), (8, 8)], [(-512, 8)])
    plan = FakeProgram([clear, wait, clear, wait]).plan()
    values = [value for value in plan.reuse.values if value.can_move]
    assert [v.words for v in values] == [
        {0: ((0, 0),), 1: ((0, 0), (1, 0))}, {2: ((0, 0),), 3: ((0, 0), (1, 0))},
    ]  # fmt: skip


def test_pointers_to_the_end_of_a_value_move_with_it():
    make, take = Kernel([], [(0, 64)]), Kernel([(0, 64), (64, 0)], [(-512, 8)])
    plan = FakeProgram([make, take, make, take]).plan()
    assert [v.words[v.nodes[1]] for v in plan.reuse.values if v.can_move] == [((0, 0), (1, 0))] * 2


@pytest.mark.parametrize("place", [0, 2, 5])
def test_a_node_that_is_not_understood_keeps_its_place(place):
    program = FakeProgram(
        [Kernel([], [(-512 * (i + 1), 8)], is_opaque=i == place) for i in range(6)]
    )
    before = reachable(6, program.plan().edges())
    assert before[place] == (1 << place) - 1
    assert all(before[node] >> place & 1 for node in range(place + 1, 6))


def test_what_is_written_and_by_whom_last(pairs):
    plan = pairs.plan()
    written = plan.written()
    assert written[0].tolist() == [[POOL, POOL + 64]]
    assert written[1].tolist() == [[OTHER + 512 * i, OTHER + 512 * i + 8] for i in range(2, 10)]
    assert [plan.last_writer(at) for at in (POOL, OTHER + 1024, POOL + 64)] == [14, 1, None]


def test_nodes_that_no_recording_has_hand_on_order(pairs):
    plan = replace(pairs.plan(), operation=(0, None, 1, None, None, 2, *range(3, 13)))
    source, target = plan.between_operations([(0, 1), (1, 2), (2, 3), (3, 4), (0, 4), (4, 5)])
    assert sorted(zip(source, target, strict=True)) == [(0, 1), (0, 2), (1, 2)]


def test_a_process_knows_whether_it_is_recorded(monkeypatch, tmp_path):
    monkeypatch.delenv("DEPGRAPH_RECORD_FOLDER", raising=False)
    monkeypatch.delenv("DEPGRAPH_RECORD_PATCH", raising=False)
    assert (recording_folder(), is_patched()) == (None, False)
    monkeypatch.setenv("DEPGRAPH_RECORD_FOLDER", str(tmp_path))
    monkeypatch.setenv("DEPGRAPH_RECORD_PATCH", "patch.fatbin")
    assert (recording_folder(), is_patched()) == (tmp_path, True)
