"""When blocks ran: as JSON has it, and what it tells."""

import json

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from depgraph.trace.block_spans import MOST_BLOCKS, BlockSpans, unpacked

ROWS = st.lists(
    st.tuples(st.integers(0, 1 << 20), st.integers(0, 1 << 20), st.integers(0, 7)),
    min_size=1, max_size=30,
)  # fmt: skip


def spans(rows, clock=32, patch=0):
    begin, duration, sm = (np.array(column) for column in zip(*rows, strict=True))
    return BlockSpans(begin, duration, sm, clock, patch)


@given(ROWS, st.integers(1, 1000), st.integers(0, 1000))
def test_what_is_packed_is_unpacked(rows, clock, patch):
    given = spans(rows, clock, patch)
    found = unpacked(json.loads(json.dumps(given.packed())), len(rows))
    assert [found.begin.tolist(), found.duration.tolist(), found.sm.tolist()] == [
        given.begin.tolist(), given.duration.tolist(), given.sm.tolist()
    ]  # fmt: skip
    assert (found.clock_ns, found.patch_ns) == (clock, patch)


def naive_resident(rows):
    """Ask of each begin how many blocks of its SM have begun and not ended."""
    held = [
        sum(b <= begin < b + d and s == sm for b, d, s in rows)
        for begin, duration, sm in rows
        if duration
    ]
    return max(held, default=0)


@given(ROWS)
def test_resident_blocks_are_those_that_have_begun_and_not_ended(rows):
    assert spans(rows).resident == naive_resident(rows)


def test_durations_are_without_what_measuring_takes():
    assert spans([(0, 320, 0), (0, 96, 0)], patch=100).alone.tolist() == [220, 1]


@pytest.mark.parametrize(
    "change",
    [
        {"begin": "AAAA"}, {"begin": None}, {"duration": "no base64"}, {"sm": ""}, {"clock_ns": 0},
        {"clock_ns": True}, {"patch_ns": -1}, {"patch_ns": 1 << 50}, {"clock_ns": 1 << 33},
        {"clock_ns": 1.5}, {"begin": "\ud800"},
    ],
)  # fmt: skip
def test_what_is_none_is_not_taken(change):
    assert unpacked(spans([(5, 6, 7)]).packed() | change, 1) is None


@pytest.mark.parametrize("value", [None, [], "x", {}, 1])
def test_what_is_no_object_is_not_taken(value):
    assert unpacked(value, 1) is None


def test_too_many_blocks_and_too_long_ones_are_not_packed():
    assert spans([(0, 1 << 32, 0)]).packed() is None
    many = np.zeros(MOST_BLOCKS + 1, np.int64)
    assert BlockSpans(many, many, many, 1, 0).packed() is None
