"""Footprints: the bytes that each block reads and writes, in memory or in files; what was freed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import ModelError
from depgraph.footprint.ranges_jit import join_ranges
from depgraph.system.arrays import (
    AccessKinds,
    Addresses,
    Blocks,
    Mask,
    Operations,
    from_numpy,
    to_numpy,
)
from depgraph.system.output import Scratch, one_line_errors
from depgraph.system.workers import return_free_memory
from depgraph.trace.records import (
    ACCESS_KINDS,
    ACCESS_WAYS,
    LDGSTS_READ,
    READ,
    SYNC_READ,
    WRITE,
    Allocation,
    BlockTouches,
    MemoryOperation,
    Ranges,
)

if TYPE_CHECKING:
    import pandas as pd


GRANULARITIES = (1, 32, 128)
ADDRESS_END = 1 << 64
_WAYS = np.array([0, 0, 1, 2], np.uint8)
_RANGES_OF_FEW = 8  # where there are fewer than one in so many blocks, others are not looked at
PAGE_BYTES = 1 << 16
"""Ranges in a run sorted by address are cut here, so that a slice between two pages is complete."""
_SAMPLE_STRIDE = 32
_RANGE_BYTES = 21
# A slice reads whole groups, of every file that has some of it.
_ROW_GROUP = 1 << 14
_COLUMNS = ("block", "kind", "start", "end")


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


def cut_at_multiples(footprints: Footprints, size: int) -> Footprints:
    """Cut ranges where addresses are multiples of a size; those that need no cut come first."""
    step = np.uint64(size)
    first, last = footprints.start // step, (footprints.end - np.uint64(1)) // step
    is_whole = first == last
    if is_whole.all():
        return footprints
    cut = footprints.take(~is_whole)
    first, last = first[~is_whole], last[~is_whole]
    count = (last - first).astype(np.int64) + 1
    row = np.repeat(np.arange(len(cut)), count)
    number = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    low, pieces = (first[row] + number.astype(np.uint64)) * step, cut.take(row)
    start, end = np.maximum(pieces.start, low), np.minimum(pieces.end, low + step)
    pieces = Footprints(pieces.block, pieces.kind, start, end)
    return stack_footprints([footprints.take(is_whole), pieces])


def touched_by_copies(copies: Iterable[tuple[int, MemoryOperation]]) -> Footprints:
    """Return what copies and memsets read and write, by the block of each."""
    touched = [
        (block, kind, start, start + copy.size)
        for block, copy in copies
        for kind, start in ((READ, copy.source), (WRITE, copy.address))
        if copy.size > 0 and start is not None
    ]
    rows = zip(*touched, strict=True) if touched else ((),) * 4
    types = np.int32, np.uint8, np.uint64, np.uint64
    return Footprints(*(np.array(c, t) for c, t in zip(rows, types, strict=True)))


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


def write_run(footprints: Footprints, path: Path) -> None:
    """Write footprints in their present order, which is that of the column to slice by."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_arrays([from_numpy(c) for c in footprints.columns], names=_COLUMNS)
    with one_line_errors(path.parent):
        pq.write_table(
            table, path, row_group_size=_ROW_GROUP, compression="lz4", use_dictionary=False
        )


