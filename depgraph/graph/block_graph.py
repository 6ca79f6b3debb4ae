"""The block graph: thread blocks, and who waits for whom, in factored form."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.errors import ModelError
from depgraph.graph.graph_jit import (
    count_edges_not_in,
    describe_pair,
    earliest_finish,
    fill_edges,
    gather_lists,
    group_targets,
    longest_tail,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import networkx as nx
    import pandas as pd
    from numpy.typing import NDArray

KIND_NAMES = ("RAW", "WAR", "WAW")
ALL_KINDS = frozenset(KIND_NAMES)
_EDGE_BATCH = 1 << 20


class Basis(IntEnum):
    """What a join rests on: the first two make it certain, the others only possible."""

    SEEN = 0  # accesses in the trace
    LDGSTS = 1  # reads by LDGSTS alone, of which some may only fill shared memory with zeros
    OPAQUE = 2  # a kernel whose accesses the trace cannot show
    UNIT = 3  # a kernel whose blocks wait for one another


BASIS_NAMES = ("seen", "ldgsts", "opaque", "unit")

# Kinds and what they rest on, as the compiled code counts them: a bit each of one byte.
_CODES = np.array([[0, 3, 5, 5], [1, 4, 6, 6], [2, 2, 7, 7]], np.uint8)
_KIND_OF_CODE = np.array([0, 1, 2, 0, 1, 0, 1, 2], np.uint8)
_FIRST_POSSIBLE_CODE = 5
_LDGSTS_CODES = (3, 4)


Groups = tuple["NDArray[np.int64]", "NDArray[np.int32]", "NDArray[np.int64]", "NDArray[np.int32]"]


class Pattern(Enum):
    """How the blocks of a kernel depend on the blocks of an earlier one."""

    INDEPENDENT = "independent"
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
        Kernel numbers; ``-1 - i`` for host copy i.
    raw, war, waw : int
        Distinct edges of each kind.
    edges : int
        Distinct edges of any kind.
    pattern : Pattern
    waiting : int
        Blocks of `target` that wait for a block of `source`.
    awaited : int
        Blocks of `source` that a block of `target` waits for.
    most_sources, most_targets : int
        Largest number of blocks that one block waits for, and that wait for one block.
    ldgsts : int
        Of `raw` and `war` those that rest on reads by LDGSTS alone.
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


@dataclass(frozen=True, slots=True)
class Resources:
    """What each operation takes to run; -1 where the trace does not say, 0 for host copies.

    Attributes
    ----------
    threads, registers, shared_bytes : int64[n_operations]
        Threads a block, registers a thread, bytes of shared memory a block.
    stream : int64[n_operations]
    architecture : int or None
        SASS version of the program, such as 80.
    """

    threads: NDArray[np.int64]
    registers: NDArray[np.int64]
    shared_bytes: NDArray[np.int64]
    stream: NDArray[np.int64]
    architecture: int | None


@dataclass(frozen=True)
class BlockGraph:
    """Thread blocks and their dependences, linear in size in what the blocks touch.

    A *set* is a set of blocks of one operation. A *join* says that every block in any of its
    target sets waits forevery block in each of its source sets. Blocks of kernel k, copies
    included, are numbered ``first_block[i] .. first_block[i + 1] - 1``, where i is the operation
    (kernel or host copy) in program order.

    Attributes
    ----------
    kernel : int32[n_operations]
        Kernel number of each operation, ``-1 - i`` for host copy i.
    first_block : int64[n_operations + 1]
    set_operation : int32[n_sets]
        Ascending.
    set_offsets, set_blocks : int64[n_sets + 1], int32[...]
        Members of each set, ascending.
    join_kind : uint8[n_joins]
        Index into `KIND_NAMES`.
    join_source_operation, join_target_operation : int32[n_joins]
        Joins are sorted by target and source; of a pair the certain ones come first, then by kind.
    source_offsets, sources : int64[n_joins + 1], int32[...]
        Source sets of each join.
    target_offsets, targets : int64[n_joins + 1], int32[...]
        Target sets of each join.
    kinds : frozenset of str
        Kinds of dependence that were looked for.
    join_basis : uint8[n_joins] or None
        What each join rests on, a `Basis`; None where all was seen.
    cost : float64[n_blocks] or None
        Work of each block as the trace shows it, in warp instructions.
    resources : Resources or None
    first_use, last_use : float64[n_set_blocks] or None
        For each member of each set the share of its work before it first touches what the set
        shares, rounded up, and after which it has last touched it, rounded down; None where the
        trace was read without positions.
    position_step : float
        How far the two were rounded at most.
    duration : float64[n_blocks] or None
        How long each block runs, where the input says so.
    duration_unit : str
    occupancy : int64[n_operations] or None
        Resident blocks per SM, 0 where unknown, where the input says so.
    space : int32[n_operations] or None
        Number of the address space of each operation, where there are several.
    """

    kernel: NDArray[np.int32]
    first_block: NDArray[np.int64]
    set_operation: NDArray[np.int32]
    set_offsets: NDArray[np.int64]
    set_blocks: NDArray[np.int32]
    join_kind: NDArray[np.uint8]
    join_source_operation: NDArray[np.int32]
    join_target_operation: NDArray[np.int32]
    source_offsets: NDArray[np.int64]
    sources: NDArray[np.int32]
    target_offsets: NDArray[np.int64]
    targets: NDArray[np.int32]
    kinds: frozenset[str] = field(default=ALL_KINDS)
    join_basis: NDArray[np.uint8] | None = None
    cost: NDArray[np.float64] | None = None
    resources: Resources | None = None
    first_use: NDArray[np.float64] | None = None
    last_use: NDArray[np.float64] | None = None
    position_step: float = 0.0
    duration: NDArray[np.float64] | None = None
    duration_unit: str = "us"
    occupancy: NDArray[np.int64] | None = None
    space: NDArray[np.int32] | None = None

    @property
    def n_blocks(self) -> int:
        """Number of blocks, host copies included."""
        return int(self.first_block[-1])

    @property
    def n_operations(self) -> int:
        """Number of kernels and host copies."""
        return len(self.kernel)

    @cached_property
    def operation_of_block(self) -> NDArray[np.int32]:
        """Operation of each block: int32[n_blocks]."""
        operations = np.arange(self.n_operations, dtype=np.int32)
        return np.repeat(operations, np.diff(self.first_block))

    @cached_property
    def join_certain(self) -> NDArray[np.bool_]:
        """Whether each join is certain, not only possible: bool[n_joins]."""
        if self.join_basis is None:
            return np.ones(len(self.join_kind), np.bool_)
        return self.join_basis < Basis.OPAQUE

    def certain(self) -> BlockGraph:
        """Return the graph without its possible joins: this graph itself, if it has none.

        What is certain bounds every schedule; what claims to be reached obeys the whole graph.
        """
        return self._certain

    @cached_property
    def _certain(self) -> BlockGraph:
        return self._with_joins(self.join_certain)

    def without_units(self) -> BlockGraph:
        """Return the graph as if no kernel had blocks that wait for one another.

        Blocks of other kernels then wait for those that they depend on, not for the whole kernel.
        """
        if self.join_basis is None:
            return self
        return self._with_joins(self.join_basis != Basis.UNIT)

    def with_kinds(self, kinds: Collection[str]) -> BlockGraph:
        """Return the graph with only some kinds of dependence.

        Parameters
        ----------
        kinds : collection of str
            Among "RAW", "WAR" and "WAW", in any case.

        Raises
        ------
        ModelError
            If there is another name in `kinds`, or none.
        """
        chosen = frozenset(kind.upper() for kind in kinds)
        if not chosen or not chosen <= ALL_KINDS:
            message = f"dependences {', '.join(sorted(kinds))!r}: give some of raw, war, waw"
            raise ModelError(message)
        if chosen >= self.kinds:
            return self
        is_kept = np.array([name in chosen for name in KIND_NAMES])[self.join_kind]
        return replace(self._with_joins(is_kept), kinds=self.kinds & chosen)

    def _with_joins(self, is_kept: NDArray[np.bool_]) -> BlockGraph:
        """Return the graph with some of its joins, and the sets that they need."""
        if is_kept.all():
            return self
        kept = np.flatnonzero(is_kept)
        source_offsets, sources = gather_lists(self.source_offsets, self.sources, kept)
        target_offsets, targets = gather_lists(self.target_offsets, self.targets, kept)
        is_used = np.zeros(len(self.set_operation), np.bool_)
        is_used[sources] = True
        is_used[targets] = True
        used = np.flatnonzero(is_used).astype(np.int32)
        number = np.zeros(len(self.set_operation), np.int32)
        number[used] = np.arange(len(used), dtype=np.int32)
        set_offsets, set_blocks = gather_lists(self.set_offsets, self.set_blocks, used)
        return replace(
            self,
            set_operation=self.set_operation[used],
            set_offsets=set_offsets,
            set_blocks=set_blocks,
            join_kind=self.join_kind[kept],
            join_basis=None if self.join_basis is None else self.join_basis[kept],
            join_source_operation=self.join_source_operation[kept],
            join_target_operation=self.join_target_operation[kept],
            source_offsets=source_offsets,
            sources=number[sources],
            target_offsets=target_offsets,
            targets=number[targets],
            first_use=_gathered(self.set_offsets, self.first_use, used),
            last_use=_gathered(self.set_offsets, self.last_use, used),
        )

    def earliest_finish(
        self, durations: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        """Return when each block ends with unlimited SMs, and which block it waits for last.

        Parameters
        ----------
        durations : float64[n_blocks]

        Returns
        -------
        finish : float64[n_blocks]
            In the unit of `durations`. Its maximum is the critical path.
        critical : int32[n_blocks]
            -1 for a block that waits for none.
        """
        finish, critical = earliest_finish(
            durations,
            self.first_block,
            self.set_operation,
            self.set_offsets,
            self.set_blocks,
            self.join_target_operation,
            self.source_offsets,
            self.sources,
            self.target_offsets,
            self.targets,
        )
        return finish, critical

    def longest_tail(self, durations: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the longest path from the start of each block to the end: float64[n_blocks]."""
        tail: NDArray[np.float64] = longest_tail(
            durations,
            self.first_block,
            self.set_operation,
            self.set_offsets,
            self.set_blocks,
            self.join_target_operation,
            self.source_offsets,
            self.sources,
            self.target_offsets,
            self.targets,
        )
        return tail

    def pairs(self) -> list[PairSummary]:
        """Count the distinct edges of each pair of operations that depend on one another.

        Returns
        -------
        list of PairSummary
            In the order of the target, then of the source.
        """
        with np.errstate(over="ignore"):
            return [
                _summarise(self, low, high, source, target)
                for low, high, source, target in self._pair_joins()
            ]

    def edges(
        self, batch: int = _EDGE_BATCH
    ) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint8]]]:
        """Yield the expanded edges in batches: source block, target block, kind.

        Parameters
        ----------
        batch : int
            Edges a batch holds at most; raised where a single block has more.

        Yields
        ------
        source, target : int32[n]
            Global block numbers.
        kind : uint8[n]
            Index into `KIND_NAMES`. Each edge and kind occurs once, certain or only possible.
        """
        for source, target, code in self._coded_edges(batch):
            yield source, target, _KIND_OF_CODE[code]

    def labelled_edges(
        self, batch: int = _EDGE_BATCH
    ) -> Iterator[
        tuple[
            NDArray[np.int32],
            NDArray[np.int32],
            NDArray[np.uint8],
            NDArray[np.bool_],
            NDArray[np.bool_],
        ]
    ]:
        """Yield the expanded edges as `edges` does, and for each what it rests on.

        Yields
        ------
        source, target, kind
            As `edges` yields them.
        certain : bool[n]
            False for an edge of a kind that is only possible.
        ldgsts : bool[n]
            Whether it is certain by reads of LDGSTS alone.
        """
        for source, target, code in self._coded_edges(batch):
            certain = code < _FIRST_POSSIBLE_CODE
            yield source, target, _KIND_OF_CODE[code], certain, np.isin(code, _LDGSTS_CODES)

    def _coded_edges(
        self, batch: int
    ) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint8]]]:
        for low, high, source, target in self._pair_joins():
            source_first, source_blocks = self.span(source)
            capacity = max(batch, 3 * source_blocks)
            groups = self._grouped(low, high, target)
            cursor = np.zeros(2, np.int64)
            while cursor[0] < len(groups[0]) - 1:
                out = (
                    np.empty(capacity, np.int32),
                    np.empty(capacity, np.int32),
                    np.empty(capacity, np.uint8),
                )
                n = fill_edges(
                    cursor,
                    *groups,
                    self.join_code,
                    self.source_offsets,
                    self.sources,
                    self.set_offsets,
                    self.set_blocks,
                    source_first,
                    source_blocks,
                    *out,
                )
                if n:
                    yield out[0][:n], out[1][:n], out[2][:n]

    @cached_property
    def join_code(self) -> NDArray[np.uint8]:
        """Kind and basis of each join in one number, as the compiled code takes it."""
        return (
            self.join_kind if self.join_basis is None else _CODES[self.join_kind, self.join_basis]
        )

    def count_edges_not_in(self, other: BlockGraph) -> int:
        """Count the distinct certain edges and kinds that this graph has and `other` lacks.

        Parameters
        ----------
        other : BlockGraph
            Over the same blocks, at another granularity for instance.
        """
        if self is not self.certain() or other is not other.certain():
            return self.certain().count_edges_not_in(other.certain())
        joins_of = {(s, t): (low, high) for low, high, s, t in other._pair_joins()}
        total = 0
        for low, high, source, target in self._pair_joins():
            groups = self._grouped(low, high, target)
            other_low, other_high = joins_of.get((source, target), (0, 0))
            other_groups = other._grouped(other_low, other_high, target)
            number, other_number = _numbers(groups), _numbers(other_groups)
            with np.errstate(over="ignore"):
                total += count_edges_not_in(
                    groups[0],
                    groups[1],
                    number,
                    np.lexsort((other_number, number)),
                    self.join_kind,
                    self.source_offsets,
                    self.sources,
                    self.set_offsets,
                    self.set_blocks,
                    other_groups[0],
                    other_groups[1],
                    other_number,
                    other.join_kind,
                    other.source_offsets,
                    other.sources,
                    other.set_offsets,
                    other.set_blocks,
                    *self.span(source),
                )
        return int(total)

    def _grouped(self, low: int, high: int, target: int) -> Groups:
        with np.errstate(over="ignore"):
            groups: Groups = group_targets(
                low,
                high,
                self.target_offsets,
                self.targets,
                self.set_offsets,
                self.set_blocks,
                *self.span(target),
            )
        return groups

    def span(self, operation: int) -> tuple[int, int]:
        """Return the first block of an operation, and how many it has."""
        first = int(self.first_block[operation])
        return first, int(self.first_block[operation + 1]) - first

    def _pair_joins(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield (first join, last join + 1, source operation, target operation)."""
        key = self.join_target_operation.astype(np.int64) * self.n_operations
        key += self.join_source_operation
        changes = np.flatnonzero(key[1:] != key[:-1]) + 1
        bounds = [0, *changes.tolist(), len(key)] if len(key) else []
        for low, high in pairwise(bounds):
            yield (
                low,
                high,
                int(self.join_source_operation[low]),
                int(self.join_target_operation[low]),
            )

    def to_networkx(self, level: str = "kernel") -> nx.DiGraph[Any]:
        """Return the graph for networkx.

        Parameters
        ----------
        level : {"kernel", "block"}
            One node a kernel or host copy, or one a block. The block level expands all edges:
            for small graphs.

        Raises
        ------
        ModelError
            If `level` is neither.
        """
        import networkx as nx

        result: nx.DiGraph[Any] = nx.DiGraph()
        if level == "kernel":
            blocks = np.diff(self.first_block)
            for kernel, n in zip(self.kernel.tolist(), blocks.tolist(), strict=True):
                result.add_node(kernel, blocks=n)
            for pair in self.pairs():
                result.add_edge(
                    pair.source,
                    pair.target,
                    raw=pair.raw,
                    war=pair.war,
                    waw=pair.waw,
                    edges=pair.edges,
                    possible=pair.possible,
                    pattern=pair.pattern.value,
                )
            return result
        if level != "block":
            message = f"level {level!r}: give 'kernel' or 'block'"
            raise ModelError(message)
        names = list(zip(*(a.tolist() for a in self.block_names()), strict=True))
        result.add_nodes_from(names)
        for source, target, kind in self.edges():
            for s, t, k in zip(source.tolist(), target.tolist(), kind.tolist(), strict=True):
                kinds = result.get_edge_data(names[s], names[t], {}).get("kinds", "")
                kinds = f"{kinds},{KIND_NAMES[k]}" if kinds else KIND_NAMES[k]
                result.add_edge(names[s], names[t], kinds=kinds)
        return result

    def block_names(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the kernel number and the number within the kernel of every block."""
        operation = self.operation_of_block
        index = np.arange(self.n_blocks) - self.first_block[operation]
        return self.kernel[operation].astype(np.int64), index

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per pair of kernels that depend on one another."""
        import pandas as pd

        columns = list(PairSummary.__slots__)
        rows = [
            [getattr(pair, c) if c != "pattern" else pair.pattern.value for c in columns]
            for pair in self.pairs()
        ]
        return pd.DataFrame(rows, columns=columns)


def _gathered(
    offsets: NDArray[np.int64], values: NDArray[np.float64] | None, chosen: NDArray[np.int32]
) -> NDArray[np.float64] | None:
    return None if values is None else gather_lists(offsets, values, chosen)[1]


def _numbers(groups: Groups) -> NDArray[np.int32]:
    """Return the group of each target block, in block order."""
    _, _, member_offsets, members = groups
    number = np.empty(len(members), np.int32)
    first = members.min() if len(members) else 0
    number[members - first] = np.repeat(
        np.arange(len(member_offsets) - 1, dtype=np.int32), np.diff(member_offsets)
    )
    return number


def _summarise(graph: BlockGraph, low: int, high: int, source: int, target: int) -> PairSummary:
    middle = low + int(graph.join_certain[low:high].sum())
    source_blocks, target_blocks = graph.span(source)[1], graph.span(target)[1]
    counts, names, sizes = _described(graph, low, middle if middle > low else high, source, target)
    raw, war, waw, edges, waiting, awaited, most_sources, most_targets, ldgsts = counts.tolist()
    if most_sources == 1 and most_targets == 1:
        pattern = Pattern.ONE_TO_ONE
    elif most_sources == 1:
        pattern = Pattern.ONE_TO_N
    elif most_targets == 1:
        pattern = Pattern.N_TO_ONE
    elif edges == source_blocks * target_blocks:
        pattern = Pattern.ALL_TO_ALL
    elif int(sizes[np.unique(names, return_index=True)[1]].sum()) == awaited:
        # The distinct source sets do not overlap: each group waits for a group of its own.
        pattern = Pattern.GROUPED
    else:
        pattern = Pattern.OVERLAPPED
    possible = 0
    if middle == low:
        raw = war = waw = ldgsts = 0
        edges, possible = 0, edges
    elif middle < high:
        possible = _count_edges(graph, low, middle, high, source, target) - edges
    return PairSummary(
        source=int(graph.kernel[source]),
        target=int(graph.kernel[target]),
        raw=raw,
        war=war,
        waw=waw,
        edges=edges,
        pattern=pattern,
        waiting=waiting,
        awaited=awaited,
        most_sources=most_sources,
        most_targets=most_targets,
        ldgsts=ldgsts,
        possible=possible,
    )


def _described(
    graph: BlockGraph, low: int, high: int, source: int, target: int
) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]]:
    described: tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]] = describe_pair(
        low,
        high,
        graph.join_code,
        graph.source_offsets,
        graph.sources,
        graph.target_offsets,
        graph.targets,
        graph.set_offsets,
        graph.set_blocks,
        *graph.span(source),
        *graph.span(target),
    )
    return described


def _count_edges(
    graph: BlockGraph, low: int, middle: int, high: int, source: int, target: int
) -> int:
    """Count the distinct edges of the joins of a pair; those from `middle` on are possible."""
    _, source_blocks = graph.span(source)
    waits = [np.zeros(graph.span(target)[1], np.bool_) for _ in range(2)]
    for join in range(low, high):
        sets = graph.targets[graph.target_offsets[join] : graph.target_offsets[join + 1]]
        _, blocks = gather_lists(graph.set_offsets, graph.set_blocks, sets)
        waits[join >= middle][blocks - graph.first_block[target]] = True
    sets = graph.sources[graph.source_offsets[middle] : graph.source_offsets[high]]
    sizes = graph.set_offsets[sets + 1] - graph.set_offsets[sets]
    if (sizes == source_blocks).all() and not (waits[0] & ~waits[1]).any():
        # Every block that waits possibly waits for the whole kernel: no need to go through them.
        return int(waits[1].sum()) * source_blocks
    return int(_described(graph, low, high, source, target)[0][3])
