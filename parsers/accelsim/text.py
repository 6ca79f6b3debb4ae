"""The text of Accel-Sim kernel traces, scanned buffer by buffer to records."""

import threading

import numpy as np

from depgraph.errors import TraceError
from depgraph.parsers.accelsim import bulk_scanner_jit as bulk_scanner
from depgraph.parsers.accelsim import scanner_jit as scanner
from depgraph.parsers.accelsim.header import KernelHeader, parse_header, with_layout
from depgraph.parsers.scanning.inputs import LineBuffer, Readable, whole_lines
from depgraph.parsers.scanning.scanning_jit import IGNORE, LANES, overlapping_words
from depgraph.parsers.scanning.tables import (
    MemoryOpcode,
    OpcodeTable,
    Space,
    TouchTable,
    global_meaning,
    untraced_by,
)
from depgraph.system.arrays import Text, Words
from depgraph.trace.records import Damage, Overflow, ScannedPart

BUFFER_BYTES = 1 << 20  # of text that a thread holds at a time
HEAD_BYTES = 1 << 16  # enough for the header and for lines to tell the layout by
_TAIL_BYTES = 1 << 14
_LINE_BYTES = 1 << 12
# Address 0 belongs to no allocation: above this many in a hundred the tracer was at fault.
_ZERO_LINES_LIMIT = 0.01
_BULK_LINES = 1024  # noted before they are read

_LEFT_OUT = (
    (scanner.MALFORMED_LINES, "damaged instruction lines"),
    (scanner.OUT_OF_RANGE_LINES, "instruction lines with an address that no GPU has"),
    (scanner.BLOCKLESS_LINES, "instructions that belong to no thread block"),
    (scanner.OVERLONG_LINES, "lines of more than 1 MiB"),
)
_UNTRACED = "reaches global memory at addresses, or for blocks, that the trace does not name"
_SKIPPED = (
    (scanner.MASKED_LINES, "global-memory instructions without an active lane"),
    (scanner.SHARED_SIDE_LINES, "shared-memory side of asynchronous copies (LDGSTS)"),
    (scanner.WINDOW_LINES, "generic accesses to shared or local memory"),
    *_LEFT_OUT,
    (scanner.FOREIGN_LINES, "lines that are not the tracer's"),
)
_WARNINGS = (
    *_LEFT_OUT,
    (scanner.WRONG_COUNTS, "warps with more or fewer instructions than they declare"),
    (scanner.SUPERSET_LINES, "accesses that list more lanes than took part (old tracer)"),
    (scanner.HOLE_LINES, "accesses of a constant stride with lanes left out"),
    (scanner.ZERO_LINES, "global-memory accesses whose addresses are all 0"),
)
_DAMAGED = tuple(counter for counter, _ in _LEFT_OUT)


def _meaning(opcode: MemoryOpcode) -> int:
    if opcode.is_bulk:
        return opcode.effect.value | scanner.BULK
    meaning = global_meaning(opcode)
    # A reduction takes a generic address, though only global memory has one.
    is_generic = opcode.space is Space.GENERIC or opcode.mnemonic == "RED"
    return meaning | scanner.WINDOWED if meaning != IGNORE and is_generic else meaning


class _Workspace(threading.local):
    """The arrays that a thread scans with, kept from part to part."""

    def __init__(self) -> None:
        self.opcodes = OpcodeTable(_meaning)
        self.touches = TouchTable()
        self.lanes = np.zeros(LANES, np.uint64)
        self.bulk_lines = np.zeros((_BULK_LINES, scanner.BULK_COLUMNS), np.int64)


_workspace = _Workspace()


