"""Pairs of operations that depend on one another: their edges, counted, and the shape they have."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

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
from depgraph.system import arrays
from depgraph.system.arrays import rows_of


class GraphArrays(NamedTuple):
    """Arrays of a `BlockGraph`, under the same names."""

    first_block: arrays.FirstBlocks
    set_operation: arrays.Operations
    set_offsets: arrays.Offsets
    set_blocks: arrays.Blocks
    join_code: NDArray[np.uint8]
    join_source_operation: arrays.Operations
    join_target_operation: arrays.Operations
    source_offsets: arrays.Offsets
    sources: arrays.SetNumbers
    target_offsets: arrays.Offsets
    targets: arrays.SetNumbers


EDGE_BATCH = 1 << 20


class PairJoins(NamedTuple):
    """The joins between two operations: those from `low` to `high` - 1."""

    low: int
    high: int
    source: int
    target: int


def pair_joins(graph: GraphArrays) -> Iterator[PairJoins]:
    """Yield the joins of each pair of operations that depend on one another, in their order."""
    yield from map(PairJoins._make, _all_pair_joins(graph).tolist())


def _all_pair_joins(graph: GraphArrays) -> NDArray[np.int64]:
    """Return a row for each `PairJoins`: int64[n, 4]."""
    source, target = graph.join_source_operation, graph.join_target_operation
    begins = np.ones(len(source), np.bool_)
    begins[1:] = (source[1:] != source[:-1]) | (target[1:] != target[:-1])
    low = np.flatnonzero(begins)
    return np.stack([low, np.append(low[1:], len(source))[: len(low)], source[low], target[low]], 1)


def group_targets(graph: GraphArrays, low: int, high: int, target: int) -> Groups:
    """Group the blocks of an operation by which of the joins from `low` to `high` they wait for."""
    offsets, joins = joins_of_targets(graph, low, high, target)
    with np.errstate(over="ignore"):
        number, first = intern_lists(offsets, joins, np.zeros(len(offsets) - 1, np.int64))
    members = graph.first_block[target] + np.argsort(number, kind="stable")
    sizes = np.bincount(number, minlength=len(first))
    return Groups(
        number,
        *arrays.gather_lists(offsets, joins, first),
        arrays.list_offsets(sizes),
        members.astype(np.int32),
    )


def coded_edges(graph: GraphArrays, batch: int) -> Iterator[arrays.Edges]:
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
    certain: arrays.Mask  # false for an edge of a kind that is only possible
    ldgsts: arrays.Mask  # whether it is certain by reads of LDGSTS alone


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


@dataclass(slots=True)  # as `Kernel`, never changed
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


def count_pairs(
    graph: GraphArrays, kernel: arrays.KernelNumbers, is_certain: arrays.Mask
) -> list[PairSummary]:
    """Count the distinct edges of each pair, in the order of the target, then of the source."""
    pairs = _all_pair_joins(graph)
    low, high, source, target = pairs.T
    certain = arrays.list_offsets(is_certain)
    middle = low + certain[high] - certain[low]
    is_seen = middle > low
    # What is counted of a pair are its certain joins, or all if it has none.
    counted = np.stack([low, np.where(is_seen, middle, high), source, target], 1)
    *kinds, edges, waiting, awaited, most_sources, most_targets, ldgsts, are_apart = _described(
        graph, counted
    ).T
    sizes = np.diff(graph.first_block)
    shapes = {
        Pattern.ONE_TO_ONE: (most_sources == 1) & (most_targets == 1),
        Pattern.ONE_TO_N: most_sources == 1,
        Pattern.N_TO_ONE: most_targets == 1,
        Pattern.ALL_TO_ALL: edges == sizes[source] * sizes[target],
        # Each set of blocks that are waited for has waiting blocks of its own.
        Pattern.GROUPED: are_apart == 1,
    }
    patterns = [*shapes, Pattern.OVERLAPPED]
    pattern = np.select(list(shapes.values()), range(len(shapes)), len(shapes))
    possible = np.where(is_seen, 0, edges)
    for at in np.flatnonzero(is_seen & (middle < high)):
        all_edges = _count_edges(graph, PairJoins(*pairs[at].tolist()), int(middle[at]))
        possible[at] = all_edges - edges[at]
    columns = {
        "source": kernel[source],
        "target": kernel[target],
        **{name.lower(): count * is_seen for name, count in zip(KIND_NAMES, kinds, strict=True)},
        "edges": edges * is_seen,
        "waiting": waiting,
        "awaited": awaited,
        "most_sources": most_sources,
        "most_targets": most_targets,
        "ldgsts": ldgsts * is_seen,
        "possible": possible,
    }
    rows = {name: values.tolist() for name, values in columns.items()}
    return rows_of(PairSummary, {**rows, "pattern": [patterns[code] for code in pattern]})


def _blocks(graph: GraphArrays, operation: int) -> int:
    return int(graph.first_block[operation + 1] - graph.first_block[operation])


def _described(graph: GraphArrays, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    with np.errstate(over="ignore"):
        described: NDArray[np.int64] = describe_pairs(graph, pairs)
    return described


def _count_edges(graph: GraphArrays, pair: PairJoins, middle: int) -> int:
    """Count the distinct edges of the joins of a pair; those from `middle` on are possible."""
    low, high, source, target = pair
    waits = [np.zeros(_blocks(graph, target), np.bool_) for _ in range(2)]
    for join in range(low, high):
        sets = graph.targets[graph.target_offsets[join] : graph.target_offsets[join + 1]]
        _, blocks = arrays.gather_lists(graph.set_offsets, graph.set_blocks, sets)
        waits[join >= middle][blocks - graph.first_block[target]] = True
    sets = graph.sources[graph.source_offsets[middle] : graph.source_offsets[high]]
    sizes = graph.set_offsets[sets + 1] - graph.set_offsets[sets]
    if (sizes == _blocks(graph, source)).all() and not (waits[0] & ~waits[1]).any():
        # Every block that waits possibly waits for the whole kernel: no need to go through them.
        return int(waits[1].sum()) * _blocks(graph, source)
    return int(_described(graph, np.array([pair]))[0, 4])
