"""What a SASS memory opcode does, and the table of those that a scanner met.

Sources: NVIDIA CUDA Binary Utilities, "Instruction Set Reference" (Volta to Blackwell), and the
opcodes of real traces.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path

import numpy as np

from depgraph.errors import TraceError
from depgraph.parsers.scanning import scanning_jit as tables
from depgraph.system.arrays import Words
from depgraph.trace.records import ScannedPart


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

    READ = tables.GLOBAL_READ
    WRITE = tables.GLOBAL_WRITE
    UPDATE = tables.GLOBAL_UPDATE  # atomics and reductions: read and write
    NONE = tables.IGNORE


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
        return tables.ASYNC_COPY
    if opcode.is_bulk or opcode.space not in {Space.GLOBAL, Space.GENERIC}:
        return tables.IGNORE
    if opcode.effect == Effect.READ and opcode.is_ordered:
        return tables.ORDERED_READ
    return opcode.effect.value


class OpcodeTable:
    """Opcode texts with what they mean, how wide a lane is, and how often they were met."""

    def __init__(self, meaning_of: Callable[[MemoryOpcode], int] = global_meaning) -> None:
        self._meaning_of = meaning_of
        self._forget()

    def _forget(self) -> None:
        self.arrays = tables.Opcodes(  # as scanners see it
            np.zeros((_SLOTS, tables.OPCODE_WORDS), np.uint64),
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
        entered, length = tables.find_opcode(words, position, self.arrays.words)
        slot = -1 - entered
        whole = words[position : position + 8 * tables.OPCODE_WORDS : 8].tobytes()
        text = whole[:length].rstrip(b"\0")
        opcode = decode_opcode(text.decode("ascii", "replace"))
        self.arrays.words[slot] = np.frombuffer(text.ljust(8 * tables.OPCODE_WORDS, b"\0"), "<u8")
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
        elif global_meaning(opcode) == tables.IGNORE:
            part.skipped[f"other instructions ({opcode.mnemonic})"] += count
