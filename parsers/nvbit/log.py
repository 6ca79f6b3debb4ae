"""NVBit ``mem_trace`` standard output, of NVBit 1.0 to 1.7 and of tools that print like it.

Lines of many kernels are mixed: a receiver thread prints accesses long after later launches, so
that an access belongs to the launch with its id, never to the launch line above it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from io import BufferedReader
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import TraceError
from depgraph.parsers.nvbit import text as mem_trace
from depgraph.parsers.scanning.inputs import (
    InputTrace,
    LineBuffer,
    TraceInput,
    TraceStream,
    find_mark,
    last_line_end,
    whole_lines,
)
from depgraph.parsers.scanning.scanning_jit import MAX_LINE_BYTES, NEWLINE, PADDING
from depgraph.system.arrays import Text
from depgraph.trace import records

FORMAT = "nvbit"
BLIND_SPOTS: tuple[str, ...] = (
    (
        "copies, memsets and allocations are not traced: a dependence through cudaMemcpy is"
        " missing, and buffers that were freed and used again give dependences that are not the"
        " program's"
    ),
)
PART_BYTES = 16 << 20
_PIECE_BYTES = 64 << 10
_TAIL_BYTES = 4096
_LINE = re.compile(rb"[^\n]+")
_LAUNCH = b" - LAUNCH - "
_LAUNCH_ID = re.compile(rb" - grid launch id (\d{1,18})")
_ACCESS_ID = re.compile(rb"MEMTRACE: CTX 0x[0-9a-f]+ - (?:SM_id \d+ - )?grid_launch_id (\d{1,18}) ")
_BANNER = b"NVBit (NVidia Binary Instrumentation Tool"


def sniff(head: bytes) -> bool:
    """Tell whether the first bytes of a file hold a line of this format, or NVBit's banner."""
    return mem_trace.dialect_of(head) is not None or _BANNER in head


def open_inputs(inputs: Sequence[TraceInput]) -> "NvbitTrace":
    """Open one or several logs of a run."""
    return NvbitTrace(*inputs)


@dataclass(frozen=True, slots=True)
class Log:
    """One of the logs of a run, and how its lines are to be read."""

    path: Path | str  # a name, where it is no file
    dialect: mem_trace.Dialect
    id_offset: int  # by how much launch lines count ahead of access lines
    is_one_of_several: bool

    def scan(
        self,
        text: Text,
        size: int,
        overflow: records.Overflow | None,
        *,
        overlong: int,  # lines that are left out behind the text
        is_last: bool,  # the log ends here
    ) -> records.ScannedPart:
        """Scan whole lines of ``text[:size]``."""
        tail = text[max(0, size - _TAIL_BYTES) : size].tobytes()
        if self.dialect.rewrite is not None:
            lines = bytearray(self.dialect.rewrite(text[:size].tobytes()))
            size = len(lines)
            lines += bytes(PADDING)
            text = np.frombuffer(lines, np.uint8)
        path = str(self.path)
        part = mem_trace.scan_text(text, size, path, id_offset=self.id_offset, overflow=overflow)
        part.path = path if self.is_one_of_several else None
        if overlong:
            part.lines += overlong
            part.skipped[mem_trace.OVERLONG] += overlong
        if is_last and _is_cut(tail, self.dialect):
            part.damage.append(records.Damage(part.lines, "the last line is cut"))
        return part


