"""The block graph: who waits for whom, and what is known of the blocks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.errors import ModelError
from depgraph.graph.factored import FactoredGraph
from depgraph.graph.kinds import ALL_KINDS, KIND_NAMES, KINDS_WITHOUT_FREES, Basis
from depgraph.graph.pairs import PairSummary, count_edges_not_in
from depgraph.trace.records import TO_DEVICE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import networkx as nx
    import pandas as pd
    from numpy.typing import NDArray

    from depgraph.footprint.footprints import Footprints
    from depgraph.graph.launches import DeviceLaunches
    from depgraph.system.arrays import AddressSpaces, BlockTimes, Edges, KernelNumbers, PerOperation


@dataclass(frozen=True, slots=True)
class Resources:
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


@dataclass(frozen=True)
class BlockGraph(FactoredGraph):
    """The dependences between thread blocks, and what is known of the program.

    Attributes
    ----------
    kernel, first_block, ...
        As in `FactoredGraph`.
    kinds : frozenset of str
        Kinds of dependence that were looked for.
    cost : float64[n_blocks] or None
        Work of each block as the trace shows it, in warp instructions.
    duration : float64[n_blocks] or None
        How long each block runs, where the input says so.
    occupancy : int64[n_operations] or None
        Resident blocks per SM, 0 where unknown, where the input says so.
    space : int32[n_operations] or None
        Number of the address space of each operation, where there are several.
    frees : Footprints or None
        Memory that was freed, and in place of a block the operation after that; None where frees
        are not known.
    copies : mapping
        What each copy or memset is, such as "memset", by its number below 0.
    launches : DeviceLaunches or None
        Child kernels that blocks can launch; `duration` is then of the blocks' own work.
    """

    kinds: frozenset[str] = field(default=KINDS_WITHOUT_FREES)
    cost: NDArray[np.float64] | None = None
    resources: Resources | None = None
    duration: BlockTimes | None = None
    duration_unit: str = "us"
    occupancy: PerOperation | None = None
    space: AddressSpaces | None = None
    frees: Footprints | None = None
    copies: Mapping[int, str] = field(default_factory=dict)

    @property
    def known_kinds(self) -> frozenset[str]:
        """Kinds of dependence that the input can tell."""
        return KINDS_WITHOUT_FREES if self.frees is None else ALL_KINDS

    def copy_name(self, number: int) -> str:
        """Name a copy or memset by what it is and its place among them: ``memset 3``."""
        return f"{self.copies.get(number, TO_DEVICE)} {-1 - number}"

    launches: DeviceLaunches | None = None

    def certain(self) -> BlockGraph:
        """Return the graph without its possible joins: this graph itself, if it has none.

        What is certain bounds every schedule; what claims to be reached obeys the whole graph.
        """
        return self._certain

    @cached_property
    def _certain(self) -> BlockGraph:
        return self.only_joins(self.join_certain)

    def without_units(self) -> BlockGraph:
        """Return the graph as if no kernel had blocks that wait for one another.

        Blocks of other kernels then wait for those that they depend on, not for the whole kernel.
        """
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
        """Count the distinct certain edges and kinds that this graph has and `other` lacks.

        Parameters
        ----------
        other : BlockGraph
            Over the same blocks, at another granularity for instance.
        """
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
        if level == "kernel":
            return kernel_digraph(self.kernel, np.diff(self.first_block), self.pairs())
        if level == "block":
            names = zip(*(column.tolist() for column in self.block_names()), strict=True)
            return block_digraph(list(names), self.edges())
        raise ModelError(f"level {level!r}: give 'kernel' or 'block'")

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per pair of kernels that depend on one another."""
        return pairs_frame(self.pairs())


_COUNTS = ("raw", "war", "waw", "reuse", "edges", "possible")


def kernel_digraph(
    kernel: KernelNumbers, blocks: NDArray[np.int64], pairs: Iterable[PairSummary]
) -> nx.DiGraph[Any]:
    """Return one node a kernel, copy or memset, and one edge a pair of them."""
    import networkx as nx

    result: nx.DiGraph[Any] = nx.DiGraph()
    for number, n in zip(kernel.tolist(), blocks.tolist(), strict=True):
        result.add_node(number, blocks=n)
    for pair in pairs:
        counts = {name: getattr(pair, name) for name in _COUNTS}
        result.add_edge(pair.source, pair.target, **counts, pattern=pair.pattern.value)
    return result


def block_digraph(names: Sequence[tuple[int, int]], edges: Iterable[Edges]) -> nx.DiGraph[Any]:
    """Return one node a block, named by kernel and number, and one edge two dependent ones."""
    import networkx as nx

    result: nx.DiGraph[Any] = nx.DiGraph()
    result.add_nodes_from(names)
    for source, target, kind in edges:
        for s, t, k in zip(source.tolist(), target.tolist(), kind.tolist(), strict=True):
            kinds = result.get_edge_data(names[s], names[t], {}).get("kinds", "")
            kinds = f"{kinds},{KIND_NAMES[k]}" if kinds else KIND_NAMES[k]
            result.add_edge(names[s], names[t], kinds=kinds)
    return result


def pairs_frame(pairs: Iterable[PairSummary]) -> pd.DataFrame:
    """Return one row a pair of kernels."""
    import pandas as pd

    columns = list(PairSummary.__slots__)
    rows = [
        [getattr(pair, c) if c != "pattern" else pair.pattern.value for c in columns]
        for pair in pairs
    ]
    return pd.DataFrame(rows, columns=columns)
