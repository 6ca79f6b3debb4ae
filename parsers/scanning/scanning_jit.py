"""What the compiled scanners of all formats share: how they read text, and the tables they fill.

The buffer of a scanner ends with at least `PADDING` bytes that belong to no line, so that eight
bytes can be loaded at any position. `words` is the same buffer seen as overlapping little-endian
64-bit words: ``words[p]`` holds bytes ``p .. p + 7``. The tables are of opcodes, of blocks of
launches, and of the byte ranges that they touched.
"""

from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from depgraph.system.arrays import Text
from depgraph.system.compiled import compiled_helper, compiled_in_place, compiled_within
from depgraph.trace import records
from depgraph.trace.records import LDGSTS_READ, READ, SYNC_READ, Ranges

PADDING = 64
MAX_LINE_BYTES = 1 << 20  # longer lines are left out

# Of block coordinates in one integer; z has as many as y.
X_BITS = 31
Y_BITS = 16

NEWLINE = 0x0A
SPACE = 0x20
COMMA = 0x2C
MINUS = 0x2D
DIGIT_0 = 0x30

ONES = np.uint64(0x0101010101010101)
HIGHS = np.uint64(0x8080808080808080)
SPACES = np.uint64(0x2020202020202020)
HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_LOW_NIBBLES = np.uint64(0x0F0F0F0F0F0F0F0F)
_NEWLINES = np.uint64(0x0A0A0A0A0A0A0A0A)
_ZERO = np.uint64(0)
_NINE = np.uint64(9)


def word_of(text: bytes) -> np.uint64:
    """Return what `overlapping_words` has where this text of eight bytes starts."""
    return np.uint64(int.from_bytes(text, "little"))


def overlapping_words(text: Text) -> NDArray[np.uint64]:
    """View a buffer as 64-bit words: element p holds bytes p to p + 7, the first lowest."""
    return as_strided(text[:8].view("<u8"), shape=(len(text) - 7,), strides=(1,))


@compiled_helper
def bytes_below(hit):
    """Return how many bytes of a word lie below the lowest 0x80 of `hit`, which has one."""
    lowest = hit & (~hit + np.uint64(1))
    return np.int64((((lowest - np.uint64(1)) & ONES) * ONES) >> np.uint64(56)) - 1


@compiled_helper
def find_line_end(words, position, end):
    """Return the position of the next newline at or after `position`, or `end`."""
    while position < end:
        x = words[position] ^ _NEWLINES
        hit = (x - ONES) & ~x & HIGHS
        if hit != _ZERO:
            return min(position + bytes_below(hit), end)
        position += 8
    return end


@compiled_helper
def parse_hex8(word):
    """Decode eight lower-case hexadecimal digits; return the value and a non-zero word if bad."""
    not_digit = ((word ^ np.uint64(0x3030303030303030)) + np.uint64(0x7676767676767676)) & HIGHS
    letter = word ^ np.uint64(0x6060606060606060)
    past_f = (letter + np.uint64(0x7979797979797979)) & HIGHS
    not_backquote = (letter + np.uint64(0x7F7F7F7F7F7F7F7F)) & HIGHS
    bad = (not_digit & ~(not_backquote & ~past_f)) | (word & HIGHS)
    value = (word & _LOW_NIBBLES) + _NINE * ((word >> np.uint64(6)) & ONES)
    value = ((value & np.uint64(0x00FF00FF00FF00FF)) << np.uint64(4)) | (
        (value >> np.uint64(8)) & np.uint64(0x00FF00FF00FF00FF)
    )
    value = ((value & np.uint64(0x0000FFFF0000FFFF)) << np.uint64(8)) | (
        (value >> np.uint64(16)) & np.uint64(0x0000FFFF0000FFFF)
    )
    value = ((value & np.uint64(0x00000000FFFFFFFF)) << np.uint64(16)) | (value >> np.uint64(32))
    return value, bad


