"""How many bytes a program touches, and how long bytes take to cross the memory bus."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from depgraph.footprint.footprints import Footprints
    from depgraph.graph.block_graph import BlockGraph


def touched_bytes(footprints: Footprints, graph: BlockGraph) -> int:
    """Count the distinct bytes that kernels read or write.

    Those that the L2 cache cannot hold cross the memory bus once at least. It may hold others as
    the program begins or ends, as much as its size: these need not cross.
    """
    operation = graph.operation_of_block[footprints.block]
    of_kernel = graph.kernel[operation] >= 0
    if graph.space is None:
        return _distinct_bytes(footprints.start[of_kernel], footprints.end[of_kernel])
    spaces = [of_kernel & (graph.space[operation] == number) for number in np.unique(graph.space)]
    return sum(_distinct_bytes(footprints.start[s], footprints.end[s]) for s in spaces)


def _distinct_bytes(start: NDArray[np.uint64], end: NDArray[np.uint64]) -> int:
    if not len(start):
        return 0
    order = np.argsort(start)
    start, end = start[order], np.maximum.accumulate(end[order])
    fresh = np.maximum(start[1:], end[:-1])
    return int(end[0] - start[0]) + int((end[1:] - fresh).sum())


def memory_time(n_bytes: int, gb_per_s: float, unit: str, clock_mhz: float | None) -> float | None:
    """Return bytes over 10**9 bytes a second, in a unit of durations; None if it is not a time."""
    microseconds = n_bytes / (gb_per_s * 1e3)
    if unit == "us":
        return microseconds
    if unit == "cycles" and clock_mhz:
        return microseconds * clock_mhz
    return None
