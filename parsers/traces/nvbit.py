"""NVBit ``mem_trace`` standard output, wordings of NVBit 1.5 to 1.7.

Lines of many kernels are mixed: a receiver thread prints accesses long after later launches, so
that an access belongs to the launch with its id, never to the launch line above it.
"""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from depgraph.errors import TraceError
from depgraph.jit.ranges import join_ranges
from depgraph.parsers.traces import nvbit_scanner as scanner
from depgraph.parsers.traces import text_scanner
from depgraph.parsers.traces.compression import TraceStream, unreadable
from depgraph.parsers.traces.opcodes import Effect, Space, decode_opcode
from depgraph.records import BlockTouches, Damage, KernelLaunch, ScannedPart

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from depgraph.parsers.traces.opcodes import MemoryOpcode
    from depgraph.records import Operation, PartTask

FORMAT = "nvbit"
MARK = b"MEMTRACE: CTX 0x"
PART_BYTES = 16 << 20
MAX_LINE_BYTES = 1 << 20
_OVERLAP_BYTES = 64 << 10
_MAX_OPCODES = 4096

_LAUNCH = re.compile(
    rb"MEMTRACE: CTX 0x([0-9a-f]+) - LAUNCH - Kernel pc 0x[0-9a-f]+ - Kernel name (.*)"
    rb" - grid launch id (\d+)"
    rb" - grid size (\d+),(\d+),(\d+) - block size (\d+),(\d+),(\d+)"
    rb" - nregs (-?\d+) - shmem (-?\d+) - cuda stream id (-?\d+)"
)
_ACCESS_ID = re.compile(rb"MEMTRACE: CTX 0x[0-9a-f]+ - (?:SM_id \d+ - )?grid_launch_id (\d+) ")
_LAUNCH_ID = re.compile(rb" - LAUNCH - .* - grid launch id (\d+)")


BLIND_SPOTS = (
    "copies, memsets and allocations are not traced: a dependence through cudaMemcpy is missing, "
    "and buffers that were freed and used again give dependences that are not the program's",
)


def sniff(head: bytes) -> bool:
    """Tell whether the first bytes of a file hold a line of this format."""
    return MARK in head


# What the CUDA programming guide allows for a grid and a block.
_GRID_LIMIT = (2**31 - 1, 65535, 65535)
_MAX_THREADS = 1024


def parse_launch(line: bytes) -> KernelLaunch:
    """Decode a launch line.

    Raises
    ------
    ValueError
        If the line is damaged; the message says what is wrong with it.
    """
    match = _LAUNCH.search(line)
    if match is None:
        message = "launch line is damaged"
        raise ValueError(message)
    context, name, identifier, *numbers = match.groups()
    gx, gy, gz, bx, by, bz, registers, shared, stream = (int(n) for n in numbers)
    if not all(0 < n <= limit for n, limit in zip((gx, gy, gz), _GRID_LIMIT, strict=True)):
        message = f"grid of {gx},{gy},{gz} blocks is not possible"
        raise ValueError(message)
    if not 0 < bx * by * bz <= _MAX_THREADS:
        message = f"block of {bx},{by},{bz} threads is not possible"
        raise ValueError(message)
    return KernelLaunch(
        name=name.decode("utf-8", "replace"),
        grid=(gx, gy, gz),
        block=(bx, by, bz),
        registers=registers if 0 < registers <= 255 else None,
        shared_bytes=shared if 0 <= shared < 1 << 20 else None,
        stream=stream,
        context=int(context, 16),
        trace_id=int(identifier),
    )


def launch_id_offset(text: bytes) -> int | None:
    """Tell by how much launch lines count ahead of access lines: 1 in NVBit 1.5, else 0.

    Returns None where `text` does not decide it. An access never precedes its own launch line, so
    the first access with the newest launch's id means 0, one with an id below all launches, 1.
    """
    seen: list[int] = []
    for line in text.split(b"\n"):
        if launch := _LAUNCH_ID.search(line):
            seen.append(int(launch[1]))
        elif seen and (access := _ACCESS_ID.search(line)):
            identifier = int(access[1])
            if identifier == max(seen):
                return 0
            if identifier == min(seen) - 1:
                return 1
    return None