@compiled_helper
def parse_decimal(text, position):
    """Decode an unsigned decimal of at most 18 digits; return (value, next position), -1 if bad."""
    value = np.int64(0)
    first = position
    while position - first < 19:
        digit = np.int64(text[position]) - DIGIT_0
        if digit < 0 or digit > 9:
            break
        value = value * 10 + digit
        position += 1
    if position == first or position - first > 18:
        return np.int64(-1), position
    return value, position


@compiled_helper
def skip_token(text, words, position, stop):
    """Return where the next token starts after the one at `position`, or `stop`."""
    while position < stop:
        x = words[position] ^ SPACES
        hit = (x - ONES) & ~x & HIGHS
        if hit != _ZERO:
            position += bytes_below(hit)
            break
        position += 8
    while position < stop and text[position] == SPACE:
        position += 1
    return min(position, stop)


@compiled_helper
def read_number(text, position, stop):
    """Decode an unsigned decimal token; return (value, start of the next token), -1 if bad."""
    if position >= stop:
        return np.int64(-1), position
    value, position = parse_decimal(text, position)
    if value < 0 or (position < stop and text[position] != SPACE):
        return np.int64(-1), position
    while position < stop and text[position] == SPACE:
        position += 1
    return value, min(position, stop)


@compiled_helper
def read_signed(text, position, stop):
    """Decode a signed decimal token; return (value, start of the next token or -1 if bad)."""
    negative = position < stop and text[position] == MINUS
    value, position = read_number(text, position + 1 if negative else position, stop)
    if value < 0:
        return np.int64(0), np.int64(-1)
    return -value if negative else value, np.int64(position)


@compiled_helper
def read_hex(text, position, stop):
    """Decode up to 16 hexadecimal digits; return value and next token's start, -1 if bad."""
    if position + 1 < stop and text[position] == DIGIT_0 and text[position + 1] == 0x78:
        position += 2
    value = _ZERO
    first = position
    while position < stop:
        digit = np.int64(text[position]) - DIGIT_0
        if digit > 9:
            digit = (np.int64(text[position]) | 0x20) - 0x57
            if digit < 10:
                digit = np.int64(-1)
        if digit < 0 or digit > 15:
            break
        value = (value << np.uint64(4)) | np.uint64(digit)
        position += 1
    if position == first or position - first > 16:
        return _ZERO, np.int64(-1)
    if position < stop and text[position] != SPACE:
        return _ZERO, np.int64(-1)
    while position < stop and text[position] == SPACE:
        position += 1
    return value, np.int64(position)


@compiled_helper
def read_coordinates(text, position, end, separator):
    """Decode ``x,y,z`` of a block; return them packed and the position after them.

    They are packed as ``x + (y << 31) + (z << 47)``, -1 if they are bad.
    """
    x, position = parse_decimal(text, position)
    if x < 0 or x >= 1 << X_BITS or position >= end or text[position] != separator:
        return np.int64(-1), position
    y, position = parse_decimal(text, position + 1)
    if y < 0 or y >= 1 << Y_BITS or position >= end or text[position] != separator:
        return np.int64(-1), position
    z, position = parse_decimal(text, position + 1)
    if z < 0 or z >= 1 << Y_BITS or position > end:
        return np.int64(-1), position
    return x | (y << X_BITS) | (z << (X_BITS + Y_BITS)), position


OPCODE_WORDS = 6  # opcode texts up to 48 bytes

# What a line with a memory operand means for global memory, by its opcode.
IGNORE = 0
GLOBAL_READ = 1
GLOBAL_WRITE = 2
GLOBAL_UPDATE = 3  # atomics and reductions: read and write
ASYNC_COPY = 4  # LDGSTS: one line for the shared side, one for the global side, which is read
ORDERED_READ = 5  # a load that is ordered with other blocks (volatile, acquire, ld.cg)

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
