"""The block graph: which blocks wait for which, in factored form, and what is known of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import ModelError
from depgraph.graph import graph_jit as compiled
from depgraph.graph.dependences import (
    ALL_KINDS,
    CODES,
    EDGE_BATCH,
    KIND_NAMES,
    KIND_OF_CODE,
    KINDS_WITHOUT_FREES,
    Basis,
    PairSummary,
    coded_edges,
    count_edges_not_in,
    count_pairs,
)
from depgraph.system.arrays import distinct, gather_lists, list_of_each
from depgraph.trace.records import TO_DEVICE

if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd

    from depgraph.footprint.footprints import Footprints
    from depgraph.graph.program import DeviceLaunches
    from depgraph.system.arrays import (
        AddressSpaces,
        Blocks,
        BlockTimes,
        Edges,
        FirstBlocks,
        KernelNumbers,
        Lists,
        Mask,
        Offsets,
        OperationOfBlock,
        Operations,
        PerOperation,
        SetNumbers,
        Sets,
    )


@dataclass(frozen=True, eq=False)
class FactoredGraph:
    """Thread blocks and their dependences, linear in size in what the blocks touch.

    A *set* is a set of blocks of one operation. A *join* says that every block in any of its
    target sets waits for every block in each of its source sets. Blocks of kernel k, copies
    included, are numbered ``first_block[i] .. first_block[i + 1] - 1``, where i is the operation
    (kernel, copy or memset) in program order.
    """

    kernel: KernelNumbers
    first_block: FirstBlocks
    # Ascending operations of the sets, and members of each set, ascending, too.
    set_operation: Operations
    set_offsets: Offsets
    set_blocks: Blocks
    # Joins are sorted by target and source; of a pair the certain ones come first, then by kind.
    join_kind: NDArray[np.uint8]  # index into `KIND_NAMES`
    join_source_operation: Operations
    join_target_operation: Operations
    # Source and target sets of each join.
    source_offsets: Offsets
    sources: SetNumbers
    target_offsets: Offsets
    targets: SetNumbers
    join_basis: NDArray[np.uint8] | None = None  # what each rests on, a `Basis`; None: all was seen
    # [n_set_blocks]: for each member of each set the share of its work before it first touches what
    # the set shares, rounded up, and after which it has last touched it, rounded down; None where
    # the trace was read without positions. And how far the two were rounded at most.
    first_use: NDArray[np.float64] | None = None
    last_use: NDArray[np.float64] | None = None
    position_step: float = 0.0
    counted: tuple[PairSummary, ...] | None = None  # what `pairs` returns, where that is known

    @property
    def n_blocks(self) -> int:
        """Number of blocks, copies and memsets included."""
        return int(self.first_block[-1])

    @property
    def n_operations(self) -> int:
        """Number of kernels, copies and memsets."""
        return len(self.kernel)

    @cached_property
    def operation_of_block(self) -> OperationOfBlock:
        """Operation of each block: int32[n_blocks]."""
        return list_of_each(self.first_block)

    @property
    def set_lists(self) -> Lists:
        """The blocks of each set."""
        return self.set_offsets, self.set_blocks

    @property
    def source_lists(self) -> Lists:
        """The source sets of each join."""
        return self.source_offsets, self.sources

    @property
    def target_lists(self) -> Lists:
        """The target sets of each join."""
        return self.target_offsets, self.targets

    def blocks_of(self, lists: Lists, join: int) -> Blocks:
        """Return the blocks that a join waits for or that wait: those of its list of sets."""
        offsets, sets = lists
        own = sets[offsets[join] : offsets[join + 1]]
        if len(own) == 1:
            return self.set_blocks[slice(*self.set_offsets[own[0] : own[0] + 2])]
        return distinct(gather_lists(*self.set_lists, own)[1])

    @cached_property
    def basis(self) -> NDArray[np.uint8]:
        """What each join rests on, a `Basis`: uint8[n_joins]."""
        return np.zeros_like(self.join_kind) if self.join_basis is None else self.join_basis

    @cached_property
    def join_certain(self) -> Mask:
        """Whether each join is certain, not only possible: bool[n_joins]."""
        return self.basis < Basis.OPAQUE

    @cached_property
    def join_code(self) -> NDArray[np.uint8]:
        """Kind and basis of each join in one number, one of `CODES`: uint8[n_joins]."""
        return CODES[self.join_kind, self.basis]

    def span(self, operation: int) -> tuple[int, int]:
        """Return the first block of an operation, and how many it has."""
        first = int(self.first_block[operation])
        return first, int(self.first_block[operation + 1]) - first

    def joins_between(self, source: int, target: int) -> range:
        """Return the numbers of the joins between two operations."""
        # Numbers of another type would copy the columns.
        ends = np.array([0, 1], np.int32)
        low, high = np.searchsorted(self.join_target_operation, np.int32(target) + ends).tolist()
        sources = self.join_source_operation[low:high]
        begin, end = (low + np.searchsorted(sources, np.int32(source) + ends)).tolist()
        return range(begin, end)

    @cached_property
    def arrays(self) -> compiled.GraphArrays:
        """The dependences as compiled code takes them."""
        names = compiled.GraphArrays._fields
        return compiled.GraphArrays(*(getattr(self, name) for name in names))

    def block_names(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the kernel number and the number within the kernel of every block."""
        operation = self.operation_of_block
        index = np.arange(self.n_blocks) - self.first_block[operation]
        return self.kernel[operation].astype(np.int64), index

    def earliest_finish(self, durations: BlockTimes) -> tuple[BlockTimes, Blocks]:
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
        finish, critical = compiled.earliest_finish(self.arrays, durations)
        return finish, critical

    def longest_path(self, durations: BlockTimes) -> float:
        """Return the length of the longest path, which is the critical path."""
        return float(self.earliest_finish(durations)[0].max(initial=0.0))

    def intra_block_path(
        self, durations: BlockTimes, join_need: NDArray[np.float64] | None = None
    ) -> float:
        """Return the critical path where blocks may wait anywhere inside.

        `join_need`, float64[n_joins], stands for the positions of the graph; of length 0 for none.
        """
        none = np.empty(0, np.float64)
        needs = [join_need, None, None]
        if join_need is None:
            needs = [None, self.first_use, self.last_use]
        finish = compiled.intra_block_finish(
            self.arrays, durations, compiled.Shares(*(none if n is None else n for n in needs))
        )
        return float(finish.max(initial=0.0))

    def longest_tail(self, durations: BlockTimes) -> BlockTimes:
        """Return the longest path from the start of each block to the end: float64[n_blocks]."""
        tail: BlockTimes = compiled.longest_tail(self.arrays, durations)
        return tail

    @cached_property
    def _pairs(self) -> tuple[PairSummary, ...]:
        if self.counted is not None:
            return self.counted
        return tuple(count_pairs(self.arrays, self.kernel, self.join_certain))

    def pairs(self) -> list[PairSummary]:
        """Count the distinct edges of each pair of operations that depend on one another.

        Returns
        -------
        list of PairSummary
            In the order of the target, then of the source.
        """
        return list(self._pairs)

    def edges(self, batch: int = EDGE_BATCH) -> Iterator[Edges]:
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
        for source, target, code in coded_edges(self.arrays, batch):
            yield source, target, KIND_OF_CODE[code]

    def with_dependences_of(self, other: FactoredGraph) -> Self:
        """Return the graph with the sets and joins of another one over the same blocks."""
        return replace(self, **{f.name: getattr(other, f.name) for f in fields(FactoredGraph)})

    def only_joins(self, is_kept: Mask) -> Self:
        """Return the graph with some of its joins, and the sets that they need."""
        if is_kept.all():
            return self
        kept = np.flatnonzero(is_kept)
        source_offsets, sources = gather_lists(*self.source_lists, kept)
        target_offsets, targets = gather_lists(*self.target_lists, kept)
        is_used = np.zeros(len(self.set_operation), np.bool_)
        is_used[sources] = True
        is_used[targets] = True
        used = np.flatnonzero(is_used)
        number = (np.cumsum(is_used) - 1).astype(np.int32)
        set_offsets, set_blocks = gather_lists(*self.set_lists, used)

        def of_members(values: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
            return None if values is None else gather_lists(self.set_offsets, values, used)[1]

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
            first_use=of_members(self.first_use),
            last_use=of_members(self.last_use),
            counted=None,
        )


