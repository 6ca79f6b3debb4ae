"""What kernels touch as a few byte ranges each, and which of them then seem to conflict."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from depgraph.graph.kinds import tracked_kinds
from depgraph.trace.records import READ, WRITE

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from depgraph.footprint.footprints import Footprints
    from depgraph.graph.block_graph import BlockGraph

_KINDS = {"RAW": (WRITE, READ), "WAR": (READ, WRITE), "WAW": (WRITE, WRITE)}


def kernel_segments(
    graph: BlockGraph, footprints: Footprints, kind: int, most: int
) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint64]]:
    """Cover each operation's bytes by `most` ranges, ascending; the widest holes stay open."""
    chosen = footprints.access == kind
    operation = graph.operation_of_block[footprints.block[chosen]].astype(np.int64)
    start, end = footprints.start[chosen], footprints.end[chosen]
    order = np.lexsort((start, operation))
    operation, start, end = operation[order], start[order], end[order]
    if not len(operation):
        return operation, start, end
    begins = np.diff(operation, prepend=-1) > 0
    reached = _reached(end, np.flatnonzero(begins))
    hole = np.zeros(len(start), np.uint64)
    apart = ~begins[1:] & (start[1:] > reached[:-1])
    hole[1:][apart] = start[1:][apart] - reached[:-1][apart]
    # Of each operation the `most` - 1 widest holes, the earlier of equal ones.
    by_width = np.lexsort((np.arange(len(hole)), np.iinfo(np.uint64).max - hole, operation))
    first = np.searchsorted(operation, operation)
    rank = np.empty(len(hole), np.int64)
    rank[by_width] = np.arange(len(hole)) - first[by_width]
    cut = begins | ((hole > 0) & (rank < most - 1))
    at = np.flatnonzero(cut)
    last = np.append(at[1:], len(start)) - 1
    return operation[at], start[at], reached[last]


def _reached(end: NDArray[np.uint64], begins: NDArray[np.intp]) -> NDArray[np.uint64]:
    """Return the furthest end so far within each group of ranges."""
    result = end.copy()
    for low, high in zip(begins, np.append(begins[1:], len(end)), strict=True):
        np.maximum.accumulate(end[low:high], out=result[low:high])
    return result


def segment_conflicts(
    graph: BlockGraph, footprints: Footprints, most: int, kinds: Collection[str]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the pairs of operations, older first, whose ranges overlap and one of which writes."""
    n = graph.n_operations
    segments = {kind: kernel_segments(graph, footprints, kind, most) for kind in (READ, WRITE)}
    found = [np.empty(0, np.int64)]
    for kind in tracked_kinds(kinds):
        older, newer = _KINDS[kind]
        a, b = _overlaps(segments[older], segments[newer])
        forward = a < b
        if graph.space is not None:
            forward &= graph.space[a] == graph.space[b]
        found.append(np.unique(a[forward] * n + b[forward]))
    key = np.unique(np.concatenate(found))
    return (key // n).astype(np.int32), (key % n).astype(np.int32)


def _overlaps(
    one: tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint64]],
    other: tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint64]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the operations of all pairs of ranges, one from each side, that overlap."""
    pairs = []
    # A range overlaps those that start inside it, and those inside which it starts.
    for inside, around, is_swapped in ((other, one, False), (one, other, True)):
        order = np.argsort(inside[1], kind="stable")
        starts = inside[1][order]
        low = np.searchsorted(starts, around[1], side="right" if is_swapped else "left")
        high = np.searchsorted(starts, around[2], side="left")
        counts = np.maximum(high - low, 0)
        outer = np.repeat(around[0], counts)
        offset = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        inner = inside[0][order][np.repeat(low, counts) + offset]
        pairs.append((inner, outer) if is_swapped else (outer, inner))
    first, second = zip(*pairs, strict=True)
    return np.concatenate(first), np.concatenate(second)


def ordered_pairs(
    n: int, source: NDArray[np.int32], target: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """Return which operations come before which by a path of dependences: bool[n, n]."""
    before = np.zeros((n, n), np.bool_)
    order = np.argsort(target, kind="stable")
    sources = source[order]
    offsets = np.searchsorted(target[order], np.arange(n + 1))
    for k in range(n):
        own = sources[offsets[k] : offsets[k + 1]]
        if len(own):
            before[k] = before[own].any(axis=0)
            before[k, own] = True
    return before.T
