"""Making block graphs join by join, and adding joins to a graph."""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
from numpy.typing import ArrayLike, NDArray

from depgraph.graph.block_graph import BlockGraph, assemble
from depgraph.graph.dependences import KIND_NAMES, KINDS_WITHOUT_FREES, Basis
from depgraph.system import arrays


class GraphBuilder:
    """Collects joins one by one; equal sets become one. `sizes` are blocks of operations."""

    def __init__(
        self, kernel: Sequence[int], sizes: Sequence[int], *, positions: bool = False
    ) -> None:
        self._positions = positions
        self._kernel = np.array(kernel, np.int32)
        self._first_block = arrays.list_offsets(sizes)
        self._first_blocks = self._first_block.tolist()  # in a list one is found faster
        self._sets: dict[tuple[range | bytes, float, float], int] = {}
        self._members: list[range | arrays.Blocks] = []
        self._places: list[tuple[float, float]] = []
        self._operations: list[int] = []
        self._joins: dict[tuple[int, Basis, int, int], dict[int, None]] = {}

    def add(
        self,
        kind: str,
        source: range | ArrayLike,
        target: range | ArrayLike,
        *,
        needed_at: float = 0.0,  # share of a target's work that it can do before
        done_at: float = 1.0,  # share of a source's work that has to be done
        basis: Basis = Basis.SEEN,
    ) -> None:
        """Let every block of `target` wait for every block of `source`, global numbers both."""
        first = self._set(source, 0.0, done_at)
        second = self._set(target, needed_at, 1.0)
        key = KIND_NAMES.index(kind), basis, self._operations[second], first
        self._joins.setdefault(key, {})[second] = None

    def _set(self, blocks: range | ArrayLike, needed_at: float, done_at: float) -> int:
        members = (
            blocks
            if isinstance(blocks, range) and blocks.step == 1
            else in_order(np.asarray(blocks, np.int32))
        )
        name = members if isinstance(members, range) else members.tobytes()
        number = self._sets.setdefault((name, needed_at, done_at), len(self._sets))
        if number == len(self._members):
            self._members.append(members)
            self._places.append((needed_at, done_at))
            self._operations.append(bisect_right(self._first_blocks, members[0]) - 1)
        return number

    def build(self, kinds: Collection[str] = KINDS_WITHOUT_FREES) -> BlockGraph:
        """Return the graph."""
        operation = np.array(self._operations, np.int32)
        kind, basis, _, source = np.array([*self._joins] or np.empty((0, 4)), np.int32).T
        targets = list(map(list, self._joins.values()))
        graph = assemble(
            self._kernel,
            self._first_block,
            (operation, *self._set_lists()),
            kind.astype(np.uint8),
            (np.arange(len(source) + 1), source),
            (
                arrays.list_offsets(list(map(len, targets))),
                np.array(list(chain(*targets)), np.int32),
            ),
            basis.astype(np.uint8),
        )
        graph = replace(graph, kinds=frozenset(kinds))
        if not self._positions:
            return graph
        order = np.argsort(operation, kind="stable")
        places = np.array(self._places, np.float64).reshape(-1, 2)[order]
        sizes = np.diff(graph.set_offsets)
        return replace(
            graph,
            first_use=np.repeat(places[:, 0], sizes),
            last_use=np.repeat(places[:, 1], sizes),
            position_step=0.0,
        )

    def _set_lists(self) -> arrays.Lists:
        offsets = arrays.list_offsets(list(map(len, self._members)))
        begins = np.array([members[0] for members in self._members], np.int64)
        blocks = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], np.diff(offsets))
        for number, members in enumerate(self._members):
            if not isinstance(members, range):
                blocks[offsets[number] : offsets[number + 1]] = members
        return offsets, blocks.astype(np.int32)


def in_order(blocks: arrays.Blocks) -> range | arrays.Blocks:
    """Return each block once, ascending; a range where they follow one another."""
    if (blocks[1:] <= blocks[:-1]).any():
        blocks = arrays.distinct(blocks)
    first, last = int(blocks[0]), int(blocks[-1])
    return range(first, last + 1) if last - first == len(blocks) - 1 else blocks


def extend(
    graph: BlockGraph,
    whole: Sequence[tuple[int, Basis, int, int]],
    partial: Sequence[tuple[int, Basis, int, arrays.SetNumbers]],
) -> BlockGraph:
    """Add joins whose sources are all blocks of an operation: (kind, basis, source, target)."""
    # Their targets are all blocks of an operation in `whole`, sets of the graph in `partial`.
    if not whole and not partial:
        return graph
    sources = [join[2] for join in (*whole, *partial)]
    needed = arrays.distinct(np.array([*sources, *(join[3] for join in whole)], np.int32))
    number = np.zeros(graph.n_operations, np.int32)
    number[needed] = len(graph.set_operation) + np.arange(len(needed), dtype=np.int32)
    blocks = arrays.lists_of(np.arange(*graph.first_block[k : k + 2]) for k in needed)
    target_lists = [[number[join[3]]] for join in whole] + [join[3] for join in partial]
    labels = np.array([join[:2] for join in (*whole, *partial)], np.uint8)
    joins = arrays.lists_of([number[k]] for k in sources), arrays.lists_of(target_lists)
    added = _with_more(graph, (needed, *blocks), labels[:, 0], *joins, labels[:, 1])
    order = np.argsort(np.append(graph.set_operation, needed), kind="stable")
    set_offsets, _ = arrays.concatenate_lists([graph.set_lists, blocks])

    def placed(values: NDArray[np.float64] | None, of_added: float) -> NDArray[np.float64] | None:
        if values is None:
            return None
        values = np.append(values, np.full(len(blocks[1]), of_added))
        return arrays.gather_lists(set_offsets, values, order)[1]

    return replace(
        graph.with_dependences_of(added),
        first_use=placed(graph.first_use, 0.0),
        last_use=placed(graph.last_use, 1.0),
        position_step=graph.position_step,
    )


def with_possible_joins_of(graph: BlockGraph, other: BlockGraph) -> BlockGraph:
    """Add the possible joins of a graph over the same blocks; positions are left out."""
    chosen = np.flatnonzero(~other.join_certain)
    if not len(chosen):
        return graph
    shift = np.int32(len(graph.set_operation))
    source_offsets, sources = arrays.gather_lists(*other.source_lists, chosen)
    target_offsets, targets = arrays.gather_lists(*other.target_lists, chosen)
    added = _with_more(
        graph,
        (other.set_operation, *other.set_lists),
        other.join_kind[chosen],
        (source_offsets, sources + shift),
        (target_offsets, targets + shift),
        other.basis[chosen],
    )
    return graph.with_dependences_of(added)


def _with_more(
    graph: BlockGraph,
    sets: arrays.Sets,
    join_kind: NDArray[np.uint8],
    sources: arrays.Lists,
    targets: arrays.Lists,
    join_basis: NDArray[np.uint8],
) -> BlockGraph:
    """Return the dependences of a graph and more; sets that are new come after its own."""
    operation, offsets, blocks = sets
    members = arrays.concatenate_lists([graph.set_lists, (offsets, blocks)])
    return assemble(
        graph.kernel,
        graph.first_block,
        (np.append(graph.set_operation, operation), *members),
        np.append(graph.join_kind, join_kind),
        arrays.concatenate_lists([graph.source_lists, sources]),
        arrays.concatenate_lists([graph.target_lists, targets]),
        np.append(graph.basis, join_basis),
    )
