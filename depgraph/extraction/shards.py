"""Shards of the address space: analysed one by one or side by side, put together at the end."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise
from operator import or_
from pathlib import Path
from typing import Self

import numpy as np
import nvtx
from numpy.typing import NDArray

from depgraph.dependence.sweep import SetPairs, sweep_possible, sweep_spaces
from depgraph.footprint.footprints import (
    ADDRESS_END,
    PAGE_BYTES,
    Footprints,
    RangeStore,
    Run,
    SpilledFootprints,
    concatenate_footprints,
    stack_footprints,
    write_run,
)
from depgraph.system.arrays import AddressSpaces, FirstBlocks, list_of_each, list_offsets
from depgraph.system.output import Scratch
from depgraph.system.workers import Workers, return_free_memory
from depgraph.trace.records import READ, WRITE

# Boundaries are multiples of the coarsest granularity, so that rounding stays inside a shard.
_ALIGNMENT = 128
# What the analysis of a shard holds at its peak, for each range: the range itself several times
# over while it is cut and joined, two orders, and the links of the sweep.
_BYTES_PER_RANGE = 160
_SMALL = 100_000


@dataclass(frozen=True, slots=True)
class Shard:
    """The footprints between two addresses: pieces in memory, or where they stand in files."""

    pieces: Sequence[Footprints] = ()
    runs: Sequence[Run] = ()
    # The addresses that a reader of `runs` takes; multiples of `PAGE_BYTES`.
    low: int = 0
    high: int = ADDRESS_END
    output: Path | None = None  # where to leave the joined footprints; None to return them

    def load(self) -> list[Footprints]:
        """Return the footprints of the shard, by global block number."""
        return [*self.pieces, *(run.read(self.low, self.high) for run in self.runs)]


@dataclass(slots=True)
class ShardResult:
    """What is found between some addresses: in one shard, or in all of them."""

    footprints: Footprints | SpilledFootprints  # none of them where a shard left them in a file
    # [3, n_operations]: distinct bytes that each operation reads, writes, and reads by LDGSTS alone
    operation_bytes: NDArray[np.int64]
    block_bytes: NDArray[np.int64]  # [2, n_blocks]: distinct bytes that each block reads and writes
    block_ranges: NDArray[np.int64]  # [n_blocks]: number of ranges of each block
    # Found byte by byte, one for each address space of each shard.
    exact: list[SetPairs] = field(default_factory=list)
    # Found at a coarser granularity, where one was asked for.
    rounded: list[SetPairs] = field(default_factory=list)
    possible: list[SetPairs] = field(default_factory=list)  # as `sweep_possible` returns them

    @classmethod
    def none(cls, n_operations: int, n_blocks: int) -> Self:
        """Return what is found where nothing is."""
        return cls(
            stack_footprints([]),
            np.zeros((3, n_operations), np.int64),
            np.zeros((2, n_blocks), np.int64),
            np.zeros(n_blocks, np.int64),
        )

    def add(self, other: Self) -> None:
        """Add what was found elsewhere, but for the footprints."""
        self.operation_bytes += other.operation_bytes
        self.block_bytes += other.block_bytes
        self.block_ranges += other.block_ranges
        self.exact += other.exact
        self.rounded += other.rounded
        self.possible += other.possible

    @property
    def shared_bytes(self) -> NDArray[np.int64]:
        """Bytes that a block writes and another of the operation touches: int64[n_operations]."""
        total = np.zeros(self.operation_bytes.shape[1], np.int64)
        return sum((swept.shared_bytes for swept in self.exact), total)

    @property
    def inside(self) -> NDArray[np.uint8]:
        """What blocks do with each other's bytes, see `sum_sharing`: uint8[n_operations]."""
        flags = np.zeros(self.operation_bytes.shape[1], np.uint8)
        return reduce(or_, (swept.inside for swept in self.exact), flags)


