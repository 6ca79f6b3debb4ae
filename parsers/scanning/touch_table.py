"""What a scanner fills: the blocks it met and the bytes they touched, in arrays that grow."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from depgraph.footprint.ranges_jit import join_ranges
from depgraph.parsers.scanning.scanning_jit import (
    WARPS,
    X_BITS,
    Y_BITS,
    Rows,
    Touches,
    enter_rows,
    take_row,
)
from depgraph.trace.records import BlockTouches, Overflow, Ranges

_ROWS = 1 << 12
_RANGES = 1 << 17
# Ranges are joined before their arrays grow beyond this (17 bytes each).
_MAX_RANGES = 1 << 22
MAX_X = (1 << X_BITS) - 1
MAX_Y = (1 << Y_BITS) - 1  # and of z


def pack_block(x: int, y: int, z: int) -> int:
    """Put block coordinates into one integer, as the scanners do."""
    return x | y << X_BITS | z << X_BITS + Y_BITS


class TouchTable:
    """Rows, one a block of a launch, and the byte ranges that belong to them."""

    def __init__(self, overflow: Overflow | None = None) -> None:
        # As the scanner sees it:
        ranges, none = _new_ranges(_RANGES), np.zeros(0, np.int32)
        self.arrays = Touches(_new_rows(_ROWS), ranges, np.zeros(2, np.int64), none)
        self._limit(overflow)

    def _limit(self, overflow: Overflow | None) -> None:
        self._overflow = overflow
        self._most_ranges = min(_MAX_RANGES, overflow.most_ranges) if overflow else _MAX_RANGES

    def clear(self, overflow: Overflow | None = None) -> None:
        """Forget all, give back what an unusual part made grow, and let `overflow` take more."""
        self.arrays.sizes[:] = 0
        self._limit(overflow)
        if len(self.arrays.ranges.row) > self._most_ranges:
            self.arrays = self.arrays._replace(ranges=_new_ranges(_RANGES))
        if len(self.arrays.rows.launch) > _MAX_RANGES:
            self.arrays = self.arrays._replace(rows=_new_rows(_ROWS))
        else:
            self.arrays.rows.slots[:] = -1

    @np.errstate(over="ignore")  # not compiled, hashes wrap around
    def grow_rows(self) -> None:
        """Make room for twice as many rows."""
        used = int(self.arrays.sizes[0])
        old = self.arrays.rows
        new = _new_rows(2 * len(old.launch))
        for source, target in zip(old[:-1], new[:-1], strict=True):
            target[:used] = source[:used]  # type: ignore[index]
        enter_rows(new, used)
        self.arrays = self.arrays._replace(rows=new)

    @np.errstate(over="ignore")
    def find_row(self, launch: int, cta: int) -> int:
        """Return the row of a block, a new one if it has none yet."""
        row = int(take_row(self.arrays.rows, self.arrays.sizes, launch, cta))
        if row < 0:
            self.grow_rows()
            row = int(take_row(self.arrays.rows, self.arrays.sizes, launch, cta))
        return row

    def make_room(self, ranges: int = 1) -> None:
        """Make room for so many more ranges: join those there are, give them away, or grow."""
        sizes, capacity = self.arrays.sizes, len(self.arrays.ranges.row)
        is_full = capacity >= self._most_ranges
        if is_full:
            columns = self._joined()
            sizes[1] = len(columns.row)
            # Joining again before as much has gathered anew would cost more than it frees.
            if self._overflow and 2 * (len(columns.row) + ranges) > capacity:
                self._overflow.take(columns)
                sizes[1] = 0
            self._put(columns, int(sizes[1]))
        used = int(sizes[1])
        if not is_full or used + ranges > (capacity if self._overflow else capacity // 2):
            old = self.arrays.ranges
            larger = min(2 * capacity, self._most_ranges) if self._overflow else 2 * capacity
            self.arrays = self.arrays._replace(ranges=_new_ranges(max(larger, used + ranges)))
            self._put(old, used)

    def append(self, more: Ranges) -> None:
        """Add ranges."""
        n = len(more.row)
        if self.arrays.sizes[1] + n > len(self.arrays.ranges.row):
            self.make_room(n)
        used = int(self.arrays.sizes[1])
        for source, target in zip(more, self.arrays.ranges, strict=True):
            target[used : used + n] = source  # type: ignore[index]
        self.arrays.sizes[1] = used + n

    def _put(self, columns: Ranges, used: int) -> None:
        for source, target in zip(columns, self.arrays.ranges, strict=True):
            target[:used] = source[:used]  # type: ignore[index]

    def _joined(self) -> Ranges:
        n_rows, n_ranges = (int(size) for size in self.arrays.sizes)
        used = (column[:n_ranges] for column in self.arrays.ranges)
        return Ranges(*join_ranges(*used, n_ranges, n_rows))  # type: ignore[call-arg]

    def touches(self) -> BlockTouches:
        """Return rows and joined ranges as the core takes them."""
        n_rows = int(self.arrays.sizes[0])
        rows = self.arrays.rows
        cta = rows.cta[:n_rows]
        return BlockTouches(
            rows.launch[:n_rows].copy(),
            (cta & MAX_X).astype(np.int32),
            (cta >> X_BITS & MAX_Y).astype(np.int32),
            (cta >> X_BITS + Y_BITS).astype(np.int32),
            rows.accesses[:n_rows].copy(),
            rows.instructions[:n_rows].copy(),
            *self._joined(),
        )


class WarpTouches(TouchTable):
    """A row for each warp, and all that its accesses touch, one after another, nothing joined."""

    def __init__(self) -> None:
        super().__init__()
        self.arrays = self.arrays._replace(ordinals=np.zeros(_RANGES, np.int32))

    def make_room(self, ranges: int = 1) -> None:
        """Make room for so many more ranges."""
        used, old = int(self.arrays.sizes[1]), self.arrays
        more = np.zeros(max(ranges, len(old.ordinals)), np.int32)
        ordinals = np.concatenate([old.ordinals, more])
        self.arrays = old._replace(ranges=_new_ranges(len(ordinals)), ordinals=ordinals)
        self._put(old.ranges, used)

    def _joined(self) -> Ranges:
        used = int(self.arrays.sizes[1])
        columns: list[Any] = [column[:used] for column in self.arrays.ranges]
        return Ranges(*columns)

    def touches(self) -> BlockTouches:
        """Return rows and ranges as the core takes them; rows of one block are several."""
        of_warps = super().touches()
        return of_warps._replace(launch=of_warps.launch // WARPS)

    @property
    def warps(self) -> NDArray[np.int32]:
        """The warp of each row."""
        return self.arrays.rows.launch[: int(self.arrays.sizes[0])] % WARPS


def _new_rows(capacity: int) -> Rows:
    kinds = np.int32, np.int64, np.int64, np.int64
    columns: list[Any] = [np.zeros(capacity, kind) for kind in kinds]
    return Rows(*[*columns, np.full(4 * capacity, -1, np.int32)])


def _new_ranges(capacity: int) -> Ranges:
    kinds = np.int32, np.uint8, np.uint64, np.uint64
    columns: list[Any] = [np.zeros(capacity, kind) for kind in kinds]
    return Ranges(*columns)
