"""What the recorder wrote of each process, before it is packed."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_EVENTS, _TABLES = "events-*.jsonl", "sectors-{}.bin"
EARLIER = 1 << 22  # added to the number of a process that went on to run another program
_LAUNCHED = frozenset({"kernel", "opaque", "copy", "memset"})
_ORDERS = frozenset({"stream", "sync", "graph"})  # which may go by streams of another GPU
# In a table of sectors a number is an address / 32, of a page / 1024 with bits that say so.
_ROW_BYTES = 32
SECTOR_BYTES, PAGE_BYTES = 32, 1024
IS_PAGE, IS_WRITTEN = np.uint64(1 << 63), np.uint64(1 << 62)
_TO_DEVICE, _TO_HOST, _ON_DEVICE = 2, 3, 4  # directions of copies


@dataclass(frozen=True, slots=True)
class RawRecording:
    """What was recorded of one process on one GPU."""

    process: int
    device: int
    architecture: int | None  # of the GPU, such as 90
    events: list[dict[str, Any]]  # in order, without the first, which is about the recording
    tables: NDArray[np.uint8]  # [n]: what the events point into


def read_raw_recordings(
    folder: Path, only_regions_of: Callable[[int], bool] = lambda _: False
) -> list[RawRecording]:
    """Read what the recorder wrote of each process on each GPU that it used."""
    found = []
    for path in sorted(folder.glob(_EVENTS)):
        process, events = int(path.stem.rpartition("-")[2]), _with_tables(json_lines(path)[1:])
        regions = [event for event in events if event["event"] == "region"]
        if regions and only_regions_of(process):
            events = list(_in_regions(events))
        events = [event for event in events if event["event"] != "region"]
        tables = folder / _TABLES.format(process)
        raw = np.memmap(tables, np.uint8, "r") if tables.stat().st_size else np.empty(0, np.uint8)
        contexts = (event for event in events if event["event"] == "context")
        architecture_of = {event["device"]: event["architecture"] for event in contexts}
        devices = {event["device"] for event in events if event["event"] == "kernel"}
        for device in sorted(devices):
            mine = _on(device, events, raw) if len(devices) > 1 else events
            found.append(RawRecording(process, device, architecture_of.get(device), mine, raw))
    return found


def _on(device: int, events: list[dict[str, Any]], raw: NDArray[np.uint8]) -> list[dict[str, Any]]:
    """Return what one of several GPUs takes part in; kernels of others in its memory are opaque."""
    contexts = [event for event in events if event["event"] == "context"]
    here = {event["context"] for event in contexts if event["device"] == device}
    elsewhere = {event["context"] for event in contexts} - here
    memory = _Memory(here, events)
    found = []
    for event in events:
        if event["event"] == "kernel" and event["context"] in elsewhere:
            if memory.is_touched_by(event, raw):
                name = f"(on GPU {event['device']}: {event['name']})"
                known = {key: event[key] for key in ("number", "stream", "context")}
                found.append({"event": "opaque", "name": name, **known})
        elif event["event"] == "copy":
            reads, writes = (event[f"{end}_context"] in here for end in ("from", "to"))
            side = {"direction": _TO_HOST if reads else _TO_DEVICE}
            is_between = reads != writes and event["direction"] == _ON_DEVICE
            if reads or writes or event["to_context"] not in elsewhere:
                found.append({**event, **side} if is_between else event)
        elif event["event"] in _ORDERS or event.get("context") not in elsewhere:
            found.append(event)
    return found


class Spans:
    """Ranges of memory that neither overlap nor touch, in the order of their addresses."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        start, end = np.array(sorted(spans), np.uint64).reshape(-1, 2).T
        end = np.maximum.accumulate(end)
        is_apart = start[1:] > end[:-1]
        self._start = start[np.append(True, is_apart)[: len(start)]]
        self._ends = np.append(np.uint64(0), end[np.append(is_apart, True)[: len(start)]])

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._start)

    def overlap(self, start: int, end: int) -> bool:
        """Tell whether a range of numbers of any size has a byte in common with these."""
        return bool(((self._start < end) & (start < self._ends[1:])).any())

    def meet(self, start: NDArray[np.uint64], end: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Tell of other ranges which have a byte in common with these."""
        found: NDArray[np.bool_] = start < self._ends[np.searchsorted(self._start, end, "left")]
        return found

    def hold(self, start: NDArray[np.uint64], end: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Tell of other ranges which lie in one of these from their first to their last byte."""
        found: NDArray[np.bool_] = end <= self._ends[np.searchsorted(self._start, start, "right")]
        return found


def spans_of(number: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return where sectors and pages begin and end."""
    size = np.where(number >= IS_PAGE, np.uint64(PAGE_BYTES), np.uint64(SECTOR_BYTES))
    start = (number & ~(IS_PAGE | IS_WRITTEN)) * size
    return start, start + size


class _Memory:
    """What some contexts have allocated, at any time; others may see it as well."""

    def __init__(self, contexts: set[int], events: list[dict[str, Any]]) -> None:
        there: dict[int, tuple[int, int]] = {}  # by address: bytes, and who allocated them
        own: set[tuple[int, int]] = set()
        for event in events:
            address = event.get("address", 0)
            known, owner = there.get(address, (0, -1))
            if event["event"] == "free" and event.get("context") == owner:
                del there[address]
            elif event["event"] == "alloc" and event["bytes"] != known:
                there[address] = event["bytes"], event["context"]
                if event["context"] in contexts:
                    own.add((address, address + event["bytes"]))
        self._own = Spans(own)
        self._known: dict[tuple[int, int], bool] = {}  # of tables, which nodes of a graph share

    def is_touched_by(self, kernel: dict[str, Any], raw: NDArray[np.uint8]) -> bool:
        """Tell whether a kernel, or another node of its graph, touches any of it."""
        at, n = kernel.get("sectors_at", 0), kernel.get("sectors", 0)
        if (at, n) not in self._known:
            n_bytes = min(n, max(0, len(raw) - at) // _ROW_BYTES) * _ROW_BYTES
            number = raw[at : at + n_bytes].view(np.uint64)[:: _ROW_BYTES // 8]  # as in table.h
            self._known[at, n] = bool(self._own.meet(*spans_of(number)).any())
        return self._known[at, n]


def _in_regions(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Leave out what is launched outside of regions; ordinals count launches inside."""
    # A region that begins in another one, or ends twice, is the same region.
    is_inside, outside, ended = False, 0, 0
    for event in events:
        if event["event"] == "region":
            if event["begins"] and not is_inside:
                outside += event["launches"] - ended
            elif is_inside and not event["begins"]:
                ended = event["launches"]
            is_inside = bool(event["begins"])
        elif is_inside and event["event"] == "kernel":
            yield {**event, "ordinal": event["ordinal"] - outside}
        elif is_inside or event["event"] not in _LAUNCHED:
            yield event


def _with_tables(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kernels = {event["number"]: event for event in events if event["event"] == "kernel"}
    for event in events:
        if event["event"] == "tables":
            kernels[event["number"]].update({**event, "event": "kernel"})
    for kernel in kernels.values():
        kernel.setdefault("state", "did not end")
    return [event for event in events if event["event"] != "tables"]


def first_fault_in(folder: Path) -> str:
    """Say what the recorder could not do, "" where there is nothing."""
    events = (event for path in sorted(folder.glob(_EVENTS)) for event in json_lines(path))
    faults = (event for event in events if event["event"] == "fault")
    return next((": ".join(filter(None, [e["what"], e.get("reason")])) for e in faults), "")


def json_lines(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a file but for a last one that is cut."""
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found