def _global_meaning(opcode: MemoryOpcode) -> int:
    if opcode.is_async_copy:
        return text_scanner.ASYNC_COPY
    if opcode.is_bulk or opcode.space not in {Space.GLOBAL, Space.GENERIC}:
        return text_scanner.IGNORE
    return {
        Effect.READ: text_scanner.GLOBAL_READ,
        Effect.WRITE: text_scanner.GLOBAL_WRITE,
        Effect.UPDATE: text_scanner.GLOBAL_UPDATE,
        Effect.NONE: text_scanner.IGNORE,
    }[opcode.effect]


class _Workspace(threading.local):
    """The arrays that a thread scans with, kept from part to part."""

    def __init__(self) -> None:
        self.text = np.zeros(0, np.uint8)
        self.opcode_words = np.zeros((512, text_scanner.OPCODE_WORDS), np.uint64)
        self.opcode_text: dict[int, str] = {}
        self.opcode_meaning = np.zeros(512, np.uint8)
        self.opcode_width = np.zeros(512, np.int64)
        self.opcode_count = np.zeros(512, np.int64)
        self.resize_rows(1 << 12)
        self.resize_ranges(1 << 17)
        self.lanes = np.zeros(text_scanner.LANES, np.uint64)

    def text_buffer(self, size: int) -> NDArray[np.uint8]:
        """Return at least `size` bytes and the scanner's padding."""
        if len(self.text) < size + text_scanner.PADDING:
            self.text = np.zeros(size + text_scanner.PADDING, np.uint8)
        return self.text

    def resize_rows(self, capacity: int) -> None:
        self.row_launch = np.zeros(capacity, np.int32)
        self.row_cta = np.zeros(capacity, np.int64)
        self.row_accesses = np.zeros(capacity, np.int64)
        self.row_instructions = np.zeros(capacity, np.int64)
        self.row_table = np.full(4 * capacity, -1, np.int32)

    def grow_rows(self, used: int) -> None:
        old = self.row_launch, self.row_cta, self.row_accesses, self.row_instructions
        self.resize_rows(2 * len(self.row_launch))
        new = self.row_launch, self.row_cta, self.row_accesses, self.row_instructions
        for source, target in zip(old, new, strict=True):
            target[:used] = source[:used]
        for row in range(used):
            free = text_scanner.find_row(
                self.row_launch[row], self.row_cta[row], self.row_launch, self.row_cta,
                self.row_table,
            )  # fmt: skip
            self.row_table[-1 - free] = row

    def resize_ranges(self, capacity: int, used: int = 0) -> None:
        for name, dtype in (
            ("range_row", np.int32), ("range_kind", np.uint8),
            ("range_start", np.uint64), ("range_end", np.uint64),
        ):  # fmt: skip
            array = np.zeros(capacity, dtype)
            if used:
                array[:used] = getattr(self, name)[:used]
            setattr(self, name, array)

    range_row: NDArray[np.int32]
    range_kind: NDArray[np.uint8]
    range_start: NDArray[np.uint64]
    range_end: NDArray[np.uint64]

    def add_opcode(self, words: NDArray[np.uint64], position: int) -> None:
        slot, length = text_scanner.find_opcode(words, position, self.opcode_words)
        text = words[position : position + 8 * text_scanner.OPCODE_WORDS : 8].tobytes()[:length]
        slots = len(self.opcode_words)
        if 2 * len(self.opcode_text) >= slots:
            self._rehash_opcodes(2 * slots)
            slot, _ = text_scanner.find_opcode(words, position, self.opcode_words)
        self._enter_opcode(-1 - slot, text)

    def _enter_opcode(self, slot: int, text: bytes) -> None:
        opcode = decode_opcode(text.decode("ascii", "replace"))
        padded = text.ljust(8 * text_scanner.OPCODE_WORDS, b"\0")
        self.opcode_words[slot] = np.frombuffer(padded, "<u8")
        self.opcode_text[slot] = opcode.text
        self.opcode_meaning[slot] = _global_meaning(opcode)
        self.opcode_width[slot] = opcode.width

    def _rehash_opcodes(self, slots: int) -> None:
        old = [
            (self.opcode_words[slot].tobytes().rstrip(b"\0"), int(self.opcode_count[slot]))
            for slot in self.opcode_text
        ]
        self.opcode_words = np.zeros((slots, text_scanner.OPCODE_WORDS), np.uint64)
        self.opcode_text = {}
        self.opcode_meaning = np.zeros(slots, np.uint8)
        self.opcode_width = np.zeros(slots, np.int64)
        self.opcode_count = np.zeros(slots, np.int64)
        for text, count in old:
            line = np.frombuffer(text + b" " + bytes(text_scanner.PADDING), np.uint8)
            slot, _ = text_scanner.find_opcode(text_scanner.overlapping_words(line), 0, self.opcode_words)
            self._enter_opcode(-1 - slot, text)
            self.opcode_count[-1 - slot] = count


