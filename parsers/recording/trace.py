"""A recording as a trace: kernels with exact footprints, copies and memsets between them."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import TraceError
from depgraph.footprint.footprints import Footprints, concatenate_footprints, join_footprints
from depgraph.parsers.recording import sectors_jit, tensor_maps
from depgraph.parsers.recording.archive import MARK, TABLES, Archive
from depgraph.parsers.recording.events import Launched, RecordedEvents
from depgraph.parsers.recording.stored_tiles import Loads, infer_tiles
from depgraph.parsers.scanning.inputs import InputTrace, TraceInput
from depgraph.recorder.raw_recording import IS_PAGE, IS_WRITTEN, PAGE_BYTES, SECTOR_BYTES
from depgraph.system.arrays import distinct
from depgraph.trace import records

FORMAT = "recording"
_PART_BYTES = 16 << 20
_RANGES_AT_ONCE = 1 << 21
_MOST_RANGES = 1 << 27  # of the loads of a launch: more take minutes
_ADDRESS_END = 1 << 57
_MOST_ROWS_OF_TILE = 1 << 14  # of 16 bytes, as many as shared memory holds
_MAP_STEP = 64
_TILED, _IM2COL = 0, 1  # Sanitizer_LoadMode
_MOST_KEYS = float(1 << 62)
_TMA = "tiles stored by TMA"
_FIRST_WITH_TMA = 90
_NOTHING = "nothing that the recorder sees: it may use TMA alone"
_NOT_UNDERSTOOD = "a tensor map that is not understood"


def sniff(head: bytes) -> bool:
    """Tell whether the first bytes of a file are those of a recording."""
    return head.startswith(MARK)


def open_inputs(inputs: Sequence[TraceInput]) -> "Recording":
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
    file: records.FileState
    launches: tuple[Launched, ...]
    input_bytes: int
    memory_limit: int | None = None

    def scan(self, overflow: records.Overflow | None = None) -> records.ScannedPart:
        """Read what the launches touched."""
        part = records.ScannedPart(
            keys=[(each.number,) for each in self.launches],
            launches=[None] * len(self.launches),
            bytes=self.input_bytes,
            shows_bulk=True,
        )
        pieces: list[records.BlockTouches] = []
        first_row = 0
        with closing(Archive(self.path, self.memory_limit)) as archive:
            for place, launched in enumerate(self.launches):
                pieces.append(read_touches(archive, place, launched, part, first_row, overflow))
                first_row += len(pieces[-1].launch)
        self.file.verify(self.path)
        columns: Iterator[Any] = map(np.concatenate, zip(*pieces, strict=True))
        part.touches = records.BlockTouches(*columns)
        return part


class Recording(InputTrace):
    """The recording of one process; at once at most `memory_limit` bytes of it are unpacked."""

    format = FORMAT
    hint = "record a program that launches kernels"
    blind_spots: tuple[str, ...] = ("what the host does between kernels",)

    def __init__(self, path: Path, memory_limit: int | None = None) -> None:
        super().__init__([TraceInput(path, memory_limit)])
        self._path = path
        self._file = records.FileState.of(path)
        self._memory_limit = memory_limit
        self._events = RecordedEvents(path, memory_limit)

    def take_memory_profile(self, path: Path) -> None:
        """Take what PyTorch's caching allocator did from a trace of its profiler."""
        self._events.take_memory_profile(path)

    def tasks(self) -> Iterator[records.PartTask]:
        """Yield the launches in order, about as many bytes in each part."""
        yield records.KnownPart(self._events.part)
        launches = self._events.launches
        total = max(1, sum(each.bytes for each in launches))
        first, size = 0, 0
        for end, launched in enumerate(launches, 1):
            size += launched.bytes
            if size >= _PART_BYTES or end == len(launches):
                batch, share = tuple(launches[first:end]), self._file.size * size // total
                yield RecordedKernels(self._path, self._file, batch, share, self._memory_limit)
                first, size = end, 0


