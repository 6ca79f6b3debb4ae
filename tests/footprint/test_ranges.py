"""Byte ranges: sorted and joined, rounded, cut at addresses."""

import naive
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from depgraph.dependence.sweep import cut_footprints
from depgraph.footprint.footprints import (
    Footprints,
    concatenate_footprints,
    cut_at_multiples,
    join_footprints,
)
from depgraph.footprint.ranges_jit import _sort_ranges, join_ranges
from depgraph.trace.records import LDGSTS_READ, READ, SYNC_READ, WRITE

HIGHEST = 1 << 57


@st.composite
def ranges(draw, *, rows=4, memory=40, max_size=12):
    """Draw (row, kind, start, end), in any order, overlapping or not."""
    one = st.tuples(
        st.integers(0, rows - 1), st.integers(0, 3), st.integers(0, memory), st.integers(1, 9)
    )
    return [
        (row, kind, start, start + size)
        for row, kind, start, size in draw(st.lists(one, max_size=max_size))
    ]


def columns(drawn):
    row, kind, start, end = zip(*drawn, strict=True) if drawn else ([],) * 4
    return (
        np.array(row, np.int32),
        np.array(kind, np.uint8),
        np.array(start, np.uint64),
        np.array(end, np.uint64),
    )


def rows(*arrays):
    return list(zip(*(array.tolist() for array in arrays), strict=True))


def test_ranges_that_overlap_or_touch_become_one():
    drawn = [(0, READ, 4, 8), (0, READ, 0, 4), (0, READ, 6, 9), (0, READ, 10, 11)]
    assert rows(*join_ranges(*columns(drawn), 4, 1)) == [(0, READ, 0, 9), (0, READ, 10, 11)]


def test_reads_and_writes_and_rows_stay_apart():
    drawn = [(1, WRITE, 0, 4), (1, READ, 4, 8), (0, WRITE, 2, 6)]
    assert rows(*join_ranges(*columns(drawn), 3, 2)) == [
        (0, WRITE, 2, 6),
        (1, READ, 4, 8),
        (1, WRITE, 0, 4),
    ]


def test_what_other_reads_cover_is_not_read_by_ldgsts_alone():
    drawn = [(0, LDGSTS_READ, 0, 12), (0, READ, 4, 6), (0, SYNC_READ, 5, 9), (0, WRITE, 0, 2)]
    assert rows(*join_ranges(*columns(drawn), 4, 1)) == [
        (0, READ, 4, 6),
        (0, WRITE, 0, 2),
        (0, SYNC_READ, 6, 9),
        (0, LDGSTS_READ, 0, 4),
        (0, LDGSTS_READ, 9, 12),
    ]


@given(drawn=ranges())
def test_join_ranges(drawn):
    assert rows(*join_ranges(*columns(drawn), len(drawn), 4)) == naive.join_ranges(drawn)


@given(drawn=ranges(rows=1, memory=400, max_size=80))
def test_join_ranges_of_one_long_row(drawn):
    assert rows(*join_ranges(*columns(drawn), len(drawn), 1)) == naive.join_ranges(drawn)


@given(drawn=ranges(), rest=ranges())
def test_only_the_first_ranges_count(drawn, rest):
    joined = join_ranges(*columns(drawn + rest), len(drawn), 4)
    assert rows(*joined) == naive.join_ranges(drawn)


@given(drawn=ranges())
def test_few_ranges_of_many_blocks_take_no_more(drawn):
    spread = [(row << 28, *others) for row, *others in drawn]
    joined = Footprints(*columns(spread)).joined(1 << 31)
    assert [array.dtype for array in joined.columns] == [array.dtype for array in columns([])]
    assert rows(*joined.columns) == naive.join_ranges(spread)


@given(drawn=ranges())
def test_ranges_may_lie_at_the_end_of_the_address_space(drawn):
    shifted = [(row, kind, HIGHEST + start, HIGHEST + end) for row, kind, start, end in drawn]
    joined = rows(*join_ranges(*columns(shifted), len(drawn), 4))
    assert joined == [
        (row, kind, HIGHEST + start, HIGHEST + end)
        for row, kind, start, end in naive.join_ranges(drawn)
    ]


@given(ranges(), st.lists(st.integers(0, 60), max_size=5, unique=True).map(sorted))
def test_cut_ranges(drawn, boundaries):
    pieces = cut_footprints(Footprints(*columns(drawn)), np.array(boundaries, np.uint64))
    assert [rows(*piece.columns) for piece in pieces] == naive.cut_ranges(drawn, boundaries)


@given(ranges(), st.integers(1, 12))
def test_cut_at_multiples(drawn, size):
    cut = cut_at_multiples(Footprints(*columns(drawn)), size)
    assert sorted(rows(*cut.columns)) == sorted(naive.cut_at_multiples(drawn, size))


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=40), st.integers(0, 3))
def test_sort_ranges_sorts_by_start_and_keeps_the_order_of_equals(drawn, before):
    padded = [(99, 0)] * before + drawn
    start, end = (np.array([pair[i] for pair in padded], np.uint64) for i in (0, 1))
    _sort_ranges(start, end, before, len(padded))
    expected = [(99, 0)] * before + sorted(drawn, key=lambda pair: pair[0])
    assert list(zip(start.tolist(), end.tolist(), strict=True)) == expected


@given(st.lists(ranges(), max_size=4))
def test_footprints_of_pieces_are_those_of_the_whole(pieces):
    whole = [one for piece in pieces for one in piece]
    joined = concatenate_footprints([Footprints(*columns(piece)) for piece in pieces], 4)
    assert rows(joined.block, joined.kind, joined.start, joined.end) == naive.join_ranges(whole)


@given(ranges(), st.sampled_from([1, 4, 32]))
def test_rounding_out(drawn, granularity):
    rounded = join_footprints(*columns(drawn), 4).rounded(granularity, 4)
    expected = naive.join_ranges(
        [
            (row, kind, start // granularity * granularity, -(-end // granularity) * granularity)
            for row, kind, start, end in drawn
        ]
    )
    assert rows(rounded.block, rounded.kind, rounded.start, rounded.end) == expected


@given(ranges())
def test_bytes_per_block(drawn):
    footprints = join_footprints(*columns(drawn), 4)
    joined = naive.join_ranges(drawn)
    for access, kinds in ((READ, {READ, SYNC_READ, LDGSTS_READ}), (WRITE, {WRITE})):
        assert footprints.bytes_per_block(access, 4).tolist() == [
            sum(end - start for row, k, start, end in joined if row == block and k in kinds)
            for block in range(4)
        ]


@given(ranges(), st.integers(0, 4))
def test_ranges_of_one_block(drawn, block):
    own = join_footprints(*columns(drawn), 5).of_block(block)
    assert rows(own.block, own.kind, own.start, own.end) == [
        one for one in naive.join_ranges(drawn) if one[0] == block
    ]


def test_footprints_as_a_data_frame():
    frame = join_footprints(*columns([(1, WRITE, 8, 12), (0, READ, 0, 4)]), 2).to_pandas()
    assert frame.to_dict("list") == {
        "block": [0, 1],
        "kind": ["read", "write"],
        "start": [0, 8],
        "end": [4, 12],
        "way": ["plain", "plain"],
    }
