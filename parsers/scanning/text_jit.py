"""The text that every byte scanner reads: words, ends of lines, numbers, tokens.

The buffer of a scanner ends with at least `PADDING` bytes that belong to no line, so that eight
bytes can be loaded at any position. `words` is the same buffer seen as overlapping little-endian
64-bit words: ``words[p]`` holds bytes ``p .. p + 7``.
"""

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from depgraph.system.arrays import Text
from depgraph.system.compiled import compiled_helper

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