@dataclass(frozen=True, slots=True)
class LogRange:
    """The lines of an uncompressed log that start in bytes ``[begin, end)`` of the file."""

    log: Log
    path: Path
    begin: int
    end: int
    file: records.FileState

    @property
    def input_bytes(self) -> int:
        """Bytes of input that this part stands for."""
        return self.end - self.begin

    def scan(self, overflow: records.Overflow | None = None) -> records.ScannedPart:
        """Read and scan the part."""
        part, longest = records.ScannedPart(), min(self.end + MAX_LINE_BYTES, self.file.size)
        try:
            with self.path.open("rb") as file:
                start = find_mark(file, b"\n", self.begin, self.end)
                if start < self.end:
                    stop = find_mark(file, b"\n", self.end, longest)
                    part = self._scan(file, start, stop, overflow)
        except OSError as error:
            raise records.unreadable(self.path, error) from None
        self.file.verify(self.path)
        part.bytes = part.text_bytes = self.input_bytes
        return part

    def _scan(
        self, file: BufferedReader, start: int, stop: int, overflow: records.Overflow | None
    ) -> records.ScannedPart:
        size = stop - start
        text = mem_trace.text_buffer(size)
        file.seek(start)
        got = file.readinto(text.data[:size])
        if got < size:
            self.file.verify(self.path)
            raise TraceError(self.path, f"ends at byte {start + got}, though it should be longer")
        # The last line may be longer than any that counts, and not end here.
        overlong = int(stop < self.file.size and text[size - 1] != NEWLINE)
        if overlong:
            size = last_line_end(text, size)
        text[size : size + PADDING] = 0
        is_last = stop >= self.file.size
        return self.log.scan(text, size, overflow, overlong=overlong, is_last=is_last)


@dataclass(frozen=True, slots=True)
class LogText:
    """Whole lines of a log, in memory."""

    log: Log
    buffer: LineBuffer = field(repr=False)
    input_bytes: int

    def scan(self, overflow: records.Overflow | None = None) -> records.ScannedPart:
        """Scan the part."""
        text, size, failure = self.buffer.text, self.buffer.size, self.buffer.failure
        is_last = self.buffer.is_last and failure is None
        part = self.log.scan(text, size, overflow, overlong=self.buffer.overlong, is_last=is_last)
        part.bytes, part.text_bytes = self.input_bytes, size
        if failure is not None:
            part.damage.append(records.Damage(max(part.lines, 1), failure))
        self.buffer.release()
        return part


def _is_cut(tail: bytes, dialect: mem_trace.Dialect) -> bool:
    """Tell whether the last line of a log is an access or launch line that is cut."""
    if not tail or tail.endswith(b"\n"):
        return False
    line = tail.rsplit(b"\n", 1)[-1]
    if dialect.rewrite is not None:
        line = dialect.rewrite(line)
    addresses = re.search(rb"(?: 0x[0-9a-f]{16}){32}\s*$", line)
    is_whole = bool(addresses) or (_LAUNCH in line and mem_trace.is_launch(line))
    begun = mem_trace.MARK.startswith(line[: len(mem_trace.MARK)]) or mem_trace.MARK in line
    # A tail of more than a line's length without its start can only be a cut foreign line.
    return begun and not is_whole


class IdOffset:
    """Find out by how much launch lines count ahead of access lines: 1 in NVBit 1.5, else 0.

    An access never precedes its own launch line. So the id of an access that is the newest
    launch's, or a launch with id 0, means 0. Where neither shows up, accesses with the id below
    all launches, or launches that start at 1, mean 1.
    """

    def __init__(self) -> None:
        self._lowest = self._newest = -1  # ids of launches
        self._access_seen = False
        self._below_seen = False
        self.decided: int | None = None

    def look_at(self, text: bytes) -> None:
        """Take more lines into account."""
        lines = _LINE.finditer(text)
        while self.decided is None and (line := next(lines, None)) is not None:
            words = line[0]
            at = words.find(_LAUNCH)
            launches = [] if at < 0 else _LAUNCH_ID.findall(words, at)
            if launches:
                is_zero = not (identifier := int(launches[-1]))
                self._lowest = identifier if self._newest < 0 else min(self._lowest, identifier)
                self._newest = identifier
            elif self._newest >= 0 and (access := _ACCESS_ID.search(words)):
                self._access_seen = True
                is_zero = int(access[1]) == self._newest
                self._below_seen |= int(access[1]) == self._lowest - 1
            else:
                continue
            self.decided = 0 if is_zero else None

    def best(self) -> int | None:
        """Return the offset that the lines so far speak for; None where they hold no access."""
        if self.decided is not None:
            return self.decided
        return int(self._below_seen or self._lowest == 1) if self._access_seen else None


