"""The ranges of a whole trace: in memory as long as there is room, then in sorted Parquet files."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from depgraph.footprint.footprints import Footprints, concatenate_footprints, stack_footprints
from depgraph.system.arrays import Blocks
from depgraph.system.arrow import from_numpy, to_numpy
from depgraph.system.output import Scratch, one_line_errors
from depgraph.system.workers import return_free_memory
from depgraph.trace import records

# Ranges in a run sorted by address are cut here, so that a slice between two pages is complete.
PAGE_BYTES = 1 << 16
_SAMPLE_STRIDE = 32
# A slice reads whole groups, of every file that has some of it.
_ROW_GROUP = 1 << 14
_SCHEMA = pa.schema(
    [("block", pa.int32()), ("kind", pa.uint8()), ("start", pa.uint64()), ("end", pa.uint64())]
)


def write_run(footprints: Footprints, path: Path) -> None:
    """Write footprints in their present order, which is that of the column to slice by."""
    table = pa.Table.from_arrays([from_numpy(c) for c in footprints.columns], schema=_SCHEMA)
    with one_line_errors(path.parent):
        pq.write_table(
            table, path, row_group_size=_ROW_GROUP, compression="lz4", use_dictionary=False
        )


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
    return Run(path, len(footprints), sample_starts(footprints))


class FileOverflow:
    """Leaves the ranges of a part that are too many to hold in files."""

    def __init__(self, new_file: Callable[[], Path], most_ranges: int) -> None:
        self.most_ranges = most_ranges
        self.runs: list[Run] = []
        self._new_file = new_file

    def take(self, ranges: records.Ranges) -> None:
        """Write some ranges to a file of their own."""
        self.runs.append(write_run_by_start(Footprints(*ranges), self._new_file()))


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


def sample_starts(footprints: Footprints) -> NDArray[np.uint64]:
    """Return some of the start addresses, in proportion to their density."""
    return footprints.start[:: max(1, min(_SAMPLE_STRIDE, len(footprints) // 64))].copy()


def read_slice(path: Path, column: str, low: int, high: int) -> Footprints:
    """Read the rows of a run whose `column`, by which it is sorted, is in ``[low, high)``."""
    with pq.ParquetFile(path) as file:
        index = _SCHEMA.get_field_index(column)
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
    return Footprints(*(to_numpy(table[name]) for name in _SCHEMA.names))


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
        for kind in (records.READ, records.WRITE, records.SYNC_READ, records.LDGSTS_READ):
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


_RANGE_BYTES = 21


def touched_by_copies(copies: Iterable[tuple[int, records.MemoryOperation]]) -> Footprints:
    """Return what copies and memsets read and write, by the block of each."""
    touched = [
        (block, kind, start, start + copy.size)
        for block, copy in copies
        for kind, start in ((records.READ, copy.source), (records.WRITE, copy.address))
        if copy.size > 0 and start is not None
    ]
    rows = zip(*touched, strict=True) if touched else ((),) * 4
    types = np.int32, np.uint8, np.uint64, np.uint64
    return Footprints(*(np.array(c, t) for c, t in zip(rows, types, strict=True)))


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
        self, touches: records.BlockTouches, runs: Sequence[Run], blocks: Blocks, n_blocks: int
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
        self.samples.append(sample_starts(piece))
        self.n_ranges += len(piece)
        self._in_memory += len(piece)
        if self._in_memory > self._most:
            joined = concatenate_footprints(self.pieces, n_blocks)
            self.pieces = [joined]
            self._in_memory = len(joined)
            # Joining again before as much has gathered anew would cost more than it frees.
            if 2 * len(joined) > self._most:
                self._spill()

    def finish(self, copies: Iterable[tuple[int, records.MemoryOperation]]) -> None:
        """Take what copies and memsets do, by the block of each; nothing comes after."""
        piece = touched_by_copies(copies)
        if len(piece):
            self.pieces.append(piece)
            self.samples.append(sample_starts(piece))
        if self.runs and self.pieces:
            self._spill()

    def _spill(self) -> None:
        for piece in self.pieces:
            self.runs.append(write_run_by_start(piece, self._scratch.new_file("run")))
        self.pieces = []
        self._in_memory = 0
        return_free_memory()
