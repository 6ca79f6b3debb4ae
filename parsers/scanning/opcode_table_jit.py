"""Looking up the opcode of a line, and what it means for global memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from depgraph.parsers.scanning.text_jit import HASH_FACTOR, HIGHS, ONES, SPACES, bytes_below
from depgraph.system.compiled import compiled_helper

if TYPE_CHECKING:
    from numpy.typing import NDArray

OPCODE_WORDS = 6  # opcode texts up to 48 bytes

# What a line with a memory operand means for global memory, by its opcode.
IGNORE = 0
GLOBAL_READ = 1
GLOBAL_WRITE = 2
GLOBAL_UPDATE = 3  # atomics and reductions: read and write
ASYNC_COPY = 4  # LDGSTS: one line for the shared side, one for the global side, which is read
ORDERED_READ = 5  # a load that is ordered with other blocks (volatile, acquire, ld.cg)

_ZERO = np.uint64(0)


class Opcodes(NamedTuple):
    """A hash table of opcode texts; empty slots start with 0."""

    words: NDArray[np.uint64]  # [slots, OPCODE_WORDS]: the texts, padded by zeros
    meaning: NDArray[np.uint8]  # what the opcode does to global memory
    width: NDArray[np.int64]  # bytes that a lane accesses
    # How often the opcode was met
    count: NDArray[np.int64]  # type: ignore[assignment]


@compiled_helper
def find_opcode(words, position, opcode_words):
    """Look up the opcode text that starts at `position` and ends before a blank.

    `opcode_words` is uint64[slots, OPCODE_WORDS], a hash table whose empty slots start with 0.
    Returns (slot, or -1 - slot where it is to be entered, and its length); length 0 if there is
    no blank within 48 bytes.
    """
    mixed = _ZERO
    last = _ZERO
    length = 0
    whole = 0
    while whole < OPCODE_WORDS:
        word = words[position + 8 * whole]
        x = word ^ SPACES
        hit = (x - ONES) & ~x & HIGHS
        if hit != _ZERO:
            kept = bytes_below(hit)
            if kept > 0:
                last = word & (~_ZERO >> np.uint64(64 - 8 * kept))
                mixed = (mixed ^ last) * HASH_FACTOR
                mixed ^= mixed >> np.uint64(29)
            length = 8 * whole + kept
            break
        mixed = (mixed ^ word) * HASH_FACTOR
        mixed ^= mixed >> np.uint64(29)
        whole += 1
    if length == 0:
        return -1, 0
    slots = opcode_words.shape[0]
    slot = np.int64(mixed & np.uint64(slots - 1))
    while opcode_words[slot, 0] != _ZERO:
        same = opcode_words[slot, whole] == last and (
            whole + 1 == OPCODE_WORDS or opcode_words[slot, whole + 1] == _ZERO
        )
        for i in range(whole):
            same = same and opcode_words[slot, i] == words[position + 8 * i]
        if same:
            return slot, length
        slot = (slot + 1) & (slots - 1)
    return -1 - slot, length
