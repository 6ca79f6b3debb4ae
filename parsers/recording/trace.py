"""A recording as a trace: kernels with exact footprints, copies and memsets between them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.errors import TraceError
from depgraph.footprint.footprints import (
    Footprints,
    concatenate_footprints,
    join_footprints,
    stack_footprints,
)
from depgraph.parsers.recording.archive import TABLES, Archive, is_recording
from depgraph.parsers.recording.sectors_jit import (
    IS_PAGE,
    IS_WRITTEN,
    MOST_RUNS,
    PAGE_BYTES,
    SECTOR_BYTES,
    Masks,
    ranges_of_masks,
)
from depgraph.parsers.recording.tensor_maps import decode, tile_ranges
from depgraph.system.limits import LARGEST_ID
from depgraph.system.text import in_short
from depgraph.trace.records import (
    READ,
    BlockTouches,
    HostCopy,
    KernelLaunch,
    Ranges,
    ScannedPart,
)
from depgraph.trace.sources import FileState, SourceFiles

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from depgraph.parsers.scanning.compression import TraceInput
    from depgraph.trace.records import Operation, Overflow, PartTask

FORMAT = "recording"
BLIND_SPOTS: tuple[str, ...] = (
    "copies to the host are left out, and what the host does between kernels",
)
_PART_BYTES = 16 << 20
_SECTORS_AT_ONCE = 1 << 16  # ranges of so many take 66 MB at most
_ADDRESS_END = 1 << 57
_LARGEST = (1 << 32) - 1  # of what the recorder counts
_MOST_IN_GRID = (1 << 31) - 1
_MOST_THREADS = 1024
_DIMENSIONS = 3
_MOST_ARCHITECTURE = 9999
_MOST_IN_CLUSTER = 16  # bits of a multicast mask
_MOST_ROWS_OF_TILE = 1 << 14  # of 16 bytes, as many as shared memory holds
_RECORDED = "recorded"
_UNKNOWN, _HOST_TO_HOST, _TO_DEVICE, _TO_HOST, _ON_DEVICE = range(5)
_TMA = "tiles stored by TMA"
_INCOMPLETE = "more than the recorder had room for"
_LEFT_OUT = "not recorded"
_PARENT = "launches kernels itself, whose accesses are not recorded"


def sniff(head: bytes) -> bool:
    """Tell whether the first bytes of a file are those of a recording."""
    return is_recording(head)


def open_inputs(inputs: Sequence[TraceInput]) -> Recording:
    """Open the recording of one process.

    Raises
    ------
    TraceError
        If there are several, or it comes through a pipe.
    """
    if len(inputs) > 1:
        raise TraceError(inputs[1].name, "is a recording of its own", "extract them one by one")
    if inputs[0].path is None:
        raise TraceError(inputs[0].name, "a recording cannot be piped", "give the file")
    return Recording(inputs[0].path)


@dataclass(frozen=True, slots=True)
class Launched:
    """One launch of a recording.

    Attributes
    ----------
    number : int
    launch : KernelLaunch
    cluster : (int, int, int)
        Blocks of a cluster; zeros where there are none.
    untraced : str or None
        Why it was not recorded, or not wholly.
    bytes : int
        Of its tables.
    """

    number: int
    launch: KernelLaunch
    cluster: tuple[int, int, int]
    untraced: str | None
    bytes: int


@dataclass(frozen=True, slots=True)
class RecordedKernels:
    """Some launches of a recording, in order.

    Attributes
    ----------
    path : Path
    file : FileState
    launches : tuple of Launched
    """

    path: Path
    file: FileState
    launches: tuple[Launched, ...]
    input_bytes: int

    def scan(self, overflow: Overflow | None = None) -> ScannedPart:
        """Read what the launches touched.

        Raises
        ------
        TraceError
            If the recording is damaged, or not as it was when it was opened.
        """
        part = ScannedPart(
            keys=[(each.number,) for each in self.launches],
            launches=[each.launch for each in self.launches],
            bytes=self.input_bytes,
            shows_bulk=True,
        )
        archive = Archive(self.path)
        try:
            pieces: list[_Rows] = []
            first_row = 0
            for place, launched in enumerate(self.launches):
                pieces.append(_touches(archive, place, launched, part, first_row, overflow))
                first_row += len(pieces[-1].block)
        finally:
            archive.close()
        self.file.verify(self.path)
        part.touches = _stacked(pieces)
        return part


@dataclass(frozen=True, slots=True)
class _Rows:
    """What the blocks of one launch touched."""

    launch: int
    grid: tuple[int, int, int]
    block: NDArray[np.int64]
    accesses: NDArray[np.int64]
    ranges: Footprints


def _touches(
    archive: Archive,
    place: int,
    launched: Launched,
    part: ScannedPart,
    first_row: int,
    overflow: Overflow | None,
) -> _Rows:
    """Read the tables of one launch, and say what is not in them."""
    launch = launched.launch
    sectors, tiles, maps = (archive.table(name, launched.number) for name in TABLES)
    readers, reads = _tile_reads(tiles, maps, launch, launched.cluster)
    reason = launched.untraced
    if reads is None:
        reason = "a tensor map that is not understood"
        reads, readers = stack_footprints([]), np.empty(0, np.int64)
    elif len(tiles):
        reason = reason or _TMA
    if reason:
        part.untraced[place] = reason
    all_blocks = np.unique(
        np.concatenate(
            [sectors["block"].astype(np.int64), tiles["block"].astype(np.int64), readers]
        )
    )
    archive.refuse(
        f"block {int(all_blocks[-1])} of launch {launched.number} is outside its grid"
        if len(all_blocks) and not 0 <= all_blocks[0] <= all_blocks[-1] < launch.blocks
        else f"launch {launched.number} touches an address that no GPU has"
        if len(sectors) and _addresses(sectors["number"]).max() >= _ADDRESS_END
        else ""
    )
    row_of = np.searchsorted(all_blocks, sectors["block"]).astype(np.int32)
    plain = _plain(sectors, row_of, len(all_blocks), first_row, overflow)
    moved = Footprints(
        np.searchsorted(all_blocks, readers)[reads.block].astype(np.int32),
        reads.kind, reads.start, reads.end,
    )  # fmt: skip
    accesses = np.bincount(row_of, weights=sectors["accesses"], minlength=len(all_blocks))
    loaders = np.searchsorted(all_blocks, tiles["block"])
    accesses += np.bincount(loaders, minlength=len(all_blocks))
    return _Rows(
        place,
        launch.grid,
        all_blocks,
        accesses.astype(np.int64),
        concatenate_footprints([plain, moved], len(all_blocks)) if len(moved) else plain,
    )


def _addresses(number: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return where sectors and pages begin."""
    is_page = number >= IS_PAGE
    at = np.where(is_page, number & ~(IS_PAGE | IS_WRITTEN), number)
    # What is beyond all addresses must not wrap around to one.
    capped = np.minimum(at, np.uint64(_ADDRESS_END))
    return capped * np.where(is_page, np.uint64(PAGE_BYTES), np.uint64(SECTOR_BYTES))


