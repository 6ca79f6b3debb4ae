"""What a recording says of streams: events, waits of the host, launches of graphs, edges."""

from dataclasses import dataclass, field, replace

from depgraph.parsers.recording.fields import LARGEST, Event, checked, text_of, whole
from depgraph.system.limits import LARGEST_ID
from depgraph.trace.records import Calls, HostCall

CALLS = frozenset({"stream", "sync", "graph", "edges"})
_STREAMS = (Calls.LEGACY, Calls.BLOCKING, Calls.NON_BLOCKING)
_SYNCS = {
    "record": Calls.RECORDS,
    "wait": Calls.AWAITS,
    "event": Calls.HOST_AWAITS_EVENT,
    "stream": Calls.HOST_AWAITS_STREAM,
    "context": Calls.HOST_AWAITS_CONTEXT,
}


@dataclass
class _GraphLaunch:
    """A launch of a graph that goes on."""

    begins: int  # place among the calls
    waits_for: dict[int, list[int]]  # each node
    operation_of: dict[int, int] = field(default_factory=dict)  # of nodes that are launched
    idle: set[int] = field(default_factory=set)  # nodes that have launched nothing so far


class CallsOfHost:
    """Takes events that order streams, each with the operation that comes next."""

    def __init__(self) -> None:
        self.all: list[HostCall] = []
        self._graphs: dict[int, dict[int, list[int]]] = {}  # what the nodes of each wait for
        self._launch: _GraphLaunch | None = None  # None as well where its edges are not known

    def take(self, event: Event, operation: int) -> None:
        """Take what a stream is, what orders streams, or where the launch of a graph begins."""
        if event["event"] == "edges":
            self._take_edges(event)
            return
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

    def _take_edges(self, event: Event) -> None:
        waits_for: dict[int, list[int]] = {}
        for pair in event["pairs"]:
            before, node = (checked("node", each, 0, LARGEST) for each in pair)
            waits_for.setdefault(node, []).append(before)
        self._graphs[whole(event, "graph")] = waits_for

    def _take_graph(self, event: Event) -> Calls:
        self._launch = None
        if not whole(event, "begins", most=1):
            return Calls.GRAPH_ENDS
        edges = self._graphs.get(whole(event, "graph")) if "graph" in event else None
        if edges is None:
            return Calls.UNKNOWN_GRAPH_BEGINS
        self._launch = _GraphLaunch(len(self.all), edges)
        return Calls.GRAPH_BEGINS

    def note_stream(self, event: Event, operation: int) -> None:
        """Note in which stream a copy or memset runs."""
        if "stream" in event:
            stream = whole(event, "stream", most=LARGEST_ID)
            self.all.append(HostCall(operation, Calls.RUNS_IN, stream))
        self.note_node(event, operation)

    def note_node(self, event: Event, operation: int) -> None:
        """Note after which nodes of its graph an operation runs."""
        launch = self._launch
        if launch is None:
            return
        node = whole(event, "node") if "node" in event else None
        if node is None or node in launch.operation_of or node in launch.idle:
            begins = self.all[launch.begins]
            self.all[launch.begins] = replace(begins, what=Calls.UNKNOWN_GRAPH_BEGINS)
            self._launch = None
            return
        for after in _operations_before(launch, node):
            self.all.append(HostCall(operation, Calls.GRAPH_EDGE, after=after))
        launch.operation_of[node] = operation

    def note_wait(self, event: Event, operation: int) -> None:
        """Note that the host waits for the stream of a copy."""
        stream = whole(event, "stream", most=LARGEST_ID)
        self.all.append(HostCall(operation, Calls.HOST_AWAITS_STREAM, stream))


def _operations_before(launch: _GraphLaunch, node: int) -> list[int]:
    """Return what a node waits for, across nodes that launch nothing, such as empty ones."""
    found, seen, ahead = set(), {node}, [node]
    while ahead:
        for before in launch.waits_for.get(ahead.pop(), ()):
            if before in launch.operation_of:
                found.add(launch.operation_of[before])
            elif before not in seen:
                seen.add(before)
                ahead.append(before)
    launch.idle |= seen - {node}
    return sorted(found)
