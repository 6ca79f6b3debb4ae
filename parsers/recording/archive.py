"""The file of a recording: a line, then a zip archive of a list of events and the tables of each.

A manifest names every member with its size and digest: what is missing, unknown, there twice or
changed is refused by name. ``docs/formats/recording.md`` describes it.
"""

import hashlib
import io
import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import TraceError
from depgraph.system.described import Field, any_text, fault_of_json, items, optional, whole
from depgraph.system.strict_json import read_json
from depgraph.system.text import LARGEST_ID, in_short, show_bytes
from depgraph.system.workers import default_limit

FORMAT_VERSION = 3
_READABLE = (1, 2, 3)  # the first had no pages, the first two no manifest
_WITH_MANIFEST = 3
MARK = b"depgraph recording\n"
ABOUT = "about.json"
EVENTS = "events.jsonl"
MANIFEST = "manifest.json"
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
            self._refuse_large(ABOUT, _LONGEST_ABOUT, _AGAIN)
            self.about: dict[str, Any] = self._object(self._read(ABOUT), ABOUT)
            self._check_about()
            self.has_manifest = self.about["format"] >= _WITH_MANIFEST
            if self.has_manifest:
                self._take_manifest()
            elif MANIFEST in self._zip.NameToInfo:
                raise self.damaged(f"{MANIFEST} in a recording of an earlier version")
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
            if name not in {ABOUT, EVENTS, MANIFEST} and not _TABLE_NAME.fullmatch(name):
                raise self.damaged(f"{in_short(repr(name))} is no part of a recording")
            seen.add(name)

    def _take_manifest(self) -> None:
        """Take the digests of all members; refuse the recording if they are not those it names."""
        self._refuse_large(MANIFEST, self._limit // _MEMORY_OF_TEXT)
        named = self._object(self._read(MANIFEST), MANIFEST).get("members")
        if not isinstance(named, dict):
            raise self.damaged(f"{MANIFEST} names no members")
        there = {name: info for name, info in self._zip.NameToInfo.items() if name != MANIFEST}
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
            if name == EVENTS:
                self._rows_of_events = rows

    def _check_about(self) -> None:
        found = self.about.get("format")
        if type(found) is not int or found not in _READABLE:
            why = f"is a recording of version {found!r}; this depgraph reads {FORMAT_VERSION}"
            raise TraceError(self._path, why, "record the program again, or update depgraph")
        if strange := fault_of_json(self.about, _ENTRIES):
            raise self.damaged(f"{ABOUT} {strange}")

    def _opened(self) -> zipfile.ZipFile:
        try:
            self._file = self._path.open("rb")
        except OSError as error:
            raise TraceError(self._path, error.strerror or "cannot be read") from None
        try:
            if (size := _bytes_of_directory(self._file)) > self._limit // _MEMORY_OF_TEXT:
                found = f"has a list of members of {show_bytes(size)}"
                raise TraceError(self._path, found, _TRUST)  # noqa: TRY301 - closed below
            return zipfile.ZipFile(self._file)
        except (*_FAULTS, TraceError) as error:
            self._file.close()
            raise error if isinstance(error, TraceError) else self.damaged(error) from None

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
        if found is not None and found.file_size > most:
            size = f"{show_bytes(found.file_size)} unpacked"
            why = f"{member} is {size}, of which at most {show_bytes(most)} is read"
            raise TraceError(self._path, why, hint)

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
        self._refuse_large(EVENTS, self._limit // _MEMORY_OF_TEXT)
        found = self._zip.NameToInfo.get(EVENTS)
        if found and found.file_size > max(_SMALL, _MOST_PACKED * found.compress_size):
            raise self.damaged(f"{EVENTS} says one thing {_MOST_PACKED} times and more")
        line = 0
        for line, text in enumerate(io.BytesIO(self._read(EVENTS)), 1):
            place = f"{EVENTS} line {line}"
            if len(text) > _LONGEST_LINE:
                raise self.damaged(f"{place} is too long")
            yield self._object(text, place)
        if self.has_manifest and self._rows_of_events != line:
            raise self.damaged(f"{EVENTS!r} has other rows than its manifest says")

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
