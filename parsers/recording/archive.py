"""The file of a recording: a line, then a zip archive of a list of events and the tables of each.

A manifest names every member with its size and digest: what is missing, unknown, there twice or
changed is refused by name. ``docs/formats/recording.md`` describes it.
"""

import hashlib
import io
import json
import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import TraceError
from depgraph.graph.lists import distinct
from depgraph.parsers.recording.sectors_jit import rows_at
from depgraph.parsers.recording.special_memory import SpecialMemory
from depgraph.system.described import Field, any_text, fault_of_json, items, optional, whole
from depgraph.system.limits import LARGEST_ID
from depgraph.system.memory import default_limit
from depgraph.system.strict_json import read_json
from depgraph.system.text import in_short, show_bytes

FORMAT_VERSION = 3
_READABLE = (1, 2, 3)  # the first had no pages, the first two no manifest
_WITH_MANIFEST = 3
MARK = b"depgraph recording\n"
_ABOUT = "about.json"
_EVENTS = "events.jsonl"
_MANIFEST = "manifest.json"
_TABLE_NAME = re.compile(r"(?:sectors|tiles|maps)/\d{7,10}")
_LONGEST_ABOUT = 1 << 20
_LONGEST_LINE = 1 << 20
# What the events of a recording, and its tables, take in memory for each byte.
_MEMORY_OF_TEXT = 16
_MEMORY_OF = {"sectors": 6, "tiles": 32, "maps": 16}
# Deflate packs zeros a thousand to one; the events of programs that launch one kernel for ever
# come to less than a tenth of it.
_MOST_PACKED = 200
_SMALL = 1 << 20
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}  # of others zipfile unpacks all at once
_AGAIN = "record the program again"
_ENTRIES = (
    Field("process", whole(0, LARGEST_ID), "that was recorded"),
    Field("device", whole(0, LARGEST_ID), "that it used"),
    Field("architecture", optional(whole(1, 9999)), "of the GPU"),
    Field("program", items(any_text, "words"), "and its arguments"),
)
_TRUST = "give a larger --memory-limit, if the recording comes from one you trust"
# The end of an archive as zipfile takes it first, without a comment (APPNOTE.TXT, 4.3.14 to 16).
_END, _END_64 = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_ENDS, _LOCATES = b"PK\5\6", b"PK\6\7"
# What zipfile raises on what is damaged, encrypted, or packed in a way that it does not know.
_FAULTS = (
    OSError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, struct.error, ValueError,
    OverflowError, RuntimeError,
)  # fmt: skip

SECTORS = np.dtype(
    [
        ("number", "<u8"), ("block", "<u4"), ("launch", "<u4"), ("read", "<u4"),
        ("written", "<u4"), ("synchronised", "<u4"), ("accesses", "<u4"),
    ]
)  # fmt: skip
TILES = np.dtype(
    [
        ("map", "<u8"), ("block", "<u4"), ("launch", "<u4"), ("at", "<i4", 5),
        ("multicast", "<u4"), ("mode", "<u4"), ("offsets", "<u4"),
    ]
)  # fmt: skip
MAPS = np.dtype(
    [("key", "<u8"), ("at", "<u8"), ("words", "<u8", 16), ("launch", "<u4"), ("is_whole", "<u4")]
)
TABLES = {"sectors": SECTORS, "tiles": TILES, "maps": MAPS}


