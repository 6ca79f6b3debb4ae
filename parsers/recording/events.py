"""What a recording says of the host: launches, copies, memsets, allocations, in its order."""

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from math import prod
from operator import itemgetter
from pathlib import Path

from depgraph.errors import TraceError
from depgraph.parsers.recording.allocations import LiveMemory, profiled_allocations
from depgraph.parsers.recording.archive import Archive
from depgraph.parsers.recording.tensor_maps import PixelMap, TensorMap, maps_in
from depgraph.parsers.scanning.json_lines import (
    LARGEST,
    Event,
    checked,
    encodable,
    text_of,
    three,
    whole,
)
from depgraph.recorder.unseen import READS_CONSTANTS, STORES_TILES, USES_OWN_MAPS
from depgraph.system.text import LARGEST_ID, in_short
from depgraph.trace import records

CALLS = frozenset({"stream", "sync", "graph", "edges"})
_STREAMS = (records.Calls.LEGACY, records.Calls.BLOCKING, records.Calls.NON_BLOCKING)
_SYNCS = {
    "record": records.Calls.RECORDS,
    "wait": records.Calls.AWAITS,
    "event": records.Calls.HOST_AWAITS_EVENT,
    "stream": records.Calls.HOST_AWAITS_STREAM,
    "context": records.Calls.HOST_AWAITS_CONTEXT,
}
_ADDRESS_END = 1 << 57
_MOST_IN_GRID = (1 << 31) - 1
_MOST_THREADS = 1024
_MOST_IN_CLUSTER = 16  # bits of a multicast mask
_HOST_TO_HOST = "copies from host to host"
_DIRECTIONS = (
    records.SOMEWHERE, _HOST_TO_HOST, records.TO_DEVICE, records.TO_HOST, records.ON_DEVICE
)  # fmt: skip
_LEFT_OUT = "not recorded"
_KNOWN = CALLS | {
    "kernel", "opaque", "copy", "memset", "params", "alloc", "free", "context", "fault", "recording"
}  # fmt: skip
_NO_MANIFEST = (
    "recording of an earlier version, which does not tell whether parts of it are missing"
)
_MOST_REGISTERS = 1 << 10
_MOST_SHARED = 1 << 24
_CONSTANTS = "reads __constant__ memory, which a copy or memset may have written"


@dataclass
class _GraphLaunch:
    begins: int  # place among the calls
    waits_for: dict[int, list[int]]  # each node
    operation_of: dict[int, int] = field(default_factory=dict)  # of nodes that are launched
    idle: set[int] = field(default_factory=set)  # nodes that have launched nothing so far


class HostCalls:
    """Takes events that order streams, each with the operation that comes next."""

    def __init__(self) -> None:
        self.all: list[records.HostCall] = []
        self._graphs: dict[int, dict[int, list[int]]] = {}  # what the nodes of each wait for
        self._launch: _GraphLaunch | None = None  # None as well where its edges are not known

    def take(self, event: Event, operation: int) -> None:
        """Take what a stream is, what orders streams, or where the launch of a graph begins."""
        if event["event"] == "edges":
            waits_for = self._graphs[whole(event, "graph")] = {}
            for pair in event["pairs"]:
                before, node = (checked("node", each, 0, LARGEST) for each in pair)
                waits_for.setdefault(node, []).append(before)
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
        self.all.append(records.HostCall(operation, what, stream, moment, context))

    def _take_graph(self, event: Event) -> records.Calls:
        self._launch = None
        if not whole(event, "begins", most=1):
            return records.Calls.GRAPH_ENDS
        edges = self._graphs.get(whole(event, "graph")) if "graph" in event else None
        if edges is None:
            return records.Calls.UNKNOWN_GRAPH_BEGINS
        self._launch = _GraphLaunch(len(self.all), edges)
        return records.Calls.GRAPH_BEGINS

    def note_stream(self, event: Event, operation: int) -> None:
        """Note in which stream a copy or memset runs."""
        if "stream" in event:
            stream = whole(event, "stream", most=LARGEST_ID)
            self.all.append(records.HostCall(operation, records.Calls.RUNS_IN, stream))
        self.note_node(event, operation)

    def note_node(self, event: Event, operation: int) -> None:
        """Note after which nodes of its graph an operation runs."""
        launch = self._launch
        if launch is None:
            return
        node = whole(event, "node") if "node" in event else None
        if node is None or node in launch.operation_of or node in launch.idle:
            begins = self.all[launch.begins]
            self.all[launch.begins] = replace(begins, what=records.Calls.UNKNOWN_GRAPH_BEGINS)
            self._launch = None
            return
        for after in _operations_before(launch, node):
            self.all.append(records.HostCall(operation, records.Calls.GRAPH_EDGE, after=after))
        launch.operation_of[node] = operation

    def note_wait(self, event: Event, operation: int) -> None:
        """Note that the host waits for the stream of a copy."""
        stream = whole(event, "stream", most=LARGEST_ID)
        self.all.append(records.HostCall(operation, records.Calls.HOST_AWAITS_STREAM, stream))


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


