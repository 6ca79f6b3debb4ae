"""The table that scanners fill grows, joins its ranges where they get many, and loses nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depgraph.parsers.scanning import tables
from depgraph.parsers.scanning.tables import TouchTable, pack_block
from depgraph.trace.records import Ranges

RANGES = st.lists(
    st.tuples(
        st.tuples(st.integers(0, 3), st.tuples(*[st.integers(0, 2)] * 3)),
        st.integers(0, 1),
        st.integers(0, 60),
        st.integers(1, 9),
    ),
    max_size=60,
)


@pytest.fixture(autouse=True)
def small_tables(monkeypatch):
    for name, size in (("_ROWS", 2), ("_RANGES", 4), ("_MAX_RANGES", 16)):
        monkeypatch.setattr(tables, name, size)


def one_range(start, size=1, row=0, kind=0):
    at = np.array([start], np.uint64)
    return Ranges(np.array([row], np.int32), np.array([kind], np.uint8), at, at + np.uint64(size))


def covered(touches):
    keys = zip(touches.launch, touches.x, touches.y, touches.z, strict=True)
    keys = [tuple(int(n) for n in key) for key in keys]
    found = {}
    for row, kind, start, end in zip(
        touches.row, touches.kind, touches.start, touches.end, strict=True
    ):
        bytes_ = found.setdefault((keys[row], int(kind)), set())
        assert not bytes_ & set(range(int(start), int(end) + 1))  # neither overlap nor touch
        bytes_ |= set(range(int(start), int(end)))
    return keys, found


@given(st.lists(RANGES, min_size=1, max_size=6))
def test_what_is_appended_is_covered(batches):
    table = TouchTable()
    for times in range(2):  # a table is used again
        table.clear()
        expected, blocks = {}, []
        for batch in batches:
            rows = []
            for (launch, block), kind, start, size in batch:
                rows.append(table.find_row(launch, pack_block(*block)))
                key = (launch, *block)
                blocks += [key] * (key not in blocks)
                bytes_ = expected.setdefault((key, kind), set())
                bytes_ |= set(range(start, start + size))
            columns = [list(column) for column in zip(*batch, strict=True)] or [[]] * 4
            start = np.array(columns[2], np.uint64)
            table.append(
                Ranges(
                    np.array(rows, np.int32),
                    np.array(columns[1], np.uint8),
                    start,
                    start + np.array(columns[3], np.uint64),
                )
            )
        keys, found = covered(table.touches())
        assert keys == blocks, times
        assert found == expected


class Kept:
    """Takes what a table has no room for."""

    def __init__(self, most_ranges):
        self.most_ranges = most_ranges
        self.taken = []

    def take(self, ranges):
        assert len(ranges.row) <= self.most_ranges
        self.taken += zip(*(column.tolist() for column in ranges), strict=True)


@given(st.lists(RANGES, min_size=1, max_size=12), st.integers(4, 12))
def test_what_overflows_and_what_stays_is_all_there_was(batches, most_ranges):
    table, kept = TouchTable(), Kept(most_ranges)
    table.clear(kept)
    expected = {}
    for batch in batches:
        for (launch, block), kind, start, size in batch:
            row = table.find_row(launch, pack_block(*block))
            table.append(one_range(start, size, row, kind))
            expected.setdefault((row, kind), set()).update(range(start, start + size))
            assert len(table.arrays.ranges.row) <= max(most_ranges, 4)
    touches = table.touches()
    stayed = zip(touches.row, touches.kind, touches.start, touches.end, strict=True)
    found = {}
    for row, kind, start, end in [*kept.taken, *stayed]:
        found.setdefault((int(row), int(kind)), set()).update(range(int(start), int(end)))
    assert found == expected


def test_a_table_that_overflows_does_not_grow():
    table, kept = TouchTable(), Kept(8)
    table.clear(kept)
    row = table.find_row(0, 0)
    for start in range(0, 2000, 2):
        table.append(one_range(start, row=row))
    assert len(table.arrays.ranges.row) == 8
    assert sorted(start for _, _, start, _ in kept.taken) == list(range(0, 2 * len(kept.taken), 2))
    assert len(kept.taken) + len(table.touches().row) == 1000
    table.make_room(100)  # a line may need more than there is room for
    assert len(table.arrays.ranges.row) >= 100
    table.clear()
    assert len(table.touches().row) == 0


@pytest.mark.parametrize("used", [1, 7, 8, 9, 15])
def test_room_is_made(used):
    table = TouchTable()
    row = np.full(used, table.find_row(0, 0), np.int32)
    start = 2 * np.arange(used, dtype=np.uint64)
    table.append(Ranges(row, np.zeros(used, np.uint8), start, start + np.uint64(1)))
    for wanted in (1, 5, 40):
        table.make_room(wanted)
        assert int(table.arrays.sizes[1]) + wanted <= len(table.arrays.ranges.row)
    assert table.touches().start.tolist() == start.tolist()


def test_joining_makes_room_without_growing():
    table = TouchTable()
    table.find_row(0, 0)
    for start in range(1000):
        table.append(one_range(start))
    assert len(table.arrays.ranges.row) == 16
    assert table.touches().end.tolist() == [1000]


def test_a_table_that_grew_shrinks_again():
    table = TouchTable()
    for x in range(100):
        table.find_row(0, x)
    table.make_room(1000)
    table.clear()
    assert (len(table.arrays.rows.launch), len(table.arrays.ranges.row)) == (2, 4)
    assert table.find_row(0, 5) == 0
