"""The edges of a block graph: pairs of operations, and what their blocks wait for, expanded."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from depgraph.graph.edges_jit import Groups, count_lacking, fill_edges, joins_of_targets
from depgraph.graph.kinds import FIRST_POSSIBLE_CODE, KIND_NAMES, KIND_OF_CODE, LDGSTS_CODES
from depgraph.graph.lists import gather_lists, list_offsets
from depgraph.graph.lists_jit import intern_lists

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from depgraph.graph.arrays import GraphArrays

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


def coded_edges(
    graph: GraphArrays, batch: int
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint8]]]:
    """Yield the expanded edges in batches: source block, target block, and what each rests on.

    Parameters
    ----------
    batch : int
        Edges a batch holds at most; raised where a single block has more.

    Yields
    ------
    source, target : int32[n]
        Global block numbers.
    code : uint8[n]
        One of `CODES`. Each edge and kind occurs once, with the code that says most.
    """
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
    """Expanded edges, and what each rests on.

    Attributes
    ----------
    source, target : int32[n]
        Global block numbers.
    kind : uint8[n]
        Index into `KIND_NAMES`. Each edge and kind occurs once.
    certain : bool[n]
        False for an edge of a kind that is only possible.
    ldgsts : bool[n]
        Whether it is certain by reads of LDGSTS alone.
    """

    source: NDArray[np.int32]
    target: NDArray[np.int32]
    kind: NDArray[np.uint8]
    certain: NDArray[np.bool_]
    ldgsts: NDArray[np.bool_]


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