@dataclass(frozen=True, slots=True)
class Launched:
    """One launch of a recording."""

    number: int
    launch: records.KernelLaunch
    cluster: tuple[int, int, int]  # blocks of a cluster; zeros where there are none
    untraced: str | None  # why it was not recorded, or not wholly
    bytes: int  # of its tables
    maps: tuple[tuple[int, TensorMap | PixelMap], ...] = ()  # given, by place
    stores_tiles: bool | None = None  # by TMA, which no hook sees; None if nobody read its code
    parameters: tuple[int, int] = (0, 0)  # where they begin and end, if that is known


class RecordedEvents:
    """What a recording says of its launches, and of what the host did between them."""

    def __init__(self, path: Path, memory_limit: int | None = None) -> None:
        self._path = path
        self.operations: list[records.Operation] = []
        self.place: dict[int, int] = {}  # of each launch, by number, among the operations
        self.launches: list[Launched] = []
        self._maps: dict[int, list[tuple[int, TensorMap | PixelMap]]] = {}
        self._parameters: dict[int, tuple[int, int]] = {}
        self._memory = LiveMemory()
        self._reads_constants: set[int] = set()  # numbers of launches
        self._writes_constants = False
        self._writes_elsewhere = False  # a kernel, outside of all memory that is known
        self._calls = HostCalls()
        self.part = records.ScannedPart(host_calls=self._calls.all, allocations=self._memory.all)
        self._warnings = self.part.warnings
        with closing(Archive(path, memory_limit)) as archive:
            if not archive.has_manifest:
                self._warnings[_NO_MANIFEST] = 1
            self.architecture: int | None = archive.about.get("architecture")
            self.process: int | None = archive.about.get("process")
            events = self._in_order(archive.events())
            self._tells_memory = any(event["event"] == "alloc" for _, event in events)
            for line, event in events:
                try:
                    self._take(event, archive)
                except (KeyError, TypeError, ValueError) as error:
                    why = f"{error} is missing" if isinstance(error, KeyError) else error
                    found = f"event {line} is not understood ({why})"
                    raise TraceError(path, found, "record the program again") from None
            archive.refuse_tables_but_of(self.place)
        number_of = {place: number for number, place in self.place.items()}
        for place, operation in enumerate(self.operations):
            self.part.add_launch((number_of.get(place, -1 - place),), operation)
        if self._writes_constants or self._writes_elsewhere:
            for place, each in enumerate(self.launches):
                if each.number in self._reads_constants:
                    self.launches[place] = replace(each, untraced=each.untraced or _CONSTANTS)

    def take_memory_profile(self, path: Path) -> None:
        """Add the tensors of PyTorch's caching allocator; see `profiled_allocations`."""
        launches = [(self.place[each.number], each.launch) for each in self.launches]
        segments, n = self.part.allocations, len(self.operations)
        found, left_out = profiled_allocations(path, launches, segments, self.process, n)
        self.part.allocations = [*segments, *found]
        if left_out:
            self._warnings["allocations and frees of the profile in memory that the recorded "
                          "program lacks: left out"] = left_out  # fmt: skip

    def _in_order(self, events: Iterable[Event]) -> list[tuple[int, Event]]:
        """Return events and their lines as the host called: some are written later."""
        latest = 0
        found = []
        for self.part.lines, event in enumerate(events, 1):
            what = event.get("event")
            if not isinstance(what, str) or what not in _KNOWN:
                kind = in_short(repr(what))
                message = f"event {self.part.lines} is of a kind that is not known: {kind}"
                raise TraceError(self._path, message, "record the program again")
            order = event.get("order", latest)
            latest = order if type(order) is int else latest
            # What a launch was given is told once it has ended, and is looked at where it begins.
            rank = 0 if what == "params" else 1
            found.append((rank, latest, self.part.lines, event))
        return [(line, event) for *_, line, event in sorted(found, key=itemgetter(0, 1))]

    def _take(self, event: Event, archive: Archive) -> None:
        what = event["event"]
        others = {
            "opaque": self._take_opaque, "copy": self._take_copy, "memset": self._take_memset,
            "alloc": self._take_memory, "free": self._take_memory,
        }  # fmt: skip
        if what == "kernel":
            self._take_kernel(event, archive)
        elif what in others:
            others[what](event)
        elif what in CALLS:
            self._calls.take(event, len(self.operations))
        elif what == "params":
            number, given = whole(event, "number"), bytes.fromhex(text_of(event, "bytes"))
            at = whole(event, "at", most=_ADDRESS_END)
            self._maps[number], self._parameters[number] = maps_in(given), (at, at + len(given))
        elif what == "fault":
            said = [text_of(event, key) for key in ("what", "reason") if key in event]
            self._warnings[f"faults of the recorder: {': '.join(said)}"] += 1

    def _take_kernel(self, event: Event, archive: Archive) -> None:
        number = whole(event, "number")
        static = whole(event, "static_shared", -1, _MOST_SHARED)
        dynamic = whole(event, "dynamic_shared", -1, _MOST_SHARED)
        registers = whole(event, "registers", -1, _MOST_REGISTERS)
        cluster = three(event, "cluster", 0, _MOST_IN_CLUSTER)
        if prod(cluster) > _MOST_IN_CLUSTER:
            raise ValueError(f"a cluster of {prod(cluster)} blocks")
        launch = records.KernelLaunch(
            name=text_of(event, "name"),
            grid=three(event, "grid", 1, _MOST_IN_GRID),
            block=three(event, "block", 1, _MOST_THREADS),
            registers=registers if registers >= 0 else None,
            shared_bytes=static + dynamic if min(static, dynamic) >= 0 else None,
            stream=whole(event, "stream", most=LARGEST_ID),
            context=whole(event, "context", most=LARGEST_ID),
            mangled_name=text_of(event, "mangled"),
            trace_id=number,
            architecture=self.architecture,
            nvtx=" / ".join(_texts(event, "ranges")) or None,
            programmatic=_programmatic(event),
            is_unified=True,
        )
        self._place(event, number, launch)
        self._writes_elsewhere |= bool(event.get("writes_elsewhere"))
        reason = None
        if event["state"] != "recorded":
            reason = _LEFT_OUT
        elif event.get("strays"):
            reason = "launches kernels itself, whose accesses are not recorded"
        elif event.get("aliased"):
            reason = "touches memory that is mapped at two addresses"
        elif whole(event, "lost"):
            reason = "more than the recorder had room for"
            self._warnings["kernels that touched more than the recorder had room for (record with "
                          "more --gpu-memory)"] += 1  # fmt: skip
        unseen = set(_texts(event, "unseen"))
        if READS_CONSTANTS in unseen:
            self._reads_constants.add(number)
        stores_tiles = STORES_TILES in unseen if "unseen" in event else None
        # Such maps tell what is loaded, but of what is stored nobody knows them.
        told = {READS_CONSTANTS, STORES_TILES, *([] if stores_tiles else [USES_OWN_MAPS])}
        others = sorted(unseen - told)
        maps = tuple(  # outside of all memory that is known there is no tensor
            (at, tensor)
            for at, tensor in self._maps.get(number, ())
            if not self._tells_memory
            or self._memory.holding(tensor.address, tensor.end - tensor.address)
        )
        self.launches.append(
            Launched(
                number, launch, cluster, reason or "; ".join(others) or None,
                archive.bytes_of(number), maps, stores_tiles,
                self._parameters.get(number, (0, 0)),
            )
        )  # fmt: skip

    def _place(self, event: Event, number: int, launch: records.KernelLaunch) -> None:
        self._calls.note_node(event, len(self.operations))
        if number in self.place:
            raise ValueError(f"launch {number} came before")
        self.place[number] = len(self.operations)
        self.operations.append(launch)

    def _take_opaque(self, event: Event) -> None:
        """Take what is no kernel, and nobody sees into: a launch without footprint, by its name."""
        number = whole(event, "number")
        launch = records.KernelLaunch(
            name=text_of(event, "name"), grid=(1, 1, 1), block=(1, 1, 1), registers=None,
            shared_bytes=None, stream=whole(event, "stream", most=LARGEST_ID),
            context=whole(event, "context", most=LARGEST_ID), trace_id=number,
            architecture=self.architecture, is_unified=True,
        )  # fmt: skip
        self._place(event, number, launch)
        self.launches.append(Launched(number, launch, (0, 0, 0), _LEFT_OUT, 0))

    def _take_copy(self, event: Event) -> None:
        what = _DIRECTIONS[whole(event, "direction", most=len(_DIRECTIONS) - 1)]
        if what == _HOST_TO_HOST:
            self.part.skipped[what] += 1
            return
        size = whole(event, "bytes", most=_ADDRESS_END)
        rows = max(1, whole(event, "height")) * max(1, whole(event, "depth"))
        if rows > 1:
            pitch = max(whole(event, f"{end}_pitch", most=_ADDRESS_END) for end in ("from", "to"))
            size = (rows - 1) * pitch + whole(event, "width", most=_ADDRESS_END)
            self._warnings["copies of rows with gaps, taken for copies of the gaps, too"] += 1
        if whole(event, "depth") > 1:  # nobody tells how far apart the slices lie
            ends = (whole(event, end, most=LARGEST_ID) for end in ("from", "to"))
            size = max([size, *map(self._memory.behind, ends)])
            self._warnings["copies in three dimensions, taken for copies of all that lies behind "
                          "them in their memory"] += 1  # fmt: skip
        # CUDA Runtime API, "API synchronization behavior": what is sure whatever the memory is.
        is_waited_for = "stream" in event and not event.get("async", 1)
        if is_waited_for and what == records.TO_DEVICE:
            self._calls.note_wait(event, len(self.operations))
        to = self._end_of_copy(event, "to", size, on_host=what == records.TO_HOST)
        if to is not None:
            self._writes_constants |= self._memory.may_be_a_modules(to, size)
        source = self._end_of_copy(event, "from", size, on_host=what == records.TO_DEVICE)
        self._calls.note_stream(event, len(self.operations))
        self.operations.append(records.MemoryOperation(to, size, source, what))
        if is_waited_for and what == records.TO_HOST:
            self._calls.note_wait(event, len(self.operations))

    def _end_of_copy(self, event: Event, end: str, size: int, *, on_host: bool) -> int | None:
        """Return where a copy begins; None in host memory that no kernel is known to reach."""
        at = whole(event, end, most=LARGEST_ID)
        # The driver tells what of it is pinned or mapped, but for memory that is registered later.
        may_be_reached = self._memory.holding(at, size) or (
            self._writes_elsewhere and at + size <= _ADDRESS_END
        )
        return None if on_host and not may_be_reached else _address(event, end, size)

    def _take_memset(self, event: Event) -> None:
        width, pitch = (whole(event, key, most=_ADDRESS_END) for key in ("width", "pitch"))
        size = width * whole(event, "element")
        rows = max(1, whole(event, "height"))
        if rows > 1 and size < pitch:
            self._warnings["memsets of rows with gaps, taken for memsets of the gaps, too"] += 1
        size += (rows - 1) * pitch
        place = _address(event, "address", size)
        self._writes_constants |= self._memory.may_be_a_modules(place, size)
        self._calls.note_stream(event, len(self.operations))
        self.operations.append(records.MemoryOperation(place, size, what=records.MEMSET))

    def _take_memory(self, event: Event) -> None:
        size = whole(event, "bytes", most=_ADDRESS_END)
        address, context = _address(event, "address", size), event.get("context")
        if event["event"] == "free":
            if not self._memory.is_left_by(address, context):
                self._memory.free(address, len(self.operations), size)
            return
        flags = whole(event, "flags")
        if not self._memory.is_seen_from(address, size, context):
            self._memory.allocate(address, size, flags, len(self.operations), context)


def _texts(event: Event, key: str) -> list[str]:
    values = event.get(key, [])
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise TypeError(f"{key} are {in_short(repr(values))}, no texts")
    return [encodable(key, value) for value in values]


def _programmatic(event: Event) -> str | None:
    found = text_of(event, "programmatic") if "programmatic" in event else None
    if found not in {None, *records.PROGRAMMATIC}:
        raise ValueError(f"programmatic is {in_short(repr(found))}")
    return found


def _address(event: Event, key: str, size: int) -> int:
    return whole(event, key, most=max(0, _ADDRESS_END - size))
