"""Footprints: which bytes of global memory each block reads and writes; and what was freed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import ModelError
from depgraph.footprint.ranges_jit import join_ranges
from depgraph.trace.records import ACCESS_KINDS, ACCESS_WAYS, LDGSTS_READ, WRITE, Allocation

if TYPE_CHECKING:
    import pandas as pd

    from depgraph.system.arrays import AccessKinds, Addresses, Blocks, Mask, Operations


GRANULARITIES = (1, 32, 128)
ADDRESS_END = 1 << 64
_WAYS = np.array([0, 0, 1, 2], np.uint8)
_RANGES_OF_FEW = 8  # where there are fewer than one in so many blocks, others are not looked at


@dataclass(frozen=True, slots=True, eq=False)
class Footprints:
    """Disjoint, sorted byte ranges of every block."""

    block: Blocks
    # `READ`, `WRITE`, `SYNC_READ` where a block reads by atomics or ordered loads, not plainly,
    # `LDGSTS_READ` where it reads by LDGSTS alone. Atomics write as well.
    kind: AccessKinds
    # Half-open byte range. Sorted by (block, kind, start); those of one block and kind neither
    # overlap nor touch, nor do the kinds of reads of a block overlap.
    start: Addresses
    end: Addresses

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self.block)

    @property
    def columns(self) -> tuple[Blocks, AccessKinds, Addresses, Addresses]:
        """Block, kind, start and end of the ranges."""
        return self.block, self.kind, self.start, self.end

    @property
    def access(self) -> NDArray[np.uint8]:
        """`READ` or `WRITE` for each range, whatever reads."""
        access: NDArray[np.uint8] = (self.kind == WRITE).astype(np.uint8)
        return access

    @property
    def way(self) -> NDArray[np.uint8]:
        """Index into `ACCESS_WAYS` for each range; "plain" for writes."""
        way: NDArray[np.uint8] = _WAYS[self.kind]
        return way

    def take(self, chosen: Mask | NDArray[np.integer[Any]] | slice) -> Footprints:
        """Return the ranges that a mask, indices or a slice pick, in that order."""
        columns: tuple[NDArray[Any], ...] = self.columns
        return Footprints(*(column[chosen] for column in columns))

    def between(self, low: int, high: int) -> Footprints:
        """Return the parts of ranges between two addresses, the second at most 2**64."""
        least, most = np.uint64(low), np.uint64(min(high, ADDRESS_END - 1))
        inside = self.take((self.start < most) & (self.end > least))
        start, end = np.maximum(inside.start, least), np.minimum(inside.end, most)
        return Footprints(inside.block, inside.kind, start, end)

    def joined(self, n_blocks: int) -> Footprints:
        """Return ranges in any order sorted by block and kind, those that touch joined."""
        if _RANGES_OF_FEW * len(self) >= n_blocks:
            return Footprints(*join_ranges(*self.columns, len(self), n_blocks))
        blocks, block = np.unique(self.block, return_inverse=True)
        numbered = replace(self, block=block.astype(np.int32))
        found = Footprints(*join_ranges(*numbered.columns, len(self), len(blocks)))
        return replace(found, block=blocks[found.block])

    def batches(self) -> Iterator[Footprints]:
        """Yield all ranges in order: here at once, elsewhere in pieces."""
        yield self

    def load(self) -> Footprints:
        """Return all ranges in memory."""
        return self

    def rounded(self, granularity: int, n_blocks: int) -> Footprints:
        """Round every range out to whole sectors (32 bytes) or cache lines (128)."""
        if granularity < 1 or granularity & (granularity - 1):
            raise ModelError(f"granularity {granularity} is not a power of two")
        if granularity == 1:
            return self
        mask = np.uint64(granularity - 1)
        start, end = self.start & ~mask, (self.end + mask) & ~mask
        return Footprints(self.block, self.kind, start, end).joined(n_blocks)

    def bytes_per_block(self, access: int, n_blocks: int) -> NDArray[np.int64]:
        """Return how many distinct bytes each block reads or writes."""
        return self._bytes(self.access == access, n_blocks)

    def ldgsts_bytes(self, n_blocks: int) -> NDArray[np.int64]:
        """Return how many distinct bytes each block reads by LDGSTS alone."""
        return self._bytes(self.kind == LDGSTS_READ, n_blocks)

    def _bytes(self, chosen: Mask, n_blocks: int) -> NDArray[np.int64]:
        sizes = (self.end[chosen] - self.start[chosen]).astype(np.float64)
        return np.bincount(self.block[chosen], weights=sizes, minlength=n_blocks).astype(np.int64)

    def of_block(self, block: int) -> Footprints:
        """Return the ranges of one block."""
        low, high = np.searchsorted(self.block, [block, block + 1])
        return self.take(slice(low, high))

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per range: block, kind ("read" or "write"), start, end, way."""
        import pandas as pd

        kind, way = np.array(ACCESS_KINDS)[self.access], np.array(ACCESS_WAYS)[self.way]
        columns = {"block": self.block, "kind": kind, "start": self.start, "end": self.end}
        return pd.DataFrame({**columns, "way": way})


