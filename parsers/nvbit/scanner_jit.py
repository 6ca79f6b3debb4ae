"""Byte scanner for NVBit ``mem_trace`` text: compiled, restartable, over one buffer at a time.

`scan_lines` returns whenever it meets something that is rare and better handled in Python (a
launch line, a new opcode, a full table), together with the position of the line it stopped at;
the caller deals with it and calls again.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.parsers.scanning.scanning_jit import (
    ADDRESS_END,
    ASYNC_COPY,
    COMMA,
    DIGIT_0,
    HASH_FACTOR,
    HIGHS,
    IGNORE,
    LANES,
    MAX_LINE_BYTES,
    MINUS,
    NEWLINE,
    ONES,
    SHARED_WINDOW_END,
    SPACE,
    WARPS,
    add_lanes,
    find_line_end,
    find_opcode,
    largest_of,
    parse_decimal,
    parse_hex8,
    read_coordinates,
    take_row,
    word_of,
)
from depgraph.system.compiled import compiled_helper, compiled_scanner, compiled_within

MAX_RANGES_PER_LINE = 2 * LANES

# Why `scan_lines` returned.
DONE, AT_LAUNCH, NEW_OPCODE, NEW_LAUNCH_KEY, ROWS_FULL, RANGES_FULL = range(6)

# Slots of the counter array. An access line counts in one of the first six.
ACCESS_LINES = 0  # whole ones
SHORT_LINES = 1  # with fewer than 32 addresses, which count
LONG_LINES = 2  # with more than 32 addresses, of which 32 count
EMPTY_LINES = 3  # without addresses, left out
OUT_OF_RANGE_LINES = 4  # with an address that no GPU has, left out
MALFORMED_LINES = 5  # that cannot be read, left out
LINES = 6
FOREIGN_LINES = 7
VERBOSE_LINES = 8
SHARED_SIDE_LINES = 9
ZERO_LINES = 10
SPLICED_LINES = 11
OVERLONG_LINES = 12
FIRST_DAMAGED = 13  # 1 + line number within the part, 0 for none
FIRST_DAMAGE = 14  # the slot above that it counts in
N_COUNTERS = 15

# Elements of `state`.
LINE_END = 0  # of the line that is being scanned, below the position while that is not known
STATE_SIZE = 1

_CAPITAL_MS = np.uint64(0x4D4D4D4D4D4D4D4D)
_ZERO = np.uint64(0)


_MEMTRACE = word_of(b"MEMTRACE")
_CTX = word_of(b": CTX 0x")
_LAUNCH_1 = word_of(b" - LAUNC")
_GRID_1 = word_of(b" - grid_")
_GRID_2 = word_of(b"launch_i")
_SM_ID = word_of(b" - SM_id")
_CTA = word_of(b" - CTA \0")
_WARP = word_of(b" - warp ")
_INSPECTING = word_of(b"Inspecti")
_SEVEN_BYTES = np.uint64(0x00FFFFFFFFFFFFFF)
_LETTER_A = 0x41
_LETTER_X = 0x78
_LETTER_Z = 0x5A
_CR = 0x0D


class Launches(NamedTuple):
    """A hash table from (context, launch id) to a launch; `index` is -1 where it is empty."""

    context: NDArray[np.uint64]
    identifier: NDArray[np.int64]
    index: NDArray[np.int32]  # type: ignore[assignment]


class Access(NamedTuple):
    """The head of an access line."""

    context: np.uint64
    identifier: np.int64  # of the launch
    cta: np.int64  # coordinates as `read_coordinates` packs them
    warp: np.int64
    at_opcode: np.int64  # where the opcode starts; -1 if the line is no access line
    slot: np.int64  # of the opcode; negative if it is not in the table
    at_lanes: np.int64  # where the addresses start, if there are any


@compiled_helper
def find_memtrace(words, position, end):
    """Return where ``MEMTRACE: CTX 0x`` next starts in ``[position, end)``, or `end`."""
    while position < end:
        x = words[position] ^ _CAPITAL_MS
        if (x - ONES) & ~x & HIGHS == _ZERO:
            position += 8
            continue
        for p in range(position, min(position + 8, end)):
            if words[p] == _MEMTRACE and words[p + 8] == _CTX:
                return p
        position += 8
    return end


@compiled_helper
def parse_lanes(text, words, position, end, lanes):
    """Decode up to 32 addresses, ``0x`` and 16 digits; return how many, and where they end."""
    previous_high = _ZERO
    high = _ZERO
    count = 0
    while count < LANES and position + 18 <= end:
        if text[position] != DIGIT_0 or text[position + 1] != _LETTER_X:
            break
        word = words[position + 2]
        if word != previous_high or count == 0:
            high, bad = parse_hex8(word)
            if bad != _ZERO:
                break
            previous_high = word
        low, bad = parse_hex8(words[position + 10])
        if bad != _ZERO:
            break
        after = text[position + 18]
        if position + 18 < end and after != SPACE and after != _CR and after != NEWLINE:
            break
        lanes[count] = (high << np.uint64(32)) | low
        count += 1
        position += 18
        if position < end and text[position] == SPACE:
            position += 1
    return count, position


@compiled_helper
def line_end_at(words, position, end, known):
    """Return where the line at `position` ends: `known`, if that line was searched before."""
    return known if known >= position else find_line_end(words, position, end)


@compiled_helper
def note_damaged(counters, kind):
    """Count an access line that lost something, and remember the first."""
    counters[kind] += 1
    if counters[FIRST_DAMAGED] == 0:
        counters[FIRST_DAMAGED] = counters[LINES] + 1
        counters[FIRST_DAMAGE] = kind


@compiled_helper
def find_launch(launches, context, identifier):
    """Return the slot of a launch key, or -1 - slot where it is to be entered."""
    slots = launches.index.shape[0]
    mixed = (context ^ (np.uint64(np.int64(identifier)) * HASH_FACTOR)) * HASH_FACTOR
    slot = np.int64((mixed >> np.uint64(32)) & np.uint64(slots - 1))
    while launches.index[slot] >= 0:
        if launches.identifier[slot] == identifier and launches.context[slot] == context:
            return slot
        slot = (slot + 1) & (slots - 1)
    return -1 - slot


@compiled_helper
def parse_access_head(text, words, position, end):
    """Decode an access line from behind its context up to its opcode.

    Returns (launch id, packed block coordinates, warp, opcode position); the position is -1 if the
    line is no access line.
    """
    bad = (np.int64(-1), np.int64(-1), np.int64(-1), np.int64(-1))
    if position + 8 <= end and words[position] == _SM_ID:
        _, position = parse_decimal(text, position + 9)
    if position + 18 > end or words[position] != _GRID_1 or words[position + 8] != _GRID_2:
        return bad
    identifier, position = parse_decimal(text, position + 18)
    if identifier < 0 or position + 7 > end or words[position] & _SEVEN_BYTES != _CTA:
        return bad
    cta, position = read_coordinates(text, position + 7, end, COMMA)
    if cta < 0 or position + 8 > end or words[position] != _WARP:
        return bad
    warp, position = parse_decimal(text, position + 8)
    if warp < 0 or position + 3 > end or text[position] != SPACE or text[position + 1] != MINUS:
        return bad
    return identifier, cta, warp, np.int64(position + 3)


@compiled_helper
def is_marked(words, position):
    """Tell whether a record starts at `position`."""
    return words[position] == _MEMTRACE and words[position + 8] == _CTX


@compiled_helper
def read_access(text, words, position, end, opcode_words):
    """Decode the access line that may stand at `position`, up to its addresses."""
    identifier = cta = warp = at_opcode = slot = np.int64(-1)
    at_lanes = np.int64(position)
    high, bad = parse_hex8(words[position + 16])
    low, bad_low = parse_hex8(words[position + 24])
    if is_marked(words, position) and bad | bad_low == _ZERO:
        identifier, cta, warp, at_opcode = parse_access_head(text, words, position + 32, end)
    if at_opcode >= 0:
        slot, length = find_opcode(words, at_opcode, opcode_words)
        at_lanes = at_opcode + length + 3
        is_word = text[at_opcode] >= _LETTER_A and text[at_opcode] <= _LETTER_Z
        if not is_word or length == 0 or at_lanes > end or text[at_lanes - 2] != MINUS:
            at_opcode = np.int64(-1)
    return Access((high << np.uint64(32)) | low, identifier, cta, warp, at_opcode, slot, at_lanes)


@compiled_helper
def is_launch(words, position):
    """Tell whether the record at `position` is a launch line."""
    bad = parse_hex8(words[position + 16])[1] | parse_hex8(words[position + 24])[1]
    return bad == _ZERO and words[position + 32] == _LAUNCH_1


@compiled_helper
def find_record(words, position, line_end, counters):
    """Return where a record starts in the line, or the next line, counting what is passed over."""
    start = line_end
    if line_end - position > MAX_LINE_BYTES:
        counters[OVERLONG_LINES] += 1
    elif is_marked(words, position):
        start = position
    else:
        start = find_memtrace(words, position, line_end)
        counters[FOREIGN_LINES if start == line_end else SPLICED_LINES] += 1
    return start if start < line_end else end_line(line_end, counters)


@compiled_helper
def find_next_record(words, after, line_end, counters):
    """Return where the next record starts that stands in or after the line."""
    start = line_end
    if line_end - after > 2:
        start = find_memtrace(words, after, line_end)
    if start < line_end:
        counters[SPLICED_LINES] += 1
        return start
    return end_line(line_end, counters)


@compiled_helper
def end_line(line_end, counters):
    """Count a line; return where the next one starts."""
    counters[LINES] += 1
    return line_end + 1


@compiled_helper
def pass_damaged(words, position, line_end, counters):
    """Pass over a record that cannot be read, or is verbose; return where to go on."""
    if is_verbose(words, position + 16, line_end):
        counters[VERBOSE_LINES] += 1
    else:
        note_damaged(counters, np.int64(MALFORMED_LINES))
    return find_next_record(words, position + 1, line_end, counters)


@compiled_helper
def is_verbose(words, position, line_end):
    """Tell whether ``MEMTRACE: CTX 0x...`` goes on as ``, Inspecting CUfunction``."""
    while position < line_end:
        if words[position] == _INSPECTING:
            return True
        position += 1
        if words[position] & np.uint64(0xFF) == np.uint64(SPACE):
            return words[position + 1] == _INSPECTING
    return False


@compiled_within
def take_lanes(touches, opcodes, slot, row, lanes, count, is_long, counters):
    """Enter what the `count` lanes of an access line touch, unless the line is damaged."""
    largest = largest_of(lanes, count)
    kind = ACCESS_LINES
    if count == 0:
        kind = EMPTY_LINES
    elif largest >= ADDRESS_END:
        kind = OUT_OF_RANGE_LINES
    elif count < LANES:
        kind = SHORT_LINES
    elif is_long:
        kind = LONG_LINES
    if kind == ACCESS_LINES:
        counters[ACCESS_LINES] += 1
    else:
        note_damaged(counters, kind)
    if count == 0 or largest >= ADDRESS_END:
        return
    opcodes.count[slot] += 1
    meaning = opcodes.meaning[slot]
    if meaning == ASYNC_COPY and largest < SHARED_WINDOW_END:
        counters[SHARED_SIDE_LINES] += 1
        return
    if largest == _ZERO:
        counters[ZERO_LINES] += 1
    before = touches.sizes[1]
    touches.sizes[1] = add_lanes(
        touches.ranges, before, row, meaning, lanes, count, opcodes.width[slot]
    )
    if touches.ordinals.shape[0] > 0:
        for i in range(before, touches.sizes[1]):
            touches.ordinals[i] = touches.rows.accesses[row]
    touches.rows.instructions[row] += 1
    touches.rows.accesses[row] += 1


@compiled_scanner(2)
def scan_lines(text, words, position, end, opcodes, launches, touches, counters, state, lanes):
    """Scan the lines in ``text[position:end]``, each of which ends with a newline or at `end`.

    Returns `DONE`, or what the caller has to do before it calls again; the start of the record to
    go on with; and for `NEW_OPCODE` its position, for `NEW_LAUNCH_KEY` the launch id.
    """
    while position < end:
        access = read_access(text, words, position, end, opcodes.words)
        # Most lines by far: an access with 32 addresses and nothing else.
        expected_end = access.at_lanes + 19 * LANES
        is_plain = access.at_opcode >= 0 and expected_end < end and text[expected_end] == NEWLINE
        line_end = expected_end
        if not is_plain:
            line_end = line_end_at(words, position, end, state[LINE_END])
            state[LINE_END] = line_end
            start = find_record(words, position, line_end, counters)
            if start != position:
                position = start
                continue
            if is_launch(words, position):
                return AT_LAUNCH, position, np.int64(0)
            if access.at_opcode < 0 or access.at_lanes > line_end + 3:
                position = pass_damaged(words, position, line_end, counters)
                continue
        if access.slot < 0:
            return NEW_OPCODE, position, access.at_opcode
        at_launch = find_launch(launches, access.context, access.identifier)
        if at_launch < 0:
            return NEW_LAUNCH_KEY, position, access.identifier
        launch = np.int64(launches.index[at_launch])
        if touches.ordinals.shape[0] > 0:
            launch = WARPS * launch + access.warp % WARPS
        row = take_row(touches.rows, touches.sizes, launch, access.cta)
        if row < 0:
            return ROWS_FULL, position, np.int64(0)
        if touches.sizes[1] + MAX_RANGES_PER_LINE > touches.ranges.row.shape[0]:
            return RANGES_FULL, position, np.int64(0)

        after = access.at_lanes
        count = np.int64(0)
        is_ignored = opcodes.meaning[access.slot] == IGNORE
        if is_ignored:
            opcodes.count[access.slot] += 1
            counters[ACCESS_LINES] += 1
            touches.rows.instructions[row] += 1
            is_whole = (
                is_plain
                and text[expected_end - 1] == SPACE
                and text[expected_end - 18] == _LETTER_X
            )
        else:
            count, after = parse_lanes(text, words, after, line_end, lanes)
            is_whole = is_plain and count == LANES
        if is_plain and not is_whole:
            # With fewer addresses the line is shorter, and the newline is of another one.
            line_end = line_end_at(words, position, end, state[LINE_END])
            state[LINE_END] = line_end
        if not is_ignored:
            is_long = (
                after + 2 < line_end and text[after] == DIGIT_0 and text[after + 1] == _LETTER_X
            )
            take_lanes(touches, opcodes, access.slot, row, lanes, count, is_long, counters)
        if is_whole:
            position = end_line(line_end, counters)
        else:
            position = find_next_record(words, after, line_end, counters)
    return DONE, end, np.int64(0)