class NvbitTrace(InputTrace):
    """One or several ``mem_trace`` logs of a run, in order, from files or standard input."""

    format = FORMAT
    blind_spots = BLIND_SPOTS

    def __init__(self, *inputs: TraceInput | Path | None, part_bytes: int = PART_BYTES) -> None:
        super().__init__(
            [item if isinstance(item, TraceInput) else TraceInput(item) for item in inputs]
        )
        self._part_bytes = part_bytes
        self._dialects: dict[str, mem_trace.Dialect] = {}
        self.id_offset = 0  # of the log that was opened last

    def dialect(self, item: TraceInput) -> mem_trace.Dialect:
        """Return the dialect of a log, told by the first lines that are the tracer's."""
        if item.name not in self._dialects:
            found = mem_trace.dialect_of(item.head(1 << 16)) or mem_trace.dialect_of(
                item.head(self._part_bytes)
            )
            self._dialects[item.name] = found or mem_trace.CURRENT
        return self._dialects[item.name]

    def tasks(self) -> Iterator[records.PartTask]:
        """Yield the parts of the logs, in the order of the files."""
        for item in self._inputs:
            in_order = self.dialect(item).in_order
            with item.open() as stream:
                if item.path is None or stream.compression or in_order:
                    yield from self._stream_tasks(item, stream)
                    continue
                self.id_offset = self._find_id_offset(stream)
            file = self.sources.add(item.path)
            for begin in range(0, file.size, self._part_bytes):
                end = min(begin + self._part_bytes, file.size)
                yield LogRange(self._log(item), item.path, begin, end, file)

    def _log(self, item: TraceInput) -> Log:
        path = item.path or item.name
        return Log(path, self.dialect(item), self.id_offset, len(self._inputs) > 1)

    def _find_id_offset(self, stream: TraceStream) -> int:
        offset, seen = IdOffset(), 0
        # Most logs decide it in their first lines; what only suggests an offset does after a part.
        for buffer in whole_lines(stream, min(_PIECE_BYTES, self._part_bytes)):
            offset.look_at(buffer.text[: buffer.size].tobytes())
            buffer.release()
            seen += buffer.size
            is_suggested = seen >= self._part_bytes and offset.best() is not None
            if is_suggested or offset.decided is not None:
                break
        best = offset.best()
        return self.id_offset if best is None else best

    def _stream_tasks(self, item: TraceInput, stream: TraceStream) -> Iterator[records.PartTask]:
        offset = IdOffset()
        consumed = 0
        cut = mem_trace.start_of_cut_launch if self.dialect(item).in_order else None
        for buffer in whole_lines(stream, self._part_bytes, cut):
            text = buffer.text[: buffer.size]
            if offset.best() is None:
                offset.look_at(text.tobytes())
                best = offset.best()
                self.id_offset = self.id_offset if best is None else best
            at = stream.input_position
            yield LogText(self._log(item), buffer, at - consumed)
            consumed = at

    def program_order(self) -> "LogOrder":
        """Return what numbers the launches."""
        return LogOrder(has_ids=all(self.dialect(item).has_ids for item in self._inputs))

    def untraced(self, launch: records.KernelLaunch) -> str | None:
        """Say what the log cannot show of a kernel, if its name gives it away."""
        return mem_trace.untraced_by_name(launch.name)


class LogOrder(records.ProgramOrder):
    """Takes launches in the order of their lines; one with a known id is of another process."""

    # Accesses without an id above the first launch line of a part are of the last one before it.

    def __init__(self, *, has_ids: bool = True) -> None:
        super().__init__()
        self._process: dict[int, int] = {}  # the newest of each context
        self._process_of: dict[tuple[int, ...], int] = {}
        self._has_ids = has_ids

    def add(self, part: records.ScannedPart) -> NDArray[np.int64]:
        """Take the next part; return the index in `operations` of each of its launches, or -1."""
        last_before = len(self.operations) - 1
        places = super().add(part)
        if not self._has_ids:
            places[[launch is None for launch in part.launches]] = last_before
        return places

    def announced(self, key: tuple[int, ...], launch: records.Operation) -> records.Operation:
        """Give a launch without an id its number, and one whose id is known another process."""
        if not isinstance(launch, records.KernelLaunch):
            return launch
        if not self._has_ids:
            return replace(launch, trace_id=len(self.operations))
        process = self._process.get(launch.context, 0)
        if self._process_of.get(key) == process:
            process = self._process[launch.context] = process + 1
        self._process_of[key] = process
        return replace(launch, process=process) if process else launch
