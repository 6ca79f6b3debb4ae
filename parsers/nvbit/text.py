"""The text of NVBit ``mem_trace``: its dialects, its launch lines, whole lines scanned to records.

NVBit 1.5 to 1.7 print ``MEMTRACE: CTX 0x... - grid_launch_id N - CTA x,y,z - warp W - OPCODE -``
and 32 addresses. NVBit 1.0 to 1.4 print no ids, so that an access belongs to the launch line above
it; some tools put more between opcode and addresses, or break the launch line. Every rewriting
keeps the number of lines.
"""

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from depgraph.parsers.nvbit import scanner_jit as scanner
from depgraph.parsers.scanning.inputs import find_text
from depgraph.parsers.scanning.scanning_jit import LANES, PADDING, overlapping_words
from depgraph.parsers.scanning.tables import OpcodeTable, TouchTable, count_opcodes, untraced_by
from depgraph.system.arrays import Text
from depgraph.trace.records import (
    Damage,
    KernelLaunch,
    Overflow,
    ScannedPart,
    checked_launch,
    signed64,
)

# Names of kernels that copy by TMA, whose addresses NVBit up to 1.7 cannot print. A name is weak
# evidence: it counts only where the trace shows no such instruction of any kernel.
_TMA = re.compile(
    r"""
    \bnvjet_  # cuBLAS for sm_90 and later; recorded on an H100: all operands come by TMA
    # compute capability in names of cuBLAS, cuDNN, CUTLASS 3, FlashAttention 3, DeepGEMM
    | (?i:sm_?(?:90|10[0-9]|12[0-9])(?![0-9]))
    | (?i:cutlass_?3x)  # CUTLASS 3 kernels in cuBLAS and PyTorch: cutlass3x_sm90_tensorop_...
    | (?i:warp_?specialized)  # CUTLASS 3 kernel schedules: KernelTmaWarpSpecializedPingpong
    | (?i:w?gmma)  # warpgroup MMA of sm_90, fed by TMA: CUTLASS 3, MainloopSm90TmaGmma
    # the word itself, as in MainloopSm90Tma, tma_copy; not softmax
    | Tma(?![a-z]) | (?<![A-Za-z])(?:tma|TMA)(?![A-Za-z])
    """,
    re.VERBOSE,
)
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
MARK = b"MEMTRACE: CTX 0x"
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
    size: int,
    path: str,
    *,
    id_offset: int = 0,
    overflow: Overflow | None = None,
    touches: TouchTable | None = None,  # an empty one to be filled
) -> ScannedPart:
    """Scan ``text[:size]``: whole lines."""
    opcodes, lanes = _workspace.opcodes, _workspace.lanes
    opcodes.clear_counts()
    if touches is None:
        touches = _workspace.touches
        touches.clear(overflow)
    words = overlapping_words(text)
    part = ScannedPart(bytes=size)
    launches = LaunchTable()
    counters = np.zeros(scanner.N_COUNTERS, np.int64)
    state = np.full(scanner.STATE_SIZE, -1, np.int64)
    position = 0
    with np.errstate(over="ignore"):
        while True:
            status, position, detail = scanner.scan_lines(
                text, words, position, size,
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
    _note_untraced(part, text[:size], opcodes)
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
    stop = find_text(text, MARK, position + 1, line_end)
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


_OLD_LAUNCH_TAIL = re.compile(
    rb" - grid size \d+,\d+,\d+ - block size \d+,\d+,\d+"
    rb" - nregs -?\d+ - shmem -?\d+ - cuda stream id -?\d+"
)
_PC = re.compile(rb" - PC 0x[0-9a-f]+\Z")
_OLD_ACCESS = re.compile(rb"CTA (?=\d+,\d+,\d+ - warp \d+ - [A-Z])")
_MREF_TAIL = re.compile(rb" - (?:pc \d+ - )?Size \d+ - MREF per threads\([^)\n]{0,80}\) : ?(.*)")
_MREF_ADDRESS = re.compile(rb"Thread\d+,[^,\n]*,(0x[0-9a-f]{16})")
_TYPED_TAIL = re.compile(rb" - (?:READ|WRITE) - size \d+ - mem_type [^-\n]* - addrs: ?")
_THREE_LINE_LAUNCH = re.compile(
    rb"^LAUNCH KERNEL: (.*) - grid launch id (-?\d+)\r?\n"
    rb" - grid size \((\d+,\d+,\d+)\) - block size \((\d+,\d+,\d+)\)"
    rb" - nregs (-?\d+) - shmem (-?\d+)\r?\n"
    rb" - CTX (0x[0-9a-f]+) - stream id (-?\d+) - Kernel pc (0x[0-9a-f]+)",
    re.MULTILINE,
)
_LAST_LINES_OF_LAUNCH = re.compile(rb"^LAUNCH KERNEL: .*\n(?:.*\n)?\Z", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way of putting launches and accesses into words."""

    name: str
    mark: re.Pattern[bytes]  # what its text holds and no other dialect's does
    # From whole lines of it to lines that `scan_text` reads; None if they are that.
    rewrite: Callable[[bytes], bytes] | None = None
    # Whether an access names its launch. If not, `rewrite` numbers the launches of each text from
    # 1, and gives id 0 to the accesses above the first.
    has_ids: bool = True
    in_order: bool = False  # whether lines belong together across a cut of the text


def _rewrite_old(text: bytes) -> bytes:
    pieces = []
    begin = searched = launches = 0
    for tail in _OLD_LAUNCH_TAIL.finditer(text):
        line = text.rfind(b"\n", searched, tail.start()) + 1 or searched
        at = text.find(b"Kernel ", line, tail.start())
        searched = tail.end()
        if at < 0:
            continue
        name = _PC.sub(b"", text[at + len(b"Kernel ") : tail.start()])
        pieces.append(_with_id(text[begin:at], launches))
        launches += 1
        pieces.append(
            b"MEMTRACE: CTX 0x%016x - LAUNCH - Kernel pc 0x0 - Kernel name %b"
            b" - grid launch id %d%b" % (0, name, launches, tail[0])
        )
        begin = tail.end()
    pieces.append(_with_id(text[begin:], launches))
    return b"".join(pieces)


def _with_id(text: bytes, identifier: int) -> bytes:
    return _OLD_ACCESS.sub(
        b"MEMTRACE: CTX 0x%016x - grid_launch_id %d - CTA " % (0, identifier), text
    )


def _rewrite_mref(text: bytes) -> bytes:
    return _MREF_TAIL.sub(lambda m: b" - %b " % b" ".join(_MREF_ADDRESS.findall(m[1])), text)


def _rewrite_typed(text: bytes) -> bytes:
    def launch(match: re.Match[bytes]) -> bytes:
        name, identifier, grid, block, registers, shared, context, stream, pc = match.groups()
        return (
            b"MEMTRACE: CTX 0x%016x - LAUNCH - Kernel pc %b - Kernel name %b - grid launch id %b"
            b" - grid size %b - block size %b - nregs %b - shmem %b - cuda stream id %b\n\n"
            % (int(context, 16), pc, name, identifier, grid, block, registers, shared, stream)
        )

    return _TYPED_TAIL.sub(b" - ", _THREE_LINE_LAUNCH.sub(launch, text))


DIALECTS = (
    Dialect("with data values", re.compile(rb" - MREF per threads\("), _rewrite_mref),
    Dialect(
        "CUProf",
        re.compile(
            rb" - mem_type [^-\n]* - addrs: |^LAUNCH KERNEL: .* - grid launch id ", re.MULTILINE
        ),
        _rewrite_typed,
        in_order=True,
    ),
    Dialect("NVBit 1.5 to 1.7", re.compile(re.escape(MARK))),
    Dialect("NVBit 1.0 to 1.4", _OLD_LAUNCH_TAIL, _rewrite_old, has_ids=False),
)
CURRENT = DIALECTS[2]


def dialect_of(text: bytes) -> Dialect | None:
    """Tell by its content in which dialect a text is; None if it is in none of them."""
    return next((dialect for dialect in DIALECTS if dialect.mark.search(text)), None)


def start_of_cut_launch(text: bytes) -> int:
    """Return where a launch of several lines begins that the end of `text` cuts, or its length."""
    tail = text[-4096:]
    match = _LAST_LINES_OF_LAUNCH.search(tail)
    return len(text) - len(tail) + match.start() if match else len(text)
