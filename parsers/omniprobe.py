"""The JSON of omniprobe's AddressLogger: what waves of AMD GPUs touched, an access a line.

Source: ``src/message_logger.cc`` of AMDResearch/omniprobe, ``include/data_headers.h`` of
AMDResearch/dh_comms. A line has the block and the address of each active lane, but neither the
bytes that an access touches nor the grid: the first byte is certain, and writes may be as wide as
the widest instruction.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from depgraph.errors import TraceError
from depgraph.parsers.scanning.inputs import InputTrace, TraceInput, TraceStream, WholeInput
from depgraph.parsers.scanning.json_lines import JsonLines, lanes_of, text_of, whole
from depgraph.parsers.scanning.tables import MAX_Y, pack_block
from depgraph.trace import records

FORMAT = "omniprobe"
BLIND_SPOTS = (
    (
        "copies, memsets, allocations, streams, and dispatches of code that was not instrumented"
        " are not traced"
    ),
    (
        "a grid is taken to end with the last block that touched memory, a block with its last"
        " wave, and the GPU to be an MI300X: the trace says nothing of them"
    ),
)
_KINDS = {
    "read": (records.READ,),
    "write": (records.WRITE,),
    "readwrite": (records.SYNC_READ, records.WRITE),
}
_WIDEST = 16  # bytes of a lane: global_store_dwordx4
_LANES = 64
_MOST_WAVES = 16
_LAST_BLOCK = MAX_Y  # numbers of blocks have 16 bits
_BUFFERS = 1 << 20, 1 << 48  # below lies LDS, behind are the apertures of LDS and scratch
_MI300X = 942
_MOST_MISSING = 1 << 16
_HEAD = re.compile(
    rb'^\{(?=[^\n]{0,4096}"dispatch_id")(?=[^\n]{0,4096}"block_idx_x")', re.MULTILINE
)
_UNSIZED = "writes, of which omniprobe does not say how many bytes they touch"
_UNKNOWN = "has accesses of which omniprobe does not say whether they read or write"
_MISSING = "has no records: was it not instrumented, or does it touch no memory?"


def sniff(head: bytes) -> bool:
    """Tell whether a record of an access is among the first lines."""
    return _HEAD.search(head) is not None


def open_inputs(inputs: Sequence[TraceInput]) -> "OmniprobeTrace":
    """Open what one run logged."""
    if len(inputs) > 1:
        raise TraceError(inputs[1].name, "is a second log of omniprobe", "give one run at a time")
    return OmniprobeTrace(inputs)


@dataclass(slots=True)
class _Dispatch:
    name: str
    index: int  # among those of the file
    last: list[int] = field(default_factory=lambda: [0, 0, 0])  # block that has records
    waves: int = 1
    is_unknown: bool = False

    def launch(self, number: int) -> records.KernelLaunch:
        x, y, z = (last + 1 for last in self.last)
        block = _LANES * self.waves, 1, 1
        return records.KernelLaunch(
            self.name, (x, y, z), block, trace_id=number, architecture=_MI300X
        )


class _Reader(JsonLines):
    def __init__(self) -> None:
        super().__init__(records.ScannedPart())
        self._dispatches: dict[int, _Dispatch] = {}

    def _take(self, line: bytes) -> tuple[int, tuple[int, ...], list[int]] | None:
        """Take a line; return the row, kinds and addresses of the access that it is, if any."""
        part = self._part
        if b'"dispatch_id"' not in line:
            part.skipped["lines that are no records: the program's own"] += bool(line.strip())
            return None
        record = json.loads(line)
        if "op_type" not in record:
            part.skipped["records of another kind"] += 1
            return None
        part.access_lines += 1
        return self._access(record)

    def _access(self, record: dict[str, Any]) -> tuple[int, tuple[int, ...], list[int]]:
        lanes = lanes_of(record, "addresses", 1, _LANES)
        kinds = _KINDS.get(record["op_type"], ())
        x, y, z = block = [whole(record, f"block_idx_{axis}", most=_LAST_BLOCK) for axis in "xyz"]
        wave = whole(record, "wave_num", most=_MOST_WAVES - 1)
        dispatch = self._dispatch(record)
        dispatch.last = [*map(max, dispatch.last, block)]
        dispatch.waves = max(dispatch.waves, wave + 1)
        dispatch.is_unknown |= not kinds
        row = self._touches.find_row(dispatch.index, pack_block(x, y, z))
        self._part.opcodes[str(record["op_type"])[:32]] += 1
        self._touches.arrays.rows.accesses[row] += 1
        self._touches.arrays.rows.instructions[row] += 1
        return row, kinds, lanes

    def _dispatch(self, record: dict[str, Any]) -> _Dispatch:
        number = whole(record, "dispatch_id", most=(1 << 62) - 1)
        found = self._dispatches.get(number)
        if found is None:
            name = text_of(record, "kernel_name").removesuffix(" [clone .kd]").removesuffix(".kd")
            found = self._dispatches[number] = _Dispatch(name, len(self._dispatches))
        return found

    def _add(self, found: list[tuple[int, tuple[int, ...], list[int]]]) -> None:
        """Add the first bytes of all lanes in buffers."""
        for kind in (records.READ, records.WRITE, records.SYNC_READ):
            some = [(row, lanes) for row, kinds, lanes in found if kind in kinds]
            start = np.array([*chain.from_iterable(lanes for _, lanes in some)], np.uint64)
            rows = np.repeat(
                np.array([row for row, _ in some], np.int32), [len(lanes) for _, lanes in some]
            )
            is_global = (start >= _BUFFERS[0]) & (start < _BUFFERS[1])
            self._part.skipped["addresses in LDS or scratch"] += int((~is_global).sum())
            start, rows = start[is_global], rows[is_global]
            kinds = np.full(len(start), kind, np.uint8)
            self._touches.append(records.Ranges(rows, kinds, start, start + np.uint64(1)))

    def _finish(self) -> None:
        part, known = self._part, self._dispatches
        part.skipped = +part.skipped
        place, grids = np.zeros(len(known), np.int32), []
        for number in self._numbers():
            dispatch = known.get(number)
            launch = (dispatch or _Dispatch(f"dispatch_{number}", -1)).launch(number)
            at = part.add_launch((number,), launch)
            grids.append(launch.grid)
            if dispatch is None:
                part.untraced[at] = _MISSING
                continue
            place[dispatch.index] = at
            try:
                records.check_dimensions(launch.grid, launch.block)
            except ValueError as error:
                part.damage.append(records.Damage(part.lines, f"dispatch {number}: {error}"))
            if dispatch.last.count(_LAST_BLOCK):
                part.untraced[at] = "has blocks beyond 65535, which omniprobe mixes up"
            elif dispatch.is_unknown:
                part.untraced[at] = _UNKNOWN
        touches = self._touches.touches()
        part.touches = touches._replace(launch=place[touches.launch])
        possible = self._possible(part.touches, grids)
        for index in np.unique(possible.launch).tolist():
            if index not in part.untraced:
                part.untraced[index], part.reach[index] = _UNSIZED, records.RANGE
        part.possible.append(possible)

    def _numbers(self) -> range:
        """Return the numbers of all dispatches, those that are missing between others, too."""
        numbers = self._dispatches.keys()
        every = range(min(numbers, default=0), max(numbers, default=-1) + 1)
        missing = len(every) - len(numbers)
        if missing > _MOST_MISSING:
            found = f"{missing} dispatches between others have no records"
            hint = "trace all dispatches of the kernels between (-d all)"
            raise TraceError("the trace", found, hint)
        return every

    def _possible(
        self, touches: records.BlockTouches, grids: list[records.Dim3]
    ) -> records.PossibleWrites:
        """Return where writes meet accesses, however wide both are."""
        written = touches.kind == records.WRITE
        row, start, end = (each[written] for each in (touches.row, touches.start, touches.end))
        launch, x, y, z = (
            each[row].astype(np.int64) for each in (touches.launch, touches.x, touches.y, touches.z)
        )
        grid = np.array(grids, np.int64).reshape(-1, 3)
        block = x + grid[launch, 0] * (y + grid[launch, 1] * z)
        beside = np.uint64(_WIDEST - 1)
        return records.PossibleWrites(launch.astype(np.int32), block, start - beside, end + beside)


def _read(stream: TraceStream, _: records.Overflow | None) -> records.ScannedPart:
    """Read a log; what it wrote is looked at again at the end, so that all is kept."""
    return _Reader().read(stream)


class OmniprobeTrace(InputTrace):
    """The log of a run, in the order of its dispatches."""

    format = FORMAT
    blind_spots = BLIND_SPOTS
    hint = "trace with: omniprobe -i -a AddressLogger -t json -l FILE -- PROGRAM"

    def tasks(self) -> Iterator[records.PartTask]:
        """Yield the log as one part: records of one dispatch may stand anywhere in it."""
        yield WholeInput(self._inputs[0], _read, self.input_bytes or 0)
