"""Dependences: their kinds and what they rest on, counted by pair of operations, edge by edge."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.graph.graph_jit import (
    GraphArrays,
    Groups,
    count_lacking,
    describe_pairs,
    fill_edges,
    intern_lists,
    joins_of_targets,
)
from depgraph.system import arrays
from depgraph.system.text import counted, kernels_text
from depgraph.trace.records import RANGE, TILES

if TYPE_CHECKING:
    from depgraph.graph.program import Kernel

KIND_NAMES = ("RAW", "WAR", "WAW", "REUSE")
RAW, WAR, WAW, REUSE = range(4)
"""REUSE: memory was freed between the two accesses, whatever they do. The order is the allocator's:
no data go from one to the other."""
ALL_KINDS = frozenset(KIND_NAMES)
KINDS_WITHOUT_FREES = ALL_KINDS - {"REUSE"}
"""What is looked for where the input knows of no frees."""


def tracked_kinds(kinds: Collection[str]) -> frozenset[str]:
    """Return the kinds that who watches addresses alone looks for: a free tells him nothing."""
    return KINDS_WITHOUT_FREES if "REUSE" in kinds else frozenset(kinds)


class Basis(IntEnum):
    """What a join rests on: the first two make it certain, the others only possible."""

    SEEN = 0  # accesses in the trace
    LDGSTS = 1  # reads by LDGSTS alone, of which some may only fill shared memory with zeros
    OPAQUE = 2  # a kernel whose accesses the trace cannot show
    UNIT = 3  # a kernel whose blocks wait for one another
    RANGE = 4  # what a kernel writes out of sight, somewhere in known memory
    TILES = 5  # what a block writes out of sight, inferred from what it reads


BASIS_NAMES = ("seen", "ldgsts", "opaque", "unit", "range", "tiles")

# By kind and basis: the codes of compiled code. Four for what was seen, four for what rests on
# LDGSTS alone, four for what is only possible; in each four the kinds in their order.
_STRENGTH = np.array([0, 1, 2, 2, 2, 2], np.uint8)
CODES = np.arange(4, dtype=np.uint8)[:, None] + 4 * _STRENGTH
KIND_OF_CODE = np.tile(np.arange(4, dtype=np.uint8), 3)
_LDGSTS_CODES = (4, 5, 6, 7)
_FIRST_POSSIBLE_CODE = 8


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
    chosen = np.stack([low, np.where(is_seen, middle, high), source, target], 1)
    *kinds, edges, waiting, awaited, most_sources, most_targets, ldgsts, are_apart = _described(
        graph, chosen
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
    return arrays.rows_of(PairSummary, {**rows, "pattern": [patterns[code] for code in pattern]})


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


EDGE_BATCH = 1 << 20


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
            code < _FIRST_POSSIBLE_CODE,
            np.isin(code, _LDGSTS_CODES),
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


# Whether blocks of a kernel wait for one another, by what they do with each other's bytes.
FOUND = "found"
SUSPECTED = "suspected"


class Uncertainty(NamedTuple):
    """What of a program is not certain, counted."""

    opaque: tuple[int, ...]  # kernels whose accesses the trace cannot show
    # Kernels that write out of sight, to memory that is known, and to tiles that are inferred.
    ranged: tuple[int, ...]
    inferred: tuple[int, ...]
    # Kernels whose blocks wait for one another, and those that only may.
    units: tuple[int, ...]
    suspected: tuple[int, ...]
    edges: int  # certain edges, each kind by itself
    ldgsts_edges: int  # of those the ones that rest on LDGSTS reads alone
    possible_edges: int  # edges of any kind that are only possible

    @property
    def notes(self) -> tuple[str, ...]:
        """What that means for bounds and schedules, a sentence each."""
        notes = []
        if self.opaque:
            notes.append(
                f"{kernels_text(self.opaque)} may touch memory that the trace does not show "
                "(opaque): all kernels before and after may depend on "
                + ("it" if len(self.opaque) == 1 else "them")
                + "; bounds ignore that, schedules obey it"
            )
        if self.ranged:
            notes.append(
                f"each block of {kernels_text(self.ranged)} may write more than the trace shows, "
                "in memory that is known; bounds ignore that, schedules obey it"
            )
        if self.inferred:
            notes.append(
                f"{kernels_text(self.inferred)} store by TMA: which block stores which tile is "
                "inferred from the tiles that it loads, by which each element is stored once; "
                "bounds ignore that, schedules obey it"
            )
        if self.units:
            notes.append(
                f"blocks of {kernels_text(self.units)} wait for each other inside the kernel: in "
                "schedules others wait for all of it, in bounds not; block times include waiting"
            )
        if self.suspected:
            notes.append(
                f"blocks of {kernels_text(self.suspected)} share counters (atomics) but do not "
                "read what others wrote: they are assumed to be independent"
            )
        if self.ldgsts_edges:
            notes.append(
                f"{self.ldgsts_edges} of {counted(self.edges, 'edge')} (by kind) rest only on "
                "reads by LDGSTS (cp.async). Zero-fills look like reads; use `depgraph record`"
            )
        return tuple(notes)


def uncertainty(kernels: Sequence[Kernel], pairs: Sequence[PairSummary]) -> Uncertainty:
    """Count what of a program is not certain; `pairs` are of the graph whose edges are meant."""
    few = [k for k in kernels if k.leaves_open]
    return Uncertainty(
        opaque=tuple(k.kernel for k in few if k.is_opaque),
        ranged=tuple(k.kernel for k in few if k.reach == RANGE),
        inferred=tuple(k.kernel for k in few if k.reach == TILES),
        units=tuple(k.kernel for k in few if k.waits_inside == FOUND),
        suspected=tuple(k.kernel for k in few if k.waits_inside == SUSPECTED),
        edges=sum(p.raw + p.war + p.waw for p in pairs),
        ldgsts_edges=sum(p.ldgsts for p in pairs),
        possible_edges=sum(p.possible for p in pairs),
    )
