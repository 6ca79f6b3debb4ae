"""Shards of the address space: analysed one by one or side by side, put together at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from depgraph.dependence import operations_of_blocks, sweep
from depgraph.footprint import Footprints, concatenate_footprints, join_footprints
from depgraph.jit.ranges import cut_ranges
from depgraph.records import READ, WRITE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from depgraph.dependence import SetPairs

# Boundaries are multiples of the coarsest granularity, so that rounding stays inside a shard.
ALIGNMENT = 128
_SAMPLE_STRIDE = 32


@dataclass(frozen=True, slots=True)
class ShardResult:
    """What one shard of the address space adds.

    Attributes
    ----------
    footprints : Footprints
    exact : SetPairs
        Found byte by byte.
    rounded : SetPairs or None
        Found at a coarser granularity, where one was asked for.
    operation_bytes : int64[n_operations, 2]
        Distinct bytes that each operation reads and writes.
    """

    footprints: Footprints
    exact: SetPairs
    rounded: SetPairs | None
    operation_bytes: NDArray[np.int64]


def sample_starts(footprints: Footprints) -> NDArray[np.uint64]:
    """Return some of the start addresses, in proportion to their density."""
    return footprints.start[:: max(1, min(_SAMPLE_STRIDE, len(footprints) // 64))]


def choose_boundaries(samples: Sequence[NDArray[np.uint64]], shards: int) -> NDArray[np.uint64]:
    """Choose addresses that cut the samples into about equal shards.

    Parameters
    ----------
    samples : sequence of uint64 arrays
    shards : int

    Returns
    -------
    uint64[at most shards - 1]
        Ascending, distinct, multiples of `ALIGNMENT`.
    """
    starts = np.sort(np.concatenate([*samples, np.empty(0, np.uint64)]))
    if not len(starts) or shards <= 1:
        return np.empty(0, np.uint64)
    at = np.arange(1, shards) * len(starts) // shards
    return np.unique(starts[at] & ~np.uint64(ALIGNMENT - 1))


def cut_footprints(
    footprints: Footprints, boundaries: NDArray[np.uint64]
) -> list[Footprints]:
    """Cut footprints at address boundaries; return those of each shard."""
    offsets, *columns = cut_ranges(
        footprints.block, footprints.kind, footprints.start, footprints.end, boundaries
    )
    return [
        Footprints(*(column[low:high] for column in columns))
        for low, high in zip(offsets[:-1], offsets[1:], strict=True)
    ]


def analyse_shard(
    pieces: Sequence[Footprints], first_block: NDArray[np.int64], granularity: int
) -> ShardResult:
    """Join the footprints inside a shard and find the dependences there.

    Parameters
    ----------
    pieces : sequence of Footprints
        Whatever parts of the trace found in this shard.
    first_block : int64[n_operations + 1]
    granularity : int
        Bytes; above 1, dependences are looked for at both granularities.
    """
    n_blocks = int(first_block[-1])
    n_operations = len(first_block) - 1
    operation_of_block = operations_of_blocks(first_block)
    footprints = concatenate_footprints(pieces, n_blocks)
    rounded = None
    if granularity != 1:
        coarse = footprints.rounded(granularity, n_blocks)
        rounded = sweep(coarse, operation_of_block, n_operations)
    by_operation = join_footprints(
        operation_of_block[footprints.block],
        footprints.kind,
        footprints.start,
        footprints.end,
        n_operations,
    )
    return ShardResult(
        footprints=footprints,
        exact=sweep(footprints, operation_of_block, n_operations),
        rounded=rounded,
        operation_bytes=np.stack(
            [by_operation.bytes_per_block(kind, n_operations) for kind in (READ, WRITE)], axis=1
        ),
    )
