"""Memory where footprints do not tell all: of modules, of nobody, and at two addresses."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depgraph.parsers.recording.allocations import OF_A_MODULE
from depgraph.parsers.recording.sectors_jit import (
    IS_PAGE,
    IS_WRITTEN,
    PAGE_BYTES,
    SECTOR_BYTES,
    rows_at,
    runs_of,
)
from depgraph.parsers.recording.tensor_maps import decode, maps_in
from depgraph.trace.records import WRITE

_AT_ONCE = 1 << 16
_MAPPINGS = frozenset({"map", "unmap", "multicast"})  # events that no recording keeps
_ENDS = {"copy": ("from", "to"), "memset": ("address",)}
_OF_OPAQUE = {"stream", "context", "node", "order"}  # keys of an event that what is opaque has, too
_ADDRESS_END = 1 << 57


class SpecialMemory:
    """Notes with launches whether they touch memory of which footprints do not tell all."""

    def __init__(self, events: Sequence[dict[str, Any]]) -> None:
        self._ordinary, self._aliases = OrdinaryMemory(events), Aliases(events)
        self._parameters = {
            event["number"]: bytes.fromhex(event["bytes"])
            for event in events
            if event["event"] == "params"
        }

    def seen(self, events: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield events; copies and memsets of memory at two addresses as what nobody sees into."""
        number = max((event.get("number", 0) for event in events), default=0)
        for event in events:
            if any(self._aliases.overlap(*span) for span in _reached_by(event)):
                number += 1
                kept = {key: event[key] for key in _OF_OPAQUE & event.keys()}
                name = f"(a {event['event']} of memory that is mapped at two addresses)"
                yield {"context": event.get("to_context", 0), **kept} | {
                    "event": "opaque", "number": number, "name": name
                }  # fmt: skip
            elif event["event"] not in _MAPPINGS:
                yield event

    def note(self, event: dict[str, Any], table: str, rows: NDArray[Any]) -> None:
        """Note what a launch touches by a table of it."""
        if table == "sectors" and self._ordinary.is_left_by(rows):
            event["writes_elsewhere"] = 1
        if len(rows) and self._is_aliased(event, table, rows):
            event["aliased"] = 1

    def _is_aliased(self, event: dict[str, Any], table: str, rows: NDArray[Any]) -> bool:
        if table == "sectors":
            return self._aliases.hold_any_of(rows)
        if table != "maps" or not self._aliases:
            return False  # which tiles are loaded, their maps tell
        loaded = (decode(row["words"].tolist()) for row in rows)
        given = maps_in(self._parameters.get(event["number"], b""))
        return any(
            tensor is None or self._aliases.overlap(tensor.address, tensor.end)
            for tensor in [*loaded, *(tensor for _, tensor in given)]
        )


def _reached_by(event: dict[str, Any]) -> Iterator[tuple[int, int]]:
    """Yield where a copy or memset begins, and where it ends at the latest."""
    if event["event"] not in _ENDS:
        return
    pitches = [event.get(key, 0) for key in ("pitch", "from_pitch", "to_pitch")]
    width = max(event.get("bytes", 0), event["width"] * event.get("element", 1))
    size = width + max(0, event["height"] - 1) * max(pitches)
    if event.get("depth", 0) > 1:  # nobody tells how far apart the slices lie
        size = _ADDRESS_END
    for key in _ENDS[event["event"]]:
        yield event[key], event[key] + size


def _joined(spans: Iterable[tuple[int, int]]) -> NDArray[np.uint64]:
    """Return the starts and ends of ranges, those that touch as one."""
    joined: list[list[int]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1][1] = max(end, joined[-1][1])
        else:
            joined.append([start, end])
    return np.array(joined, np.uint64).reshape(-1, 2).T


class Aliases:
    """Memory that was mapped at two addresses at one time, at both of them.

    What stands for memory of several GPUs (multicast) stands for memory that has other addresses.
    """

    def __init__(self, events: Sequence[dict[str, Any]]) -> None:
        mapped: dict[int, tuple[int, int, int]] = {}  # by address: memory, offset, bytes
        of_several = {event["memory"] for event in events if event["event"] == "multicast"}
        found = set()
        for event in events:
            if event["event"] == "unmap":
                end = event["address"] + event["bytes"]
                mapped = {at: its for at, its in mapped.items() if not event["address"] <= at < end}
            elif event["event"] == "map":
                address, size, offset = event["address"], event["bytes"], event["offset"]
                for at, (memory, first, length) in mapped.items():
                    low, high = max(first, offset), min(first + length, offset + size)
                    if memory == event["memory"] and low < high:
                        found |= {(at + low - first, at + high - first)}
                        found |= {(address + low - offset, address + high - offset)}
                mapped[address] = event["memory"], offset, size
                if event["memory"] in of_several:
                    found |= {(address, address + size)}
        self._start, self._end = _joined(found)

    def __bool__(self) -> bool:
        """Whether there is any."""
        return len(self._start) > 0

    def overlap(self, start: int, end: int) -> bool:
        """Tell whether bytes between two addresses are such memory."""
        return bool(((self._start < end) & (start < self._end)).any())

    def hold_any_of(self, rows: NDArray[Any]) -> bool:
        """Tell whether blocks touch any of it, by their sectors and pages."""
        if not self:
            return False
        start, end = _spans(rows["number"])
        place = np.searchsorted(self._start, end - np.uint64(1), "right") - 1
        return bool(((place >= 0) & (start < self._end[place])).any())


class OrdinaryMemory:
    """What is allocated at any time, but for memory of modules."""

    def __init__(self, events: Sequence[dict[str, Any]]) -> None:
        self._start, self._end = _joined(
            (event["address"], event["address"] + event["bytes"])
            for event in events
            if event["event"] == "alloc" and not event["flags"] & OF_A_MODULE
        )

    def is_left_by(self, rows: NDArray[Any]) -> bool:
        """Tell whether blocks write anything else, by their sectors and pages."""
        rows = rows_at(rows, np.flatnonzero(~self._holds_whole(rows["number"])))
        for _, kind, start, end in runs_of(rows, np.zeros(len(rows), np.int32), _AT_ONCE):
            is_written = kind == WRITE
            place = np.searchsorted(self._start, start[is_written], "right") - 1
            if (place < 0).any() or (end[is_written] > self._end[place]).any():
                return True
        return False

    def _holds_whole(self, number: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Tell which sectors and pages lie in it from their first to their last byte."""
        if not len(self._start):
            return np.zeros(len(number), np.bool_)
        start, end = _spans(number)
        place = np.searchsorted(self._start, start, "right") - 1
        found: NDArray[np.bool_] = (place >= 0) & (end <= self._end[place])
        return found


def _spans(number: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return where sectors and pages begin and end."""
    size = np.where(number >= IS_PAGE, np.uint64(PAGE_BYTES), np.uint64(SECTOR_BYTES))
    start = (number & ~(IS_PAGE | IS_WRITTEN)) * size
    return start, start + size