def join_footprints(
    block: Blocks, kind: AccessKinds, start: Addresses, end: Addresses, n_blocks: int
) -> Footprints:
    """Sort ranges by block and kind and join those that overlap or touch."""
    return Footprints(block, kind, start, end).joined(n_blocks)


_NONE = Footprints(
    np.empty(0, np.int32), np.empty(0, np.uint8), np.empty(0, np.uint64), np.empty(0, np.uint64)
)


def stack_footprints(pieces: Sequence[Footprints]) -> Footprints:
    """Put the ranges of several footprints one after another, as they are."""
    if len(pieces) == 1:
        return pieces[0]
    columns = zip(*(piece.columns for piece in (_NONE, *pieces)), strict=True)
    return Footprints(*map(np.concatenate, columns))


def concatenate_footprints(pieces: Sequence[Footprints], n_blocks: int) -> Footprints:
    """Join the footprints of pieces of a trace into those of the whole."""
    return stack_footprints(pieces).joined(n_blocks)


def cut_to_spans(
    footprints: Footprints, start: Addresses, end: Addresses
) -> tuple[Footprints, NDArray[np.int64]]:
    """Cut footprints down to disjoint, ascending spans; return also which span each piece is in."""
    low = np.searchsorted(end, footprints.start, side="right")
    high = np.searchsorted(start, footprints.end, side="left")
    count = np.maximum(high - low, 0)
    row = np.repeat(np.arange(len(footprints)), count)
    span = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count) + low[row]
    whole = footprints.take(row)
    low, high = np.maximum(whole.start, start[span]), np.minimum(whole.end, end[span])
    return Footprints(whole.block, whole.kind, low, high), span


def freed_between(allocations: Sequence[Allocation], n_operations: int) -> Footprints | None:
    """Return what was freed, by the operation after that; None where that is not known."""
    if not allocations:
        return None
    freed = [(a.freed, a.address, a.address + a.size) for a in allocations if a.freed is not None]
    rows = [row for row in freed if row[0] < n_operations and row[1] < row[2]]
    operation, start, end = np.array(rows, np.uint64).reshape(-1, 3).T
    kind = np.zeros(len(rows), np.uint8)
    return Footprints(operation.astype(np.int32), kind, start, end).joined(n_operations)


def renumbered(
    frees: Footprints | None, operation: Operations, n_operations: int
) -> Footprints | None:
    """Return frees with the new number of each operation, one behind the last included."""
    if frees is None:
        return None
    return replace(frees, block=operation[frees.block]).joined(n_operations + 1)


def freed_past(frees: Footprints, earlier: int, later: int) -> Footprints:
    """Return what was freed after one operation and before another, as one block."""
    past = frees.take((frees.block > earlier) & (frees.block <= later))
    return replace(past, block=np.zeros_like(past.block)).joined(1)