def _plain(
    sectors: NDArray[Any],
    row_of: NDArray[np.int32],
    n_rows: int,
    first_row: int,
    overflow: Overflow | None,
) -> Footprints:
    """Return the ranges of sectors, but for those that are too many and were given away."""
    pieces: list[Footprints] = []
    for low in range(0, len(sectors), _SECTORS_AT_ONCE):
        these = slice(low, low + _SECTORS_AT_ONCE)
        pieces.append(_ranges(sectors[these], row_of[these], n_rows))
        if overflow and sum(map(len, pieces)) > overflow.most_ranges:
            joined = concatenate_footprints(pieces, n_rows)
            row = joined.block + np.int32(first_row)
            overflow.take(Ranges(row, joined.kind, joined.start, joined.end))
            pieces = []
    return concatenate_footprints(pieces, n_rows)


def _ranges(sectors: NDArray[Any], row_of: NDArray[np.int32], n_rows: int) -> Footprints:
    masks = Masks(row_of, *(np.ascontiguousarray(sectors[name]) for name in Masks._fields[1:]))
    room = MOST_RUNS * len(sectors)
    row, kind = np.empty(room, np.int32), np.empty(room, np.uint8)
    start, end = np.empty((2, room), np.uint64)
    n = ranges_of_masks(masks, row, kind, start, end)
    return join_footprints(row[:n], kind[:n], start[:n], end[:n], n_rows)


