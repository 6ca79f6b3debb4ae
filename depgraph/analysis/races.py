"""Conflicting accesses that nothing orders: streams that lack a synchronisation."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import NotApplicableError
from depgraph.footprint.footprints import Footprints
from depgraph.graph.dependences import ALL_KINDS
from depgraph.store.store import Store
from depgraph.system.arrays import grouped
from depgraph.trace.records import LDGSTS_READ, READ, SYNC_READ, WRITE, Allocation, Calls, HostCall

_STREAM_KINDS = (Calls.LEGACY, Calls.BLOCKING, Calls.NON_BLOCKING)
_GRAPH_CALLS = (Calls.GRAPH_BEGINS, Calls.UNKNOWN_GRAPH_BEGINS, Calls.GRAPH_ENDS, Calls.GRAPH_EDGE)
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
    address: int  # of the first byte that both touch
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
    """Find conflicting accesses of a recording that nothing orders."""
    # Each access to a byte is compared with those that it depends on (docs/concepts.md): order is
    # transitive, so that all conflicting accesses are ordered if these are. Orders are those of the
    # CUDA programming guide: within a stream; from the record of an event to what waits for it;
    # from what the host has waited for to what it calls then; of the legacy default stream with the
    # blocking streams of its context; edges of CUDA graphs. Atomics do not race with each other
    # (PTX ISA, memory consistency model), whose order is not looked at: what meets one of them is
    # compared with the others, too. A plain write by a block that updates the same bytes by an
    # atomic as well counts as the atomic.
    _refuse_others(store)
    layout = _Layout.of(store)
    pairs = [pair for pair in store.pairs if pair.raw + pair.war + pair.waw + pair.possible]
    wanted = grouped(pairs, lambda pair: layout.operation[pair.target])
    order = HostOrder(store.host_calls, layout.streams, wanted.keys())
    conflicts = _Conflicts(store, layout)
    races, possible, unjudged, across = [], 0, 0, 0
    beside: dict[int, list[int]] = {}  # of an operation those that only its atomics meet
    for target, found in sorted(wanted.items(), key=itemgetter(0)):
        unordered = []
        for pair in found:
            source = layout.operation[pair.source]
            across += not order.is_same_place(source, target)
            verdict = order.is_ordered(source, target)
            if verdict is None:
                unjudged += 1
            elif not verdict and pair.raw + pair.war + pair.waw:
                unordered.append(source)
            elif not verdict:
                possible += 1
        sources = [layout.operation[pair.source] for pair in found]
        further = _reached(beside, sources)
        unordered += [each for each in further if order.is_ordered(each, target) is False]
        for source in unordered:
            race = conflicts.between(source, target)
            if race is not None:
                races.append(race)
            elif source not in further:
                beside.setdefault(target, []).append(source)
    return RaceCheck(tuple(races), len(order.streams), len(pairs), across, possible, unjudged)


def _reached(beside: Mapping[int, Sequence[int]], operations: Iterable[int]) -> list[int]:
    """Return what atomics of some operations met without an order: they hide no accesses of it."""
    seen, ahead = {*operations}, [*operations]
    found = []
    while ahead:
        for each in beside.get(ahead.pop(), ()):
            if each not in seen:
                seen.add(each)
                ahead.append(each)
                found.append(each)
    return sorted(found)


def _refuse_others(store: Store) -> None:
    found = ""
    if store.metadata.get("format") != _RECORDING:
        found = "its input does not say what orders streams: record it with depgraph record"
    elif store.metadata["options"].get("kernels"):
        found = "races are looked for among all kernels: extract without --kernels"
    elif not any(call.what in _STREAM_KINDS for call in store.host_calls):
        found = (
            "is of a recording by an earlier version, which did not note streams, events and waits"
            " of the host: record the program again"
        )
    if found:
        message = f"{store.path}: {found}"
        raise NotApplicableError(message)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where kernels and copies stand in the program, and in which streams they run."""

    operation: dict[int, int]  # of each kernel number
    number: dict[int, int]  # and back
    streams: list[int]  # of each operation

    @classmethod
    def of(cls, store: Store) -> "_Layout":
        operation = {k.kernel: k.operation for k in store.kernels}
        operation |= {copy.number: copy.operation for copy in store.copies}
        streams = [0] * len(operation)
        for kernel in store.kernels:
            streams[kernel.operation] = kernel.stream
        for call in store.host_calls:
            if call.what == Calls.RUNS_IN and call.stream is not None:
                streams[call.operation] = call.stream
        return cls(operation, {at: number for number, at in operation.items()}, streams)


