"""The sweep over addresses: its bit sets, its sets of blocks, and shards of addresses."""

import naive
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from programs import (
    BASE,
    edges_of,
    find_dependences,
    footprints_of,
    programs,
    programs_with_ways,
    to_lists,
)

from depgraph.dependence import sweep_jit as jit
from depgraph.dependence.sweep import _one_of_equals, build_graph, cut_footprints, sweep
from depgraph.system.arrays import list_of_each

# Two levels of 64 bits each, and a third of the upper one.
MEMBERS = 64 * 64 * 3


@given(st.integers(1, 2**64 - 1))
def test_lowest_and_highest_bit(word):
    assert jit._lowest_bit(np.uint64(word)) == (word & -word).bit_length() - 1
    assert jit._highest_bit(np.uint64(word)) == word.bit_length() - 1


@given(
    st.lists(st.tuples(st.integers(0, MEMBERS - 1), st.booleans()), max_size=30),
    st.lists(st.integers(0, MEMBERS), min_size=1, max_size=10),
)
def test_bit_sets_find_the_members_on_both_sides(changes, asked):
    bits = np.zeros((2, (MEMBERS >> 6) + 1), np.uint64)
    members = set()
    for member, present in changes:
        jit._set_member(bits, member, present)
        (members.add if present else members.discard)(member)
    for place in [*asked, *(m for m, _ in changes), *(m + 1 for m, _ in changes)]:
        assert jit._next_member(bits, place) == min((m for m in members if m >= place), default=-1)
        assert jit._previous_member(bits, place) == max(
            (m for m in members if m < place), default=-1
        )


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1), st.integers(0, 3))
def test_a_pair_is_packed_in_64_bits(source, target, kind):
    packed = int(jit._pack(source, target, kind))
    assert (packed >> 33, packed >> 2 & 2**31 - 1, packed & 3) == (source, target, kind)


def swept(program):
    footprints, first_block, _ = footprints_of(program)
    return sweep(footprints, list_of_each(first_block), len(program))


@given(programs())
def test_sets_are_distinct_sets_of_blocks_that_touch_a_byte(program):
    found = swept(program)
    sets = [tuple(sorted(blocks)) for blocks in to_lists(*found.sets)]
    named = list(zip((found.set_label >> 1).tolist(), sets, strict=True))
    assert len(set(named)) == len(named)
    assert len({tuple(h) for h in found.set_hash.tolist()}) == len(set(sets))
    bytes_ = {b for operation in program for both in operation.values() for b in both[0] | both[1]}
    expected = {
        (k, tuple(block for block, both in operation.items() if byte in both[how]))
        for k, operation in enumerate(program)
        for byte in bytes_
        for how in (0, 1)
    }
    assert set(named) == {one for one in expected if one[1]}


@given(programs())
def test_each_pair_of_sets_comes_once(program):
    pairs = swept(program).pairs.tolist()
    assert len(set(pairs)) == len(pairs)


def test_tables_grow_with_what_they_hold():
    # Block b of every kernel updates byte b and byte b + 1: as many sets as bytes. The sets of the
    # first bytes come once more at the end.
    blocks, kernels = 1500, 3
    program = [
        {
            k * blocks + b: ({4 * b, 4 * b + 4} | ({9000, 9004} if b == 0 else set()),) * 2
            for b in range(blocks)
        }
        for k in range(kernels)
    ]
    found = swept(program)
    assert len(found.set_label) > 4096
    assert len(found.pairs) > 4096
    sets = [frozenset(blocks) for blocks in to_lists(*found.sets)]
    assert len(set(sets)) == len(sets)
    assert len(set(found.pairs.tolist())) == len(found.pairs)
    first_block = np.arange(kernels + 1) * blocks
    graph = build_graph([found], first_block, np.arange(kernels, dtype=np.int32))
    neighbours = 3 * blocks - 2
    assert [(p.source, p.target, p.edges) for p in graph.pairs()] == [
        (0, 1, neighbours),
        (1, 2, neighbours),
    ]


@given(
    programs_with_ways(memory=600),
    st.lists(st.integers(0, 600), max_size=4, unique=True).map(sorted),
)
def test_pieces_of_the_address_space_give_the_graph_of_the_whole(program, at):
    footprints, first_block, kernel = footprints_of(program)
    boundaries = np.array([BASE + address for address in at], np.uint64)
    pieces = [
        sweep(piece, list_of_each(first_block), len(program))
        for piece in cut_footprints(footprints, boundaries)
    ]
    joined = build_graph(pieces, first_block, kernel)
    whole, shared = find_dependences(footprints, first_block, kernel)
    for name in ("set_operation", "set_blocks", "join_kind", "sources", "targets", "join_basis"):
        assert np.array_equal(getattr(joined, name), getattr(whole, name)), name
    assert edges_of(joined) == edges_of(whole)
    assert sum(piece.shared_bytes for piece in pieces).tolist() == shared.tolist()


def test_naive_shared_bytes_sees_reads_and_writes():
    assert naive.shared_bytes({0: ({1}, {2}), 1: ({2}, {3}), 2: (set(), {3})}) == 2


def test_sets_that_share_half_a_name_are_told_apart():
    names = np.array([[1, 1], [1, 2], [1, 1], [2, 1], [1, 1]], np.uint64)
    operation = np.array([0, 0, 0, 0, 1], np.int32)
    assert _one_of_equals(operation, names).tolist() == [0, 1, 0, 3, 4]
    assert _one_of_equals(operation[:0], names[:0]).tolist() == []