_workspace = _Workspace()


def scan_text(
    text: NDArray[np.uint8], begin: int, end: int, *, path: str, id_offset: int = 0
) -> ScannedPart:
    """Scan whole lines of ``text[begin:end]``.

    Parameters
    ----------
    text : uint8[>= end + PADDING]
    begin, end : int
        A line start, and a position just after a newline or the end of the trace.
    path : str
        For messages.
    id_offset : int
        By how much launch lines count ahead of access lines.
    """
    work = _workspace
    words = text_scanner.overlapping_words(text)
    part = ScannedPart(bytes=end - begin)
    slots = 64
    launch_context = np.zeros(slots, np.uint64)
    launch_id = np.zeros(slots, np.int64)
    launch_index = np.full(slots, -1, np.int32)
    counters = np.zeros(scanner.N_COUNTERS, np.int64)
    sizes = np.zeros(2, np.int64)
    work.opcode_count[:] = 0
    work.row_table[:] = -1
    position = begin

    def enter_launch(context: int, identifier: int, launch: KernelLaunch | None) -> None:
        nonlocal launch_context, launch_id, launch_index, slots
        if 2 * (len(part.keys) + 1) > slots:
            slots *= 4
            launch_context = np.zeros(slots, np.uint64)
            launch_id = np.zeros(slots, np.int64)
            launch_index = np.full(slots, -1, np.int32)
            for index, key in enumerate(part.keys):
                place(key[0], key[1], index)
        place(context, identifier, len(part.keys))
        part.keys.append((context, identifier))
        part.launches.append(launch)

    def place(context: int, identifier: int, index: int) -> None:
        slot = scanner.find_launch(
            np.uint64(context), identifier, launch_context, launch_id, launch_index
        )
        slot = slot if slot >= 0 else -1 - slot
        launch_context[slot] = context
        launch_id[slot] = identifier
        launch_index[slot] = index

    with np.errstate(over="ignore"):
        while True:
            status, position, detail = scanner.scan_lines(
                text, words, position, end,
                work.opcode_words, work.opcode_meaning, work.opcode_width, work.opcode_count,
                launch_context, launch_id, launch_index,
                work.row_launch, work.row_cta, work.row_accesses, work.row_instructions,
                work.row_table,
                work.range_row, work.range_kind, work.range_start, work.range_end,
                counters, sizes, work.lanes,
            )  # fmt: skip
            if status == scanner.DONE:
                break
            if status == scanner.AT_LAUNCH:
                line_end = text_scanner.find_line_end(words, position, end)
                stop = scanner.find_memtrace(words, position + 1, line_end)
                line = text[position:stop].tobytes()
                try:
                    launch = parse_launch(line)
                    enter_launch(launch.context, (launch.trace_id or 0) - id_offset, launch)
                except ValueError as error:
                    part.damage.append(Damage(int(counters[scanner.LINES]) + 1, str(error)))
                if stop < line_end:
                    position = stop
                else:
                    counters[scanner.LINES] += 1
                    position = line_end + 1
            elif status == scanner.NEW_OPCODE:
                if len(work.opcode_text) >= _MAX_OPCODES:
                    raise TraceError(
                        path,
                        f"more than {_MAX_OPCODES} different opcodes",
                        "the file is damaged or no mem_trace output",
                    )
                work.add_opcode(words, detail)
            elif status == scanner.NEW_LAUNCH_KEY:
                context = int(text[position + 16 : position + 32].tobytes(), 16)
                enter_launch(context, int(detail), None)
            elif status == scanner.ROWS_FULL:
                work.grow_rows(int(sizes[0]))
            else:
                work.resize_ranges(2 * len(work.range_row), int(sizes[1]))

    _collect(part, counters, work, int(sizes[0]), int(sizes[1]))
    return part


