"""What a recording says of streams: events, waits of the host, launches of graphs, edges."""

from __future__ import annotations

from depgraph.parsers.recording.fields import LARGEST, Event, checked, text_of, whole
from depgraph.system.limits import LARGEST_ID
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
    HostCall,
)

CALLS = frozenset({"stream", "sync", "graph"})
_STREAMS = (LEGACY, BLOCKING, NON_BLOCKING)
_SYNCS = {
    "record": RECORDS, "wait": AWAITS, "event": HOST_AWAITS_EVENT, "stream": HOST_AWAITS_STREAM,
    "context": HOST_AWAITS_CONTEXT,
}  # fmt: skip


class CallsOfHost:
    """Takes events that order streams, each with the operation that comes next."""

    def __init__(self) -> None:
        self.all: list[HostCall] = []
        self._operation_of: dict[int, int] = {}  # of each node of the graph that is launched
        self._waits_for: dict[int, list[int]] | None = None  # each node, where that is known

    def take(self, event: Event, operation: int) -> None:
        """Take what a stream is, what orders streams, or where the launch of a graph begins."""
        if event["event"] == "stream":
            what = _STREAMS[whole(event, "kind", most=len(_STREAMS) - 1)]
        elif event["event"] == "graph":
            what = self._take_graph(event)
        else:
            what = _SYNCS[text_of(event, "what")]
        stream, context, moment = (
            whole(event, key, most=LARGEST_ID) if key in event else None
            for key in ("stream", "context", "id")
        )
        self.all.append(HostCall(operation, what, stream, moment, context))

    def _take_graph(self, event: Event) -> str:
        edges = event.get("edges")
        self._operation_of, self._waits_for = {}, None
        if not whole(event, "begins", most=1):
            return GRAPH_ENDS
        if edges is None:
            return UNKNOWN_GRAPH_BEGINS
        self._waits_for = {}
        for before, node in edges:
            place = checked("node", node, 0, LARGEST)
            self._waits_for.setdefault(place, []).append(checked("node", before, 0, LARGEST))
        return GRAPH_BEGINS

    def note_stream(self, event: Event, operation: int) -> None:
        """Note in which stream a copy or memset runs."""
        if "stream" in event:
            stream = whole(event, "stream", most=LARGEST_ID)
            self.all.append(HostCall(operation, RUNS_IN, stream))
        self.note_node(event, operation)

    def note_node(self, event: Event, operation: int) -> None:
        """Note after which nodes of its graph an operation runs."""
        if "node" not in event or self._waits_for is None:
            return
        node = whole(event, "node")
        for before in self._waits_for.get(node, ()):
            after = self._operation_of[before]
            self.all.append(HostCall(operation, GRAPH_EDGE, after=after))
        self._operation_of[node] = operation

    def note_wait(self, event: Event, operation: int) -> None:
        """Note that the host waits for the stream of a copy."""
        stream = whole(event, "stream", most=LARGEST_ID)
        self.all.append(HostCall(operation, HOST_AWAITS_STREAM, stream))
