"""A simulator's log with memory lines: the form that the dependence tool of Kuper et al. reads.

Their GPGPU-Sim prints one ``mf:`` line a memory request, with the thread block that made it, and
when blocks start and finish. Source: rkuper/gpgpu-sim_distribution and rkuper/accel-sim-scripts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from depgraph.errors import TraceError
from depgraph.parsers.accelsim.header import parse_header
from depgraph.parsers.accelsim.kernel_list import parse_copy
from depgraph.parsers.scanning.inputs import InputTrace, WholeInput, whole_lines
from depgraph.parsers.scanning.tables import MAX_X, MAX_Y, TouchTable, pack_block
from depgraph.parsers.simlog.lines import PUSHED_MARK, NamedBlocks, pushed_kernel
from depgraph.trace import records
from depgraph.trace.names import demangle
from depgraph.trace.records import checked_launch

if TYPE_CHECKING:
    from depgraph.parsers.scanning.inputs import LineBuffer, TraceInput, TraceStream

FORMAT = "simlog"
BLIND_SPOTS: tuple[str, ...] = (
    (
        "accesses are the simulator's requests of 32 to 128 bytes, not bytes: neighbours in a"
        " request depend on each other though they share no data"
    ),
    "an atomic operation is printed as a load or as a store: dependences through it may be missing",
)
_BUFFER_BYTES = 1 << 22
_MAX_REQUEST_BYTES = 1 << 16
_ADDRESS_END = 1 << 57
_TEXTURES = "reads textures, which do not count as global memory"
_KINDS = {b"GLOBAL_R": records.READ, b"GLOBAL_W": records.WRITE}

# Patterns that begin with a mark are matched where it stands first in a line, and nowhere else:
# looking for them from each of many marks would take time with the square of the line's length.
_REQUEST_MARK = b"mf: uid="
_REQUEST = re.compile(
    rb"mf: uid=.*? addr=0x([0-9a-fA-F]{1,16}), *(?:load|store) *, *size=(\d{1,9}), *([A-Z0-9_]+)"
    rb"(?:.*? cta=(\d{1,10}),(\d{1,10}),(\d{1,10}) kernel=(\d{1,18}))?"
)
_PUSHED_MARK = PUSHED_MARK.encode()
_LINE_WITH_REQUEST = re.compile(rb"mf: uid=[^\n]*")
_WHOLE_END = re.compile(rb" active_threads=[01]{32}\s*\Z")  # the mask of threads comes last
_HEADER_LINES = 4096  # at most, in front of a kernel
_COPIED = b"launching memcpy command : "


def sniff(head: bytes) -> bool:
    """Tell whether the first bytes of a file hold a memory line of this format."""
    requests = (_REQUEST.match(line[0]) for line in _LINE_WITH_REQUEST.finditer(head))
    return any(request is not None and request[7] is not None for request in requests)


def open_inputs(inputs: Sequence[TraceInput]) -> SimlogTrace:
    """Open a log; one of several is refused, as nothing tells how their kernels are ordered."""
    if len(inputs) > 1:
        raise TraceError(inputs[1].name, "is a second simulator log", "give one at a time")
    return SimlogTrace(inputs)


class _Log:
    def __init__(self, overflow: records.Overflow | None = None) -> None:
        self._part = records.ScannedPart()
        # Kernels and host copies, in the log's order.
        self._operations: list[records.Operation] = []
        self._touches = TouchTable(overflow)
        self._index: dict[int, int] = {}  # of each kernel among the keys of the part
        self._rows: dict[tuple[int, records.Dim3], int] = {}
        self._launches: list[records.KernelLaunch] = []
        self._header: list[bytes] = []
        self._blocks = NamedBlocks()
        self._durations: dict[int, int] = {}
        self._last_line = b""

    def take(self, buffer: LineBuffer) -> None:
        part = self._part
        requests: list[tuple[int, int, int, int]] = []
        lines = buffer.text[: buffer.size].tobytes().split(b"\n")
        self._last_line = lines[-1]
        part.text_bytes += buffer.size
        for line in lines if lines[-1] else lines[:-1]:
            part.lines += 1
            if b"mf: " in line:
                self._request(line, requests)
            elif line.startswith(b"-"):
                self._header += [line] * (len(self._header) < _HEADER_LINES)
            else:
                if self._header:
                    self._end_header()
                if b"CTA" in line:
                    self._time(_text(line))
                elif line.startswith(b"thread block = "):
                    self._blocks.issue(_text(line))
                elif _PUSHED_MARK in line:
                    self._push(_text(line))
                elif line.startswith(_COPIED):
                    with self._damage_noted():
                        self._operations.append(parse_copy(_text(line[len(_COPIED) :]).strip()))
        self._add(requests)
        part.lines += buffer.overlong
        if buffer.failure is not None:
            part.damage.append(records.Damage(max(part.lines, 1), buffer.failure))

    def _request(self, line: bytes, requests: list[tuple[int, int, int, int]]) -> None:
        self._part.access_lines += 1
        at = line.find(_REQUEST_MARK)
        match = None if at < 0 else _REQUEST.match(line, at)
        if match is None:
            self._damaged()
            return
        address, size, kind = int(match[1], 16), int(match[2]), match[3]
        if kind.startswith(b"TEXTURE") and match[7] is not None:
            self._part.untraced[self._index_of(int(match[7]))] = _TEXTURES
        if kind not in _KINDS:
            self._part.skipped[f"{kind.decode().split('_')[0].lower()}-memory requests"] += 1
        elif match[7] is None:
            self._part.skipped["memory requests that name no thread block"] += 1
        elif not 0 < size <= _MAX_REQUEST_BYTES or address + size > _ADDRESS_END:
            self._damaged()
        else:
            row = self._row(int(match[7]), (int(match[4]), int(match[5]), int(match[6])))
            if row >= 0:
                requests.append((row, _KINDS[kind], address, address + size))

    def _damaged(self) -> None:
        self._part.add_damaged_line("memory line is damaged")
        self._part.skipped["damaged memory lines"] += 1

    def _row(self, kernel: int, block: records.Dim3) -> int:
        key = (kernel, block)
        if key not in self._rows:
            if block[0] > MAX_X or max(block[1:]) > MAX_Y:
                self._damaged()
                return -1
            self._rows[key] = self._touches.find_row(self._index_of(kernel), pack_block(*block))
        return self._rows[key]

    def _index_of(self, kernel: int) -> int:
        if kernel not in self._index:
            self._index[kernel] = self._part.add_launch((kernel,))
        return self._index[kernel]

    def _add(self, requests: list[tuple[int, int, int, int]]) -> None:
        if not requests:
            return
        touches = self._touches
        rows, kinds, starts, ends = zip(*requests, strict=True)
        row = np.array(rows, np.int32)
        np.add.at(touches.arrays.rows.accesses, row, 1)
        np.add.at(touches.arrays.rows.instructions, row, 1)
        addresses = np.array(starts, np.uint64), np.array(ends, np.uint64)
        touches.append(records.Ranges(row, np.array(kinds, np.uint8), *addresses))

    def _time(self, line: str) -> None:
        if self._blocks.start(line) or (finished := self._blocks.finish(line)) is None:
            return
        row = self._row(finished.kernel, finished.block)
        if row < 0 or finished.start is None:
            return
        if finished.end < finished.start:
            self._part.warnings["thread blocks that finish before they start"] += 1
        else:
            self._durations[row] = finished.end - finished.start

    def _end_header(self) -> None:
        text, self._header = b"\n".join(self._header), []
        if b"-kernel name" in text:
            with self._damage_noted():
                self._launch(parse_header(text).launch)

    def _push(self, line: str) -> None:
        with self._damage_noted():
            pushed = pushed_kernel(line)
            if pushed is None:
                raise ValueError("launch line is damaged")
            launch = checked_launch(
                demangle(pushed.name),
                pushed.grid,
                pushed.block,
                stream=pushed.stream,
                mangled_name=pushed.name,
                trace_id=len(self._launches) + 1,
            )
            self._launch(launch)

    @contextmanager
    def _damage_noted(self) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            self._part.damage.append(records.Damage(self._part.lines, str(error)))

    def _launch(self, launch: records.KernelLaunch) -> None:
        self._launches.append(launch)
        self._operations.append(launch)

    def finish(self) -> records.ScannedPart:
        part = self._part
        if self._header:
            self._end_header()
        if b"mf: " in self._last_line and not _WHOLE_END.search(self._last_line):
            part.damage.append(records.Damage(part.lines, "the last line is cut"))
        part.touches = self._touches.touches()
        self._announce()
        if self._durations:
            part.durations = np.full(len(part.touches.launch), np.nan)
            rows = np.fromiter(self._durations, np.int64)
            part.durations[rows] = np.fromiter(self._durations.values(), np.float64)
        for reason in ("damaged memory lines", "memory requests that name no thread block"):
            part.warnings[reason] += part.skipped[reason]
        part.warnings["thread blocks that started but did not finish"] += self._blocks.unfinished
        part.warnings = +part.warnings
        return part

    def _announce(self) -> None:
        """Put all operations before the kernels that requests name by number."""
        by_order = dict(enumerate(self._launches, start=1))
        by_id = {launch.trace_id: launch for launch in self._launches}
        part, first = self._part, len(self._operations)
        launches = by_order if all(key in by_order for (key,) in part.keys) else by_id
        place = {id(operation): i for i, operation in enumerate(self._operations)}
        named = [(place.get(id(launches.get(key)), -1), key) for (key,) in part.keys]
        part.keys = [*((i, 0) for i in range(first)), *((i, 0 if i >= 0 else k) for i, k in named)]
        part.launches = [*self._operations, *part.launches]
        part.touches = part.touches._replace(launch=part.touches.launch + np.int32(first))
        part.untraced = {first + index: reason for index, reason in part.untraced.items()}


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace")


def _read(stream: TraceStream, overflow: records.Overflow | None) -> records.ScannedPart:
    log = _Log(overflow)
    for buffer in whole_lines(stream, _BUFFER_BYTES):
        log.take(buffer)
        buffer.release()
    return log.finish()


class SimlogTrace(InputTrace):
    """A simulator's log with memory lines."""

    format = FORMAT
    blind_spots = BLIND_SPOTS

    def tasks(self) -> Iterator[records.PartTask]:
        """Yield the log as one part: a line belongs to blocks and kernels of any other."""
        yield WholeInput(self._inputs[0], _read, self.input_bytes or 0)