def _collect(
    part: ScannedPart, counters: NDArray[np.int64], work: _Workspace, n_rows: int, n_ranges: int
) -> None:
    cta = work.row_cta[:n_rows]
    row, kind, start, end = join_ranges(
        work.range_row, work.range_kind, work.range_start, work.range_end, n_ranges, n_rows
    )
    part.touches = BlockTouches(
        launch=work.row_launch[:n_rows].copy(),
        x=(cta & (2**31 - 1)).astype(np.int32),
        y=(cta >> 31 & 0xFFFF).astype(np.int32),
        z=(cta >> 47).astype(np.int32),
        accesses=work.row_accesses[:n_rows].copy(),
        instructions=work.row_instructions[:n_rows].copy(),
        row=row, kind=kind, start=start, end=end,
    )  # fmt: skip
    part.lines = int(counters[scanner.LINES])
    for slot, text in work.opcode_text.items():
        if work.opcode_count[slot]:
            part.opcodes[text] += int(work.opcode_count[slot])
    for text, count in part.opcodes.items():
        opcode = decode_opcode(text)
        if not opcode.known:
            part.skipped["instructions with an opcode not known to depgraph"] += count
        elif opcode.space in {Space.SHARED, Space.LOCAL, Space.CONSTANT}:
            part.skipped[f"{opcode.space.value}-memory accesses"] += count
        elif _global_meaning(opcode) == text_scanner.IGNORE:
            part.skipped[f"other instructions ({opcode.mnemonic})"] += count
    for counter, reason in (
        (scanner.SHARED_SIDE_LINES, "shared-memory side of asynchronous copies (LDGSTS)"),
        (scanner.FOREIGN_LINES, "lines that are not the tracer's"),
        (scanner.VERBOSE_LINES, "verbose lines of the tracer"),
        (scanner.MALFORMED_LINES, "damaged access lines"),
    ):
        if counters[counter]:
            part.skipped[reason] += int(counters[counter])
    part.access_lines = int(counters[scanner.ACCESS_LINES])
    part.damaged_lines = int(counters[scanner.MALFORMED_LINES] + counters[scanner.SHORT_LINES])
    for counter, found in (
        (scanner.FIRST_MALFORMED, "access line is damaged"),
        (scanner.FIRST_SHORT, "access line has fewer than 32 addresses"),
    ):
        if counters[counter] and not part.damaged_line:
            part.damaged_line = Damage(int(counters[counter]), found)
    for counter, warning in (
        (scanner.SHORT_LINES, "access lines with fewer than 32 addresses (cut by other output)"),
        (scanner.MALFORMED_LINES, "damaged access lines, left out"),
        (scanner.ZERO_LINES, "global-memory access lines whose addresses are all 0"),
    ):
        if counters[counter]:
            part.warnings[warning] += int(counters[counter])


