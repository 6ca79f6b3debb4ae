"""Shards of the address space: analysed one by one or side by side, put together at the end."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import nvtx

from depgraph.dependence.sweep import sweep_spaces
from depgraph.footprint.footprints import Footprints, concatenate_footprints, join_footprints
from depgraph.footprint.ranges_jit import cut_ranges
from depgraph.footprint.spill import PAGE_BYTES, SpilledFootprints, read_slice, write_run
from depgraph.graph.lists import list_of_each
from depgraph.system.memory import return_free_memory
from depgraph.trace.records import READ, WRITE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from depgraph.dependence.sweep import SetPairs
    from depgraph.extraction.collect import Gatherer, Run
    from depgraph.system.scratch import Scratch
    from depgraph.system.workers import Workers

# Boundaries are multiples of the coarsest granularity, so that rounding stays inside a shard.
_ALIGNMENT = 128
_SAMPLE_STRIDE = 32
# What the analysis of a shard holds at its peak, for each range: the range itself several times
# over while it is cut and joined, two orders, and the links of the sweep.
_BYTES_PER_RANGE = 160
_SMALL = 100_000
_ADDRESS_END = 1 << 64


@dataclass(frozen=True, slots=True)
class Shard:
    """The footprints between two addresses: pieces in memory, or where they stand in files.

    Attributes
    ----------
    pieces : sequence of Footprints
    runs : sequence of Run
    low, high : int
        The addresses that a reader of `runs` takes; multiples of `PAGE_BYTES`.
    output : Path or None
        Where to leave the joined footprints; None to return them.
    """

    pieces: Sequence[Footprints] = ()
    runs: Sequence[Run] = ()
    low: int = 0
    high: int = _ADDRESS_END
    output: Path | None = None

    def load(self) -> list[Footprints]:
        """Return the footprints of the shard, by global block number."""
        loaded = list(self.pieces)
        for run in self.runs:
            piece = read_slice(run.path, "start", self.low, self.high)
            if run.blocks is not None:
                piece = replace(piece, block=run.blocks[piece.block])
                piece = piece.take(piece.block >= 0)
            loaded.append(piece)
        return loaded


@dataclass(frozen=True, slots=True)
class ShardResult:
    """What one shard adds.

    Attributes
    ----------
    footprints : Footprints
        None of them where the shard left them in a file.
    exact : list of SetPairs
        Found byte by byte, one for each address space.
    rounded : list of SetPairs
        Found at a coarser granularity, where one was asked for.
    operation_bytes : int64[3, n_operations]
        Distinct bytes that each operation reads, writes, and reads by LDGSTS alone.
    block_bytes : int64[2, n_blocks]
        Distinct bytes that each block reads and writes.
    block_ranges : int64[n_blocks]
        Number of ranges of each block.
    """

    footprints: Footprints
    exact: list[SetPairs]
    rounded: list[SetPairs]
    operation_bytes: NDArray[np.int64]
    block_bytes: NDArray[np.int64]
    block_ranges: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ShardAnalysis:
    """Joins the footprints inside a shard and finds the dependences there.

    Attributes
    ----------
    first_block : int64[n_operations + 1]
    granularity : int
        Bytes; above 1, dependences are looked for at both granularities.
    space : int32[n_operations] or None
        Address space of each operation; None if there is one.
    """

    first_block: NDArray[np.int64]
    granularity: int
    space: NDArray[np.int32] | None = None

    def __call__(self, shard: Shard) -> ShardResult:
        """Analyse one shard."""
        with nvtx.annotate("shard", domain="depgraph"):
            n_blocks = int(self.first_block[-1])
            n_operations = len(self.first_block) - 1
            operation_of_block = list_of_each(self.first_block)
            footprints = concatenate_footprints(shard.load(), n_blocks)
            rounded = []
            if self.granularity != 1:
                coarse = footprints.rounded(self.granularity, n_blocks)
                rounded = sweep_spaces(coarse, operation_of_block, n_operations, self.space)
            by_operation = join_footprints(
                operation_of_block[footprints.block],
                footprints.kind,
                footprints.start,
                footprints.end,
                n_operations,
            )
            result = ShardResult(
                footprints=footprints,
                exact=sweep_spaces(footprints, operation_of_block, n_operations, self.space),
                rounded=rounded,
                operation_bytes=np.stack(
                    [
                        *_bytes_by_kind(by_operation, n_operations),
                        by_operation.ldgsts_bytes(n_operations),
                    ]
                ),
                block_bytes=_bytes_by_kind(footprints, n_blocks),
                block_ranges=np.bincount(footprints.block, minlength=n_blocks),
            )
            if shard.output is None:
                return result
            write_run(footprints, shard.output)
            return replace(result, footprints=concatenate_footprints([], 0))


def _bytes_by_kind(footprints: Footprints, n: int) -> NDArray[np.int64]:
    return np.stack([footprints.bytes_per_block(access, n) for access in (READ, WRITE)])


@dataclass(slots=True)
class Analysed:
    """The results of all shards, in the order of the addresses.

    Attributes
    ----------
    footprints : Footprints or SpilledFootprints
    exact, rounded : list of SetPairs
    operation_bytes, block_bytes
        As in `ShardResult`, summed.
    """

    footprints: Footprints | SpilledFootprints
    exact: list[SetPairs] = field(default_factory=list)
    rounded: list[SetPairs] = field(default_factory=list)
    operation_bytes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    block_bytes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


def sample_starts(footprints: Footprints) -> NDArray[np.uint64]:
    """Return some of the start addresses, in proportion to their density."""
    return footprints.start[:: max(1, min(_SAMPLE_STRIDE, len(footprints) // 64))].copy()


def choose_boundaries(
    samples: Sequence[NDArray[np.uint64]], shards: int, alignment: int = _ALIGNMENT
) -> NDArray[np.uint64]:
    """Choose addresses that cut the samples into about equal shards.

    Parameters
    ----------
    samples : sequence of uint64 arrays
    shards : int
    alignment : int
        A power of two.

    Returns
    -------
    uint64[at most shards - 1]
        Ascending, distinct, multiples of `alignment`, none of them 0.
    """
    starts = np.sort(np.concatenate([*samples, np.empty(0, np.uint64)]))
    if not len(starts) or shards <= 1:
        return np.empty(0, np.uint64)
    at = np.arange(1, shards) * len(starts) // shards
    boundaries = np.unique(starts[at] & ~np.uint64(alignment - 1))
    return boundaries[boundaries > 0]


def cut_footprints(footprints: Footprints, boundaries: NDArray[np.uint64]) -> list[Footprints]:
    """Cut footprints at address boundaries; return those of each shard."""
    offsets, *columns = cut_ranges(
        footprints.block, footprints.kind, footprints.start, footprints.end, boundaries
    )
    return [
        Footprints(*(column[low:high] for column in columns)) for low, high in pairwise(offsets)
    ]


def analyse_shards(
    gathered: Gatherer, workers: Workers, scratch: Scratch, granularity: int, memory: int
) -> Analysed:
    """Cut what was gathered into shards, analyse them side by side, and sum up.

    Parameters
    ----------
    gathered : Gatherer
        Its pieces are used up.
    workers : Workers
    scratch : Scratch
        For the footprints of shards, where those of the trace were in files.
    granularity : int
    memory : int
        Bytes that all shards under analysis may take.
    """
    n_blocks = gathered.n_blocks
    most_ranges = max(1, memory // workers.jobs // _BYTES_PER_RANGE)
    side_by_side = 1 if gathered.n_ranges < _SMALL else 2 * workers.jobs
    wanted = max(side_by_side, -(-gathered.n_ranges // most_ranges))
    in_files = bool(gathered.runs)
    if in_files:
        shards = _file_shards(gathered, scratch, wanted)
    else:
        shards = _memory_shards(gathered, workers, wanted)
    analysed = Analysed(
        footprints=concatenate_footprints([], 0),
        operation_bytes=np.zeros((3, len(gathered.operations)), np.int64),
        block_bytes=np.zeros((2, n_blocks), np.int64),
    )
    block_ranges = np.zeros(n_blocks, np.int64)
    joined = []
    analysis = ShardAnalysis(gathered.first_block, granularity, gathered.space)
    with closing(workers.map(analysis, shards)) as results:
        for result in results:
            analysed.exact += result.exact
            analysed.rounded += result.rounded
            analysed.operation_bytes += result.operation_bytes
            analysed.block_bytes += result.block_bytes
            block_ranges += result.block_ranges
            joined.append(result.footprints)
            if in_files:
                return_free_memory()
    if in_files:
        analysed.footprints = SpilledFootprints(
            [shard.output for shard in shards if shard.output is not None],
            np.append(0, np.cumsum(block_ranges)),
            most_ranges,
        )
    elif len(joined) == 1:
        analysed.footprints = joined[0]
    else:
        analysed.footprints = concatenate_footprints(joined, n_blocks)
    return analysed


def _memory_shards(gathered: Gatherer, workers: Workers, wanted: int) -> list[Shard]:
    boundaries = choose_boundaries(gathered.samples, wanted)
    if not len(boundaries):
        pieces, gathered.pieces = gathered.pieces, []
        return [Shard(pieces)]
    cut = list(workers.map(lambda piece: cut_footprints(piece, boundaries), gathered.pieces))
    gathered.pieces = []
    return [Shard(pieces) for pieces in zip(*cut, strict=True)]


def _file_shards(gathered: Gatherer, scratch: Scratch, wanted: int) -> list[Shard]:
    boundaries = choose_boundaries(gathered.samples, wanted, PAGE_BYTES).tolist()
    return [
        Shard((), gathered.runs, low, high, scratch.new_file("shard"))
        for low, high in zip([0, *boundaries], [*boundaries, _ADDRESS_END], strict=True)
    ]
