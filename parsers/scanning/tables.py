"""The tables that scanners fill: opcodes, with what each does, and blocks, with the bytes touched.

Sources of the opcodes: NVIDIA CUDA Binary Utilities, "Instruction Set Reference" (Volta to
Blackwell), and the opcodes of real traces.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import TraceError
from depgraph.footprint.ranges_jit import join_ranges
from depgraph.parsers.scanning import scanning_jit as scanner
from depgraph.parsers.scanning.scanning_jit import WARPS, X_BITS, Y_BITS, Rows, Touches
from depgraph.system.arrays import Words
from depgraph.trace.records import BlockTouches, Overflow, Ranges, ScannedPart


class Space(Enum):
    """The memory that an instruction addresses."""

    GLOBAL = "global"
    GENERIC = "generic"  # global, shared or local, by address window
    SHARED = "shared"
    LOCAL = "local"
    CONSTANT = "constant"
    TEXTURE = "texture"
    SURFACE = "surface"
    TENSOR = "tensor"
    NONE = "none"


class Effect(Enum):
    """What an instruction does to the memory that it addresses, as tables of scanners say it."""

    READ = scanner.GLOBAL_READ
    WRITE = scanner.GLOBAL_WRITE
    UPDATE = scanner.GLOBAL_UPDATE  # atomics and reductions: read and write
    NONE = scanner.IGNORE


@dataclass(frozen=True, slots=True)
class MemoryOpcode:
    """One opcode, decoded."""

    text: str  # the whole opcode, with its suffixes
    mnemonic: str  # the part before the first dot
    space: Space
    effect: Effect  # on `space`; for ``LDGSTS`` and the bulk copies, on global memory
    width: int  # bytes a lane accesses
    known: bool = True  # false if the mnemonic is in no table of this module

    @property
    def is_ordered(self) -> bool:
        """Whether this is ordered with accesses of other blocks: a volatile, ld.cg or acquire."""
        suffixes = self.text.split(".")
        return "STRONG" in suffixes and not {"CTA", "SM"} & set(suffixes)

    @property
    def is_bulk(self) -> bool:
        """Whether this is a bulk or tensor copy (TMA), which NVBit up to 1.7 cannot print."""
        return self.mnemonic in _BULK

    @property
    def is_untraced_global(self) -> bool:
        """Whether this may touch global memory at addresses that a trace does not print."""
        return self.is_bulk or self.space in {Space.TEXTURE, Space.SURFACE}


def untraced_by(opcode: MemoryOpcode) -> str:
    """Say what of global memory an instruction reaches out of the trace's sight."""
    if opcode.space in {Space.TEXTURE, Space.SURFACE}:
        return f"uses {opcode.space.value} memory, which the trace does not show"
    return "reaches global memory at addresses the trace does not hold"


_BULK = frozenset({"UTMALDG", "UTMASTG", "UTMAREDG", "UBLKRED", "UBLKCP"})
_TABLE = tomllib.loads(Path(__file__).with_name("opcodes.toml").read_text("utf-8"))
_MNEMONICS = {
    name: (Space(space), Effect[effect])
    for space, effects in _TABLE["mnemonics"].items()
    for effect, names in effects.items()
    for name in names.split()
}
_WIDTH_TOKENS = {
    suffix: int(width) for width, names in _TABLE["widths"].items() for suffix in names.split()
}
_ROW_BYTES = 16  # LDSM, STSM: one address a row of eight 16-bit elements
_VECTOR = re.compile(r"(?:V|x)(2|4|8)", re.IGNORECASE)
_TYPED_VECTOR = re.compile(r"(F32|F16x2|BF16x2|BF16_V2|F16|BF16)x(2|4|8)")