@dataclass(frozen=True, slots=True)
class LogRange:
    """The lines of an uncompressed log that start in bytes ``[begin, end)`` of the file."""

    path: Path
    begin: int
    end: int
    file_size: int
    id_offset: int

    @property
    def input_bytes(self) -> int:
        """Bytes of input that this part stands for."""
        return self.end - self.begin

    def scan(self) -> ScannedPart:
        """Read and scan the part."""
        first = max(self.begin - 1, 0)
        want = min(self.end + _OVERLAP_BYTES, self.file_size) - first
        text, got = self._read(first, want)
        start = 0
        if self.begin:
            words = text_scanner.overlapping_words(text)
            start = text_scanner.find_line_end(words, 0, got) + 1
            if first + start >= self.end:
                return ScannedPart(bytes=self.input_bytes)
        stop = got
        if self.end < self.file_size:
            words = text_scanner.overlapping_words(text)
            stop = text_scanner.find_line_end(words, self.end - 1 - first, got) + 1
            if stop > got and first + got < self.file_size:
                want = min(self.end + MAX_LINE_BYTES, self.file_size) - first
                text, got = self._read(first, want)
                words = text_scanner.overlapping_words(text)
                stop = min(text_scanner.find_line_end(words, self.end - 1 - first, got) + 1, got)
        text[stop : stop + text_scanner.PADDING] = 0
        part = scan_text(text, start, stop, path=str(self.path), id_offset=self.id_offset)
        part.bytes = self.input_bytes
        if first + stop >= self.file_size:
            check_last_line(part, text[max(0, stop - 4096) : stop].tobytes())
        return part

    def _read(self, offset: int, size: int) -> tuple[NDArray[np.uint8], int]:
        text = _workspace.text_buffer(size)
        try:
            descriptor = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise unreadable(str(self.path), error) from None
        try:
            got = 0
            while got < size:
                read = os.preadv(descriptor, [memoryview(text)[got:size]], offset + got)
                if read == 0:
                    break
                got += read
        except OSError as error:
            raise unreadable(str(self.path), error) from None
        finally:
            os.close(descriptor)
        text[got : got + text_scanner.PADDING] = 0
        return text, got


@dataclass(frozen=True, slots=True)
class LogText:
    """Whole lines of a log, in memory."""

    path: str
    text: NDArray[np.uint8] = field(repr=False)
    size: int
    id_offset: int
    input_bytes: int
    is_last: bool

    def scan(self) -> ScannedPart:
        """Scan the part."""
        part = scan_text(self.text, 0, self.size, path=self.path, id_offset=self.id_offset)
        if self.is_last:
            check_last_line(part, self.text[max(0, self.size - 4096) : self.size].tobytes())
        return part


def check_last_line(part: ScannedPart, tail: bytes) -> None:
    """Note as damage that the trace's last line is a cut access or launch line."""
    if not tail or tail.endswith(b"\n"):
        return
    line = tail.rsplit(b"\n", 1)[-1]
    addresses = re.search(rb"(?: 0x[0-9a-f]{16}){32}\s*$", line)
    is_whole = bool(addresses) or (b" - LAUNCH - " in line and _LAUNCH.search(line))
    begun = MARK.startswith(line[: len(MARK)]) or MARK in line
    # A tail of more than a line's length without its start can only be a cut foreign line.
    if begun and not is_whole:
        part.damage.append(Damage(part.lines, "the last line is cut"))