class PartScanner:
    """Scans the kernel files, or the section of one, that make a part."""

    def __init__(self, overflow: Overflow | None) -> None:
        self.part = ScannedPart()
        _workspace.touches.clear(overflow)

    def scan_kernel(
        self,
        stream: Readable,
        key: int,
        path: str,
        *,
        context: int = 0,
        header: KernelHeader | None = None,  # as found before; else it is found in the text
        announces: bool = True,  # the part announces the launch
        is_end_of_file: bool = True,  # the text ends because the file does
    ) -> None:
        """Scan the text of a kernel, `key` in launch order, or what follows its header."""
        kernel: _KernelScanner | None = None
        index = self.part.add_launch((key,))
        try:
            for buffer in whole_lines(stream, BUFFER_BYTES):
                if kernel is None:
                    head = buffer.text[: buffer.size].tobytes()[:HEAD_BYTES]
                    header = header or with_layout(head, parse_header(head, context=context))
                    kernel = _KernelScanner(self.part, header, index, path)
                    self.part.launches[index] = header.launch if announces else None
                kernel.scan(buffer)
                self.part.text_bytes += buffer.size
                buffer.release()
            if kernel is not None:
                kernel.finish(is_end_of_file=is_end_of_file)
        except ValueError as error:
            self.part.damage.append(Damage(1, str(error), path))
        except TraceError as error:
            self.part.damage.append(Damage(error.line or 1, error.found, path))

    def finish(self) -> ScannedPart:
        """Return what was scanned."""
        self.part.touches = _workspace.touches.touches()
        return self.part


