"""Conflicting accesses that nothing orders: streams that lack a synchronisation."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from depgraph.errors import NotApplicableError
from depgraph.graph.kinds import ALL_KINDS
from depgraph.trace.records import (
    AWAITS,
    BLOCKING,
    GRAPH_BEGINS,
    GRAPH_EDGE,
    GRAPH_ENDS,
    HOST_AWAITS_CONTEXT,
    HOST_AWAITS_EVENT,
    HOST_AWAITS_STREAM,
    LEGACY,
    NON_BLOCKING,
    RECORDS,
    RUNS_IN,
    UNKNOWN_GRAPH_BEGINS,
    WRITE,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from depgraph.footprint.footprints import Footprints
    from depgraph.graph.pairs import PairSummary
    from depgraph.store.store import Store
    from depgraph.trace.records import Allocation, HostCall

_STREAM_KINDS = (LEGACY, BLOCKING, NON_BLOCKING)
_GRAPH_CALLS = (GRAPH_BEGINS, UNKNOWN_GRAPH_BEGINS, GRAPH_ENDS, GRAPH_EDGE)
_RECORDING = "recording"
_MOST_CLOCKS = 1 << 26


@dataclass(frozen=True, slots=True)
class Race:
    """Two operations that touch the same bytes, one of them writing, with nothing between them."""

    source: int  # kernel numbers, ``-1 - i`` for copy or memset i, the first in launch order
    target: int
    source_stream: int
    target_stream: int
    kinds: tuple[str, ...]  # of the dependence: RAW, WAR, WAW
    address: int  # of the first byte that both touch; 0 where only possible
    size: int  # bytes that both touch
    buffer: str  # who allocated the memory, where that is known


@dataclass(frozen=True, slots=True)
class RaceCheck:
    """What was looked at, and the races found."""

    races: tuple[Race, ...]
    streams: int
    conflicts: int  # pairs of operations that depend on each other
    across: int  # of them those whose order is no stream's or graph launch's own
    possible: int  # unordered pairs that rest on what was not seen exactly
    unjudged: int  # pairs within a graph launch whose edges are not known


def find_races(store: Store) -> RaceCheck:
    """Find conflicting accesses of a recording that nothing orders.

    Each access to a byte is compared with those that it depends on (docs/concepts.md): order is
    transitive, so that all conflicting accesses are ordered if these are. Orders are those of the
    CUDA programming guide: within a stream; from the record of an event to what waits for it; from
    what the host has waited for to what it calls then; of the legacy default stream with the
    blocking streams of its context; edges of CUDA graphs.

    Parameters
    ----------
    store : Store
        Of a recording that notes streams, events and waits of the host.

    Raises
    ------
    NotApplicableError
        If the store is of another input, of an older recording or of some of its kernels.
    """
    _refuse_others(store)
    layout = _Layout.of(store)
    pairs = [pair for pair in store.pairs if pair.raw + pair.war + pair.waw + pair.possible]
    wanted: dict[int, list[PairSummary]] = {}
    for pair in pairs:
        wanted.setdefault(layout.operation[pair.target], []).append(pair)
    order = HostOrder(store.host_calls, layout.streams, wanted.keys())
    unordered, possible, unjudged, across = [], 0, 0, 0
    for target, found in wanted.items():
        for pair in found:
            source = layout.operation[pair.source]
            across += not order.is_same_place(source, target)
            verdict = order.is_ordered(source, target)
            if verdict is None:
                unjudged += 1
            elif not verdict and pair.raw + pair.war + pair.waw:
                unordered.append(pair)
            elif not verdict:
                possible += 1
    races = _described(store, unordered, layout)
    return RaceCheck(races, len(order.streams), len(pairs), across, possible, unjudged)


def _refuse_others(store: Store) -> None:
    if store.metadata.get("format") != _RECORDING:
        message = (
            f"{store.path}: its input does not say what orders streams: record the program with"
            " depgraph record"
        )
        raise NotApplicableError(message)
    if store.metadata["options"].get("kernels"):
        message = f"{store.path}: races are looked for among all kernels: extract without --kernels"
        raise NotApplicableError(message)
    if not any(call.what in _STREAM_KINDS for call in store.host_calls):
        message = (
            f"{store.path}: is of a recording by an earlier version, which did not note streams,"
            " events and waits of the host: record the program again"
        )
        raise NotApplicableError(message)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where kernels and copies stand in the program, and in which streams they run."""

    operation: dict[int, int]  # of each kernel number
    streams: list[int]  # of each operation

    @classmethod
    def of(cls, store: Store) -> _Layout:
        operation = {k.kernel: k.operation for k in store.kernels}
        operation |= {copy.number: copy.operation for copy in store.copies}
        streams = [0] * len(operation)
        for kernel in store.kernels:
            streams[kernel.operation] = kernel.stream
        for call in store.host_calls:
            if call.what == RUNS_IN and call.stream is not None:
                streams[call.operation] = call.stream
        return cls(operation, streams)