class NvbitTrace:
    """A ``mem_trace`` log, from a file or standard input.

    Parameters
    ----------
    path : Path or None
        None for standard input.
    part_bytes : int
        Size of the parts that are scanned independently.
    """

    format = FORMAT
    blind_spots = BLIND_SPOTS

    def __init__(self, path: Path | None, *, part_bytes: int = PART_BYTES) -> None:
        self.path = path
        self.name = "<stdin>" if path is None else str(path)
        self.paths = [] if path is None else [path]
        self._part_bytes = part_bytes

    @property
    def input_bytes(self) -> int | None:
        """Size of the input in bytes, compressed as it is; None for standard input."""
        return None if self.path is None else self.path.stat().st_size

    def tasks(self) -> Iterator[PartTask]:
        """Yield the parts of the log, in the order of the file."""
        stream = TraceStream(self.path)
        with stream:
            if self.path is None or stream.compression is not None:
                yield from self._stream_tasks(stream)
                return
            head = np.zeros(self._part_bytes, np.uint8)
            id_offset = 0
            while got := stream.readinto(memoryview(head)):
                offset = launch_id_offset(head[:got].tobytes())
                if offset is not None:
                    id_offset = offset
                    break
        size = self.path.stat().st_size
        for begin in range(0, size, self._part_bytes):
            yield LogRange(self.path, begin, min(begin + self._part_bytes, size), size, id_offset)

    def _stream_tasks(self, stream: TraceStream) -> Iterator[PartTask]:
        carry = b""
        id_offset: int | None = None
        consumed = 0
        overlong = False
        while True:
            text = np.empty(len(carry) + self._part_bytes + text_scanner.PADDING, np.uint8)
            text[: len(carry)] = np.frombuffer(carry, np.uint8)
            got = stream.readinto(memoryview(text)[len(carry) : len(carry) + self._part_bytes])
            filled = len(carry) + got
            is_last = got < self._part_bytes
            text[filled : filled + text_scanner.PADDING] = 0
            size = filled if is_last else _last_line_end(text, filled)
            if size == 0 and not is_last and filled > MAX_LINE_BYTES:
                overlong, carry = True, b""
                continue
            begin = 0
            if overlong and size:
                begin = text_scanner.find_line_end(text_scanner.overlapping_words(text), 0, size) + 1
                overlong = False
            carry = text[size:filled].tobytes()
            if begin:
                text, size = text[begin:], size - begin
            text[size : size + text_scanner.PADDING] = 0
            if id_offset is None:
                id_offset = launch_id_offset(text[:size].tobytes())
            at = stream.input_position
            yield LogText(self.name, text, size, id_offset or 0, at - consumed, is_last)
            consumed = at
            if is_last:
                return

    def program_order(self) -> LogOrder:
        """Return what numbers the launches of this log."""
        return LogOrder()

    def unseen(self, launch: KernelLaunch) -> str | None:
        """Say what the log cannot show of a kernel, if its name gives it away."""
        return unseen_hint(launch.name)


class LogOrder:
    """Numbers launches in the order of their launch lines.

    A launch line with a (context, id) seen before, from another process say, starts a new kernel;
    accesses belong to the newest one above them.
    """

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._newest: dict[tuple[int, ...], int] = {}

    def add(self, part: ScannedPart) -> NDArray[np.int64]:
        """Take the next part; return the index in `operations` of each of its launches, or -1."""
        indices = np.full(len(part.keys), -1, np.int64)
        for index, (key, launch) in enumerate(zip(part.keys, part.launches, strict=True)):
            if launch is not None:
                self._newest[key] = len(self.operations)
                self.operations.append(launch)
            indices[index] = self._newest.get(key, -1)
        return indices


def _last_line_end(text: NDArray[np.uint8], filled: int) -> int:
    """Return the position after the last newline in ``text[:filled]``, 0 if there is none."""
    for window in (4096, 1 << 16, filled):
        tail = text[max(0, filled - window) : filled].tobytes()
        at = tail.rfind(b"\n")
        if at >= 0:
            return filled - len(tail) + at + 1
    return 0


def unseen_hint(name: str) -> str | None:
    """Say what of a kernel a mem_trace log cannot show, if its name gives it away."""
    lowered = name.lower()
    if any(mark in lowered for mark in ("sm90", "sm100", "tma", "wgmma", "cutlass3x")):
        return "may copy by TMA, which the trace does not show"
    if any(mark in lowered for mark in ("tex1d", "tex2d", "tex3d", "texture", "surf2d")):
        return "may read textures, which the trace does not show"
    return None

