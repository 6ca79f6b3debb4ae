"""The dependences between two operations, counted, and the shape that they have."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from depgraph.graph.edges import group_targets, pair_joins
from depgraph.graph.edges_jit import describe_pair
from depgraph.graph.kinds import KIND_NAMES
from depgraph.graph.lists import gather_lists

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from depgraph.graph.arrays import GraphArrays
    from depgraph.graph.edges import PairJoins


class Pattern(Enum):
    """How the blocks of a kernel depend on the blocks of an earlier one."""

    INDEPENDENT = "independent"  # of no pair that is counted; a word of every store
    ONE_TO_ONE = "one-to-one"
    ONE_TO_N = "one-to-n"
    N_TO_ONE = "n-to-one"
    GROUPED = "grouped"
    OVERLAPPED = "overlapped"
    ALL_TO_ALL = "all-to-all"


@dataclass(frozen=True, slots=True)
class PairSummary:
    """The dependences between two operations, counted.

    Attributes
    ----------
    source, target : int
        Kernel numbers; ``-1 - i`` for copy or memset i.
    raw, war, waw, reuse : int
        Distinct edges of each kind.
    edges : int
        Distinct edges of any kind.
    waiting : int
        Blocks of `target` that wait for a block of `source`.
    awaited : int
        Blocks of `source` that a block of `target` waits for.
    most_sources, most_targets : int
        Largest number of blocks that one block waits for, and that wait for one block.
    ldgsts : int
        Of the edges of each kind those that rest on reads by LDGSTS alone.
    possible : int
        Distinct edges of any kind that are only possible. All that stands above counts certain
        edges; where there is none, pattern, blocks and numbers of blocks are of the possible ones.
    """

    source: int
    target: int
    raw: int
    war: int
    waw: int
    edges: int
    pattern: Pattern
    waiting: int
    awaited: int
    most_sources: int
    most_targets: int
    ldgsts: int = 0
    possible: int = 0
    reuse: int = 0


def count_pairs(
    graph: GraphArrays, kernel: NDArray[np.int32], is_certain: NDArray[np.bool_]
) -> list[PairSummary]:
    """Count the distinct edges of each pair of operations that depend on one another.

    Parameters
    ----------
    kernel : int32[n_operations]
    is_certain : bool[n_joins]

    Returns
    -------
    list of PairSummary
        In the order of the target, then of the source.
    """
    return [_summarise(graph, kernel, is_certain, pair) for pair in pair_joins(graph)]


def _summarise(
    graph: GraphArrays,
    kernel: NDArray[np.int32],
    is_certain: NDArray[np.bool_],
    pair: PairJoins,
) -> PairSummary:
    low, high, source, target = pair
    middle = low + int(is_certain[low:high].sum())
    counts, names, sizes = _described(graph, pair._replace(high=middle if middle > low else high))
    *kinds, edges, waiting, awaited, most_sources, most_targets, ldgsts = counts.tolist()
    if most_sources == 1 and most_targets == 1:
        pattern = Pattern.ONE_TO_ONE
    elif most_sources == 1:
        pattern = Pattern.ONE_TO_N
    elif most_targets == 1:
        pattern = Pattern.N_TO_ONE
    elif edges == _blocks(graph, source) * _blocks(graph, target):
        pattern = Pattern.ALL_TO_ALL
    elif int(sizes[np.unique(names, return_index=True)[1]].sum()) == awaited:
        # The distinct source sets do not overlap: each group waits for a group of its own.
        pattern = Pattern.GROUPED
    else:
        pattern = Pattern.OVERLAPPED
    possible = 0
    if middle == low:
        kinds, ldgsts = [0] * len(KIND_NAMES), 0
        edges, possible = 0, edges
    elif middle < high:
        possible = _count_edges(graph, pair, middle) - edges
    return PairSummary(
        source=int(kernel[source]),
        target=int(kernel[target]),
        **{name.lower(): count for name, count in zip(KIND_NAMES, kinds, strict=True)},
        edges=edges,
        pattern=pattern,
        waiting=waiting,
        awaited=awaited,
        most_sources=most_sources,
        most_targets=most_targets,
        ldgsts=ldgsts,
        possible=possible,
    )


def _blocks(graph: GraphArrays, operation: int) -> int:
    return int(graph.first_block[operation + 1] - graph.first_block[operation])


def _described(
    graph: GraphArrays, pair: PairJoins
) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]]:
    low, high, source, target = pair
    groups = group_targets(graph, low, high, target)
    with np.errstate(over="ignore"):
        described: tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]] = describe_pair(
            graph, groups, source
        )
    return described


def _count_edges(graph: GraphArrays, pair: PairJoins, middle: int) -> int:
    """Count the distinct edges of the joins of a pair; those from `middle` on are possible."""
    low, high, source, target = pair
    waits = [np.zeros(_blocks(graph, target), np.bool_) for _ in range(2)]
    for join in range(low, high):
        sets = graph.targets[graph.target_offsets[join] : graph.target_offsets[join + 1]]
        _, blocks = gather_lists(graph.set_offsets, graph.set_blocks, sets)
        waits[join >= middle][blocks - graph.first_block[target]] = True
    sets = graph.sources[graph.source_offsets[middle] : graph.source_offsets[high]]
    sizes = graph.set_offsets[sets + 1] - graph.set_offsets[sets]
    if (sizes == _blocks(graph, source)).all() and not (waits[0] & ~waits[1]).any():
        # Every block that waits possibly waits for the whole kernel: no need to go through them.
        return int(waits[1].sum()) * _blocks(graph, source)
    return int(_described(graph, pair)[0][4])