def _tile_reads(
    tiles: NDArray[Any],
    maps: NDArray[Any],
    launch: KernelLaunch,
    cluster: tuple[int, int, int],
) -> tuple[NDArray[np.int64], Footprints | None]:
    """Return the blocks that loads of tiles are for, and what each reads; None if not understood.

    The ranges name a block by its place in the first array.
    """
    known = {int(m["at"]): decode(m["words"].tolist()) for m in maps}
    parts = []
    for at in np.unique(tiles["map"]):
        tensor = known.get(int(at))
        loads = tiles[tiles["map"] == at]
        if tensor is None or tensor.rows > _MOST_ROWS_OF_TILE or loads["mode"].any():
            return np.empty(0, np.int64), None
        # The same tile may be loaded many times over by a block: once is enough.
        loads = np.unique(loads[["block", "multicast", "at"]])
        load, start, end = tile_ranges(tensor, loads["at"][:, : len(tensor.sizes)])
        for source, block in _receivers(loads, launch.grid, cluster):
            mine = np.flatnonzero(np.isin(load, source))
            of_load = np.full(len(loads), -1, np.int64)
            of_load[source] = block
            parts.append((of_load[load[mine]], start[mine], end[mine]))
    if not parts:
        empty = np.empty(0, np.int64)
        return empty, stack_footprints([])
    block, start, end = (np.concatenate(column) for column in zip(*parts, strict=True))
    blocks, row = np.unique(block, return_inverse=True)
    kind = np.full(len(row), READ, np.uint8)
    return blocks, join_footprints(row.astype(np.int32), kind, start, end, len(blocks))


