"""A recording as a trace: kernels with exact footprints, copies and memsets between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from depgraph.errors import TraceError
from depgraph.parsers.recording.archive import MARK, Archive
from depgraph.parsers.recording.events import RecordedEvents
from depgraph.parsers.recording.touches import read_touches
from depgraph.trace.records import (
    BlockTouches,
    FileState,
    KnownPart,
    ScannedPart,
    SourceFiles,
    Trace,
)

if TYPE_CHECKING:
    from depgraph.parsers.recording.events import Launched
    from depgraph.parsers.scanning.inputs import TraceInput
    from depgraph.trace.records import Overflow, PartTask

FORMAT = "recording"
_PART_BYTES = 16 << 20


def sniff(head: bytes) -> bool:
    """Tell whether the first bytes of a file are those of a recording."""
    return head.startswith(MARK)


def open_inputs(inputs: Sequence[TraceInput]) -> Recording:
    """Open the recording of one process: a single file, no pipe."""
    if len(inputs) > 1:
        raise TraceError(inputs[1].name, "is a recording of its own", "extract them one by one")
    if inputs[0].path is None:
        raise TraceError(inputs[0].name, "a recording cannot be piped", "give the file")
    return Recording(inputs[0].path, inputs[0].memory_limit)


@dataclass(frozen=True, slots=True)
class RecordedKernels:
    """Some launches of a recording, in order."""

    path: Path
    file: FileState
    launches: tuple[Launched, ...]
    input_bytes: int
    memory_limit: int | None = None

    def scan(self, overflow: Overflow | None = None) -> ScannedPart:
        """Read what the launches touched."""
        part = ScannedPart(
            keys=[(each.number,) for each in self.launches],
            launches=[None] * len(self.launches),
            bytes=self.input_bytes,
            shows_bulk=True,
        )
        pieces: list[BlockTouches] = []
        first_row = 0
        with closing(Archive(self.path, self.memory_limit)) as archive:
            for place, launched in enumerate(self.launches):
                pieces.append(read_touches(archive, place, launched, part, first_row, overflow))
                first_row += len(pieces[-1].launch)
        self.file.verify(self.path)
        columns = (field.name for field in fields(BlockTouches))
        part.touches = BlockTouches(
            *(np.concatenate([getattr(piece, name) for piece in pieces]) for name in columns)
        )
        return part


class Recording(Trace):
    """The recording of one process; at once at most `memory_limit` bytes of it are unpacked."""

    format = FORMAT
    hint = "record a program that launches kernels"
    blind_spots: tuple[str, ...] = ("what the host does between kernels",)

    def __init__(self, path: Path, memory_limit: int | None = None) -> None:
        self.name = str(path)
        self.sources = SourceFiles([path])
        self._path = path
        self._file = FileState.of(path)
        self._memory_limit = memory_limit
        self._events = RecordedEvents(path, memory_limit)

    def take_memory_profile(self, path: Path) -> None:
        """Take what PyTorch's caching allocator did from a trace of its profiler."""
        self._events.take_memory_profile(path)

    @property
    def input_bytes(self) -> int:
        """Size of the file."""
        return self._file.size

    def tasks(self) -> Iterator[PartTask]:
        """Yield the launches in order, about as many bytes in each part."""
        yield KnownPart(self._events.part)
        launches = self._events.launches
        total = max(1, sum(each.bytes for each in launches))
        first, size = 0, 0
        for end, launched in enumerate(launches, 1):
            size += launched.bytes
            if size >= _PART_BYTES or end == len(launches):
                batch, share = tuple(launches[first:end]), self._file.size * size // total
                yield RecordedKernels(self._path, self._file, batch, share, self._memory_limit)
                first, size = end, 0