class Archive:
    """An opened recording."""

    def __init__(self, path: Path, memory_limit: int | None = None) -> None:
        self._path = path
        self._limit = memory_limit or default_limit()
        self._digests: dict[str, str] = {}
        self._rows_of_events: object = None
        self._zip = self._opened()
        try:
            self._refuse_unknown_members()
            self._refuse_large(_ABOUT, _LONGEST_ABOUT, _AGAIN)
            self.about: dict[str, Any] = self._object(self._read(_ABOUT), _ABOUT)
            self._check_about()
            self.has_manifest = self.about["format"] >= _WITH_MANIFEST
            if self.has_manifest:
                self._take_manifest()
            elif _MANIFEST in self._zip.NameToInfo:
                raise self.damaged(f"{_MANIFEST} in a recording of an earlier version")
        except TraceError:
            self.close()
            raise

    def _refuse_unknown_members(self) -> None:
        seen = set[str]()
        for info in self._zip.infolist():
            name = info.filename
            if info.compress_type not in _METHODS:
                raise self.damaged(f"{in_short(repr(name))} is packed as no recorder does")
            if name in seen:
                raise self.damaged(f"{in_short(repr(name))} is there twice")
            if name not in {_ABOUT, _EVENTS, _MANIFEST} and not _TABLE_NAME.fullmatch(name):
                raise self.damaged(f"{in_short(repr(name))} is no part of a recording")
            seen.add(name)

    def _take_manifest(self) -> None:
        """Take the digests of all members; refuse the recording if they are not those it names."""
        self._refuse_large(_MANIFEST, self._limit // _MEMORY_OF_TEXT)
        found = self._object(self._read(_MANIFEST), _MANIFEST)
        named = found.get("members")
        if not isinstance(named, dict):
            raise self.damaged(f"{_MANIFEST} names no members")
        there = {name: info for name, info in self._zip.NameToInfo.items() if name != _MANIFEST}
        for name in [*named, *there]:
            if name not in there:
                raise self.damaged(f"{in_short(repr(name))} is missing")
            if name not in named:
                raise self.damaged(f"{in_short(repr(name))} is not in its manifest")
        for name, member in named.items():
            about = member if isinstance(member, dict) else {}
            digest, rows = about.get("sha256"), about.get("rows")
            if about.get("bytes") != there[name].file_size or not isinstance(digest, str):
                raise self.damaged(f"{in_short(repr(name))} is not as large as its manifest says")
            table = TABLES.get(name.partition("/")[0])
            if table is not None and rows != about["bytes"] / table.itemsize:
                raise self.damaged(f"{in_short(repr(name))} has other rows than its manifest says")
            self._digests[name] = digest
            if name == _EVENTS:
                self._rows_of_events = rows

    def _check_about(self) -> None:
        found = self.about.get("format")
        if type(found) is not int or found not in _READABLE:
            raise TraceError(
                self._path,
                f"is a recording of version {found!r}; this depgraph reads {FORMAT_VERSION}",
                "record the program again, or update depgraph",
            )
        if strange := fault_of_json(self.about, _ENTRIES):
            raise self.damaged(f"{_ABOUT} {strange}")

    def _opened(self) -> zipfile.ZipFile:
        try:
            self._file = self._path.open("rb")
        except OSError as error:
            raise TraceError(self._path, error.strerror or "cannot be read") from None
        try:
            self._refuse_large_directory()
            return zipfile.ZipFile(self._file)
        except _FAULTS as error:
            self._file.close()
            raise self.damaged(error) from None
        except TraceError:
            self._file.close()
            raise

    def _refuse_large_directory(self) -> None:
        size = _bytes_of_directory(self._file)
        if size > self._limit // _MEMORY_OF_TEXT:
            found = f"has a list of members of {show_bytes(size)}"
            raise TraceError(self._path, found, _TRUST)

    def damaged(self, error: object) -> TraceError:
        """Return what to raise where something is wrong with the recording."""
        return TraceError(self._path, f"is a damaged recording ({error})", _AGAIN)

    def _read(self, member: str) -> bytes:
        try:
            with self._zip.open(member) as file:
                # Without a number as many bytes would be unpacked as there are, whatever the list
                # of members says.
                content = file.read(self._zip.getinfo(member).file_size)
        except KeyError:
            raise self.damaged(f"{member} is missing") from None
        except _FAULTS as error:
            raise self.damaged(f"{member}: {error}") from None
        expected = self._digests.get(member)
        if expected is not None and hashlib.sha256(content).hexdigest() != expected:
            raise self.damaged(f"{member} is not what its manifest says")
        return content

    def _refuse_large(self, member: str, most: int, hint: str = _TRUST) -> None:
        """Refuse a member of more than so many bytes: a small file may hold it."""
        found = self._zip.NameToInfo.get(member)
        if found is None or found.file_size <= most:
            return
        raise TraceError(
            self._path,
            f"{member} is {show_bytes(found.file_size)} unpacked, of which at most "
            f"{show_bytes(most)} is read",
            hint,
        )

    def _refuse_packed(self, member: str) -> None:
        """Refuse text that says the same over and over."""
        found = self._zip.NameToInfo.get(member)
        if found and found.file_size > max(_SMALL, _MOST_PACKED * found.compress_size):
            raise self.damaged(f"{member} says one thing {_MOST_PACKED} times and more")

    def _object(self, text: bytes, place: str) -> dict[str, Any]:
        try:
            found = read_json(text)
        except ValueError as error:
            raise self.damaged(f"{place}: {error}") from None
        if not isinstance(found, dict):
            raise self.damaged(f"{place} is no object")
        return found

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events in order."""
        self._refuse_large(_EVENTS, self._limit // _MEMORY_OF_TEXT)
        self._refuse_packed(_EVENTS)
        line = 0
        for line, text in enumerate(io.BytesIO(self._read(_EVENTS)), 1):
            place = f"{_EVENTS} line {line}"
            if len(text) > _LONGEST_LINE:
                raise self.damaged(f"{place} is too long")
            yield self._object(text, place)
        if self.has_manifest and self._rows_of_events != line:
            raise self.damaged(f"{_EVENTS!r} has other rows than its manifest says")

    def refuse_tables_but_of(self, launches: Container[int]) -> None:
        """Refuse tables of launches that no event tells of."""
        for name in self._zip.NameToInfo:
            table, _, number = name.partition("/")
            if table in TABLES and int(number) not in launches:
                raise self.damaged(f"{name!r} is of no launch")

    def table(self, name: str, launch: int) -> NDArray[Any]:
        """Return a table of a launch, by its key in `TABLES`; empty where it has none."""
        member = member_of(name, launch)
        if member not in self._zip.NameToInfo:
            return np.empty(0, TABLES[name])
        self._refuse_large(member, self._limit // _MEMORY_OF[name])
        content = self._read(member)
        if len(content) % TABLES[name].itemsize:
            raise self.damaged(f"{member} is cut")
        return np.frombuffer(content, TABLES[name])

    def bytes_of(self, launch: int) -> int:
        """Return what the tables of a launch take unpacked."""
        members = (member_of(name, launch) for name in TABLES)
        return sum(self._zip.NameToInfo[m].file_size for m in members if m in self._zip.NameToInfo)

    def close(self) -> None:
        """Close the file."""
        self._zip.close()
        self._file.close()


def _bytes_of_directory(file: BinaryIO) -> int:
    """Return how long the list of members is, which is read whole; ValueError if nothing says."""
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - _END.size - _END_64.size - _LOCATOR.size))
    tail = file.read()
    if len(tail) < _END.size or not (
        tail[-_END.size :].startswith(_ENDS) and tail.endswith(b"\0\0")
    ):
        raise ValueError("it is cut")
    found: int = _END.unpack(tail[-_END.size :])[5]
    if tail[-_END.size - _LOCATOR.size :].startswith(_LOCATES):  # as zipfile finds it
        found = _END_64.unpack(tail[: _END_64.size])[8]
    return found


def member_of(table: str, launch: int) -> str:
    """Return the name of a table of a launch within the archive."""
    return f"{table}/{launch:07d}"


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
    path.write_bytes(MARK)
    members: dict[str, dict[str, int | str]] = {}
    with zipfile.ZipFile(path, "a", method, compresslevel=1) as file, ThreadPoolExecutor(1) as pool:

        def write(name: str, content: bytes | memoryview, **counts: int) -> None:
            made = pool.submit(hashlib.sha256, content)
            file.writestr(name, content)
            digest = made.result().hexdigest()
            members[name] = {**counts, "bytes": len(content), "sha256": digest}

        write(_ABOUT, json.dumps({**about, "format": FORMAT_VERSION}).encode())
        tables = _Tables(raw, events)
        memory = SpecialMemory(events)
        lines = []
        for event in memory.seen(events):
            launch = event.get("grid_id", 0)
            places = {name: (event.pop(f"{name}_at", 0), event.pop(name, 0)) for name in TABLES}
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
                    member = member_of(name, event["number"])
                    write(member, rows.view(np.uint8).data, rows=len(rows))
            lines.append(json.dumps(event))
        write(_EVENTS, "\n".join(lines).encode(), rows=len(lines))
        file.writestr(_MANIFEST, json.dumps({"members": members}))


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
        return at + n * TABLES[name].itemsize > len(self._raw)

    def rows(self, name: str, at: int, n: int, launch: int) -> NDArray[Any]:
        if n == 0:
            return np.empty(0, TABLES[name])
        rows, launches = self._whole(name, at, n)
        # As its own type: numpy would copy the launches of a graph for each of its nodes.
        first = np.searchsorted(launches, np.uint32(launch))
        end = np.searchsorted(launches, np.uint32(launch), "right")
        return rows[first:end]

    def _whole(self, name: str, at: int, n: int) -> tuple[NDArray[Any], NDArray[np.uint32]]:
        """Return the rows of all launches that share a table, by launch, and their launches."""
        known = self._shared.get(name)
        if known is None or known[0] != (at, n):
            size = TABLES[name].itemsize
            whole = min(n, max(0, len(self._raw) - at) // size)
            rows = self._raw[at : at + whole * size].view(TABLES[name])
            launches = np.ascontiguousarray(rows["launch"])
            if (launches[1:] < launches[:-1]).any():
                # NumPy sorts numbers of 16 bits in linear time.
                is_small = int(launches.max()) < 1 << 16
                key = launches.astype(np.uint16) if is_small else launches
                order = np.argsort(key, kind="stable")
                rows, launches = rows_at(rows, order), launches[order]
            known = self._shared[name] = (at, n), rows, launches
        return known[1], known[2]