class HostOrder:
    """What is sure to have ended when an operation starts, by vector clocks over streams.

    The clock of an operation says of each stream how many of its operations have ended. All nodes
    of one graph launch count as one operation of its stream; among them the edges decide.
    """

    def __init__(
        self, calls: Sequence[HostCall], stream_of: Sequence[int], wanted: Iterable[int]
    ) -> None:
        self._calls = calls
        declared = {call.stream for call in calls if call.what in _STREAM_KINDS}
        self.streams: dict[int | None, int] = {
            stream: place for place, stream in enumerate(declared | {*stream_of})
        }
        n = len(self.streams)
        wanted = set(wanted)
        if n * (len(wanted) + n) > _MOST_CLOCKS:
            message = f"{n} streams are more than races are looked for in"
            raise NotApplicableError(message)
        self._clock = np.zeros((n, n), np.int32)  # [stream, stream]: what its next one comes after
        self._host = np.zeros(n, np.int32)
        self._event: dict[int | None, NDArray[np.int32]] = {}
        self._context = np.full(n, -1, np.int64)
        self._is_blocking = np.ones(n, np.bool_)
        self._legacy: dict[int, int] = {}  # of each context
        self._graph: int | None = None  # the stream of the launch that goes on
        self._has_edges: set[tuple[int, int]] = set()
        self._before: dict[int, list[int]] = {}  # nodes that a node of a graph waits for
        self._place: list[tuple[int, int]] = []  # stream and number in it, of each operation
        self._kept: dict[int, NDArray[np.int32]] = {}
        self._run(stream_of, wanted)

    def _run(self, stream_of: Sequence[int], wanted: set[int]) -> None:
        call = 0
        for operation, stream in enumerate(stream_of):
            while call < len(self._calls) and self._calls[call].operation <= operation:
                self._take(self._calls[call])
                call += 1
            at = self.streams[stream] if self._graph is None else self._graph
            if self._graph is None:
                self._enter(at)
            self._place.append((at, int(self._clock[at, at])))
            if operation in wanted:
                self._kept[operation] = self._clock[at].copy()

    def _enter(self, stream: int) -> None:
        """Let an operation, or a graph launch, begin in a stream behind all that it waits for."""
        self._settle(stream)
        self._clock[stream, stream] += 1

    def _settle(self, stream: int) -> None:
        clock = self._clock[stream]
        np.maximum(clock, self._host, out=clock)
        context = int(self._context[stream])
        legacy = self._legacy.get(context)
        if legacy == stream:
            others = np.flatnonzero(self._is_blocking & (self._context == context))
            np.maximum(clock, self._clock[others].max(axis=0), out=clock)
        elif legacy is not None and self._is_blocking[stream]:
            np.maximum(clock, self._clock[legacy], out=clock)

    def _take(self, call: HostCall) -> None:
        if call.what in _STREAM_KINDS:
            self._declare(call)
        elif call.what in _GRAPH_CALLS:
            self._take_graph(call)
        elif call.what == HOST_AWAITS_EVENT:
            self._join(self._host, self._event.get(call.event))
        elif call.what == HOST_AWAITS_CONTEXT:
            for each in np.flatnonzero(self._context == call.context):
                self._join(self._host, self._clock[each])
        elif call.stream in self.streams:
            self._take_of_stream(call.what, self.streams[call.stream], call.event)

    def _declare(self, call: HostCall) -> None:
        stream, context = self.streams[call.stream], call.context or 0
        self._context[stream] = context
        self._is_blocking[stream] = call.what != NON_BLOCKING
        if call.what == LEGACY:
            self._legacy[context] = stream

    def _take_of_stream(self, what: str, stream: int, event: int | None) -> None:
        if what == AWAITS:
            self._join(self._clock[stream], self._event.get(event))
            return
        self._settle(stream)  # the legacy stream has done all once those have that it waits for
        if what == RECORDS:
            self._event[event] = self._clock[stream].copy()
        elif what == HOST_AWAITS_STREAM:
            self._join(self._host, self._clock[stream])

    def _take_graph(self, call: HostCall) -> None:
        if call.what == GRAPH_EDGE:
            self._before.setdefault(call.operation, []).append(call.after or 0)
        elif call.what == GRAPH_ENDS or call.stream not in self.streams:
            self._graph = None
        else:
            self._graph = stream = self.streams[call.stream]
            self._enter(stream)
            if call.what == GRAPH_BEGINS:
                self._has_edges.add((stream, int(self._clock[stream, stream])))

    @staticmethod
    def _join(into: NDArray[np.int32], clock: NDArray[np.int32] | None) -> None:
        if clock is not None:
            np.maximum(into, clock, out=into)

    def is_same_place(self, source: int, target: int) -> bool:
        """Tell whether two operations follow each other in a stream, or are nodes of one launch."""
        return self._place[source][0] == self._place[target][0]

    def is_ordered(self, source: int, target: int) -> bool | None:
        """Tell whether an operation has ended when a later one starts; None if nobody can tell."""
        stream, number = self._place[source]
        if self._place[target] == (stream, number):
            if (stream, number) not in self._has_edges:
                return None
            return self._is_node_before(source, target)
        return bool(self._kept[target][stream] >= number)

    def _is_node_before(self, source: int, target: int) -> bool:
        """Tell whether edges of a graph lead from a node to a later one."""
        seen, ahead = {target}, [target]
        while ahead:
            before = {n for n in self._before.get(ahead.pop(), ()) if n >= source} - seen
            if source in before:
                return True
            seen |= before
            ahead += before
        return False


