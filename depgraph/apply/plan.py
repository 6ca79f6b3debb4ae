"""Graphs that a captured program may become: from the recording's dependences to candidates."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from depgraph.apply.byte_ranges import joined
from depgraph.apply.captured import KERNEL, read_captures
from depgraph.apply.matching import is_understood, match_memory, match_nodes, operations_of
from depgraph.apply.order import barrier_edges, chain, merged, reduced
from depgraph.apply.recorded import captures_of
from depgraph.apply.values import find_reuse, touched_by_nodes
from depgraph.errors import ApplyError
from depgraph.mechanisms.base import dependent_operations

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from depgraph.apply.byte_ranges import Ranges
    from depgraph.apply.captured import Captured
    from depgraph.apply.matching import Placed
    from depgraph.apply.order import Edge
    from depgraph.apply.values import Reuse, Touched, Value
    from depgraph.store.store import Store

AS_CAPTURED = "as captured"
WIDTHS = (2, 4, 8, 16, 32)
_NODE_US, _PATH_US = 0.25, 1.0  # of a CUDA graph on an H100: a node, and a step of a path
_KERNEL_US = 2.0  # where no time is known
_CLOSE = 1.001
_MOST_TRIALS = 500


@dataclass(frozen=True, slots=True)
class Candidate:
    """A graph that the captured one may become.

    Attributes
    ----------
    name : str
    edges : tuple of (int, int)
        Between nodes.
    moved : frozenset of int
        Numbers of the values that have memory of their own.
    """

    name: str
    edges: tuple[Edge, ...]
    moved: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Bought:
    """What memory of their own for some values that shared a buffer brings.

    Attributes
    ----------
    start, end : int
        The buffer, in the recorded run.
    values : int
        How many values of it have their own memory.
    more_bytes : int
    saved : float
        By how much the estimated time grows without it, in microseconds.
    nodes : tuple of int
        Those that use the values.
    """

    start: int
    end: int
    values: int
    more_bytes: int
    saved: float
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """What the recording of a captured graph says of its nodes.

    Attributes
    ----------
    recorded : Captured
    operation : tuple of int or None
        Of the recording, for each node.
    needed : frozenset of (int, int)
        Every dependence, certain or possible.
    fixed : frozenset of int
        Nodes of which not all is known: they keep their place.
    touched : Touched
        By node.
    reuse : Reuse
    weights : tuple of float
        Microseconds a node.
    why_fixed : mapping
        A reason to how many nodes it is for.
    placed : Placed or None
        Where the memory is in the graph that is to be changed.
    """

    recorded: Captured
    operation: tuple[int | None, ...]
    needed: frozenset[Edge]
    fixed: frozenset[int]
    touched: Touched
    reuse: Reuse
    weights: tuple[float, ...]
    why_fixed: Mapping[str, int] = field(default_factory=dict)
    placed: Placed | None = None

    @property
    def n(self) -> int:
        """Number of nodes."""
        return len(self.recorded.nodes)

    def edges(self, moved: Collection[int] = ()) -> list[Edge]:
        """Return the edges that are left once some values have memory of their own."""
        return reduced(self.n, self._steady | self.reuse.edges(moved))

    @cached_property
    def _steady(self) -> frozenset[Edge]:
        """The edges that rest on more than where values lie."""
        steady = self.needed - (self.reuse.edges() - self.reuse.true)
        return steady | barrier_edges(self.n, self.fixed)

    def estimate(self, edges: Iterable[Edge]) -> float:
        """Return about how long a graph takes, in microseconds: to tell better from worse."""
        ends = [0.0] * self.n
        sources: list[list[int]] = [[] for _ in ends]
        for source, target in edges:
            sources[target].append(source)
        for node, weight in enumerate(self.weights):
            ready = max((ends[s] + _PATH_US for s in sources[node]), default=0.0)
            ends[node] = max(ready, _NODE_US * node) + weight
        return max(ends, default=0.0)

    def values_within(self, most_bytes: int) -> list[Value]:
        """Return the values that may have memory of their own, as far as there is room for it.

        Parameters
        ----------
        most_bytes : int
            Of memory, for all of them.
        """
        shared = {
            stay.value for history in self.reuse.histories if len(history) > 1 for stay in history
        }
        found: list[Value] = []
        for value in sorted(self.reuse.values, key=lambda v: (v.size, v.number)):
            if value.can_move and value.number in shared and value.size <= most_bytes:
                found.append(value)
                most_bytes -= value.size
        return found

    def fewest(self, values: Sequence[Value]) -> list[Value]:
        """Choose a small set of values that brings about what all of them bring.

        Those are taken back that make no difference, the largest first.
        """
        best = self._time_with(values)
        if best * _CLOSE >= self._time_with([]):
            return []
        order = sorted(values, key=lambda v: (-v.size, v.number))
        step = max(1, len(order) // 2)
        trials = 0
        while True:
            at = 0
            while at < len(order) and trials < _MOST_TRIALS:
                trials += 1
                rest = order[:at] + order[at + step :]
                if self._time_with(rest) <= best * _CLOSE:
                    order = rest
                else:
                    at += step
            if step == 1:
                return sorted(order, key=lambda v: v.number)
            step //= 2

    def _time_with(self, values: Iterable[Value]) -> float:
        moved = frozenset(v.number for v in values)
        return self.estimate(self._steady | self.reuse.edges(moved))

    def bought_by(self, values: Sequence[Value]) -> list[Bought]:
        """Say what each buffer whose values have memory of their own brings, most first."""
        buffers: list[list[Value]] = []
        end = 0
        for value in sorted(values, key=lambda v: v.start):
            if buffers and value.start < end:
                buffers[-1].append(value)
            else:
                buffers.append([value])
                end = 0
            end = max(end, value.end)
        whole = self._time_with(values)
        found = []
        for buffer in buffers:
            own = {value.number for value in buffer}
            rest = [value for value in values if value.number not in own]
            found.append(
                Bought(
                    start=min(v.start for v in buffer),
                    end=max(v.end for v in buffer),
                    values=len(buffer),
                    more_bytes=sum(v.size for v in buffer),
                    saved=max(0.0, self._time_with(rest) - whole),
                    nodes=tuple(sorted({node for v in buffer for node in v.nodes})),
                )
            )
        return sorted(found, key=lambda b: (-b.saved, b.start))

    def candidates(self, values: Sequence[Value]) -> list[Candidate]:
        """Return the graphs to choose from, each once, the captured one first.

        Parameters
        ----------
        values : sequence of Value
            Those that may have memory of their own.
        """
        moved = frozenset(v.number for v in values)
        free = self.edges(moved)
        found = [
            Candidate("all edges", tuple(self.edges())),
            Candidate("own buffers", tuple(free), moved),
        ]
        few = frozenset(v.number for v in self.fewest(values))
        found.append(Candidate("few own buffers", tuple(self.edges(few)), few))
        sure = frozenset(v.number for v in values if not v.is_handed_on)
        found.append(Candidate("own buffers but for split sums", tuple(self.edges(sure)), sure))
        for width in WIDTHS:
            edges = tuple(merged(self.n, free, self.weights, width))
            found.append(Candidate(f"{width} branches", edges, moved))
        seen: set[tuple[Edge, ...]] = {tuple(chain(self.n))}
        unlike = [Candidate(AS_CAPTURED, self.recorded.edges)]
        for each in sorted(found, key=lambda c: len(c.moved)):
            if each.edges not in seen:
                seen.add(each.edges)
                unlike.append(each)
        return unlike

    def between_operations(self, edges: Sequence[Edge]) -> tuple[list[int], list[int]]:
        """Return edges between the operations of the recording; other nodes only hand on order."""
        sources: list[set[int]] = [set() for _ in range(self.n)]
        for source, target in sorted(edges, key=lambda e: e[1]):
            own = self.operation[source]
            sources[target] |= sources[source] if own is None else {own}
        found = [
            (source, target)
            for node, target in enumerate(self.operation)
            if target is not None
            for source in sources[node]
        ]
        return [s for s, _ in found], [t for _, t in found]

    def last_writer(self, address: int) -> int | None:
        """Return the last node that writes a byte, of the recorded addresses."""
        wrote = self.touched.is_write & (self.touched.start <= address)
        wrote &= self.touched.end > address
        nodes = self.touched.node[wrote]
        return int(nodes.max()) if len(nodes) else None

    def written(self) -> dict[int, Ranges]:
        """Return what nodes write of each region."""
        rows = np.flatnonzero(self.touched.is_write)
        found = {}
        for number, region in enumerate(self.recorded.regions):
            low = np.maximum(self.touched.start[rows], np.uint64(region.start))
            high = np.minimum(self.touched.end[rows], np.uint64(region.start + region.size))
            inside = low < high
            if inside.any():
                found[number] = joined(
                    np.stack([low[inside], high[inside]], axis=1).astype(np.int64)
                )
        return found


def make_plan(
    store: Store,
    call: int = 0,
    times: Callable[[], Sequence[float]] | None = None,
    captured: Captured | None = None,
) -> Plan:
    """Read what a recording says of a captured graph.

    Parameters
    ----------
    store : Store
        Recorded, with the captured graphs beside it.
    call : int
        Which call of `depgraph.torch.parallelize`, from 0.
    times : callable, optional
        Returns the microseconds of each kernel of the store.
    captured : Captured, optional
        The graph that is to be changed.

    Raises
    ------
    ApplyError
        If there are no captured graphs, the recording is not of them, or of another graph than
        `captured`.
    """
    path = captures_of(store.path)
    if not path.is_file():
        raise ApplyError(
            f"{store.path}: recorded without depgraph.torch.parallelize: there is no {path.name}",
            "let depgraph apply record it",
        )
    captures = read_captures(path)
    which = next((i for i, each in enumerate(captures) if each.call == call), None)
    if which is None:
        raise ApplyError(
            f"{store.path}: call {call} of depgraph.torch.parallelize is not in it, counted from 0",
            "record the program as it is now",
        )
    recorded = captures[which]
    operation = match_nodes(captures, operations_of(store.kernels, store.copies), which)
    node_of = {place: node for node, place in enumerate(operation) if place is not None}
    graph = store.graph()
    why: dict[str, int] = {}
    fixed = set()
    opaque = {k.operation: k.untraced for k in store.kernels if k.untraced}
    for node, (each, place) in enumerate(zip(recorded.nodes, operation, strict=True)):
        reason = opaque.get(-1 if place is None else place) if is_understood(each) else each.kind
        if reason:
            fixed.add(node)
            why[reason] = why.get(reason, 0) + 1
    source, target = dependent_operations(graph)
    needed = _between_nodes(source, target, node_of)
    touched = touched_by_nodes(
        store.footprints(), graph.operation_of_block, node_of, len(recorded.nodes)
    )
    placed = None
    if captured is not None:
        placed = match_memory(recorded, captured, touched)
        recorded = placed.recorded
    reuse = find_reuse(recorded, touched, fixed)
    duration = dict(
        zip((k.operation for k in store.kernels), times() if times else (), strict=False)
    )
    weights = tuple(
        duration.get(-1 if place is None else place, _KERNEL_US if node.kind == KERNEL else 1.0)
        for node, place in zip(recorded.nodes, operation, strict=True)
    )
    return Plan(
        recorded,
        tuple(operation),
        frozenset(needed),
        frozenset(fixed),
        touched,
        reuse,
        weights,
        why,
        placed,
    )


def _between_nodes(
    source: NDArray[np.int32], target: NDArray[np.int32], node_of: Mapping[int, int]
) -> set[Edge]:
    return {
        (node_of[a], node_of[b])
        for a, b in zip(source.tolist(), target.tolist(), strict=True)
        if a in node_of and b in node_of
    }