def read_touches(
    archive: Archive,
    place: int,
    launched: Launched,
    part: records.ScannedPart,
    first_row: int,
    overflow: records.Overflow | None,
) -> records.BlockTouches:
    """Read the tables of one launch, rows from `first_row` on, and say what is not in them."""
    launch = launched.launch
    sectors, tiles, maps = (archive.table(name, launched.number) for name in TABLES)
    loaded, not_understood = _loaded(tiles, maps, launched)
    reason = not_understood or launched.untraced
    if not reason and launched.stores_tiles is not False and not len(tiles):
        if launched.stores_tiles:
            reason = _TMA
        elif not len(sectors) and (launch.architecture or 0) >= _FIRST_WITH_TMA:
            reason = _NOTHING  # it may use what no hook sees, or what an old API does not show
    if reason:
        part.untraced[place] = reason
    elif len(tiles) and launched.stores_tiles is not False:
        part.untraced[place] = _TMA
        begin, end = launched.parameters
        # What loads by maps elsewhere in memory may store by such maps, too, which nobody knows.
        if ((tiles["map"] >= begin) & (tiles["map"] < end)).all():
            _note_stores(loaded, launched, place, part)
    at_once = min(_RANGES_AT_ONCE, overflow.most_ranges) if overflow else _RANGES_AT_ONCE
    slices = _slices(len(sectors), 1, at_once)
    blocks_of = [distinct(sectors["block"][these]) for these in slices]
    known = [np.empty(0, np.int64), *blocks_of, tiles["block"], *loaded.receivers]
    all_blocks = distinct(np.concatenate(known))
    if len(all_blocks) and not 0 <= all_blocks[0] <= all_blocks[-1] < launch.blocks:
        where = f"block {int(all_blocks[-1])} of launch {launched.number}"
        raise archive.damaged(f"{where} is outside its grid")
    n_rows = len(all_blocks)
    accesses = np.bincount(_places(tiles["block"], all_blocks), minlength=n_rows)
    row_of = np.empty(len(sectors), np.int32)
    for these in slices:
        if _last_address(sectors["number"][these]) >= _ADDRESS_END:
            raise archive.damaged(f"launch {launched.number} touches an address that no GPU has")
        row_of[these] = _places(sectors["block"][these], all_blocks)
        here = np.bincount(row_of[these], sectors["accesses"][these], n_rows)
        accesses += here.astype(np.int64)
    runs = (join_footprints(*run, n_rows) for run in sectors_jit.runs_of(sectors, row_of, at_once))
    pieces = chain(runs, _of_loads(loaded, all_blocks, at_once))
    ranges = _joined(pieces, n_rows, first_row, overflow)
    x_size, y_size, _ = launch.grid
    return records.BlockTouches(
        launch=np.full(len(all_blocks), place, np.int32),
        x=(all_blocks % x_size).astype(np.int32),
        y=(all_blocks // x_size % y_size).astype(np.int32),
        z=(all_blocks // (x_size * y_size)).astype(np.int32),
        accesses=accesses,
        instructions=accesses.copy(),
        row=(ranges.block + first_row).astype(np.int32),
        kind=ranges.kind,
        start=ranges.start,
        end=ranges.end,
    )


def _places(blocks: NDArray[np.integer[Any]], among: NDArray[np.int64]) -> NDArray[np.int64]:
    if len(among) and among[-1] == len(among) - 1:  # they are all there
        return blocks.astype(np.int64)
    return np.searchsorted(among, blocks)


def _last_address(number: NDArray[np.uint64]) -> int:
    is_page = number >= IS_PAGE
    sector = int(number[~is_page].max(initial=0))
    page = int((number[is_page] & ~(IS_PAGE | IS_WRITTEN)).max(initial=0))
    return max(sector * SECTOR_BYTES, page * PAGE_BYTES)


def _joined(
    pieces: Iterable[Footprints], n_rows: int, first_row: int, overflow: records.Overflow | None
) -> Footprints:
    """Return the ranges of all pieces, but for those that are too many and were given away."""
    kept: list[Footprints] = []
    for piece in pieces:
        kept.append(piece)
        if overflow and sum(map(len, kept)) > overflow.most_ranges:
            joined = concatenate_footprints(kept, n_rows)
            row = joined.block + np.int32(first_row)
            overflow.take(records.Ranges(row, joined.kind, joined.start, joined.end))
            kept = []
    return concatenate_footprints(kept, n_rows)


def _slices(n: int, ranges_of_each: int, at_once: int) -> list[slice]:
    """Cut n things so that the ranges of each slice are not too many at once."""
    step = max(1, at_once // ranges_of_each)
    return [slice(low, low + step) for low in range(0, n, step)]


def _of_loads(loaded: "_Loaded", blocks: NDArray[np.int64], at_once: int) -> Iterator[Footprints]:
    """Yield what loads read, by the place of each block among `blocks`."""

    def read(
        block: NDArray[np.int64], start: NDArray[np.uint64], end: NDArray[np.uint64]
    ) -> Footprints:
        row = _places(block, blocks).astype(np.int32)
        return join_footprints(
            row, np.full(len(row), records.READ, np.uint8), start, end, len(blocks)
        )

    for each in loaded.boxes:
        block, at, width = _boxes_side_by_side(each)
        for these in _slices(len(at), each.tensor.rows, at_once):
            tile, start, end = tensor_maps.tile_ranges(each.tensor, at[these], width[these])
            yield read(block[these][tile], start, end)
    for tensor, columns in loaded.columns:
        for these in _slices(len(columns.block), tensor.pixels, at_once):
            some = tensor_maps.Columns(*(values[these] for values in columns))
            column, start, end = tensor_maps.pixel_ranges(tensor, some)
            yield read(some.block[column], start, end)


class _Loaded(NamedTuple):
    """What a launch loads by TMA: boxes, and columns of pixels."""

    boxes: list[Loads]
    columns: list[tuple[tensor_maps.PixelMap, tensor_maps.Columns]]

    @property
    def receivers(self) -> list[NDArray[np.int64]]:
        return [each.receiver for each in self.boxes] + [each.block for _, each in self.columns]


def _loaded(tiles: NDArray[Any], maps: NDArray[Any], launched: Launched) -> tuple[_Loaded, str]:
    """Return the loads of a launch by map; none, and why, if they are not understood."""
    known = {int(m["at"]): tensor_maps.decode(m["words"].tolist()) for m in maps}
    found = _Loaded([], [])
    left = _MOST_RANGES
    for at in np.unique(tiles["map"]):
        tensor = known.get(int(at))
        rows = np.flatnonzero(tiles["map"] == at)
        loads = sectors_jit.rows_at(tiles, rows)
        mode = _IM2COL if isinstance(tensor, tensor_maps.PixelMap) else _TILED
        if tensor is None or (loads["mode"] != mode).any():
            return _Loaded([], []), _NOT_UNDERSTOOD
        if isinstance(tensor, tensor_maps.TensorMap) and tensor.rows > _MOST_ROWS_OF_TILE:
            return _Loaded([], []), _NOT_UNDERSTOOD
        of_each = tensor.pixels if isinstance(tensor, tensor_maps.PixelMap) else tensor.rows
        left -= len(rows) * of_each
        if left < 0:
            return _Loaded([], []), "tiles of more rows than depgraph works out"
        receivers = list(_receivers(loads, launched.launch.grid, launched.cluster))
        load, block = (np.concatenate(column) for column in zip(*receivers, strict=True))
        if isinstance(tensor, tensor_maps.PixelMap):
            first = loads["at"][load, : len(tensor.sizes)]
            columns = tensor_maps.columns_of(tensor, block, first, loads["offsets"][load])
            if columns is None:
                return _Loaded([], []), _NOT_UNDERSTOOD
            found.columns.append((tensor, columns))
            continue
        order = np.argsort(load, kind="stable")
        issuer, first = loads["block"].astype(np.int64), tensor.places(loads["at"])
        found.boxes.append(Loads(tensor, rows, first, issuer, load[order], block[order]))
    return found, ""


def _boxes_side_by_side(
    loads: Loads,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    """Return each block's boxes: block, first element, width; those side by side are joined."""
    low, high = loads.at.min(axis=0).astype(np.int64), loads.at.max(axis=0).astype(np.int64)
    extent = high - low + 1
    if float(loads.receiver.max() + 1) * np.prod(extent.astype(float)) >= _MOST_KEYS:
        columns = np.column_stack([loads.receiver, loads.at[loads.load]])
        columns = np.unique(columns, axis=0)
        block, at = columns[:, 0], columns[:, 1:].astype(np.int32)
        return block, at, np.full(len(block), loads.tensor.box[0], np.int64)
    key = np.zeros(len(loads.at), np.int64)
    for d in range(len(extent) - 1, -1, -1):
        key = key * extent[d] + (loads.at[:, d] - low[d])
    key = distinct(loads.receiver * np.prod(extent) + key[loads.load])
    inner = key % extent[0]
    begins = np.ones(len(key), np.bool_)
    # A step of the key by a box is one within the innermost dimension only if that one grows by it.
    begins[1:] = (np.diff(key) != loads.tensor.box[0]) | (np.diff(inner) != loads.tensor.box[0])
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(key)) - 1
    rest, at = key[first], np.empty((len(first), len(extent)), np.int32)
    for d, size in enumerate(extent):
        rest, place = np.divmod(rest, size)
        at[:, d] = low[d] + place
    return rest, at, inner[last] - inner[first] + loads.tensor.box[0]


def _note_stores(
    loaded: _Loaded, launched: Launched, place: int, part: records.ScannedPart
) -> None:
    """Note what a launch may store by TMA: to the tensors that it was given and did not load."""
    seen = {*(each.tensor for each in loaded.boxes), *(tensor for tensor, _ in loaded.columns)}
    # Maps stand at multiples of 64, counted from where those stand that are loaded.
    steps = {at % _MAP_STEP for at, tensor in launched.maps if tensor in seen}
    given = (tensor for at, tensor in launched.maps if at % _MAP_STEP in steps)
    stored = {(t.address, t.sizes, t.strides): t for t in given if t not in seen}
    if not stored:
        return
    found = [
        infer_tiles(tensor, loaded.boxes) if isinstance(tensor, tensor_maps.TensorMap) else None
        for tensor in stored.values()
    ]
    part.reach[place] = records.TILES if all(found) else records.RANGE
    for tensor, tiles in zip(stored.values(), found, strict=True):
        block, start, end = tiles or (
            np.array([-1]), np.array([tensor.address], np.uint64), np.array([tensor.end], np.uint64)
        )  # fmt: skip
        launch = np.full(len(block), place, np.int32)
        part.possible.append(records.PossibleWrites(launch, block, start, end))


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
