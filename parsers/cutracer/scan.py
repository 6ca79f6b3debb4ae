"""The records of a CUTracer file, read line by line into the byte ranges that blocks touched.

Source: ``mem_addr_trace.schema.json`` and ``trace_serialize.cpp`` of facebookresearch/CUTracer.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import TraceError
from depgraph.parsers.cutracer import tiles
from depgraph.parsers.cutracer.launches import (
    ADDRESSES,
    METADATA,
    MOST_LAUNCHES,
    Announced,
    announced,
    opcode_of,
)
from depgraph.parsers.scanning.long_lines import lines_of
from depgraph.parsers.scanning.opcodes import (
    MemoryOpcode,
    count_opcodes,
    effect_on_global,
    global_meaning,
    untraced_by,
)
from depgraph.parsers.scanning.tables_jit import (
    ADDRESS_END,
    ASYNC_COPY,
    GLOBAL_READ,
    GLOBAL_UPDATE,
    GLOBAL_WRITE,
    IGNORE,
    LANES,
    ORDERED_READ,
    SHARED_WINDOW_END,
)
from depgraph.parsers.scanning.touch_table import MAX_X, MAX_Y, TouchTable, pack_block
from depgraph.trace.records import LDGSTS_READ, READ, SYNC_READ, WRITE, Damage, Ranges, ScannedPart

if TYPE_CHECKING:
    from depgraph.parsers.scanning.compression import TraceInput, TraceStream
    from depgraph.trace.records import Overflow

TILES, COMPLETION = "tma_trace", "capture_completion"
_AFTERWARDS = "mem_value_trace"
_LINES_AT_ONCE = 4096
_DIMENSIONS = 3
_ALL_LANES = (1 << LANES) - 1
_NOT_NAMED = "has accesses by instructions that the trace does not name"
_INCOMPLETE = "has accesses that CUTracer lost (capture_completion: incomplete)"
_UNNAMED_LINES = "access lines whose instruction is not named"
_TAKEN_AFTERWARDS = (
    "mem_value_trace records, whose addresses are taken after the instruction: "
    "CUTRACER_INSTRUMENT=mem_addr_trace has those before it"
)
_NOT_PLACED = "launches without records, whose place among the others is not known"
_DAMAGED = "damaged access lines"
_DAMAGE = (ValueError, LookupError, TypeError, OverflowError, AttributeError, RecursionError)
_KINDS = {
    GLOBAL_READ: (READ,),
    GLOBAL_WRITE: (WRITE,),
    GLOBAL_UPDATE: (SYNC_READ, WRITE),
    ORDERED_READ: (SYNC_READ,),
    ASYNC_COPY: (LDGSTS_READ,),
}


class Access(NamedTuple):
    """An access of a warp to global memory."""

    row: int
    meaning: int
    width: int  # bytes of a lane
    mask: int  # lanes that took part, as far as the record says
    lanes: list[int]  # their addresses
    line: int


@dataclass(slots=True)
class CutracerPart(ScannedPart):
    """One file, or a stream of several, with what its launches are."""

    tables: dict[int, Announced] = field(default_factory=dict)  # of launches, by index


@dataclass(frozen=True, slots=True)
class CutracerTask:
    """The records of one file."""

    source: TraceInput
    input_bytes: int
    is_one_of_several: bool

    def scan(self, overflow: Overflow | None = None) -> ScannedPart:
        """Read the file."""
        with self.source.open() as stream:
            reader = _Reader(overflow)
            reader.read(stream)
            part = reader.finish()
            part.bytes = self.input_bytes or stream.input_position
        part.path = self.source.name if self.is_one_of_several else None
        return part


class _Reader:
    """What a file has said so far."""

    def __init__(self, overflow: Overflow | None) -> None:
        self._part = CutracerPart()
        self._touches = TouchTable(overflow)
        self._announced: Announced | None = None  # by the last metadata line
        self._is_announced_anew = False
        self._index: dict[int, int] = {}  # of launches, by number
        self._rows: dict[tuple[int, int, int, int], int] = {}
        self._opcodes: Counter[MemoryOpcode] = Counter()
        self._tiles_of: dict[int, bool] = {}  # launches with tile records: whether all are known

    def read(self, stream: TraceStream) -> None:
        """Read all lines."""
        lines = lines_of(stream)
        try:
            while some := list(islice(lines, _LINES_AT_ONCE)):
                found = [access for line in some if (access := self._take(line)) is not None]
                if found:
                    self._add(found)
        except TraceError as error:
            if not self._part.lines:
                raise
            self._part.damage.append(Damage(self._part.lines, error.found))

    def _take(self, line: bytes) -> Access | None:
        """Take a line; return the access that it is, if it is one to global memory."""
        part = self._part
        part.lines += 1
        part.text_bytes += len(line)
        if not line.strip():
            return None
        is_access = True
        try:
            record = json.loads(line)
            kind = record["type"]
            if kind in ADDRESSES:
                part.access_lines += 1
                return self._access(record)
            if kind == TILES:
                part.access_lines += 1
                self._take_tile(record)
            elif kind == METADATA:
                is_access = False
                self._announce(announced(record))
            else:
                self._take_other(kind, record)
        except _DAMAGE as error:
            if not line.endswith(b"\n"):
                part.damage.append(Damage(part.lines, "the last line is cut"))
            elif is_access:
                self._note_damaged(part.lines)
            else:
                part.damage.append(Damage(part.lines, f"kernel_metadata is damaged ({error})"))
        return None

    def _take_other(self, kind: object, record: dict[str, Any]) -> None:
        if kind == COMPLETION:
            launch = self._launch_of(record)
            if record["status"] != "complete":
                self._part.untraced[launch] = _INCOMPLETE
        elif kind == _AFTERWARDS:
            self._part.warnings[_TAKEN_AFTERWARDS] += 1
        else:
            self._part.skipped[f"records of another kind ({str(kind)[:32]})"] += 1

    def _announce(self, kernel: Announced | None) -> None:
        if self._is_announced_anew:
            self._part.warnings[_NOT_PLACED] += 1
        self._announced, self._is_announced_anew = kernel, kernel is not None

    def _note_damaged(self, line: int) -> None:
        part = self._part
        part.damaged_lines += 1
        part.skipped[_DAMAGED] += 1
        part.warnings[_DAMAGED] += 1
        if part.damaged_line is None:
            part.damaged_line = Damage(line, "access line is damaged")

    def _access(self, record: dict[str, Any]) -> Access | None:
        lanes = record["addrs"]
        if len(lanes) != LANES or {*map(type, lanes)} != {int}:
            raise ValueError("addrs are not 32 numbers")
        if min(lanes) < 0 or max(lanes) >> 64:
            raise ValueError("addresses that 64 bits do not hold")
        mask = int(record.get("active_mask", hex(_ALL_LANES)), 16)
        mask &= ~int(record.get("cluster_shared_mask", "0x0"), 16)  # shared memory of a cluster
        row, launch = self._row_of(record)
        opcode = self._opcode(record)
        if opcode is None:
            self._part.skipped[_UNNAMED_LINES] += 1
            self._part.untraced[launch] = _NOT_NAMED
            return None
        self._opcodes[opcode] += 1
        meaning = global_meaning(opcode)
        if opcode.is_untraced_global:
            self._part.untraced[launch] = untraced_by(opcode)
        if meaning == IGNORE:
            self._touches.arrays.rows.instructions[row] += 1
            return None
        if meaning == ASYNC_COPY and max(lanes) < SHARED_WINDOW_END:
            self._part.skipped["shared-memory side of asynchronous copies (LDGSTS)"] += 1
            return None
        return Access(row, meaning, opcode.width, mask, lanes, self._part.lines)

    def _opcode(self, record: dict[str, Any]) -> MemoryOpcode | None:
        """Return the opcode of a record: older ones have it, newer ones its number in a table."""
        if "sass" in record:
            return opcode_of(str(record["sass"]))
        table = self._announced.opcodes if self._announced else {}
        return table.get(record["opcode_id"])

    def _row_of(self, record: dict[str, Any]) -> tuple[int, int]:
        """Return the row of the block of a record, and its launch."""
        cta = record["cta"]
        if len(cta) != _DIMENSIONS or {*map(type, cta)} != {int}:
            raise ValueError("cta is not three numbers")
        launch = self._launch_of(record)
        return self._row(launch, *cta), launch

    def _row(self, launch: int, x: int, y: int, z: int) -> int:
        row = self._rows.get((launch, x, y, z))
        if row is None:
            if not (0 <= x <= MAX_X and 0 <= y <= MAX_Y and 0 <= z <= MAX_Y):
                raise ValueError("no such block")
            row = self._rows[launch, x, y, z] = self._touches.find_row(launch, pack_block(x, y, z))
        return row

    def _launch_of(self, record: dict[str, Any]) -> int:
        """Return the launch of a record; the first record behind a metadata line numbers that."""
        number = record["grid_launch_id"]
        launch = self._index.get(number)
        if launch is not None and not self._is_announced_anew:
            return launch
        if type(number) is not int or not 0 <= number < MOST_LAUNCHES:
            raise ValueError("no such launch")
        if launch is not None:
            raise TraceError("trace", f"launch {number} is announced twice")
        part, context = self._part, int(record.get("ctx", "0x0"), 16)
        launch = self._index[number] = len(part.keys)
        part.keys.append((number,))
        if self._announced and self._is_announced_anew:
            known = replace(self._announced.launch, trace_id=number, context=context)
            part.launches.append(known)
            part.tables[launch] = self._announced
            self._is_announced_anew = False
        else:
            part.launches.append(None)
        return launch

    def _take_tile(self, record: dict[str, Any]) -> None:
        opcode = self._opcode(record)
        row, launch = self._row_of(record)
        found = tiles.bytes_of(record, opcode) if opcode is not None else None
        table = self._part.tables.get(launch)
        blocks = tiles.receivers(record, table.cluster if table else None)
        is_known = found is not None and blocks is not None
        self._tiles_of[launch] = self._tiles_of.get(launch, True) and is_known
        self._touches.arrays.rows.instructions[row] += 1
        if opcode is None or found is None or blocks is None:
            return
        self._part.opcodes[opcode.text] += 1
        self._touches.arrays.rows.accesses[row] += 1
        for block in blocks:
            rows = np.full(len(found[0]), self._row(launch, *block), np.int32)
            self._append(rows, effect_on_global(opcode), *found)

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
        addresses = np.array([access.lanes for access in found], np.uint64)
        rows = np.array([access.row for access in found], np.int32)
        meanings = np.array([access.meaning for access in found], np.uint8)
        widths = np.array([access.width for access in found], np.uint64)
        masks = np.array([access.mask & _ALL_LANES for access in found], np.uint32)
        active = (masks[:, None] >> np.arange(LANES, dtype=np.uint32) & 1).astype(np.bool_)
        active &= addresses != 0  # older records have no mask, and 0 where a lane took no part
        beyond = (active & (addresses >= ADDRESS_END)).any(axis=1)
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

    def finish(self) -> CutracerPart:
        """Return all that the file said."""
        part = self._part
        part.touches = self._touches.touches()
        count_opcodes(part, self._opcodes.items())
        for launch, known in self._tiles_of.items():
            if not known:
                part.untraced[launch] = "copies by TMA, of which the trace does not say all"
        for launch, table in part.tables.items():
            in_bulk = None if launch in self._tiles_of else table.copies_in_bulk
            reason = table.unseen or in_bulk
            if reason:
                part.untraced.setdefault(launch, reason)
        # A table of machine code tells of every kernel whether it copies in bulk.
        part.shows_bulk = bool(self._tiles_of) or any(t.opcodes for t in part.tables.values())
        self._announce(None)
        return part
