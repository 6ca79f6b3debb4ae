"""The records of a CUTracer file, read line by line into the byte ranges that blocks touched.

Source: ``mem_addr_trace.schema.json`` and ``trace_serialize.cpp`` of facebookresearch/CUTracer
(``serialize_tma``, NVBit 1.8); ``cuTensorMapEncodeTiled`` in the CUDA driver API.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import TraceError
from depgraph.parsers.cutracer import launches
from depgraph.parsers.recording.tensor_maps import MOST_DIMENSIONS, TensorMap, tile_ranges
from depgraph.parsers.scanning import scanning_jit as scanner
from depgraph.parsers.scanning import tables
from depgraph.parsers.scanning.json_lines import DAMAGE, JsonLines, lanes_of
from depgraph.trace.records import LDGSTS_READ, READ, SYNC_READ, WRITE, Damage, Ranges, ScannedPart

if TYPE_CHECKING:
    from depgraph.parsers.scanning.inputs import TraceStream
    from depgraph.trace.records import Dim3, Overflow

TILES, COMPLETION = "tma_trace", "capture_completion"
_DIMENSIONS = 3
_ALL_LANES = (1 << scanner.LANES) - 1
_NOT_NAMED = "has accesses by instructions that the trace does not name"
_INCOMPLETE = "has accesses that CUTracer lost (capture_completion: incomplete)"
_TAKEN_AFTERWARDS = (
    "mem_value_trace records, whose addresses are taken after the instruction: "
    "CUTRACER_INSTRUMENT=mem_addr_trace has those before it"
)
_NOT_PLACED = "launches without records, whose place among the others is not known"
_MOST_BYTES = 1 << 20  # of a bulk copy: more than shared memory holds
_MOST_ROWS = 1 << 14
# CUtensorMapDataType: u8, u16, u32, s32, u64, s64, f16, f32, f64, bf16, f32 ftz, tf32, tf32 ftz.
_ELEMENT_BYTES = (1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4)
Bytes = tuple["NDArray[np.uint64]", "NDArray[np.uint64]"]
_KINDS = {
    scanner.GLOBAL_READ: (READ,),
    scanner.GLOBAL_WRITE: (WRITE,),
    scanner.GLOBAL_UPDATE: (SYNC_READ, WRITE),
    scanner.ORDERED_READ: (SYNC_READ,),
    scanner.ASYNC_COPY: (LDGSTS_READ,),
}


class Access(NamedTuple):
    """An access of a warp to global memory."""

    row: int
    meaning: int
    width: int  # bytes of a lane
    mask: int  # lanes that took part, as far as the record says
    lanes: list[int]  # their addresses
    line: int


class _Reader(JsonLines):
    def __init__(self, overflow: Overflow | None) -> None:
        super().__init__(ScannedPart(), overflow)
        self._tables: dict[int, launches.KernelMetadata] = {}  # of launches, by index
        self._metadata: launches.KernelMetadata | None = None  # by the last metadata line
        self._is_metadata_new = False
        self._index: dict[int, int] = {}  # of launches, by number
        self._rows: dict[tuple[int, int, int, int], int] = {}
        self._opcodes: Counter[tables.MemoryOpcode] = Counter()
        self._tiles_of: dict[int, bool] = {}  # launches with tile records: whether all are known

    def _take(self, line: bytes) -> Access | None:
        if not line.strip():
            return None
        part = self._part
        record = json.loads(line)
        kind = record["type"]
        if kind in launches.ADDRESSES:
            part.access_lines += 1
            return self._access(record)
        if kind == TILES:
            part.access_lines += 1
            self._take_tile(record)
        elif kind == launches.METADATA:
            try:
                self._take_metadata(launches.read_metadata(record))
            except DAMAGE as error:
                if not line.endswith(b"\n"):
                    raise
                part.damage.append(Damage(part.lines, f"kernel_metadata is damaged ({error})"))
        elif kind == COMPLETION:
            launch = self._launch_of(record)
            if record["status"] != "complete":
                part.untraced[launch] = _INCOMPLETE
        elif kind == "mem_value_trace":
            part.warnings[_TAKEN_AFTERWARDS] += 1
        else:
            part.skipped[f"records of another kind ({str(kind)[:32]})"] += 1
        return None

    def _take_metadata(self, kernel: launches.KernelMetadata | None) -> None:
        if self._is_metadata_new:
            self._part.warnings[_NOT_PLACED] += 1
        self._metadata, self._is_metadata_new = kernel, kernel is not None

    def _access(self, record: dict[str, Any]) -> Access | None:
        lanes = lanes_of(record, "addrs", scanner.LANES, scanner.LANES)
        mask = int(record.get("active_mask", hex(_ALL_LANES)), 16)
        mask &= ~int(record.get("cluster_shared_mask", "0x0"), 16)  # shared memory of a cluster
        row, launch = self._row_of(record)
        opcode = self._opcode(record)
        if opcode is None:
            self._part.skipped["access lines whose instruction is not named"] += 1
            self._part.untraced[launch] = _NOT_NAMED
            return None
        self._opcodes[opcode] += 1
        meaning = tables.global_meaning(opcode)
        if opcode.is_untraced_global:
            self._part.untraced[launch] = tables.untraced_by(opcode)
        if meaning == scanner.IGNORE:
            self._touches.arrays.rows.instructions[row] += 1
            return None
        if meaning == scanner.ASYNC_COPY and max(lanes) < scanner.SHARED_WINDOW_END:
            self._part.skipped["shared-memory side of asynchronous copies (LDGSTS)"] += 1
            return None
        return Access(row, meaning, opcode.width, mask, lanes, self._part.lines)

    def _opcode(self, record: dict[str, Any]) -> tables.MemoryOpcode | None:
        """Return the opcode of a record: older ones have it, newer ones its number in a table."""
        if "sass" in record:
            return launches.opcode_of(str(record["sass"]))
        table = self._metadata.opcodes if self._metadata else {}
        return table.get(record["opcode_id"])

    def _row_of(self, record: dict[str, Any]) -> tuple[int, int]:
        cta = record["cta"]
        if len(cta) != _DIMENSIONS or {*map(type, cta)} != {int}:
            raise ValueError("cta is not three numbers")
        launch = self._launch_of(record)
        return self._row(launch, *cta), launch

    def _row(self, launch: int, x: int, y: int, z: int) -> int:
        row = self._rows.get((launch, x, y, z))
        if row is None:
            if not (0 <= x <= tables.MAX_X and 0 <= y <= tables.MAX_Y and 0 <= z <= tables.MAX_Y):
                raise ValueError("no such block")
            row = self._rows[launch, x, y, z] = self._touches.find_row(
                launch, tables.pack_block(x, y, z)
            )
        return row

    def _launch_of(self, record: dict[str, Any]) -> int:
        """Return the launch of a record; the first record behind a metadata line numbers that."""
        number = record["grid_launch_id"]
        launch = self._index.get(number)
        if launch is not None and not self._is_metadata_new:
            return launch
        if type(number) is not int or not 0 <= number < launches.MOST_LAUNCHES:
            raise ValueError("no such launch")
        if launch is not None:
            raise TraceError("trace", f"launch {number} is announced twice")
        part, context = self._part, int(record.get("ctx", "0x0"), 16)
        launch = self._index[number] = part.add_launch((number,))
        if self._metadata and self._is_metadata_new:
            part.launches[launch] = replace(self._metadata.launch, trace_id=number, context=context)
            self._tables[launch] = self._metadata
            self._is_metadata_new = False
        return launch

    def _take_tile(self, record: dict[str, Any]) -> None:
        opcode = self._opcode(record)
        row, launch = self._row_of(record)
        found = _bytes_of(record, opcode) if opcode is not None else None
        table = self._tables.get(launch)
        blocks = _receivers(record, table.cluster if table else None)
        is_known = found is not None and blocks is not None
        self._tiles_of[launch] = self._tiles_of.get(launch, True) and is_known
        self._touches.arrays.rows.instructions[row] += 1
        if opcode is None or found is None or blocks is None:
            return
        self._part.opcodes[opcode.text] += 1
        self._touches.arrays.rows.accesses[row] += 1
        for block in blocks:
            rows = np.full(len(found[0]), self._row(launch, *block), np.int32)
            self._append(rows, opcode.effect.value, *found)

    def _append(
        self,
        row: NDArray[np.int32],
        meaning: int,
        start: NDArray[np.uint64],
        end: NDArray[np.uint64],
    ) -> None:
        for kind in _KINDS.get(meaning, ()):
            self._touches.append(Ranges(row, np.full(len(row), kind, np.uint8), start, end))

    def _add(self, found: list[Access]) -> None:
        """Add what accesses touch; lanes beside each other are one range."""
        if not found:
            return
        addresses = np.array([access.lanes for access in found], np.uint64)
        rows = np.array([access.row for access in found], np.int32)
        meanings = np.array([access.meaning for access in found], np.uint8)
        widths = np.array([access.width for access in found], np.uint64)
        masks = np.array([access.mask & _ALL_LANES for access in found], np.uint32)
        active = (masks[:, None] >> np.arange(scanner.LANES, dtype=np.uint32) & 1).astype(np.bool_)
        active &= addresses != 0  # older records have no mask, and 0 where a lane took no part
        beyond = (active & (addresses >= scanner.ADDRESS_END)).any(axis=1)
        for access in np.flatnonzero(beyond):
            self._note_damaged(found[access].line)
        active[beyond] = False
        counted = rows[~beyond]
        np.add.at(self._touches.arrays.rows.accesses, counted, 1)
        np.add.at(self._touches.arrays.rows.instructions, counted, 1)
        for meaning in np.unique(meanings):
            record, lane = np.nonzero(active & (meanings == meaning)[:, None])
            if not len(record):
                continue
            start = addresses[record, lane]
            end = start + widths[record]
            begins = np.ones(len(start), np.bool_)
            begins[1:] = (np.diff(record) != 0) | (start[1:] != end[:-1])
            first = np.flatnonzero(begins)
            last = np.append(first[1:], len(start)) - 1
            self._append(rows[record[first]], int(meaning), start[first], end[last])

    def _finish(self) -> None:
        part = self._part
        part.touches = self._touches.touches()
        tables.count_opcodes(part, self._opcodes.items())
        for launch, known in self._tiles_of.items():
            if not known:
                part.untraced[launch] = "copies by TMA, of which the trace does not say all"
        for launch, table in self._tables.items():
            if reason := table.unseen(shows_bulk=launch in self._tiles_of):
                part.untraced.setdefault(launch, reason)
        # A table of machine code tells of every kernel whether it copies in bulk.
        part.shows_bulk = bool(self._tiles_of) or any(t.opcodes for t in self._tables.values())
        self._take_metadata(None)


def read_records(stream: TraceStream, overflow: Overflow | None) -> ScannedPart:
    """Read the records of one file, or of a stream of several."""
    return _Reader(overflow).read(stream)


def _bytes_of(record: dict[str, Any], opcode: tables.MemoryOpcode) -> Bytes | None:
    """Return where the ranges that a copy touches begin and end; None if it does not say so."""
    info = record.get("tma_transfer_info")
    if info is None:
        return None
    if info["is_prefetch"]:
        return np.empty(0, np.uint64), np.empty(0, np.uint64)
    if not info["is_tensor"]:
        return _bulk(record, info) if opcode.effect == tables.Effect.READ else None
    tensor = info["tensor"]
    if tensor["mode"] != "TILED" or tensor["tiled"]["interleave_id"] != 0:
        return None
    tiled = _tensor_map(tensor["tiled"])
    if tiled is None or tiled.rows > _MOST_ROWS:
        return None
    at = np.array([tensor["coords"][: len(tiled.sizes)]], np.int32)
    _, start, end = tile_ranges(tiled, at)
    return start, end


def _receivers(record: dict[str, Any], cluster: Dim3 | None) -> list[Dim3] | None:
    """Return the blocks that a copy is for, several by a multicast; None if it does not say so."""
    x, y, z = record["cta"]
    info = record.get("tma_transfer_info") or {}
    if not info.get("is_multicast"):
        return [(x, y, z)]
    mask = info.get("multicast_cta_mask", 0)
    if cluster is None or not 0 < mask < 1 << math.prod(cluster):
        return None
    cx, cy, cz = cluster  # blocks of one are counted along x first (PTX ISA, %cluster_ctarank)
    first = x - x % cx, y - y % cy, z - z % cz
    ranks = [rank for rank in range(cx * cy * cz) if mask >> rank & 1]
    return [
        (first[0] + rank % cx, first[1] + rank // cx % cy, first[2] + rank // (cx * cy))
        for rank in ranks
    ]


def _bulk(record: dict[str, Any], info: dict[str, Any]) -> Bytes | None:
    if not info["is_bulk"] or not 0 < info["byte_count"] <= _MOST_BYTES:
        return None
    start = int(record["desc_addr"], 16)
    _check_end(start, start + info["byte_count"])
    return np.array([start], np.uint64), np.array([start + info["byte_count"]], np.uint64)


def _tensor_map(tiled: dict[str, Any]) -> TensorMap | None:
    rank, kind = tiled["rank"], tiled["data_type_id"]
    if not 0 < rank <= MOST_DIMENSIONS or not 0 <= kind < len(_ELEMENT_BYTES):
        return None
    element = _ELEMENT_BYTES[kind]
    sizes, box, steps, strides = (
        tuple(map(int, tiled[name]))
        for name in ("global_dim", "box_dim", "element_strides", "global_strides")
    )
    found = TensorMap(
        address=int(tiled["global_address"], 16),
        element=element,
        sizes=sizes[:rank],
        strides=(element, *strides[: rank - 1]),
        box=box[:rank],
        steps=(1, *steps[1:rank]),  # the hardware takes all of the innermost dimension
    )
    if min((*found.sizes, *found.box, *found.steps)) < 1 or min(found.strides) < 0:
        raise ValueError("tensor map is damaged")
    _check_end(found.address, found.end)
    return found


def _check_end(start: int, end: int) -> None:
    if not 0 < start < end <= scanner.ADDRESS_END:
        raise ValueError("address that no GPU has")
