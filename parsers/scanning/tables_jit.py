"""The tables of a scanner: opcodes, blocks of launches, and the byte ranges that they touched."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.parsers.scanning.text_jit import HASH_FACTOR, HIGHS, ONES, SPACES, bytes_below
from depgraph.system.compiled import compiled_helper, compiled_in_place, compiled_within
from depgraph.trace import records
from depgraph.trace.records import LDGSTS_READ, READ, SYNC_READ, Ranges

OPCODE_WORDS = 6  # opcode texts up to 48 bytes

# What a line with a memory operand means for global memory, by its opcode.
IGNORE = 0
GLOBAL_READ = 1
GLOBAL_WRITE = 2
GLOBAL_UPDATE = 3  # atomics and reductions: read and write
ASYNC_COPY = 4  # LDGSTS: one line for the shared side, one for the global side, which is read
ORDERED_READ = 5  # a load that is ordered with other blocks (volatile, acquire, ld.cg)

_ZERO = np.uint64(0)

LANES = 32
WARPS = 32  # of a block at most

# Shared-memory offsets are below the 256 KiB window; global addresses never are.
SHARED_WINDOW_END = np.uint64(1 << 20)

# Device addresses have at most 57 bits; anything above is damage.
ADDRESS_END = np.uint64(1 << 57)

# The kind of range that each meaning of an opcode reads, and that of writes. As plain constants
# they would have the functions that take one compiled once for each.
_READ_KINDS = np.array([READ, READ, READ, SYNC_READ, LDGSTS_READ, SYNC_READ], np.uint8)
_WRITE = np.uint8(records.WRITE)


class Opcodes(NamedTuple):
    """A hash table of opcode texts; empty slots start with 0."""

    words: NDArray[np.uint64]  # [slots, OPCODE_WORDS]: the texts, padded by zeros
    meaning: NDArray[np.uint8]  # what the opcode does to global memory
    width: NDArray[np.int64]  # bytes that a lane accesses
    # How often the opcode was met.
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


class Rows(NamedTuple):
    """Blocks of launches."""

    launch: NDArray[np.int32]  # index among the launches of the part
    cta: NDArray[np.int64]  # coordinates as `read_coordinates` packs them
    accesses: NDArray[np.int64]
    instructions: NDArray[np.int64]
    slots: NDArray[np.int32]  # [4 * capacity]: hash table of the rows, -1 where it is empty


class Touches(NamedTuple):
    """Rows, their ranges, and how many of each are in use (`sizes`, int64[2])."""

    rows: Rows
    ranges: Ranges
    sizes: NDArray[np.int64]
    # By which access of its row each range is touched; empty unless a row is to stand for a warp.
    ordinals: NDArray[np.int32]


@compiled_within
def find_row(rows, launch, cta):
    """Return the row of a block, or -1 - slot where it is to be entered."""
    slots = rows.slots.shape[0]
    mixed = (np.uint64(cta) ^ (np.uint64(launch) << np.uint64(40))) * HASH_FACTOR
    slot = np.int64((mixed >> np.uint64(32)) & np.uint64(slots - 1))
    while rows.slots[slot] >= 0:
        row = rows.slots[slot]
        if rows.cta[row] == cta and rows.launch[row] == launch:
            return np.int64(row)
        slot = (slot + 1) & (slots - 1)
    return -1 - slot


@compiled_within
def take_row(rows, sizes, launch, cta):
    """Return the row of a block, a new one if it has none yet; -1 if there is no room for it."""
    row = find_row(rows, launch, cta)
    if row >= 0:
        return row
    new = sizes[0]
    if new >= rows.launch.shape[0]:
        return np.int64(-1)
    rows.slots[-1 - row] = new
    rows.launch[new] = launch
    rows.cta[new] = cta
    rows.accesses[new] = 0
    rows.instructions[new] = 0
    sizes[0] = new + 1
    return np.int64(new)


@compiled_in_place
def enter_rows(rows, used):
    """Enter the first rows in an empty hash table."""
    for row in range(used):
        rows.slots[-1 - find_row(rows, rows.launch[row], rows.cta[row])] = row


@compiled_helper
def add_range(ranges, n, row, meaning, start, end):
    """Append bytes that an opcode of this meaning touches; return the new number of ranges."""
    if meaning != GLOBAL_WRITE:
        ranges.row[n] = row
        ranges.kind[n] = _READ_KINDS[meaning]
        ranges.start[n] = start
        ranges.end[n] = end
        n += 1
    if meaning == GLOBAL_WRITE or meaning == GLOBAL_UPDATE:
        ranges.row[n] = row
        ranges.kind[n] = _WRITE
        ranges.start[n] = start
        ranges.end[n] = end
        n += 1
    return n


@compiled_helper
def add_lanes(ranges, n, row, meaning, lanes, count, width):
    """Append what lanes of `width` bytes touch, but for address 0; return the number of ranges."""
    width = np.uint64(width)
    start = _ZERO
    stop = _ZERO
    for lane in range(count):
        address = lanes[lane]
        if address == _ZERO:
            continue
        if stop != _ZERO and address >= start and address <= stop:
            stop = max(stop, address + width)
            continue
        if stop != _ZERO:
            n = add_range(ranges, n, row, meaning, start, stop)
        start = address
        stop = address + width
    if stop != _ZERO:
        n = add_range(ranges, n, row, meaning, start, stop)
    return n


@compiled_helper
def largest_of(lanes, count):
    """Return the largest address of the first `count` lanes, 0 if there are none."""
    largest = _ZERO
    for lane in range(count):
        largest = max(largest, lanes[lane])
    return largest