class Resources(NamedTuple):
    """What each operation takes; -1 where the trace does not say, 0 for copies and memsets."""

    # [n_operations]: threads a block, registers a thread, bytes of shared memory a block.
    threads: PerOperation
    registers: PerOperation
    shared_bytes: PerOperation
    stream: PerOperation
    architecture: int | None  # SASS version of the program, such as 80

    def take(self, operations: Sequence[int]) -> Resources:
        """Return what some operations take."""
        chosen = np.asarray(operations)
        return Resources(
            threads=self.threads[chosen],
            registers=self.registers[chosen],
            shared_bytes=self.shared_bytes[chosen],
            stream=self.stream[chosen],
            architecture=self.architecture,
        )


@dataclass(frozen=True, eq=False)
class BlockGraph(FactoredGraph):
    """The dependences between thread blocks, and what is known of the program."""

    kinds: frozenset[str] = field(default=KINDS_WITHOUT_FREES)  # that were looked for
    cost: BlockTimes | None = None  # work of each block in the trace, in warp instructions
    resources: Resources | None = None
    # How long each block runs, where the input says so; of those that launch, their own work.
    duration: BlockTimes | None = None
    duration_unit: str = "us"
    # Resident blocks per SM, where the input says so: 0 where it does not.
    occupancy: PerOperation | None = None
    space: AddressSpaces | None = None  # where there are several
    # Memory that was freed, and in place of a block the operation after that; None: not known.
    frees: Footprints | None = None
    copies: Mapping[int, str] = field(default_factory=dict)  # such as "memset", by number below 0
    launches: DeviceLaunches | None = None  # child kernels that blocks can launch

    @property
    def known_kinds(self) -> frozenset[str]:
        """Kinds of dependence that the input can tell."""
        return KINDS_WITHOUT_FREES if self.frees is None else ALL_KINDS

    def copy_name(self, number: int) -> str:
        """Name a copy or memset by what it is and its place among them: ``memset 3``."""
        return f"{self.copies.get(number, TO_DEVICE)} {-1 - number}"

    def certain(self) -> BlockGraph:
        """Return the graph without its possible joins: this graph itself, if it has none."""
        return self._certain

    @cached_property
    def _certain(self) -> BlockGraph:
        return self.only_joins(self.join_certain)

    def without_units(self) -> BlockGraph:
        """Return the graph as if no kernel had blocks that wait for one another."""
        if self.join_basis is None:
            return self
        return self.only_joins(self.join_basis != Basis.UNIT)

    def with_kinds(self, kinds: Collection[str]) -> BlockGraph:
        """Return the graph with only some kinds of dependence.

        Parameters
        ----------
        kinds : collection of str
            Among `KIND_NAMES`, in any case.

        Raises
        ------
        ModelError
            If there is another name in `kinds`, or none.
        """
        chosen = frozenset(kind.upper() for kind in kinds)
        if not chosen or not chosen <= ALL_KINDS:
            message = f"dependences {', '.join(sorted(kinds))!r}: give some of raw, war, waw, reuse"
            raise ModelError(message)
        if chosen >= self.kinds:
            return self
        is_kept = np.array([name in chosen for name in KIND_NAMES])[self.join_kind]
        return replace(self.only_joins(is_kept), kinds=self.kinds & chosen)

    def count_edges_not_in(self, other: BlockGraph) -> int:
        """Count the certain edges and kinds that this graph has and another of the blocks lacks."""
        return count_edges_not_in(self.certain().arrays, other.certain().arrays)

    def to_networkx(self, level: str = "kernel") -> nx.DiGraph[Any]:
        """Return the graph for networkx.

        Parameters
        ----------
        level : {"kernel", "block"}
            One node a kernel, copy or memset, or one a block. The block level expands all edges:
            for small graphs.

        Raises
        ------
        ModelError
            If `level` is neither.
        """
        import networkx as nx

        result: nx.DiGraph[Any] = nx.DiGraph()
        if level == "kernel":
            for number, n in zip(self.kernel.tolist(), np.diff(self.first_block), strict=True):
                result.add_node(number, blocks=int(n))
            for pair in self.pairs():
                counts = {name: getattr(pair, name) for name in _COUNTS}
                result.add_edge(pair.source, pair.target, **counts, pattern=pair.pattern.value)
        elif level == "block":
            kernel, index = (column.tolist() for column in self.block_names())
            names = list(zip(kernel, index, strict=True))
            result.add_nodes_from(names)
            for source, target, kind in self.edges():
                for s, t, k in zip(source.tolist(), target.tolist(), kind.tolist(), strict=True):
                    kinds = result.get_edge_data(names[s], names[t], {}).get("kinds", "")
                    kinds = f"{kinds},{KIND_NAMES[k]}" if kinds else KIND_NAMES[k]
                    result.add_edge(names[s], names[t], kinds=kinds)
        else:
            raise ModelError(f"level {level!r}: give 'kernel' or 'block'")
        return result

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per pair of kernels that depend on one another."""
        import pandas as pd

        columns = PairSummary.__slots__
        frame = pd.DataFrame({c: [getattr(p, c) for p in self.pairs()] for c in columns})
        frame["pattern"] = [pair.pattern.value for pair in self.pairs()]
        return frame


_COUNTS = ("raw", "war", "waw", "reuse", "edges", "possible")


def assemble(
    kernel: KernelNumbers,
    first_block: FirstBlocks,
    sets: Sets,
    join_kind: NDArray[np.uint8],
    sources: Lists,
    targets: Lists,
    join_basis: NDArray[np.uint8] | None = None,
) -> BlockGraph:
    """Put sets and joins, in any order, into the order of a `BlockGraph`; no list may be empty."""
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


def join_order(
    kind: NDArray[np.uint8],
    basis: NDArray[np.uint8] | None,
    source_operation: Operations,
    target_operation: Operations,
) -> NDArray[np.int64]:
    """Return the order of the joins of a `BlockGraph`."""
    if basis is None:
        return np.lexsort((kind, source_operation, target_operation))
    return np.lexsort((basis, kind, basis >= Basis.OPAQUE, source_operation, target_operation))


def dependent_operations(
    graph: BlockGraph, joins: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the pairs of operations that depend on one another, each once."""
    key = graph.join_target_operation.astype(np.int64) * graph.n_operations
    key += graph.join_source_operation
    key = distinct(key if joins is None else key[joins])
    return (key % graph.n_operations).astype(np.int32), (key // graph.n_operations).astype(np.int32)


def sources_of_each(graph: BlockGraph) -> list[NDArray[np.int32]]:
    """Return for each operation those it depends on, in program order."""
    source, target = dependent_operations(graph)
    return np.split(source, np.searchsorted(target, range(1, graph.n_operations)))
