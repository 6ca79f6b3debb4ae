"""A recording, from what the recorder left: its events and tables, and what footprints do not tell.

That is of memory of modules, of nobody, and at two addresses.
"""

import hashlib
import json
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depgraph.parsers.recording import archive
from depgraph.parsers.recording.allocations import OF_A_MODULE
from depgraph.parsers.recording.sectors_jit import rows_at, runs_of
from depgraph.parsers.recording.tensor_maps import decode, maps_in
from depgraph.recorder.raw_recording import Spans, spans_of
from depgraph.system.arrays import distinct
from depgraph.trace.records import WRITE

_AT_ONCE = 1 << 16
_MAPPINGS = frozenset({"map", "unmap", "multicast"})  # events that no recording keeps
_ENDS = {"copy": ("from", "to"), "memset": ("address",)}
_OF_OPAQUE = {"stream", "context", "node", "order"}  # keys of an event that what is opaque has, too
_ADDRESS_END = 1 << 57


def pack(
    path: Path,
    about: dict[str, Any],
    events: Sequence[dict[str, Any]],  # of kernels: where in `raw` their tables are
    raw: NDArray[np.uint8],
    *,
    compress: bool = True,  # False takes a tenth of the time
) -> None:
    """Write a recording from what the recorder of one process has left."""
    method = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    path.write_bytes(archive.MARK)
    members: dict[str, dict[str, int | str]] = {}
    with zipfile.ZipFile(path, "a", method, compresslevel=1) as file, ThreadPoolExecutor(1) as pool:

        def write(name: str, content: bytes | memoryview, **counts: int) -> None:
            made = pool.submit(hashlib.sha256, content)
            file.writestr(name, content)
            members[name] = {**counts, "bytes": len(content), "sha256": made.result().hexdigest()}

        write(archive.ABOUT, json.dumps({**about, "format": archive.FORMAT_VERSION}).encode())
        tables = _Tables(raw, events)
        memory = SpecialMemory(events)
        lines = []
        for event in memory.seen(events):
            launch = event.get("grid_id", 0)
            places = {n: (event.pop(f"{n}_at", 0), event.pop(n, 0)) for n in archive.TABLES}
            if any(tables.is_cut(name, *place) for name, place in places.items()):
                event["lost"] = event.get("lost", 0) + 1  # the disk was full, or the program killed
            if tables.has_strays(*places["sectors"]):
                event["strays"] = 1
            for name, place in places.items():
                rows = tables.rows(name, *place, launch)
                memory.note(event, name, rows)
                if compress and name == "sectors":  # in order they take half as much
                    rows = rows_at(rows, np.lexsort([rows["number"], rows["block"]]))
                if len(rows):
                    member = archive.member_of(name, event["number"])
                    write(member, rows.view(np.uint8).data, rows=len(rows))
            lines.append(json.dumps(event))
        write(archive.EVENTS, "\n".join(lines).encode(), rows=len(lines))
        file.writestr(archive.MANIFEST, json.dumps({"members": members}))


class _Tables:
    """Tables as the recorder wrote them, in which all nodes of a CUDA graph share one."""

    def __init__(self, raw: NDArray[np.uint8], events: Sequence[dict[str, Any]]) -> None:
        self._raw = raw
        # By table: where the last one was, its rows by launch, and their launches in one piece.
        self._shared: dict[str, tuple[tuple[int, int], NDArray[Any], NDArray[np.uint32]]] = {}
        self._launches_at: dict[tuple[int, int], set[int]] = {}
        self._has_strays: dict[tuple[int, int], bool] = {}
        for event in events:
            if event.get("graph") and event.get("sectors"):
                place = event["sectors_at"], event["sectors"]
                self._launches_at.setdefault(place, set()).add(event["grid_id"])

    def has_strays(self, at: int, n: int) -> bool:
        """Tell whether kernels that are no nodes of a graph filled its table, too."""
        known = self._launches_at.get((at, n))
        if known is None:
            return False
        if (at, n) not in self._has_strays:
            found = distinct(self._whole("sectors", at, n)[1])
            self._has_strays[at, n] = not set(found[found > 0].tolist()) <= known
        return self._has_strays[at, n]

    def is_cut(self, name: str, at: int, n: int) -> bool:
        return at + n * archive.TABLES[name].itemsize > len(self._raw)

    def rows(self, name: str, at: int, n: int, launch: int) -> NDArray[Any]:
        if n == 0:
            return np.empty(0, archive.TABLES[name])
        rows, launches = self._whole(name, at, n)
        # As its own type: numpy would copy the launches of a graph for each of its nodes.
        first = np.searchsorted(launches, np.uint32(launch))
        end = np.searchsorted(launches, np.uint32(launch), "right")
        return rows[first:end]

    def _whole(self, name: str, at: int, n: int) -> tuple[NDArray[Any], NDArray[np.uint32]]:
        """Return the rows of all launches that share a table, by launch, and their launches."""
        known = self._shared.get(name)
        if known is None or known[0] != (at, n):
            size = archive.TABLES[name].itemsize
            whole = min(n, max(0, len(self._raw) - at) // size)
            rows = self._raw[at : at + whole * size].view(archive.TABLES[name])
            launches = np.ascontiguousarray(rows["launch"])
            if (launches[1:] < launches[:-1]).any():
                # NumPy sorts numbers of 16 bits in linear time.
                is_small = int(launches.max()) < 1 << 16
                key = launches.astype(np.uint16) if is_small else launches
                order = np.argsort(key, kind="stable")
                rows, launches = rows_at(rows, order), launches[order]
            known = self._shared[name] = (at, n), rows, launches
        return known[1], known[2]


class SpecialMemory:
    """Notes with launches whether they touch memory of which footprints do not tell all."""

    def __init__(self, events: Sequence[dict[str, Any]]) -> None:
        self._ordinary, self._aliases = ordinary_memory(events), aliased_memory(events)
        given = (event for event in events if event["event"] == "params")
        self._parameters = {event["number"]: bytes.fromhex(event["bytes"]) for event in given}

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
        if table == "sectors" and is_left_by(self._ordinary, rows):
            event["writes_elsewhere"] = 1
        if len(rows) and self._is_aliased(event, table, rows):
            event["aliased"] = 1

    def _is_aliased(self, event: dict[str, Any], table: str, rows: NDArray[Any]) -> bool:
        if table == "sectors":
            return bool(self._aliases.meet(*spans_of(rows["number"])).any())
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


def aliased_memory(events: Sequence[dict[str, Any]]) -> Spans:
    """Return memory that was mapped at two addresses at a time, or of several GPUs (multicast)."""
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
    return Spans(found)


def ordinary_memory(events: Sequence[dict[str, Any]]) -> Spans:
    """Return what is allocated at any time, but for memory of modules."""
    return Spans(
        (event["address"], event["address"] + event["bytes"])
        for event in events
        if event["event"] == "alloc" and not event["flags"] & OF_A_MODULE
    )


def is_left_by(memory: Spans, rows: NDArray[Any]) -> bool:
    """Tell whether blocks write outside of some memory, by their sectors and pages."""
    rows = rows_at(rows, np.flatnonzero(~memory.hold(*spans_of(rows["number"]))))
    for _, kind, start, end in runs_of(rows, np.zeros(len(rows), np.int32), _AT_ONCE):
        is_written = kind == WRITE
        if not memory.hold(start[is_written], end[is_written]).all():
            return True
    return False