def _described(store: Store, pairs: Sequence[PairSummary], layout: _Layout) -> tuple[Race, ...]:
    """Say of each pair what both touch."""
    if not pairs:
        return ()
    graph = store.graph(store.graph().kinds & ALL_KINDS - {"REUSE"})
    operation_of_block = graph.operation_of_block
    footprints = store.footprints()
    at = operation_of_block[footprints.block]
    order = np.argsort(at, kind="stable")
    bounds = np.searchsorted(at[order], np.arange(graph.n_operations + 1))
    rows = {n: order[low:high] for n, (low, high) in enumerate(pairwise(bounds.tolist()))}
    found = []
    for pair in pairs:
        source, target = layout.operation[pair.source], layout.operation[pair.target]
        start, end = _both(footprints.take(rows[source]), footprints.take(rows[target]))
        address = int(start.min()) if len(start) else 0
        counts = {"RAW": pair.raw, "WAR": pair.war, "WAW": pair.waw}
        found.append(
            Race(
                pair.source,
                pair.target,
                layout.streams[source],
                layout.streams[target],
                tuple(kind for kind, count in counts.items() if count),
                address,
                int((end - start).sum()),
                _buffer_of(address, store.allocations, source),
            )
        )
    return tuple(found)


def _both(source: Footprints, target: Footprints) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the ranges that two operations touch, at least one of them writing."""
    edges = np.unique(np.concatenate([source.start, source.end, target.start, target.end]))
    covered = [_covers(edges, each, each.kind == WRITE) for each in (source, target)]
    touched = [_covers(edges, each, np.ones(len(each), np.bool_)) for each in (source, target)]
    both = (covered[0] & touched[1]) | (touched[0] & covered[1])
    return edges[:-1][both], edges[1:][both]


def _covers(
    edges: NDArray[np.uint64], footprints: Footprints, chosen: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    change = np.zeros(len(edges), np.int64)
    np.add.at(change, np.searchsorted(edges, footprints.start[chosen]), 1)
    np.add.at(change, np.searchsorted(edges, footprints.end[chosen]), -1)
    return np.cumsum(change)[:-1] > 0


def _buffer_of(address: int, allocations: Sequence[Allocation], operation: int) -> str:
    """Name the allocation that an operation found at an address, the latest and smallest."""
    holding = [
        a
        for a in allocations
        if a.address <= address < a.address + a.size
        and a.allocated <= operation
        and (a.freed is None or a.freed > operation)
    ]
    if not holding:
        return ""
    own = min(holding, key=lambda a: a.size)
    return " at ".join(part for part in (own.op, own.line) if part)
