"""What a scanner fills: the blocks it met and the bytes they touched, in arrays that grow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.footprint.ranges_jit import join_ranges
from depgraph.parsers.scanning.text_jit import find_row
from depgraph.trace.records import BlockTouches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from depgraph.trace.records import Overflow

_ROWS = 1 << 12
_RANGES = 1 << 17
# Ranges are joined before their arrays grow beyond this (17 bytes each).
_MAX_RANGES = 1 << 22
_RANGE_COLUMNS: tuple[tuple[str, type[np.generic]], ...] = (
    ("range_row", np.int32),
    ("range_kind", np.uint8),
    ("range_start", np.uint64),
    ("range_end", np.uint64),
)
_X_BITS = 31
_Y_BITS = 16
MAX_X = (1 << _X_BITS) - 1
MAX_Y = (1 << _Y_BITS) - 1  # and of z


def pack_block(x: int, y: int, z: int) -> int:
    """Put block coordinates into one integer, as the scanners do."""
    return x | y << _X_BITS | z << _X_BITS + _Y_BITS


class TouchTable:
    """Rows, one a block of a launch, and the byte ranges that belong to them.

    Attributes
    ----------
    row_launch, row_cta, row_accesses, row_instructions : arrays of one element a row
        `row_cta` holds coordinates as `pack_block` makes them.
    row_table : int32[slots]
        Hash table of the rows, see `text_scanner.find_row`.
    range_row, range_kind, range_start, range_end : arrays of one element a range
    sizes : int64[2]
        Rows and ranges in use.
    """

    range_row: NDArray[np.int32]
    range_kind: NDArray[np.uint8]
    range_start: NDArray[np.uint64]
    range_end: NDArray[np.uint64]

    def __init__(self, overflow: Overflow | None = None) -> None:
        self.sizes = np.zeros(2, np.int64)
        self._new_rows(_ROWS)
        self._new_ranges(_RANGES)
        self._limit(overflow)

    def _limit(self, overflow: Overflow | None) -> None:
        self._overflow = overflow
        self._most_ranges = min(_MAX_RANGES, overflow.most_ranges) if overflow else _MAX_RANGES

    def clear(self, overflow: Overflow | None = None) -> None:
        """Forget all rows and ranges, and give back what an unusual part made grow.

        Parameters
        ----------
        overflow : Overflow, optional
            Takes the ranges that are too many to hold from now on; without one all are held.
        """
        self.sizes[:] = 0
        self._limit(overflow)
        if len(self.range_row) > self._most_ranges:
            self._new_ranges(_RANGES)
        if len(self.row_launch) > _MAX_RANGES:
            self._new_rows(_ROWS)
        else:
            self.row_table[:] = -1

    def _new_rows(self, capacity: int) -> None:
        self.row_launch = np.zeros(capacity, np.int32)
        self.row_cta = np.zeros(capacity, np.int64)
        self.row_accesses = np.zeros(capacity, np.int64)
        self.row_instructions = np.zeros(capacity, np.int64)
        self.row_table = np.full(4 * capacity, -1, np.int32)

    def _row_columns(self) -> tuple[NDArray[Any], ...]:
        return self.row_launch, self.row_cta, self.row_accesses, self.row_instructions

    def _new_ranges(self, capacity: int) -> None:
        for name, dtype in _RANGE_COLUMNS:
            setattr(self, name, np.zeros(capacity, dtype))

    @np.errstate(over="ignore")  # not compiled, numpy would warn of what is meant to wrap around
    def grow_rows(self) -> None:
        """Make room for twice as many rows."""
        used = int(self.sizes[0])
        old = self._row_columns()
        self._new_rows(2 * len(self.row_launch))
        for source, target in zip(old, self._row_columns(), strict=True):
            target[:used] = source[:used]
        for row in range(used):
            free = find_row(
                self.row_launch[row], self.row_cta[row],
                self.row_launch, self.row_cta, self.row_table,
            )  # fmt: skip
            self.row_table[-1 - free] = row

    @np.errstate(over="ignore")
    def find_row(self, launch: int, cta: int) -> int:
        """Return the row of a block, a new one if it has none yet."""
        row = int(find_row(launch, cta, self.row_launch, self.row_cta, self.row_table))
        if row >= 0:
            return row
        if self.sizes[0] >= len(self.row_launch):
            self.grow_rows()
            row = int(find_row(launch, cta, self.row_launch, self.row_cta, self.row_table))
        new = int(self.sizes[0])
        self.row_table[-1 - row] = new
        self.row_launch[new] = launch
        self.row_cta[new] = cta
        self.row_accesses[new] = 0
        self.row_instructions[new] = 0
        self.sizes[0] += 1
        return new

    def make_room(self, ranges: int = 1) -> None:
        """Make room for so many more ranges: join those there are, or take larger arrays.

        Where ranges may overflow, these are given away instead of taking ever larger arrays.
        """
        capacity = len(self.range_row)
        is_full = capacity >= self._most_ranges
        if is_full:
            columns = self._joined()
            self.sizes[1] = len(columns[0])
            # Joining again before as much has gathered anew would cost more than it frees.
            if self._overflow and 2 * (len(columns[0]) + ranges) > capacity:
                self._overflow.take(*columns)
                self.sizes[1] = 0
            self._put(columns, int(self.sizes[1]))
        used = int(self.sizes[1])
        if not is_full or used + ranges > (capacity if self._overflow else capacity // 2):
            old: list[NDArray[Any]] = [getattr(self, name) for name, _ in _RANGE_COLUMNS]
            larger = min(2 * capacity, self._most_ranges) if self._overflow else 2 * capacity
            self._new_ranges(max(larger, used + ranges))
            self._put(old, used)

    def append(
        self,
        row: NDArray[np.int32],
        kind: NDArray[np.uint8],
        start: NDArray[np.uint64],
        end: NDArray[np.uint64],
    ) -> None:
        """Add ranges."""
        used = int(self.sizes[1])
        if used + len(row) > len(self.range_row):
            self.make_room(len(row))
            used = int(self.sizes[1])
        new = slice(used, used + len(row))
        self.range_row[new] = row
        self.range_kind[new] = kind
        self.range_start[new] = start
        self.range_end[new] = end
        self.sizes[1] = new.stop

    def _put(self, columns: Sequence[NDArray[Any]], used: int) -> None:
        for (name, _), column in zip(_RANGE_COLUMNS, columns, strict=True):
            target: NDArray[Any] = getattr(self, name)
            target[:used] = column[:used]

    def _joined(self) -> tuple[NDArray[Any], ...]:
        n_rows, n_ranges = (int(size) for size in self.sizes)
        joined: tuple[NDArray[Any], ...] = join_ranges(
            self.range_row[:n_ranges],
            self.range_kind[:n_ranges],
            self.range_start[:n_ranges],
            self.range_end[:n_ranges],
            n_ranges,
            n_rows,
        )
        return joined

    def touches(self) -> BlockTouches:
        """Return rows and joined ranges as the core takes them."""
        n_rows = int(self.sizes[0])
        cta = self.row_cta[:n_rows]
        row, kind, start, end = self._joined()
        return BlockTouches(
            launch=self.row_launch[:n_rows].copy(),
            x=(cta & MAX_X).astype(np.int32),
            y=(cta >> _X_BITS & MAX_Y).astype(np.int32),
            z=(cta >> _X_BITS + _Y_BITS).astype(np.int32),
            accesses=self.row_accesses[:n_rows].copy(),
            instructions=self.row_instructions[:n_rows].copy(),
            row=row,
            kind=kind,
            start=start,
            end=end,
        )