class _KernelScanner:
    def __init__(self, part: ScannedPart, header: KernelHeader, index: int, path: str) -> None:
        self._part = part
        self._index = index
        self._path = path
        self._counters = np.zeros(scanner.N_COUNTERS, np.int64)
        self._state = np.zeros(scanner.STATE_SIZE, np.int64)
        self._state[: scanner.IN_BLOCK] = -1
        self._kernel = scanner.Kernel(
            launch=index,
            is_grouped=header.is_grouped,
            columns=header.columns,
            lists_active_lanes=header.lists_active_lanes,
            windows=header.windows(),
            state=self._state,
            lanes=_workspace.lanes,
            bulk_lines=_workspace.bulk_lines,
        )
        self._tail = b""
        self._failed = False
        _workspace.opcodes.clear_counts()

    def scan(self, buffer: LineBuffer) -> None:
        opcodes, touches = _workspace.opcodes, _workspace.touches
        text = buffer.text
        words = overlapping_words(text)
        position = 0
        with np.errstate(over="ignore"):
            while True:
                status, position, detail = scanner.scan_lines(
                    text, words, position, buffer.size,
                    self._kernel, opcodes.arrays, touches.arrays, self._counters,
                )  # fmt: skip
                if self._state[scanner.N_BULK_LINES]:
                    self._scan_bulk_lines(text, words)
                if status == scanner.DONE:
                    break
                if status == scanner.NEW_OPCODE:
                    self._add_opcode(text, words, int(detail))
                elif status == scanner.ROWS_FULL:
                    touches.grow_rows()
                elif status == scanner.RANGES_FULL:
                    touches.make_room(scanner.MAX_RANGES_PER_LINE)
        self._tail = text[max(0, buffer.size - _TAIL_BYTES) : buffer.size].tobytes()
        if buffer.overlong:
            line = self._counters[scanner.LINES] + 1
            scanner.note_damaged(self._counters, scanner.OVERLONG_LINES, line)
            self._counters[scanner.LINES] += 1
        if buffer.failure is not None:
            self._failed = True
            self._note(buffer.failure)

    def _scan_bulk_lines(self, text: Text, words: Words) -> None:
        opcodes, touches = _workspace.opcodes, _workspace.touches
        first = 0
        while True:
            first, ranges = bulk_scanner.scan_bulk_lines(
                text, words, first, self._kernel, opcodes.arrays, touches.arrays, self._counters
            )
            if not ranges:
                break
            touches.make_room(int(ranges))

    def _add_opcode(self, text: Text, words: Words, at: int) -> None:
        line = int(self._counters[scanner.LINES]) + 1
        opcode = _workspace.opcodes.add(words, at, self._path, "Accel-Sim trace", line=line)
        if not opcode.known and _has_addresses(text[at : at + _LINE_BYTES].tobytes()):
            _workspace.opcodes.unknown_accesses.add(opcode.text)

    def _note(self, found: str) -> None:
        line = max(int(self._counters[scanner.LINES]), 1)
        self._part.damage.append(Damage(line, found, self._path))

    def finish(self, *, is_end_of_file: bool) -> None:
        if is_end_of_file and not self._failed:
            self._check_end()
        with np.errstate(over="ignore"):
            scanner.end_warp(self._state, self._counters)
        counters = [int(count) for count in self._counters]
        accesses, zeros = counters[scanner.ACCESS_LINES], counters[scanner.ZERO_LINES]
        if zeros > _ZERO_LINES_LIMIT * accesses:
            found = f"{zeros} of {accesses} global-memory accesses have address 0"
            self._note(f"{found}, a fault of tracers of February to August 2022")
        part = self._part
        part.count_lines(self._counters, _SKIPPED, _WARNINGS)
        self._count_opcodes(counters[scanner.UNTRACED_LINES])
        damaged = sum(counters[counter] for counter in _DAMAGED)
        part.damaged_lines += damaged
        part.access_lines += counters[scanner.INSTRUCTION_LINES] + damaged
        if counters[scanner.FIRST_DAMAGED] and part.damaged_line is None:
            part.damaged_line = Damage(
                counters[scanner.FIRST_DAMAGED], "instruction line is damaged", self._path
            )
        part.lines += counters[scanner.LINES]

    def _check_end(self) -> None:
        declared, seen = int(self._state[scanner.DECLARED]), int(self._state[scanner.SEEN])
        if declared > seen:
            found = f"after {seen} of {declared} instructions"
            self._note(f"the file ends in the middle of a warp, {found}")
            self._state[scanner.DECLARED] = -1
        elif _is_cut(self._tail):
            self._note("the last line is cut")
        elif self._state[scanner.IN_BLOCK]:
            self._part.warnings["kernel files that do not end with #END_TB"] += 1

    def _count_opcodes(self, untraced: int) -> None:
        part = self._part
        reasons = [_UNTRACED] if untraced else []
        for opcode, count in _workspace.opcodes.counted():
            part.opcodes[opcode.text] += count
            if opcode.text in _workspace.opcodes.unknown_accesses:
                part.warnings[f"memory opcode not known to depgraph ({opcode.mnemonic})"] += count
                part.skipped["memory instructions with an opcode not known to depgraph"] += count
            elif opcode.space in {Space.SHARED, Space.LOCAL, Space.CONSTANT}:
                part.skipped[f"{opcode.space.value}-memory accesses"] += count
            elif opcode.space in {Space.TEXTURE, Space.SURFACE}:
                part.skipped[f"{opcode.space.value} accesses, at addresses not traced"] += count
                reasons.append(untraced_by(opcode))
        if reasons:
            part.untraced[self._index] = reasons[0]


def _has_addresses(text: bytes) -> bool:
    """Tell whether an instruction, from its opcode on, has a memory part."""
    tokens = text.split(b"\n", 1)[0].split()
    try:
        first = 2 + int(tokens[1])
        width, mode, address = tokens[first : first + 3]
        return int(width) > 0 and int(mode) in {0, 1, 2} and address.startswith(b"0x")
    except (IndexError, ValueError):
        return False


def _is_cut(tail: bytes) -> bool:
    """Tell whether the last line lost its end; the tracer ends every line with a blank."""
    *lines, last = tail.split(b"\n")
    if not last.strip() or last.startswith((b"#", b"-")) or last.endswith(b" "):
        return False
    return any(line.endswith(b" ") for line in lines if line[:1].isdigit())