def read_slice(path: Path, column: str, low: int, high: int) -> Footprints:
    """Read the rows of a run whose `column`, by which it is sorted, is in ``[low, high)``."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        index = _COLUMNS.index(column)
        groups = []
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group)
            known = rows.column(index).statistics if rows.num_rows else None
            if known is not None and known.max >= low and known.min < high:
                groups.append(group)
        table = file.read_row_groups(groups)
    if not table.num_rows:
        return stack_footprints([])
    values = to_numpy(table[column])
    first, last = int(np.searchsorted(values, values.dtype.type(low))), len(values)
    if high <= int(np.iinfo(values.dtype).max):
        last = int(np.searchsorted(values, values.dtype.type(high)))
    table = table.slice(first, last - first)
    return Footprints(*(to_numpy(table[name]) for name in _COLUMNS))


@dataclass(frozen=True, slots=True)
class Run:
    """Ranges in a file, sorted by start address and cut into pages."""

    path: Path
    n_ranges: int  # before they were cut
    samples: NDArray[np.uint64]  # some of the start addresses
    # Where the file numbers rows of a part instead of blocks: the global block number of each row,
    # -1 for none.
    blocks: Blocks | None = None

    def read(self, low: int, high: int) -> Footprints:
        """Return the ranges between two multiples of `PAGE_BYTES`, by global block number."""
        piece = read_slice(self.path, "start", low, high)
        if self.blocks is None:
            return piece
        piece = replace(piece, block=self.blocks[piece.block])
        return piece.take(piece.block >= 0)


def write_run_by_start(footprints: Footprints, path: Path) -> Run:
    """Cut footprints into pages, sort them by start address, and write them."""
    pages = cut_at_multiples(footprints, PAGE_BYTES)
    write_run(pages.take(np.argsort(pages.start, kind="stable")), path)
    return Run(path, len(footprints), _sample_starts(footprints))


def _sample_starts(footprints: Footprints) -> NDArray[np.uint64]:
    """Return some of the start addresses, in proportion to their density."""
    return footprints.start[:: max(1, min(_SAMPLE_STRIDE, len(footprints) // 64))].copy()


class FileOverflow:
    """Leaves the ranges of a part that are too many to hold in files."""

    def __init__(self, new_file: Callable[[], Path], most_ranges: int) -> None:
        self.most_ranges = most_ranges
        self.runs: list[Run] = []
        self._new_file = new_file

    def take(self, ranges: Ranges) -> None:
        """Write some ranges to a file of their own."""
        self.runs.append(write_run_by_start(Footprints(*ranges), self._new_file()))


class RangeStore:
    """Collects ranges by global block number, beyond `memory` bytes in files."""

    def __init__(self, memory: int, scratch: Scratch) -> None:
        self.pieces: list[Footprints] = []  # in memory; ranges of two may overlap
        self.runs: list[Run] = []  # in files
        self.samples: list[NDArray[np.uint64]] = []  # some of all start addresses
        self.n_ranges = 0
        self._in_memory = 0
        self._most = max(1, memory // _RANGE_BYTES)
        self._scratch = scratch

    def add(
        self, touches: BlockTouches, runs: Sequence[Run], blocks: Blocks, n_blocks: int
    ) -> None:
        """Take the ranges of a part by the block of each row, -1 for none, and its runs."""
        if len(touches.row):
            block = blocks[touches.row]
            piece = Footprints(block, touches.kind, touches.start, touches.end)
            self._keep(piece if block.min() >= 0 else piece.take(block >= 0), n_blocks)
        for run in runs:
            self.runs.append(replace(run, blocks=blocks))
            self.samples.append(run.samples)
            self.n_ranges += run.n_ranges

    def _keep(self, piece: Footprints, n_blocks: int) -> None:
        self.pieces.append(piece)
        self.samples.append(_sample_starts(piece))
        self.n_ranges += len(piece)
        self._in_memory += len(piece)
        if self._in_memory > self._most:
            joined = concatenate_footprints(self.pieces, n_blocks)
            self.pieces = [joined]
            self._in_memory = len(joined)
            # Joining again before as much has gathered anew would cost more than it frees.
            if 2 * len(joined) > self._most:
                self._spill()

    def finish(self, copies: Iterable[tuple[int, MemoryOperation]]) -> None:
        """Take what copies and memsets do, by the block of each; nothing comes after."""
        piece = touched_by_copies(copies)
        if len(piece):
            self.pieces.append(piece)
            self.samples.append(_sample_starts(piece))
        if self.runs and self.pieces:
            self._spill()

    def _spill(self) -> None:
        for piece in self.pieces:
            self.runs.append(write_run_by_start(piece, self._scratch.new_file("run")))
        self.pieces = []
        self._in_memory = 0
        return_free_memory()


@dataclass(frozen=True, slots=True)
class SpilledFootprints:
    """Footprints in files, one a shard of the address space, each sorted by block."""

    paths: Sequence[Path]  # in the order of the addresses
    # [n_blocks + 1]: ranges of all blocks below each block, before those that a shard boundary cut
    # are joined.
    ranges_before: NDArray[np.int64]
    batch_ranges: int  # ranges that may be in memory at once

    def batches(self) -> Iterator[Footprints]:
        """Yield the ranges of some blocks after another; a block of too many comes in several."""
        n_blocks = len(self.ranges_before) - 1
        low = 0
        while low < n_blocks:
            full = self.ranges_before[low] + self.batch_ranges
            high = int(np.searchsorted(self.ranges_before, full, side="right")) - 1
            if high <= low:
                yield from self._pieces_of(low)
                low += 1
                continue
            pieces = [read_slice(path, "block", low, high) for path in self.paths]
            shifted = [replace(piece, block=piece.block - np.int32(low)) for piece in pieces]
            joined = concatenate_footprints(shifted, high - low)
            yield replace(joined, block=joined.block + np.int32(low))
            return_free_memory()
            low = high

    def _pieces_of(self, block: int) -> Iterator[Footprints]:
        """Yield the ranges of one block shard by shard, those that a boundary cut put together."""
        for kind in (READ, WRITE, SYNC_READ, LDGSTS_READ):
            kept = stack_footprints([])
            for path in self.paths:
                piece = read_slice(path, "block", block, block + 1)
                piece = stack_footprints([kept, piece.take(piece.kind == kind)])
                if len(kept) and len(piece) > 1 and piece.start[1] == piece.end[0]:
                    piece.start[1] = piece.start[0]
                    piece = piece.take(slice(1, None))
                yield piece.take(slice(0, -1))
                kept = piece.take(slice(-1, None))
                return_free_memory()
            yield kept

    def load(self) -> Footprints:
        """Return all ranges in memory."""
        return stack_footprints(list(self.batches()))