def _receivers(
    loads: NDArray[Any], grid: tuple[int, int, int], cluster: tuple[int, int, int]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield loads, and for each the block that gets it: several where it is a multicast."""
    block = loads["block"].astype(np.int64)
    alone = np.flatnonzero(loads["multicast"] == 0)
    if len(alone):
        yield alone, block[alone]
    x, y, z = block % grid[0], block // grid[0] % grid[1], block // (grid[0] * grid[1])
    cx, cy, cz = (max(1, size) for size in cluster)
    for rank in range(cx * cy * cz):
        chosen = np.flatnonzero(loads["multicast"] >> rank & 1)
        if len(chosen):
            there = (
                x[chosen] // cx * cx + rank % cx,
                y[chosen] // cy * cy + rank // cx % cy,
                z[chosen] // cz * cz + rank // (cx * cy),
            )
            yield chosen, there[0] + grid[0] * (there[1] + grid[1] * there[2])


def _stacked(pieces: Sequence[_Rows]) -> BlockTouches:
    """Put the rows of several launches one after another."""
    first = np.concatenate([[0], np.cumsum([len(p.block) for p in pieces])]).astype(np.int64)
    x_size, y_size = (
        np.concatenate([np.full(len(p.block), p.grid[d], np.int64) for p in pieces]) for d in (0, 1)
    )
    block = np.concatenate([p.block for p in pieces])
    accesses = np.concatenate([p.accesses for p in pieces])
    return BlockTouches(
        launch=np.concatenate([np.full(len(p.block), p.launch, np.int32) for p in pieces]),
        x=(block % x_size).astype(np.int32),
        y=(block // x_size % y_size).astype(np.int32),
        z=(block // (x_size * y_size)).astype(np.int32),
        accesses=accesses,
        instructions=accesses,
        row=np.concatenate(
            [p.ranges.block + low for p, low in zip(pieces, first[:-1], strict=True)]
        ).astype(np.int32),
        kind=np.concatenate([p.ranges.kind for p in pieces]),
        start=np.concatenate([p.ranges.start for p in pieces]),
        end=np.concatenate([p.ranges.end for p in pieces]),
    )


class Recording:
    """The recording of one process.

    Parameters
    ----------
    path : Path

    Raises
    ------
    TraceError
        If it is none, or damaged.
    """

    format = FORMAT
    blind_spots = BLIND_SPOTS

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self.sources = SourceFiles([path])
        self._path = path
        self._file = FileState.of(path)
        self._events = _Events(path)

    @property
    def input_bytes(self) -> int:
        """Size of the file."""
        return self._file.size

    def tasks(self) -> Iterator[PartTask]:
        """Yield the launches in order, about as many bytes in each part."""
        yield _Notes(self._events)
        batch: list[Launched] = []
        for launched in self._events.launches:
            batch.append(launched)
            if sum(each.bytes for each in batch) >= _PART_BYTES:
                yield self._part(batch)
                batch = []
        if batch:
            yield self._part(batch)

    def _part(self, batch: list[Launched]) -> RecordedKernels:
        total = sum(each.bytes for each in self._events.launches)
        share = self._file.size * sum(each.bytes for each in batch) // max(1, total)
        return RecordedKernels(self._path, self._file, tuple(batch), share)

    def program_order(self) -> _InOrder:
        """Return what numbers the operations."""
        return _InOrder(self._events)

    def untraced(self, launch: KernelLaunch) -> str | None:
        """Say nothing: what is not in a recording is told with each launch."""


class _Events:
    """What a recording says of its launches, and of copies and memsets between them.

    Attributes
    ----------
    operations : list of Operation
    place : dict
        Of each launch, by number, among the operations.
    launches : list of Launched
    skipped, warnings : Counter
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.operations: list[Operation] = []
        self.place: dict[int, int] = {}
        self.launches: list[Launched] = []
        self.skipped: Counter[str] = Counter()
        self.warnings: Counter[str] = Counter()
        self.lines = 0
        archive = Archive(path)
        try:
            self.architecture = _architecture(archive)
            for line, event in enumerate(archive.events(), 1):
                self.lines = line
                try:
                    self._take(event, archive)
                except (KeyError, TypeError, ValueError) as error:
                    why = f"{error} is missing" if isinstance(error, KeyError) else error
                    found = f"event {line} is not understood ({why})"
                    raise TraceError(path, found, "record the program again") from None
        finally:
            archive.close()

    def _take(self, event: dict[str, Any], archive: Archive) -> None:
        what = event["event"]
        if what == "kernel":
            self._take_kernel(event, archive)
        elif what == "copy":
            self._take_copy(event)
        elif what == "memset":
            self._take_memset(event)
        elif what == "fault":
            self.warnings[f"faults of the recorder: {event['what']}"] += 1

    def _take_kernel(self, event: dict[str, Any], archive: Archive) -> None:
        number = _whole(event, "number")
        if number in self.place:
            message = f"launch {number} came before"
            raise ValueError(message)
        static, dynamic = _whole(event, "static_shared", -1), _whole(event, "dynamic_shared")
        registers = _whole(event, "registers", -1)
        cluster = _three(event, "cluster", 0, _MOST_IN_CLUSTER)
        if prod(cluster) > _MOST_IN_CLUSTER:
            message = f"a cluster of {prod(cluster)} blocks"
            raise ValueError(message)
        launch = KernelLaunch(
            name=_text(event, "name"),
            grid=_three(event, "grid", 1, _MOST_IN_GRID),
            block=_three(event, "block", 1, _MOST_THREADS),
            registers=registers if registers >= 0 else None,
            shared_bytes=static + dynamic if static >= 0 else None,
            stream=_whole(event, "stream", most=LARGEST_ID),
            context=_whole(event, "context", most=LARGEST_ID),
            mangled_name=_text(event, "mangled"),
            trace_id=number,
            architecture=self.architecture,
        )
        self.place[number] = len(self.operations)
        self.operations.append(launch)
        reason = None
        if event["state"] != _RECORDED:
            reason = _LEFT_OUT
        elif _whole(event, "lost"):
            reason = _INCOMPLETE
            self.warnings["kernels that touched more than the recorder had room for (record with "
                          "more --gpu-memory)"] += 1  # fmt: skip
        elif event.get("strays"):
            reason = _PARENT
        self.launches.append(Launched(number, launch, cluster, reason, archive.bytes_of(number)))

    def _take_copy(self, event: dict[str, Any]) -> None:
        direction = _whole(event, "direction", most=_ON_DEVICE)
        if direction in (_TO_HOST, _HOST_TO_HOST):
            self.skipped["copies to the host"] += 1
            return
        size = _whole(event, "bytes", most=_ADDRESS_END)
        rows = max(1, _whole(event, "height")) * max(1, _whole(event, "depth"))
        if rows > 1:
            pitch = max(_whole(event, f"{end}_pitch", most=_ADDRESS_END) for end in ("from", "to"))
            size = (rows - 1) * pitch + _whole(event, "width", most=_ADDRESS_END)
            self.warnings["copies of rows with gaps, taken for copies of the gaps, too"] += 1
        source = _place(event, "from", size) if direction in (_UNKNOWN, _ON_DEVICE) else None
        self.operations.append(HostCopy(_place(event, "to", size), size, source))

    def _take_memset(self, event: dict[str, Any]) -> None:
        width, pitch = (_whole(event, key, most=_ADDRESS_END) for key in ("width", "pitch"))
        size = width * _whole(event, "element")
        rows = max(1, _whole(event, "height"))
        if rows > 1 and size < pitch:
            self.warnings["memsets of rows with gaps, taken for memsets of the gaps, too"] += 1
        size += (rows - 1) * pitch
        self.operations.append(HostCopy(_place(event, "address", size), size))


def _whole(event: dict[str, Any], key: str, least: int = 0, most: int = _LARGEST) -> int:
    """Return a number of an event; raise ValueError if it cannot be."""
    return _checked(key, event[key], least, most)


def _checked(key: str, value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        message = f"{key} is {in_short(repr(value))}, no whole number from {least} to {most}"
        raise ValueError(message)
    return value


def _text(event: dict[str, Any], key: str) -> str:
    value = event[key]
    if not isinstance(value, str):
        message = f"{key} is {in_short(repr(value))}, no text"
        raise TypeError(message)
    return value


def _three(event: dict[str, Any], key: str, least: int, most: int) -> tuple[int, int, int]:
    values = event[key]
    if not isinstance(values, list) or len(values) != _DIMENSIONS:
        message = f"{key} is {in_short(repr(values))}, no three numbers"
        raise ValueError(message)
    x, y, z = (_checked(key, value, least, most) for value in values)
    return x, y, z


def _place(event: dict[str, Any], key: str, size: int) -> int:
    """Return an address with room for so many bytes behind it."""
    return _whole(event, key, most=max(0, _ADDRESS_END - size))


def _architecture(archive: Archive) -> int | None:
    """Return what the recording says of the GPU, None if that is nothing usable."""
    found = archive.about.get("architecture")
    return found if type(found) is int and 0 < found <= _MOST_ARCHITECTURE else None


@dataclass(frozen=True, slots=True)
class _Notes:
    """What is to be said of a recording as a whole."""

    events: _Events
    input_bytes: int = 0

    def scan(self, overflow: Overflow | None = None) -> ScannedPart:  # noqa: ARG002
        """Return it."""
        return ScannedPart(
            skipped=self.events.skipped, warnings=self.events.warnings, lines=self.events.lines
        )


class _InOrder:
    """The operations of a recording are in order as they are."""

    def __init__(self, events: _Events) -> None:
        self.operations = list(events.operations)
        self._place = events.place

    def add(self, part: ScannedPart) -> NDArray[np.int64]:
        """Return the place of each launch of a part."""
        return np.array([self._place[key[0]] for key in part.keys], np.int64)
