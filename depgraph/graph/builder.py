"""Making block graphs: from lists of joins, and from other graphs with other source sets."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from depgraph.graph.block_graph import ALL_KINDS, KIND_NAMES, Basis, BlockGraph
from depgraph.graph.graph_jit import gather_lists, group_targets

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from numpy.typing import ArrayLike, NDArray


# The fields of a graph that hold its dependences, without positions.
DEPENDENCES = (
    "set_operation", "set_offsets", "set_blocks", "join_kind", "join_basis",
    "join_source_operation", "join_target_operation", "source_offsets", "sources",
    "target_offsets", "targets",
)  # fmt: skip


class GraphBuilder:
    """Collects joins one by one; equal sets become one.

    Parameters
    ----------
    kernel : sequence of int
        Kernel number of each operation, ``-1 - i`` for host copy i.
    sizes : sequence of int
        Blocks of each operation.
    positions : bool
        Whether it is known where inside blocks dependences are needed.
    """

    def __init__(
        self, kernel: Sequence[int], sizes: Sequence[int], *, positions: bool = False
    ) -> None:
        self._positions = positions
        self._kernel = np.array(kernel, np.int32)
        self._first_block = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._sets: dict[tuple[bytes, float, float], int] = {}
        self._members: list[NDArray[np.int32]] = []
        self._places: list[tuple[float, float]] = []
        self._joins: dict[tuple[int, Basis, int, tuple[int, ...]], dict[int, None]] = {}

    def add(
        self,
        kind: str,
        source: ArrayLike,
        target: ArrayLike,
        *,
        needed_at: float = 0.0,
        done_at: float = 1.0,
        basis: Basis = Basis.SEEN,
    ) -> None:
        """Let every block of `target` wait forevery block of `source`.

        Parameters
        ----------
        kind : {"RAW", "WAR", "WAW"}
        source, target : int[n]
            Global numbers of blocks of one operation each.
        needed_at : float
            Share of a target's work that it can do before.
        done_at : float
            Share of a source's work that has to be done.
        basis : Basis
            What the dependence rests on.
        """
        first = self._set(source, 0.0, done_at)
        second = self._set(target, needed_at, 1.0)
        operation = self._operation(second)
        key = KIND_NAMES.index(kind), basis, operation, (first,)
        self._joins.setdefault(key, {})[second] = None

    def _set(self, blocks: ArrayLike, needed_at: float, done_at: float) -> int:
        members = np.unique(np.asarray(blocks, np.int32))
        key = members.tobytes(), needed_at, done_at
        if key not in self._sets:
            self._sets[key] = len(self._members)
            self._members.append(members)
            self._places.append((needed_at, done_at))
        return self._sets[key]

    def _operation(self, set_: int) -> int:
        block = self._members[set_][0]
        return int(np.searchsorted(self._first_block, block, side="right") - 1)

    def build(self, kinds: Collection[str] = ALL_KINDS) -> BlockGraph:
        """Return the graph."""
        joins = [(sources, list(targets)) for (*_, sources), targets in self._joins.items()]
        operation = np.array([self._operation(s) for s in range(len(self._members))], np.int32)
        set_offsets, set_blocks = _lists(self._members, np.int32)
        source_offsets, sources = _lists([s for s, _ in joins], np.int32)
        target_offsets, targets = _lists([t for _, t in joins], np.int32)
        graph = assemble(
            self._kernel,
            self._first_block,
            (operation, set_offsets, set_blocks),
            np.array([kind for kind, *_ in self._joins], np.uint8),
            (source_offsets, sources),
            (target_offsets, targets),
            np.array([basis for _, basis, *_ in self._joins], np.uint8),
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


def assemble(
    kernel: NDArray[np.int32],
    first_block: NDArray[np.int64],
    sets: tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]],
    join_kind: NDArray[np.uint8],
    sources: tuple[NDArray[np.int64], NDArray[np.int32]],
    targets: tuple[NDArray[np.int64], NDArray[np.int32]],
    join_basis: NDArray[np.uint8] | None = None,
) -> BlockGraph:
    """Put sets and joins, in any order, into the order of a `BlockGraph`.

    Parameters
    ----------
    kernel : int32[n_operations]
    first_block : int64[n_operations + 1]
    sets : (int32[n_sets], int64[n_sets + 1], int32[...])
        Operation, offsets and blocks.
    join_kind : uint8[n_joins]
    sources, targets : (int64[n_joins + 1], int32[...])
        Lists of sets, none empty.
    join_basis : uint8[n_joins], optional
        What each join rests on; default accesses that were seen.
    """
    if join_basis is not None and (join_basis == Basis.SEEN).all():
        join_basis = None
    set_operation, set_offsets, set_blocks = sets
    order = np.argsort(set_operation, kind="stable")
    number = np.empty(len(order), np.int32)
    number[order] = np.arange(len(order), dtype=np.int32)
    set_operation = set_operation[order]
    set_offsets, set_blocks = gather_lists(set_offsets, set_blocks, order)
    source_sets, target_sets = number[sources[1]], number[targets[1]]
    source_operation = set_operation[source_sets[sources[0][:-1]]]
    target_operation = set_operation[target_sets[targets[0][:-1]]]
    order = join_order(join_kind, join_basis, source_operation, target_operation)
    source_offsets, source_sets = gather_lists(sources[0], source_sets, order)
    target_offsets, target_sets = gather_lists(targets[0], target_sets, order)
    return BlockGraph(
        kernel=kernel,
        first_block=first_block,
        set_operation=set_operation,
        set_offsets=set_offsets,
        set_blocks=set_blocks,
        join_kind=join_kind[order],
        join_basis=None if join_basis is None else join_basis[order],
        join_source_operation=source_operation[order],
        join_target_operation=target_operation[order],
        source_offsets=source_offsets,
        sources=source_sets,
        target_offsets=target_offsets,
        targets=target_sets,
    )


def extend(
    graph: BlockGraph,
    whole: Sequence[tuple[int, Basis, int, int]],
    partial: Sequence[tuple[int, Basis, int, NDArray[np.int32]]],
) -> BlockGraph:
    """Add joins whose sources are all blocks of an operation.

    Parameters
    ----------
    graph : BlockGraph
    whole : sequence of (kind, basis, source operation, target operation)
        Joins whose targets are all blocks, too. The kind is an index into `KIND_NAMES`.
    partial : sequence of (kind, basis, source operation, target sets)
        Joins whose targets are sets of the graph, all of one operation.
    """
    if not whole and not partial:
        return graph
    sources = [join[2] for join in (*whole, *partial)]
    needed = np.unique([*sources, *(join[3] for join in whole)]).astype(np.int32)
    number = np.zeros(graph.n_operations, np.int32)
    number[needed] = len(graph.set_operation) + np.arange(len(needed), dtype=np.int32)
    set_operation = np.concatenate([graph.set_operation, needed]).astype(np.int32)
    blocks = [np.arange(*graph.first_block[k : k + 2], dtype=np.int32) for k in needed]
    set_offsets, set_blocks = _appended(graph.set_offsets, graph.set_blocks, blocks)
    target_lists = [[number[join[3]]] for join in whole] + [join[3] for join in partial]
    labels = np.array([join[:2] for join in (*whole, *partial)], np.uint8)
    basis = graph.join_basis
    if basis is None:
        basis = np.full(len(graph.join_kind), Basis.SEEN, np.uint8)
    added = assemble(
        graph.kernel,
        graph.first_block,
        (set_operation, set_offsets, set_blocks),
        np.concatenate([graph.join_kind, labels[:, 0]]),
        _appended(graph.source_offsets, graph.sources, [[number[k]] for k in sources]),
        _appended(graph.target_offsets, graph.targets, target_lists),
        np.concatenate([basis, labels[:, 1]]),
    )
    order = np.argsort(set_operation, kind="stable")
    n_added = len(set_blocks) - len(graph.set_blocks)

    def placed(values: NDArray[np.float64] | None, of_added: float) -> NDArray[np.float64] | None:
        if values is None:
            return None
        values = np.concatenate([values, np.full(n_added, of_added)])
        return gather_lists(set_offsets, values, order)[1]  # type: ignore[no-any-return]

    return replace(
        graph,
        **{name: getattr(added, name) for name in DEPENDENCES},
        first_use=placed(graph.first_use, 0.0),
        last_use=placed(graph.last_use, 1.0),
    )


def with_possible_joins_of(graph: BlockGraph, other: BlockGraph) -> BlockGraph:
    """Add the possible joins of another graph over the same blocks; positions are left out.

    Parameters
    ----------
    graph : BlockGraph
        With other certain joins than `other`, such as those that a mechanism sees.
    other : BlockGraph
    """
    chosen = np.flatnonzero(~other.join_certain)
    if not len(chosen):
        return graph
    shift = np.int32(len(graph.set_operation))
    source_offsets, sources = gather_lists(other.source_offsets, other.sources, chosen)
    target_offsets, targets = gather_lists(other.target_offsets, other.targets, chosen)
    own_basis, basis = (
        np.zeros_like(g.join_kind) if g.join_basis is None else g.join_basis for g in (graph, other)
    )
    added = assemble(
        graph.kernel,
        graph.first_block,
        (
            np.append(graph.set_operation, other.set_operation),
            np.append(graph.set_offsets, graph.set_offsets[-1] + other.set_offsets[1:]),
            np.append(graph.set_blocks, other.set_blocks),
        ),
        np.append(graph.join_kind, other.join_kind[chosen]),
        (
            np.append(graph.source_offsets, graph.source_offsets[-1] + source_offsets[1:]),
            np.append(graph.sources, sources + shift),
        ),
        (
            np.append(graph.target_offsets, graph.target_offsets[-1] + target_offsets[1:]),
            np.append(graph.targets, targets + shift),
        ),
        np.append(own_basis, basis[chosen]),
    )
    dependences = {name: getattr(added, name) for name in DEPENDENCES}
    return replace(graph, **dependences, first_use=None, last_use=None)


def _appended(
    offsets: NDArray[np.int64], values: NDArray[np.int32], lists: Sequence[ArrayLike]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    more_offsets, more = _lists(lists, np.int32)
    return np.append(offsets, offsets[-1] + more_offsets[1:]), np.append(values, more)


def join_order(
    kind: NDArray[np.uint8],
    basis: NDArray[np.uint8] | None,
    source_operation: NDArray[np.int32],
    target_operation: NDArray[np.int32],
) -> NDArray[np.int64]:
    """Return the order of the joins of a `BlockGraph`."""
    if basis is None:
        return np.lexsort((kind, source_operation, target_operation))
    return np.lexsort((basis, kind, basis >= Basis.OPAQUE, source_operation, target_operation))


def _lists(
    lists: Sequence[ArrayLike], dtype: type[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    arrays = [np.asarray(values, dtype) for values in lists]
    offsets = np.zeros(len(arrays) + 1, np.int64)
    np.cumsum([len(a) for a in arrays], out=offsets[1:])
    return offsets, np.concatenate([np.empty(0, dtype), *arrays])


def joined_source_blocks(
    graph: BlockGraph, joins: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct pairs of a join and a block among its sources, sorted.

    Parameters
    ----------
    graph : BlockGraph
    joins : int64[n]
        Numbers of the joins to look at.

    Returns
    -------
    join, block : int64[n_pairs]
    """
    offsets, sets = gather_lists(graph.source_offsets, graph.sources, joins)
    join = np.repeat(joins, np.diff(offsets))
    member_offsets, blocks = gather_lists(graph.set_offsets, graph.set_blocks, sets)
    join = np.repeat(join, np.diff(member_offsets))
    key = np.unique(join.astype(np.int64) * graph.n_blocks + blocks)
    return key // max(graph.n_blocks, 1), key % max(graph.n_blocks, 1)


