"""Questions about single blocks and paths: what a block waits for and why, where time goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from depgraph.errors import ModelError
from depgraph.graph.block_graph import KIND_NAMES
from depgraph.trace.records import READ, WRITE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from depgraph.footprint.footprints import Footprints
    from depgraph.graph.block_graph import BlockGraph


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A block that another one waits for, or that waits for it.

    Attributes
    ----------
    kernel, block : int
        Kernel number and number within the kernel.
    kinds : tuple of str
    raw_bytes, war_bytes, waw_bytes : int
        Bytes that both touch in the way of each kind, at byte granularity. Of these some may have
        been written by a third block in between.
    """

    kernel: int
    block: int
    kinds: tuple[str, ...]
    raw_bytes: int
    war_bytes: int
    waw_bytes: int


@dataclass(frozen=True, slots=True)
class PathStep:
    """A block on the critical path; a kernel has one at most, its blocks never wait for another.

    Attributes
    ----------
    kernel : int
    block : int
        Number within the kernel.
    start, duration : float
    kinds : tuple of str
        Kinds of dependence on the step before; empty for the first.
    """

    kernel: int
    block: int
    start: float
    duration: float
    kinds: tuple[str, ...]


def block_number(graph: BlockGraph, kernel: int, block: int) -> int:
    """Return the global number of a block.

    Raises
    ------
    ModelError
        If there is no such kernel or block.
    """
    found = np.flatnonzero(graph.kernel == kernel)
    if not len(found):
        kernels = graph.kernel[graph.kernel >= 0]
        raise ModelError(
            f"there is no kernel {kernel}: the store has {kernels.min()} to {kernels.max()}"
        )
    operation = int(found[0])
    first, end = graph.first_block[operation], graph.first_block[operation + 1]
    if not 0 <= block < end - first:
        raise ModelError(f"kernel {kernel} has blocks 0 to {end - first - 1}, not {block}")
    return int(first + block)


def neighbour_kinds(
    graph: BlockGraph, block: int
) -> tuple[dict[int, set[str]], dict[int, set[str]]]:
    """Find which blocks a block waits for, and which wait for it.

    Parameters
    ----------
    graph : BlockGraph
    block : int
        Global number.

    Returns
    -------
    sources, targets : dict
        Global block number to kinds of dependence.
    """
    membership = np.zeros(len(graph.set_operation), np.bool_)
    inside = np.flatnonzero(graph.set_blocks == block)
    membership[np.searchsorted(graph.set_offsets, inside, side="right") - 1] = True
    sources: dict[int, set[str]] = {}
    targets: dict[int, set[str]] = {}
    for offsets, lists, other_offsets, others, found in (
        (graph.target_offsets, graph.targets, graph.source_offsets, graph.sources, sources),
        (graph.source_offsets, graph.sources, graph.target_offsets, graph.targets, targets),
    ):
        at = np.flatnonzero(membership[lists])
        for join in np.unique(np.searchsorted(offsets, at, side="right") - 1):
            kind = KIND_NAMES[graph.join_kind[join]]
            for s in others[other_offsets[join] : other_offsets[join + 1]]:
                for other in graph.set_blocks[graph.set_offsets[s] : graph.set_offsets[s + 1]]:
                    found.setdefault(int(other), set()).add(kind)
    return sources, targets


def describe_neighbours(
    graph: BlockGraph,
    footprints: Footprints,
    block: int,
    found: Mapping[int, set[str]],
    *,
    is_source: bool,
) -> list[Neighbour]:
    """Say by how many bytes a block depends on each of some blocks, or they on it.

    Parameters
    ----------
    graph : BlockGraph
    footprints : Footprints
    block : int
        Global number.
    found : mapping
        As `neighbour_kinds` returns it, or a part of that.
    is_source : bool
        Whether `found` holds blocks that `block` waits for.
    """
    own = footprints.of_block(block)
    kernel, index = graph.block_names()
    result = []
    for number in sorted(found):
        other = footprints.of_block(number)
        earlier, later = (other, own) if is_source else (own, other)
        shared = {
            name: common_bytes(earlier, first, later, second)
            for name, first, second in (
                ("RAW", WRITE, READ),
                ("WAR", READ, WRITE),
                ("WAW", WRITE, WRITE),
            )
        }
        kinds = tuple(k for k in ("RAW", "WAR", "WAW") if k in found[number])
        result.append(
            Neighbour(
                kernel=int(kernel[number]),
                block=int(index[number]),
                kinds=kinds,
                **{f"{name.lower()}_bytes": shared[name] * (name in kinds) for name in shared},
            )
        )
    return result


def common_bytes(first: Footprints, first_kind: int, second: Footprints, second_kind: int) -> int:
    """Count the bytes that one block accesses in one way and another block in another."""
    a, b = first.take(first.access == first_kind), second.take(second.access == second_kind)
    start = np.concatenate([a.start, b.start])
    order = np.argsort(start)
    start, end = start[order], np.concatenate([a.end, b.end])[order]
    # The ranges of a block are disjoint, so that only those of different blocks overlap, in twos.
    reach = np.maximum.accumulate(end[:-1])
    overlap = np.minimum(reach, end[1:]) - np.minimum(start[1:], np.minimum(reach, end[1:]))
    return int(overlap.sum())


def critical_path(graph: BlockGraph, durations: NDArray[np.float64]) -> list[PathStep]:
    """Return the blocks of a longest path, first to last.

    Parameters
    ----------
    graph : BlockGraph
    durations : float64[n_blocks]
    """
    finish, critical = graph.earliest_finish(durations)
    if not len(finish):
        return []
    kernel, index = graph.block_names()
    block = int(np.argmax(finish))
    path = []
    while block >= 0:
        path.append(block)
        block = int(critical[block])
    path.reverse()
    return [
        PathStep(
            kernel=int(kernel[b]),
            block=int(index[b]),
            start=float(finish[b] - durations[b]),
            duration=float(durations[b]),
            kinds=_kinds_between(graph, before, b) if before is not None else (),
        )
        for before, b in zip([None, *path], path, strict=False)
    ]


def _kinds_between(graph: BlockGraph, source: int, target: int) -> tuple[str, ...]:
    # Joins are sorted by target, then by source. Numbers of another type would copy the columns.
    ends = np.array([0, 1], np.int32)
    operation = graph.operation_of_block
    low, high = np.searchsorted(graph.join_target_operation, operation[target] + ends).tolist()
    sources = graph.join_source_operation[low:high]
    begin, end = (low + np.searchsorted(sources, operation[source] + ends)).tolist()

    def holds(offsets: NDArray[np.int64], lists: NDArray[np.int32], join: int, block: int) -> bool:
        sets = lists[offsets[join] : offsets[join + 1]]
        return any(
            block in graph.set_blocks[graph.set_offsets[s] : graph.set_offsets[s + 1]] for s in sets
        )

    found = {
        KIND_NAMES[graph.join_kind[j]]
        for j in range(begin, end)
        if holds(graph.source_offsets, graph.sources, j, source)
        and holds(graph.target_offsets, graph.targets, j, target)
    }
    return tuple(k for k in KIND_NAMES if k in found)
