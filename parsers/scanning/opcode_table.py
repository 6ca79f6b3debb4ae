"""The opcodes that a scanner met: a hash table it can read, filled as new ones appear."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from depgraph.parsers.scanning.opcode_table_jit import (
    ASYNC_COPY,
    GLOBAL_READ,
    GLOBAL_UPDATE,
    GLOBAL_WRITE,
    IGNORE,
    OPCODE_WORDS,
    ORDERED_READ,
    Opcodes,
    find_opcode,
)
from depgraph.parsers.scanning.opcodes import Effect, Space, decode_opcode
from depgraph.parsers.scanning.text_jit import PADDING, overlapping_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from depgraph.parsers.scanning.opcodes import MemoryOpcode

MAX_OPCODES = 4096
_SLOTS = 512
_KEPT_OPCODES = 1024

_EFFECTS = {
    Effect.READ: GLOBAL_READ,
    Effect.WRITE: GLOBAL_WRITE,
    Effect.UPDATE: GLOBAL_UPDATE,
    Effect.NONE: IGNORE,
}


def effect_on_global(opcode: MemoryOpcode) -> int:
    """Say what an opcode does to the global memory that it addresses, bulk copies included."""
    return _EFFECTS[opcode.effect]


def global_meaning(opcode: MemoryOpcode) -> int:
    """Say what one address operand of an opcode means for global memory; no bulk copies."""
    if opcode.is_async_copy:
        return ASYNC_COPY
    if opcode.is_bulk or opcode.space not in {Space.GLOBAL, Space.GENERIC}:
        return IGNORE
    if opcode.effect == Effect.READ and opcode.is_ordered:
        return ORDERED_READ
    return _EFFECTS[opcode.effect]


class TooManyOpcodesError(Exception):
    """No tracer knows so many opcodes: the file is damaged, or of another kind."""


class OpcodeTable:
    """Opcode texts with what they mean, how wide a lane is, and how often they were met.

    Parameters
    ----------
    meaning_of : callable
        From a decoded opcode to what the scanner is to do with it.

    Attributes
    ----------
    arrays : Opcodes
        What the scanner sees of it.
    """

    def __init__(self, meaning_of: Callable[[MemoryOpcode], int] = global_meaning) -> None:
        self._meaning_of = meaning_of
        self._new_slots(_SLOTS)

    def _new_slots(self, slots: int) -> None:
        self.arrays = Opcodes(
            np.zeros((slots, OPCODE_WORDS), np.uint64),
            np.zeros(slots, np.uint8),
            np.zeros(slots, np.int64),
            np.zeros(slots, np.int64),
        )
        self._opcodes: dict[int, MemoryOpcode] = {}
        self._unknown_accesses: set[str] = set()

    def clear_counts(self) -> None:
        """Start counting anew; forget all, if a damaged file filled the table."""
        if len(self._opcodes) > _KEPT_OPCODES:
            self._new_slots(_SLOTS)
        self.arrays.count[:] = 0

    def add(self, words: NDArray[np.uint64], position: int) -> MemoryOpcode:
        """Enter the opcode that starts at `position` and ends before a blank.

        Raises
        ------
        TooManyOpcodesError
            If the table holds `MAX_OPCODES`.
        """
        if len(self._opcodes) >= MAX_OPCODES:
            raise TooManyOpcodesError
        if 2 * len(self._opcodes) >= len(self.arrays.words):
            self._rehash()
        slot, length = find_opcode(words, position, self.arrays.words)
        text = words[position : position + 8 * OPCODE_WORDS : 8].tobytes()[:length]
        return self._enter(-1 - slot, text)

    def _enter(self, slot: int, text: bytes) -> MemoryOpcode:
        text = text.rstrip(b"\0")
        opcode = decode_opcode(text.decode("ascii", "replace"))
        self.arrays.words[slot] = np.frombuffer(text.ljust(8 * OPCODE_WORDS, b"\0"), "<u8")
        self.arrays.meaning[slot] = self._meaning_of(opcode)
        self.arrays.width[slot] = opcode.width
        self._opcodes[slot] = opcode
        return opcode

    def _rehash(self) -> None:
        old = [
            (self.arrays.words[slot].tobytes().rstrip(b"\0"), int(self.arrays.count[slot]))
            for slot in self._opcodes
        ]
        unknown = self._unknown_accesses
        self._new_slots(2 * len(self.arrays.words))
        self._unknown_accesses = unknown
        for text, count in old:
            line = np.frombuffer(text + b" " + bytes(PADDING), np.uint8)
            slot, _ = find_opcode(overlapping_words(line), 0, self.arrays.words)
            self._enter(-1 - slot, text)
            self.arrays.count[-1 - slot] = count

    def note_unknown_access(self, opcode: MemoryOpcode) -> None:
        """Note that an opcode of no table comes with addresses in the trace."""
        self._unknown_accesses.add(opcode.text)

    def is_unknown_access(self, opcode: MemoryOpcode) -> bool:
        """Tell whether `note_unknown_access` was called for an opcode."""
        return opcode.text in self._unknown_accesses

    def counted(self) -> Iterator[tuple[MemoryOpcode, int]]:
        """Yield the opcodes met since `clear_counts`, with how often."""
        for slot, opcode in self._opcodes.items():
            if self.arrays.count[slot]:
                yield opcode, int(self.arrays.count[slot])