class HostOrder:
    """What is sure to have ended when an operation starts, by vector clocks over streams."""

    # The clock of an operation says of each stream how many of its operations have ended. All nodes
    # of one graph launch count as one operation of its stream; among them the edges decide.
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
        elif call.what == Calls.HOST_AWAITS_EVENT:
            self._join(self._host, self._event.get(call.event))
        elif call.what == Calls.HOST_AWAITS_CONTEXT:
            of_context = self._clock[self._context == call.context]
            np.maximum(self._host, of_context.max(axis=0, initial=0), out=self._host)
        elif call.stream in self.streams and call.what != Calls.RUNS_IN:
            self._take_of_stream(call.what, self.streams[call.stream], call.event)

    def _declare(self, call: HostCall) -> None:
        stream, context = self.streams[call.stream], call.context or 0
        self._context[stream] = context
        self._is_blocking[stream] = call.what != Calls.NON_BLOCKING
        if call.what == Calls.LEGACY:
            self._legacy[context] = stream

    def _take_of_stream(self, what: str, stream: int, event: int | None) -> None:
        if what == Calls.HOST_AWAITS_STREAM:
            # Measured on an H200: the host waits for no stream that only waits for the legacy one.
            if stream in self._legacy.values():
                self._settle(stream)
            self._join(self._host, self._clock[stream])
            return
        self._settle(stream)
        if what == Calls.AWAITS:
            self._join(self._clock[stream], self._event.get(event))
        elif what == Calls.RECORDS:
            self._event[event] = self._clock[stream].copy()

    def _take_graph(self, call: HostCall) -> None:
        if call.what == Calls.GRAPH_EDGE:
            self._before.setdefault(call.operation, []).append(call.after or 0)
        elif call.what == Calls.GRAPH_ENDS or call.stream not in self.streams:
            self._graph = None
        else:
            self._graph = stream = self.streams[call.stream]
            self._enter(stream)
            if call.what == Calls.GRAPH_BEGINS:
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


class _Conflicts:
    """Looks up what two operations of a store both touch."""

    def __init__(self, store: Store, layout: _Layout) -> None:
        self._store, self._layout = store, layout

    @cached_property
    def _of_operation(self) -> tuple[Footprints, NDArray[np.int64], NDArray[np.int64]]:
        graph = self._store.graph(self._store.graph().kinds & ALL_KINDS - {"REUSE"})
        footprints = self._store.footprints()
        at = graph.operation_of_block[footprints.block]
        rows = np.argsort(at, kind="stable")
        return footprints, rows, np.searchsorted(at[rows], np.arange(graph.n_operations + 1))

    def _touched(self, operation: int) -> Footprints:
        footprints, rows, bounds = self._of_operation
        return footprints.take(rows[bounds[operation] : bounds[operation + 1]])

    def between(self, source: int, target: int) -> Race | None:
        """Return what two operations do to the same bytes, if one writes, not both by atomics."""
        both = [self._touched(source), self._touched(target)]
        edges = np.unique(np.concatenate([each for f in both for each in (f.start, f.end)]))
        writes = [_covers(edges, each, each.kind == WRITE) for each in both]
        plain = [_covers(edges, each, np.isin(each.kind, (READ, LDGSTS_READ))) for each in both]
        ordered = [_covers(edges, each, each.kind == SYNC_READ) for each in both]
        reads = [some | others for some, others in zip(plain, ordered, strict=True)]
        # PTX ISA, memory consistency model: atomics do not race with each other, nor with loads
        # that are as strong. What an atomic writes it has read so.
        is_strong = (ordered[0] & ~plain[0]) & (ordered[1] & ~plain[1])
        found = {
            "RAW": writes[0] & reads[1],
            "WAR": reads[0] & writes[1],
            "WAW": writes[0] & writes[1],
        }
        racing = {kind: where & ~is_strong for kind, where in found.items()}
        where = np.logical_or.reduce([*racing.values()])
        if not where.any():
            return None
        start, end = edges[:-1][where], edges[1:][where]
        kinds = tuple(kind for kind, bytes_ in racing.items() if bytes_.any())
        number, stream, address = self._layout.number, self._layout.streams, int(start[0])
        return Race(
            number[source], number[target], stream[source], stream[target], kinds, address,
            int((end - start).sum()), _buffer_of(address, self._store.allocations, source),
        )  # fmt: skip


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
