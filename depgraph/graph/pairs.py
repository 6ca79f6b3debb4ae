"""Pairs of operations that depend on one another: their edges, counted, and the shape they have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.graph.edges_jit import (
    Groups,
    count_lacking,
    describe_pairs,
    fill_edges,
    joins_of_targets,
)
from depgraph.graph.graph_jit import intern_lists
from depgraph.graph.kinds import FIRST_POSSIBLE_CODE, KIND_NAMES, KIND_OF_CODE, LDGSTS_CODES
from depgraph.graph.lists import gather_lists, list_offsets

if TYPE_CHECKING:
    from depgraph.system.arrays import (
        Blocks,
        Edges,
        FirstBlocks,
        KernelNumbers,
        Mask,
        Offsets,
        Operations,
        SetNumbers,
    )


class GraphArrays(NamedTuple):
    """Arrays of a `BlockGraph`, under the same names."""

    first_block: FirstBlocks
    set_operation: Operations
    set_offsets: Offsets
    set_blocks: Blocks
    join_code: NDArray[np.uint8]
    join_source_operation: Operations
    join_target_operation: Operations
    source_offsets: Offsets
    sources: SetNumbers
    target_offsets: Offsets
    targets: SetNumbers


EDGE_BATCH = 1 << 20


class PairJoins(NamedTuple):
    """The joins between two operations: those from `low` to `high` - 1."""

    low: int
    high: int
    source: int
    target: int


def pair_joins(graph: GraphArrays) -> Iterator[PairJoins]:
    """Yield the joins of each pair of operations that depend on one another, in their order."""
    key = graph.join_target_operation.astype(np.int64) * len(graph.first_block)
    key += graph.join_source_operation
    changes = np.flatnonzero(key[1:] != key[:-1]) + 1
    bounds = [0, *changes.tolist(), len(key)] if len(key) else []
    for low, high in pairwise(bounds):
        source, target = graph.join_source_operation[low], graph.join_target_operation[low]
        yield PairJoins(low, high, int(source), int(target))


def group_targets(graph: GraphArrays, low: int, high: int, target: int) -> Groups:
    """Group the blocks of an operation by which of the joins from `low` to `high` they wait for."""
    offsets, joins = joins_of_targets(graph, low, high, target)
    with np.errstate(over="ignore"):
        number, first = intern_lists(offsets, joins, np.zeros(len(offsets) - 1, np.int64))
    members = graph.first_block[target] + np.argsort(number, kind="stable")
    sizes = np.bincount(number, minlength=len(first))
    return Groups(
        number, *gather_lists(offsets, joins, first), list_offsets(sizes), members.astype(np.int32)
    )


def coded_edges(graph: GraphArrays, batch: int) -> Iterator[Edges]:
    """Yield batches (larger if a block needs it) of sources, targets and their strongest codes."""
    for low, high, source, target in pair_joins(graph):
        source_blocks = int(graph.first_block[source + 1] - graph.first_block[source])
        capacity = max(batch, len(KIND_NAMES) * source_blocks)
        groups = group_targets(graph, low, high, target)
        cursor = np.zeros(2, np.int64)
        while cursor[0] < len(groups.join_offsets) - 1:
            out = (
                np.empty(capacity, np.int32),
                np.empty(capacity, np.int32),
                np.empty(capacity, np.uint8),
            )
            n = fill_edges(graph, groups, source, cursor, out)
            if n:
                yield out[0][:n], out[1][:n], out[2][:n]


class LabelledEdges(NamedTuple):
    """Expanded edges, and what each rests on."""

    # Global block numbers.
    source: NDArray[np.int32]
    target: NDArray[np.int32]
    kind: NDArray[np.uint8]  # index into `KIND_NAMES`. Each edge and kind occurs once
    certain: Mask  # false for an edge of a kind that is only possible
    ldgsts: Mask  # whether it is certain by reads of LDGSTS alone


def labelled_edges(graph: GraphArrays, batch: int = EDGE_BATCH) -> Iterator[LabelledEdges]:
    """Yield the expanded edges in batches, as `coded_edges` does."""
    for source, target, code in coded_edges(graph, batch):
        yield LabelledEdges(
            source,
            target,
            KIND_OF_CODE[code],
            code < FIRST_POSSIBLE_CODE,
            np.isin(code, LDGSTS_CODES),
        )


def count_edges_not_in(graph: GraphArrays, other: GraphArrays) -> int:
    """Count the distinct edges and kinds that a graph has and another of the same blocks lacks."""
    joins_of = {(pair.source, pair.target): pair for pair in pair_joins(other)}
    total = 0
    for low, high, source, target in pair_joins(graph):
        groups = group_targets(graph, low, high, target)
        other_low, other_high, *_ = joins_of.get((source, target), (0, 0))
        other_groups = group_targets(other, other_low, other_high, target)
        both, blocks = np.unique(
            np.stack([groups.number, other_groups.number], axis=1), axis=0, return_counts=True
        )
        both = np.column_stack([both, blocks])
        total += int(count_lacking(graph, groups, other, other_groups, source, both))
    return total


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
    """The dependences between two operations, counted."""

    # Kernel numbers; ``-1 - i`` for copy or memset i.
    source: int
    target: int
    # Distinct edges of each kind.
    raw: int
    war: int
    waw: int
    edges: int  # distinct edges of any kind
    pattern: Pattern
    waiting: int  # blocks of `target` that wait for a block of `source`
    awaited: int  # blocks of `source` that a block of `target` waits for
    # Largest number of blocks that one block waits for, and that wait for one block.
    most_sources: int
    most_targets: int
    ldgsts: int = 0  # of the edges of each kind those that rest on reads by LDGSTS alone
    # Distinct edges of any kind that are only possible. All that stands above counts certain edges;
    # where there is none, pattern, blocks and numbers of blocks are of the possible ones.
    possible: int = 0
    reuse: int = 0


def count_pairs(graph: GraphArrays, kernel: KernelNumbers, is_certain: Mask) -> list[PairSummary]:
    """Count the distinct edges of each pair, in the order of the target, then of the source."""
    pairs = list(pair_joins(graph))
    certain = np.concatenate([[0], np.cumsum(is_certain)])
    middles = [low + int(certain[high] - certain[low]) for low, high, *_ in pairs]
    # What is counted of a pair are its certain joins, or all if it has none.
    counted = [p._replace(high=m) if m > p.low else p for p, m in zip(pairs, middles, strict=True)]
    counts = _described(graph, counted).tolist()
    return [_summarise(graph, kernel, *each) for each in zip(pairs, middles, counts, strict=True)]


def _summarise(
    graph: GraphArrays, kernel: KernelNumbers, pair: PairJoins, middle: int, counts: list[int]
) -> PairSummary:
    low, high, source, target = pair
    *kinds, edges, waiting, awaited, most_sources, most_targets, ldgsts, are_apart = counts
    if most_sources == 1 and most_targets == 1:
        pattern = Pattern.ONE_TO_ONE
    elif most_sources == 1:
        pattern = Pattern.ONE_TO_N
    elif most_targets == 1:
        pattern = Pattern.N_TO_ONE
    elif edges == _blocks(graph, source) * _blocks(graph, target):
        pattern = Pattern.ALL_TO_ALL
    else:
        # Grouped: each set of blocks that are waited for has waiting blocks of its own.
        pattern = Pattern.GROUPED if are_apart else Pattern.OVERLAPPED
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


def _described(graph: GraphArrays, pairs: list[PairJoins]) -> NDArray[np.int64]:
    with np.errstate(over="ignore"):
        described: NDArray[np.int64] = describe_pairs(
            graph, np.array(pairs, np.int64).reshape(-1, len(PairJoins._fields))
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
    return int(_described(graph, [pair])[0, 4])