@dataclass(frozen=True, slots=True)
class ShardAnalysis:
    """Joins the footprints inside a shard and finds the dependences there."""

    first_block: FirstBlocks
    granularity: int  # bytes; above 1, dependences are looked for at both granularities
    space: AddressSpaces | None = None
    frees: Footprints | None = None  # as `sweep` takes it
    possible: Footprints | None = None  # what blocks may write out of sight

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return int(self.first_block[-1])

    @property
    def n_operations(self) -> int:
        """Number of operations."""
        return len(self.first_block) - 1

    def __call__(self, shard: Shard) -> ShardResult:
        """Analyse one shard."""
        with nvtx.annotate("shard", domain="depgraph"):
            n_blocks, n_operations = self.n_blocks, self.n_operations
            operation_of_block = list_of_each(self.first_block)
            program = operation_of_block, n_operations, self.space, self.frees
            footprints = concatenate_footprints(shard.load(), n_blocks)
            operation = operation_of_block[footprints.block]
            by_operation = replace(footprints, block=operation).joined(n_operations)
            ldgsts_bytes = by_operation.ldgsts_bytes(n_operations)
            result = ShardResult(
                footprints,
                np.stack([*_bytes_by_kind(by_operation, n_operations), ldgsts_bytes]),
                _bytes_by_kind(footprints, n_blocks),
                np.bincount(footprints.block, minlength=n_blocks),
                sweep_spaces(footprints, *program),
            )
            if self.granularity != 1:
                rounded = footprints.rounded(self.granularity, n_blocks)
                result.rounded = sweep_spaces(rounded, *program)
            if self.possible is not None:
                writes = self.possible.between(shard.low, shard.high)
                result.possible = sweep_possible(footprints, writes, *program)
            if shard.output is not None:
                write_run(footprints, shard.output)
                result.footprints = stack_footprints([])
            return result


def _bytes_by_kind(footprints: Footprints, n: int) -> NDArray[np.int64]:
    return np.stack([footprints.bytes_per_block(access, n) for access in (READ, WRITE)])


def choose_boundaries(
    samples: Sequence[NDArray[np.uint64]], shards: int, alignment: int = _ALIGNMENT
) -> NDArray[np.uint64]:
    """Choose at most `shards` - 1 multiples of `alignment` that cut samples about equally."""
    starts = np.sort(np.concatenate([*samples, np.empty(0, np.uint64)]))
    if not len(starts) or shards <= 1:
        return np.empty(0, np.uint64)
    at = np.arange(1, shards) * len(starts) // shards
    boundaries = np.unique(starts[at] & ~np.uint64(alignment - 1))
    return boundaries[boundaries > 0]


def cut_footprints(footprints: Footprints, boundaries: NDArray[np.uint64]) -> list[Footprints]:
    """Cut footprints at address boundaries; return those of each shard."""
    ends = pairwise([0, *boundaries.tolist(), ADDRESS_END])
    return [footprints.between(low, high) for low, high in ends]


def analyse_shards(
    ranges: RangeStore, analysis: ShardAnalysis, workers: Workers, scratch: Scratch, memory: int
) -> ShardResult:
    """Cut ranges, using them up, into shards, analyse them side by side in `memory`, and sum up."""
    sweeps = 1 if analysis.possible is None or not len(analysis.possible) else 2
    most_ranges = max(1, memory // workers.jobs // (sweeps * _BYTES_PER_RANGE))
    side_by_side = 1 if ranges.n_ranges < _SMALL else 2 * workers.jobs
    wanted = max(side_by_side, -(-ranges.n_ranges // most_ranges))
    in_files = bool(ranges.runs)
    if in_files:
        shards = _file_shards(ranges, scratch, wanted)
    else:
        shards = _memory_shards(ranges, workers, wanted)
    total = ShardResult.none(analysis.n_operations, analysis.n_blocks)
    joined = []
    with closing(workers.map(analysis, shards)) as results:
        for result in results:
            total.add(result)
            joined.append(result.footprints.load())
            if in_files:
                return_free_memory()
    if in_files:
        total.footprints = SpilledFootprints(
            [shard.output for shard in shards if shard.output is not None],
            list_offsets(total.block_ranges),
            most_ranges,
        )
    elif len(joined) == 1:
        total.footprints = joined[0]
    else:
        total.footprints = concatenate_footprints(joined, analysis.n_blocks)
    return total


def _memory_shards(ranges: RangeStore, workers: Workers, wanted: int) -> list[Shard]:
    boundaries = choose_boundaries(ranges.samples, wanted)
    pieces, ranges.pieces = ranges.pieces, []
    if not len(boundaries):
        return [Shard(pieces)]
    cut = list(workers.map(lambda piece: cut_footprints(piece, boundaries), pieces))
    ends = pairwise([0, *boundaries.tolist(), ADDRESS_END])
    return [
        Shard(of_shard, (), low, high)
        for of_shard, (low, high) in zip(zip(*cut, strict=True), ends, strict=True)
    ]


def _file_shards(ranges: RangeStore, scratch: Scratch, wanted: int) -> list[Shard]:
    boundaries = choose_boundaries(ranges.samples, wanted, PAGE_BYTES).tolist()
    return [
        Shard((), ranges.runs, low, high, scratch.new_file("shard"))
        for low, high in pairwise([0, *boundaries, ADDRESS_END])
    ]
