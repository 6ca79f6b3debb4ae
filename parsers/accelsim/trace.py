"""Accel-Sim kernel traces: a folder, its ``kernelslist``, or kernel files alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from depgraph.errors import TraceError
from depgraph.parsers.accelsim import tracez
from depgraph.parsers.accelsim.header import NAME_MARK, parse_header, with_layout
from depgraph.parsers.accelsim.kernel_list import (
    KernelFile,
    KernelList,
    from_files,
    looks_like_list,
)
from depgraph.parsers.accelsim.text import HEAD_BYTES, PartScanner
from depgraph.parsers.scanning.inputs import TraceStream, WholeInput, compression_of, find_mark
from depgraph.trace.records import KnownPart, MemoryOperation, ScannedPart, Trace, unreadable

if TYPE_CHECKING:
    from io import BufferedReader

    from depgraph.parsers.accelsim.header import KernelHeader
    from depgraph.parsers.scanning.inputs import TraceInput
    from depgraph.trace.records import FileState, Overflow, PartTask

FORMAT = "accelsim"
BLIND_SPOTS: tuple[str, ...] = (
    "device-to-device copies and memsets are not traced: a dependence through them is missing",
)
_LIST_HEAD_BYTES = 1 << 12
SECTION_BYTES = 16 << 20
# Small kernel files are scanned together: a part costs more than the file.
_BATCH_BYTES = 1 << 20
_BATCH_FILES = 256
_PACKED_WEIGHT = 20  # bytes of text behind a byte of a packed trace
_BLOCK_MARK = b"\n#BEGIN_TB"


def sniff(head: bytes) -> bool:
    """Tell whether the first bytes of a file are a kernel header, or a list of kernels."""
    is_header = head.lstrip().startswith(b"-") and (NAME_MARK in head or b"-grid dim = (" in head)
    return is_header or looks_like_list(head)


def open_inputs(inputs: Sequence[TraceInput]) -> AccelSimTrace:
    """Open kernel files of one run."""
    name = inputs[0].name if len(inputs) == 1 else f"{len(inputs)} kernel files"
    if looks_like_list(inputs[0].head(_LIST_HEAD_BYTES)):
        found = "is a kernelslist without its kernel files"
        raise TraceError(name, found, "give its path, or the folder")
    paths = [item.path for item in inputs if item.path is not None]
    if len(paths) == len(inputs):
        return AccelSimTrace(from_files(paths, name=name))
    if len(inputs) > 1:
        raise TraceError(name, "one of them is a pipe", "give it alone, or give files")
    return AccelSimTrace(KernelList(name), source=inputs[0])


@dataclass(frozen=True, slots=True)
class KernelBatch:
    """Whole kernel files and host copies, each in turn."""

    entries: tuple[tuple[int, KernelFile | MemoryOperation], ...]  # with places in launch order
    input_bytes: int

    def scan(self, overflow: Overflow | None = None) -> ScannedPart:
        """Read and scan the files."""
        scanner = PartScanner(overflow)
        for key, entry in self.entries:
            if isinstance(entry, MemoryOperation):
                scanner.part.add_launch((key,), entry)
                continue
            with _open(entry.path) as stream:
                scanner.scan_kernel(stream, key, str(entry.path), context=entry.context)
            entry.state.verify(entry.path)
        part = scanner.finish()
        part.bytes = self.input_bytes
        return part


@dataclass(frozen=True, slots=True)
class KernelSection:
    """The thread blocks (raw: the lines) of a plain kernel file that start in ``[begin, end)``."""

    path: Path
    key: int
    begin: int
    end: int
    file: FileState
    header: KernelHeader

    @property
    def input_bytes(self) -> int:
        """Bytes of input that this part stands for."""
        return self.end - self.begin

    def scan(self, overflow: Overflow | None = None) -> ScannedPart:
        """Read and scan the section."""
        scanner = PartScanner(overflow)
        try:
            with self.path.open("rb") as file:
                mark = _BLOCK_MARK if self.header.is_grouped else b"\n"
                start = find_mark(file, mark, self.begin, self.end)
                stop = find_mark(file, mark, self.end, self.file.size)
                if start < min(stop, self.end):
                    scanner.scan_kernel(
                        _SectionStream(file, start, stop),
                        self.key,
                        str(self.path),
                        header=self.header,
                        announces=self.begin == 0,
                        is_end_of_file=stop == self.file.size,
                    )
        except OSError as error:
            raise unreadable(self.path, error) from None
        self.file.verify(self.path)
        part = scanner.finish()
        part.bytes = self.input_bytes
        # Lines count from the start of the section.
        part.path = str(self.path)
        part.damage = [replace(damage, path=None) for damage in part.damage]
        if part.damaged_line:
            part.damaged_line = replace(part.damaged_line, path=None)
        return part


class _SectionStream:
    """Bytes ``[position, stop)`` of a file."""

    def __init__(self, file: BufferedReader, position: int, stop: int) -> None:
        self._file = file
        self._left = stop - position
        file.seek(position)

    def readinto(self, buffer: memoryview, /) -> int:
        got = self._file.readinto(buffer[: max(self._left, 0)])
        self._left -= got
        return got


def _open(path: Path) -> TraceStream | tracez.TracezStream:
    stream = TraceStream(path)
    if stream.compression is not None or not tracez.sniff(stream.peek(HEAD_BYTES)):
        return stream
    stream.close()
    return tracez.TracezStream(path)


def _read_alone(stream: TraceStream, overflow: Overflow | None) -> ScannedPart:
    scanner = PartScanner(overflow)
    scanner.scan_kernel(stream, 0, stream.path)
    return scanner.finish()


class AccelSimTrace(Trace):
    """The kernel files of a run in launch order and host copies, or one kernel, `source`."""

    format = FORMAT
    blind_spots = BLIND_SPOTS

    def __init__(
        self,
        kernels: KernelList,
        *,
        source: TraceInput | None = None,
        section_bytes: int = SECTION_BYTES,  # of a large plain file, scanned independently
    ) -> None:
        self.name = kernels.name
        self.sources = kernels.sources
        self._kernels = kernels
        self._source = source
        self._section_bytes = section_bytes

    def tasks(self) -> Iterator[PartTask]:
        """Yield the parts of the trace, in launch order."""
        if self._source is not None:
            yield WholeInput(self._source, _read_alone, 0)
            return
        listed = self._kernels
        yield KnownPart(listed.part, listed.part.bytes)
        batch: list[tuple[int, KernelFile | MemoryOperation]] = []
        size = weight = 0
        for key, entry in enumerate(listed.entries):
            sections = self._sections(key, entry) if isinstance(entry, KernelFile) else []
            if batch and (sections or weight > _BATCH_BYTES or len(batch) == _BATCH_FILES):
                yield KernelBatch(tuple(batch), size)
                batch, size, weight = [], 0, 0
            yield from sections
            if not sections:
                batch.append((key, entry))
            if not sections and isinstance(entry, KernelFile):
                size += entry.state.size
                is_packed = not entry.path.name.endswith((".trace", ".traceg"))
                weight += entry.state.size * (_PACKED_WEIGHT if is_packed else 1)
        if batch:
            yield KernelBatch(tuple(batch), size)

    def _sections(self, key: int, entry: KernelFile) -> list[KernelSection]:
        """Cut a large plain kernel file; none if it is small, packed or damaged."""
        size = entry.state.size
        if size < 2 * self._section_bytes:
            return []
        try:
            with entry.path.open("rb") as file:
                head = file.read(HEAD_BYTES)
            if compression_of(head) is not None or tracez.sniff(head):
                return []
            header = with_layout(head, parse_header(head, context=entry.context))
        except (OSError, ValueError):
            return []
        ends = [*range(0, size, self._section_bytes), size]
        return [
            KernelSection(entry.path, key, begin, end, entry.state, header)
            for begin, end in pairwise(ends)
        ]
