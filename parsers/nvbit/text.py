"""The text of NVBit ``mem_trace``: its launch lines, and whole lines scanned to records."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from depgraph.parsers.nvbit import scanner_jit as scanner
from depgraph.parsers.scanning.inputs import find_text
from depgraph.parsers.scanning.launch_limits import checked_launch, signed64
from depgraph.parsers.scanning.opcodes import OpcodeTable, count_opcodes, untraced_by
from depgraph.parsers.scanning.tables_jit import LANES
from depgraph.parsers.scanning.text_jit import PADDING, overlapping_words
from depgraph.parsers.scanning.touch_table import TouchTable
from depgraph.trace.records import Damage, KernelLaunch, Overflow, ScannedPart

if TYPE_CHECKING:
    from depgraph.system.arrays import Text


# Names of kernels that copy by TMA, whose addresses NVBit up to 1.7 cannot print: what the name
# holds, whose kernels are named so and where that can be seen. A name is weak evidence: it counts
# only where the trace shows no such instruction of any kernel.
TMA_NAMES: tuple[tuple[str, str], ...] = (
    (r"\bnvjet_", "cuBLAS for sm_90 and later; recorded on an H100: all operands come by TMA"),
    (
        r"(?i:sm_?(?:90|10[0-9]|12[0-9])(?![0-9]))",
        "compute capability in names of cuBLAS, cuDNN, CUTLASS 3, FlashAttention 3, DeepGEMM",
    ),
    (r"(?i:cutlass_?3x)", "CUTLASS 3 kernels in cuBLAS and PyTorch: cutlass3x_sm90_tensorop_..."),
    (r"(?i:warp_?specialized)", "CUTLASS 3 kernel schedules: KernelTmaWarpSpecializedPingpong"),
    (r"(?i:w?gmma)", "warpgroup MMA of sm_90, fed by TMA: CUTLASS 3, MainloopSm90TmaGmma"),
    (
        r"Tma(?![a-z])|(?<![A-Za-z])(?:tma|TMA)(?![A-Za-z])",
        "the word itself, as in MainloopSm90Tma, tma_copy; not softmax",
    ),
)
_TMA = re.compile("|".join(f"(?:{pattern})" for pattern, _ in TMA_NAMES))
_TEXTURE_MARKS = ("tex1d", "tex2d", "tex3d", "texture", "surf2d")


def untraced_by_name(name: str) -> str | None:
    """Say what a trace cannot show of a kernel, if its name gives it away."""
    found = _TMA.search(name)
    return found and "copies by TMA, by its name, which the trace does not show"


_LAUNCH = re.compile(
    rb"MEMTRACE: CTX 0x([0-9a-f]+) - LAUNCH - Kernel pc 0x[0-9a-f]+ - Kernel name (.*)"
    rb" - grid launch id (\d{1,99})"
    rb" - grid size (\d{1,99}),(\d{1,99}),(\d{1,99})"
    rb" - block size (\d{1,99}),(\d{1,99}),(\d{1,99})"
    rb" - nregs (-?\d{1,99}) - shmem (-?\d{1,99}) - cuda stream id (-?\d{1,99})"
)
_RECORD = b"MEMTRACE: CTX 0x"
_MAX_LAUNCH_ID = 1 << 62
OVERLONG = "lines of more than 1 MiB"
_LEFT_OUT = (
    (scanner.EMPTY_LINES, "access lines without addresses (cut, or printed by a modified tool)"),
    (scanner.OUT_OF_RANGE_LINES, "access lines with an address that no GPU has"),
    (scanner.MALFORMED_LINES, "damaged access lines"),
)
_SKIPPED = (
    (scanner.SHARED_SIDE_LINES, "shared-memory side of asynchronous copies (LDGSTS)"),
    (scanner.FOREIGN_LINES, "lines that are not the tracer's"),
    (scanner.VERBOSE_LINES, "verbose lines of the tracer"),
    (scanner.OVERLONG_LINES, OVERLONG),
    *_LEFT_OUT,
)
_WARNINGS = (
    (scanner.SHORT_LINES, "access lines with fewer than 32 addresses (cut by other output)"),
    (scanner.LONG_LINES, "access lines with more than 32 addresses, of which 32 count"),
    *_LEFT_OUT,
    (scanner.ZERO_LINES, "global-memory access lines whose addresses are all 0"),
)
_DAMAGED = {
    scanner.SHORT_LINES: "access line has fewer than 32 addresses",
    scanner.LONG_LINES: "access line has more than 32 addresses",
    scanner.EMPTY_LINES: "access line has no address where mem_trace prints them",
    scanner.OUT_OF_RANGE_LINES: "access line has an address that no GPU has",
    scanner.MALFORMED_LINES: "access line is damaged",
}


def is_launch(line: bytes) -> bool:
    """Tell whether a line is a whole launch line."""
    return _LAUNCH.search(line) is not None


def parse_launch(line: bytes) -> KernelLaunch:
    """Decode a launch line; a `ValueError` says what is wrong with it."""
    match = _LAUNCH.search(line)
    if match is None:
        raise ValueError("launch line is damaged")
    context, name, *numbers = match.groups()
    identifier, gx, gy, gz, bx, by, bz, registers, shared, stream = (int(n) for n in numbers)
    if identifier >= _MAX_LAUNCH_ID:
        raise ValueError(f"launch id {str(identifier)[:24]} is not possible")
    return checked_launch(
        name=name.decode("utf-8", "replace"),
        grid=(gx, gy, gz),
        block=(bx, by, bz),
        registers=registers,
        shared_bytes=shared,
        stream=signed64(stream),
        context=int(context, 16),
        trace_id=identifier,
    )


class _Workspace(threading.local):
    """The arrays that a thread scans with, kept from part to part."""

    def __init__(self) -> None:
        self.text = np.zeros(0, np.uint8)
        self.opcodes = OpcodeTable()
        self.touches = TouchTable()
        self.lanes = np.zeros(LANES, np.uint64)


_workspace = _Workspace()


def text_buffer(size: int) -> NDArray[np.uint8]:
    """Return this thread's buffer of at least `size` bytes and the scanner's padding."""
    if len(_workspace.text) < size + PADDING:
        _workspace.text = np.zeros(size + PADDING, np.uint8)
    return _workspace.text


class LaunchTable:
    """Which launch a (context, id) stands for, as scanners look it up."""

    def __init__(self) -> None:
        self._entered: list[tuple[int, int, int]] = []
        self._new_slots(64)

    def _new_slots(self, slots: int) -> None:
        self.arrays = scanner.Launches(
            np.zeros(slots, np.uint64), np.zeros(slots, np.int64), np.full(slots, -1, np.int32)
        )

    def enter(self, context: int, identifier: int, index: int) -> bool:
        """Let a key stand for a launch; tell whether it stood for none before."""
        if 2 * (len(self._entered) + 1) > len(self.arrays.index):
            self._new_slots(4 * len(self.arrays.index))
            for entry in self._entered:
                self._place(*entry)
        self._entered.append((context, identifier, index))
        return self._place(context, identifier, index)

    @np.errstate(over="ignore")  # not compiled, hashes wrap around
    def _place(self, context: int, identifier: int, index: int) -> bool:
        slot = scanner.find_launch(self.arrays, np.uint64(context), identifier)
        is_new = slot < 0
        slot = -1 - slot if is_new else slot
        self.arrays.context[slot] = context
        self.arrays.identifier[slot] = identifier
        self.arrays.index[slot] = index
        return bool(is_new)


def scan_text(
    text: Text,
    begin: int,
    end: int,
    *,
    path: str,
    id_offset: int = 0,
    overflow: Overflow | None = None,
    touches: TouchTable | None = None,  # an empty one to be filled
) -> ScannedPart:
    """Scan ``text[begin:end]``, from the start of a line to behind the end of one."""
    opcodes, lanes = _workspace.opcodes, _workspace.lanes
    opcodes.clear_counts()
    if touches is None:
        touches = _workspace.touches
        touches.clear(overflow)
    words = overlapping_words(text)
    part = ScannedPart(bytes=end - begin)
    launches = LaunchTable()
    counters = np.zeros(scanner.N_COUNTERS, np.int64)
    state = np.full(scanner.STATE_SIZE, -1, np.int64)
    position = begin
    with np.errstate(over="ignore"):
        while True:
            status, position, detail = scanner.scan_lines(
                text, words, position, end,
                opcodes.arrays, launches.arrays, touches.arrays, counters, state, lanes,
            )  # fmt: skip
            if status == scanner.DONE:
                break
            if status == scanner.AT_LAUNCH:
                line_end = int(state[scanner.LINE_END])
                position = _enter_launch_line(
                    text, position, line_end, launches, part, counters, id_offset
                )
            elif status == scanner.NEW_OPCODE:
                opcodes.add(words, detail, path, "mem_trace output")
            elif status == scanner.NEW_LAUNCH_KEY:
                key = int(text[position + 16 : position + 32].tobytes(), 16), int(detail)
                launches.enter(*key, part.add_launch(key))
            elif status == scanner.ROWS_FULL:
                touches.grow_rows()
            else:
                touches.make_room(scanner.MAX_RANGES_PER_LINE)
    part.touches = touches.touches()
    _count(part, counters, opcodes)
    _note_untraced(part, text[begin:end], opcodes)
    return part


def _note_untraced(part: ScannedPart, text: Text, opcodes: OpcodeTable) -> None:
    """Note which launches have instructions that reach global memory at addresses unknown."""
    met = {opcode.mnemonic: opcode for opcode, _ in opcodes.counted() if opcode.is_untraced_global}
    part.shows_bulk = any(opcode.is_bulk for opcode in met.values())
    if not met:
        return
    line = re.compile(
        rb"CTX 0x([0-9a-f]{16}) -(?: SM_id \d+ -)? grid_launch_id (\d{1,18}) - CTA [\d,-]+"
        rb" - warp \d+ - (" + b"|".join(sorted(mnemonic.encode() for mnemonic in met)) + rb")[ .]"
    )
    for context, identifier, mnemonic in set(line.findall(text.tobytes())):
        key = int(context, 16), int(identifier)
        for index in (i for i, known in enumerate(part.keys) if known == key):
            part.untraced[index] = untraced_by(met[mnemonic.decode()])


def _enter_launch_line(
    text: Text,
    position: int,
    line_end: int,
    launches: LaunchTable,
    part: ScannedPart,
    counters: NDArray[np.int64],
    id_offset: int,
) -> int:
    """Enter the launch line at `position`; return where the next record starts."""
    stop = find_text(text, _RECORD, position + 1, line_end)
    try:
        launch = parse_launch(text[position:stop].tobytes())
        key = launch.context, (launch.trace_id or 0) - id_offset
        launches.enter(*key, part.add_launch(key, launch))
        if any(mark in launch.name.lower() for mark in _TEXTURE_MARKS):
            warning = "launches named as if they read textures, which the trace does not show"
            part.warnings[warning] += 1
    except ValueError as error:
        part.damage.append(Damage(int(counters[scanner.LINES]) + 1, str(error)))
    if stop < line_end:
        return stop
    counters[scanner.LINES] += 1
    return line_end + 1


def _count(part: ScannedPart, counters: NDArray[np.int64], opcodes: OpcodeTable) -> None:
    part.lines = int(counters[scanner.LINES])
    count_opcodes(part, opcodes.counted())
    part.count_lines(counters, _SKIPPED, _WARNINGS)
    part.damaged_lines = sum(int(counters[counter]) for counter in _DAMAGED)
    part.access_lines = int(counters[scanner.ACCESS_LINES]) + part.damaged_lines
    if counters[scanner.FIRST_DAMAGED]:
        found = _DAMAGED[int(counters[scanner.FIRST_DAMAGE])]
        part.damaged_line = Damage(int(counters[scanner.FIRST_DAMAGED]), found)