@lru_cache(maxsize=16384)
def decode_opcode(text: str) -> MemoryOpcode:
    """Decode an opcode such as ``LDG.E.128.CONSTANT``, without predicate and operands."""
    mnemonic, *suffixes = text.split(".")
    space, effect = _MNEMONICS.get(mnemonic, (Space.NONE, Effect.NONE))
    if mnemonic == "UBLKCP" and [s for s in suffixes if s in {"G", "S"}] == ["G", "S"]:
        effect = Effect.WRITE  # from shared to global
    width = _ROW_BYTES if mnemonic in {"LDSM", "STSM"} else _lane_bytes(suffixes)
    return MemoryOpcode(text, mnemonic, space, effect, width, known=mnemonic in _MNEMONICS)


def _lane_bytes(suffixes: list[str]) -> int:
    """Return the bytes a lane accesses: the first suffix that is a size, else four."""
    width = 0
    for position, suffix in enumerate(suffixes):
        typed = _TYPED_VECTOR.fullmatch(suffix)
        if typed and suffix not in _WIDTH_TOKENS:
            return {"F32": 4, "F16": 2, "BF16": 2}.get(typed[1], 4) * int(typed[2])
        if suffix in _WIDTH_TOKENS:
            width = _WIDTH_TOKENS[suffix]
            following = suffixes[position + 1 :]
            vector = next((m for t in following if (m := _VECTOR.fullmatch(t))), None)
            return width * int(vector[1]) if vector else width
    return width or 4


MAX_OPCODES = 4096
_SLOTS = 2 * MAX_OPCODES  # a power of two, never more than half full
_KEPT_OPCODES = 1024


def global_meaning(opcode: MemoryOpcode) -> int:
    """Say what one address operand of an opcode means for global memory; no bulk copies."""
    if opcode.mnemonic == "LDGSTS":  # printed twice: with the shared operand, then the global one
        return scanner.ASYNC_COPY
    if opcode.is_bulk or opcode.space not in {Space.GLOBAL, Space.GENERIC}:
        return scanner.IGNORE
    if opcode.effect == Effect.READ and opcode.is_ordered:
        return scanner.ORDERED_READ
    return opcode.effect.value


class OpcodeTable:
    """Opcode texts with what they mean, how wide a lane is, and how often they were met."""

    def __init__(self, meaning_of: Callable[[MemoryOpcode], int] = global_meaning) -> None:
        self._meaning_of = meaning_of
        self._forget()

    def _forget(self) -> None:
        self.arrays = scanner.Opcodes(  # as scanners see it
            np.zeros((_SLOTS, scanner.OPCODE_WORDS), np.uint64),
            np.zeros(_SLOTS, np.uint8),
            np.zeros(_SLOTS, np.int64),
            np.zeros(_SLOTS, np.int64),
        )
        self._opcodes: dict[int, MemoryOpcode] = {}
        self.unknown_accesses: set[str] = set()  # texts of no table that come with addresses

    def clear_counts(self) -> None:
        """Start counting anew; forget all, if a damaged file filled the table."""
        if len(self._opcodes) > _KEPT_OPCODES:
            self._forget()
        self.arrays.count[:] = 0

    def add(
        self, words: Words, position: int, path: str, what: str, *, line: int | None = None
    ) -> MemoryOpcode:
        """Enter the opcode that ends before a blank; refuse more than any tracer knows."""
        if len(self._opcodes) >= MAX_OPCODES:
            found = f"more than {MAX_OPCODES} different opcodes"
            raise TraceError(path, found, f"the file is damaged or no {what}", line=line)
        entered, length = scanner.find_opcode(words, position, self.arrays.words)
        slot = -1 - entered
        whole = words[position : position + 8 * scanner.OPCODE_WORDS : 8].tobytes()
        text = whole[:length].rstrip(b"\0")
        opcode = decode_opcode(text.decode("ascii", "replace"))
        self.arrays.words[slot] = np.frombuffer(text.ljust(8 * scanner.OPCODE_WORDS, b"\0"), "<u8")
        self.arrays.meaning[slot] = self._meaning_of(opcode)
        self.arrays.width[slot] = opcode.width
        self._opcodes[slot] = opcode
        return opcode

    def counted(self) -> Iterator[tuple[MemoryOpcode, int]]:
        """Yield the opcodes met since `clear_counts`, with how often."""
        for slot, opcode in self._opcodes.items():
            if count := int(self.arrays.count[slot]):
                yield opcode, count