def grouped_pairs(
    graph: BlockGraph,
) -> Iterator[tuple[int, int, list[tuple[NDArray[np.int64], NDArray[np.int32]]]]]:
    """Yield the dependent pairs of operations with their blocks grouped by what they wait for.

    Parameters
    ----------
    graph : BlockGraph

    Yields
    ------
    source, target : int
        Operations.
    groups : list of (int64[n], int32[m])
        Blocks waited for, and the blocks that wait for all of them.
    """
    key = graph.join_target_operation.astype(np.int64) * graph.n_operations
    key += graph.join_source_operation
    for pair in np.unique(key).tolist():
        low, high = np.searchsorted(key, [pair, pair + 1]).tolist()
        source, target = pair % graph.n_operations, pair // graph.n_operations
        first, end = graph.first_block[target : target + 2].tolist()
        with np.errstate(over="ignore"):
            join_offsets, joins, member_offsets, members = group_targets(
                low, high, graph.target_offsets, graph.targets, graph.set_offsets,
                graph.set_blocks, first, end - first,
            )  # fmt: skip
        groups = []
        for g in range(len(join_offsets) - 1):
            own = joins[join_offsets[g] : join_offsets[g + 1]].astype(np.int64)
            if len(own):
                sources = np.unique(joined_source_blocks(graph, own)[1])
                groups.append((sources, members[member_offsets[g] : member_offsets[g + 1]]))
        yield source, target, groups