def count_opcodes(part: ScannedPart, counted: Iterable[tuple[MemoryOpcode, int]]) -> None:
    """Note which instructions a part holds, and which of them do not touch global memory."""
    for opcode, count in counted:
        part.opcodes[opcode.text] += count
        if not opcode.known:
            part.skipped["instructions with an opcode not known to depgraph"] += count
            part.warnings[f"memory opcode not known to depgraph ({opcode.mnemonic})"] += count
        elif opcode.space in {Space.SHARED, Space.LOCAL, Space.CONSTANT}:
            part.skipped[f"{opcode.space.value}-memory accesses"] += count
        elif global_meaning(opcode) == scanner.IGNORE:
            part.skipped[f"other instructions ({opcode.mnemonic})"] += count


_ROWS = 1 << 12
_RANGES = 1 << 17
# Ranges are joined before their arrays grow beyond this (17 bytes each).
_MAX_RANGES = 1 << 22
MAX_X = (1 << X_BITS) - 1
MAX_Y = (1 << Y_BITS) - 1  # and of z


def pack_block(x: int, y: int, z: int) -> int:
    """Put block coordinates into one integer, as the scanners do."""
    return x | y << X_BITS | z << X_BITS + Y_BITS


class TouchTable:
    """Rows, one a block of a launch, and the byte ranges that belong to them."""

    def __init__(self, overflow: Overflow | None = None) -> None:
        # As the scanner sees it:
        ranges, none = _new_ranges(_RANGES), np.zeros(0, np.int32)
        self.arrays = Touches(_new_rows(_ROWS), ranges, np.zeros(2, np.int64), none)
        self._limit(overflow)

    def _limit(self, overflow: Overflow | None) -> None:
        self._overflow = overflow
        self._most_ranges = min(_MAX_RANGES, overflow.most_ranges) if overflow else _MAX_RANGES

    def clear(self, overflow: Overflow | None = None) -> None:
        """Forget all, give back what an unusual part made grow, and let `overflow` take more."""
        self.arrays.sizes[:] = 0
        self._limit(overflow)
        if len(self.arrays.ranges.row) > self._most_ranges:
            self.arrays = self.arrays._replace(ranges=_new_ranges(_RANGES))
        if len(self.arrays.rows.launch) > _MAX_RANGES:
            self.arrays = self.arrays._replace(rows=_new_rows(_ROWS))
        else:
            self.arrays.rows.slots[:] = -1

    @np.errstate(over="ignore")  # not compiled, hashes wrap around
    def grow_rows(self) -> None:
        """Make room for twice as many rows."""
        used = int(self.arrays.sizes[0])
        old = self.arrays.rows
        new = _new_rows(2 * len(old.launch))
        for source, target in zip(old[:-1], new[:-1], strict=True):
            target[:used] = source[:used]  # type: ignore[index]
        scanner.enter_rows(new, used)
        self.arrays = self.arrays._replace(rows=new)

    @np.errstate(over="ignore")
    def find_row(self, launch: int, cta: int) -> int:
        """Return the row of a block, a new one if it has none yet."""
        row = int(scanner.take_row(self.arrays.rows, self.arrays.sizes, launch, cta))
        if row < 0:
            self.grow_rows()
            row = int(scanner.take_row(self.arrays.rows, self.arrays.sizes, launch, cta))
        return row

    def make_room(self, ranges: int = 1) -> None:
        """Make room for so many more ranges: join those there are, give them away, or grow."""
        sizes, capacity = self.arrays.sizes, len(self.arrays.ranges.row)
        is_full = capacity >= self._most_ranges
        if is_full:
            columns = self._joined()
            sizes[1] = len(columns.row)
            # Joining again before as much has gathered anew would cost more than it frees.
            if self._overflow and 2 * (len(columns.row) + ranges) > capacity:
                self._overflow.take(columns)
                sizes[1] = 0
            self._put(columns, int(sizes[1]))
        used = int(sizes[1])
        if not is_full or used + ranges > (capacity if self._overflow else capacity // 2):
            old = self.arrays.ranges
            larger = min(2 * capacity, self._most_ranges) if self._overflow else 2 * capacity
            self.arrays = self.arrays._replace(ranges=_new_ranges(max(larger, used + ranges)))
            self._put(old, used)

    def append(self, more: Ranges) -> None:
        """Add ranges."""
        n = len(more.row)
        if self.arrays.sizes[1] + n > len(self.arrays.ranges.row):
            self.make_room(n)
        used = int(self.arrays.sizes[1])
        for source, target in zip(more, self.arrays.ranges, strict=True):
            target[used : used + n] = source  # type: ignore[index]
        self.arrays.sizes[1] = used + n

    def _put(self, columns: Ranges, used: int) -> None:
        for source, target in zip(columns, self.arrays.ranges, strict=True):
            target[:used] = source[:used]  # type: ignore[index]

    def _joined(self) -> Ranges:
        n_rows, n_ranges = (int(size) for size in self.arrays.sizes)
        used = (column[:n_ranges] for column in self.arrays.ranges)
        return Ranges(*join_ranges(*used, n_ranges, n_rows))  # type: ignore[call-arg]

    def touches(self) -> BlockTouches:
        """Return rows and joined ranges as the core takes them."""
        n_rows = int(self.arrays.sizes[0])
        rows = self.arrays.rows
        cta = rows.cta[:n_rows]
        return BlockTouches(
            rows.launch[:n_rows].copy(),
            (cta & MAX_X).astype(np.int32),
            (cta >> X_BITS & MAX_Y).astype(np.int32),
            (cta >> X_BITS + Y_BITS).astype(np.int32),
            rows.accesses[:n_rows].copy(),
            rows.instructions[:n_rows].copy(),
            *self._joined(),
        )


class WarpTouches(TouchTable):
    """A row for each warp, and all that its accesses touch, one after another, nothing joined."""

    def __init__(self) -> None:
        super().__init__()
        self.arrays = self.arrays._replace(ordinals=np.zeros(_RANGES, np.int32))

    def make_room(self, ranges: int = 1) -> None:
        """Make room for so many more ranges."""
        used, old = int(self.arrays.sizes[1]), self.arrays
        more = np.zeros(max(ranges, len(old.ordinals)), np.int32)
        ordinals = np.concatenate([old.ordinals, more])
        self.arrays = old._replace(ranges=_new_ranges(len(ordinals)), ordinals=ordinals)
        self._put(old.ranges, used)

    def _joined(self) -> Ranges:
        used = int(self.arrays.sizes[1])
        columns: list[Any] = [column[:used] for column in self.arrays.ranges]
        return Ranges(*columns)

    def touches(self) -> BlockTouches:
        """Return rows and ranges as the core takes them; rows of one block are several."""
        of_warps = super().touches()
        return of_warps._replace(launch=of_warps.launch // WARPS)

    @property
    def warps(self) -> NDArray[np.int32]:
        """The warp of each row."""
        return self.arrays.rows.launch[: int(self.arrays.sizes[0])] % WARPS


def _new_rows(capacity: int) -> Rows:
    kinds = np.int32, np.int64, np.int64, np.int64
    columns: list[Any] = [np.zeros(capacity, kind) for kind in kinds]
    return Rows(*[*columns, np.full(4 * capacity, -1, np.int32)])


def _new_ranges(capacity: int) -> Ranges:
    kinds = np.int32, np.uint8, np.uint64, np.uint64
    columns: list[Any] = [np.zeros(capacity, kind) for kind in kinds]
    return Ranges(*columns)
