"""Byte scanner for NVBit ``mem_trace`` text: compiled, restartable, over one buffer at a time.

`scan_lines` returns whenever it meets something that is rare and better handled in Python (a
launch line, a new opcode, a full table), together with the position of the line it stopped at;
the caller deals with it and calls again.
"""

from __future__ import annotations

import numpy as np

from depgraph.parsers.scanning.text_jit import (
    ADDRESS_END,
    ASYNC_COPY,
    COMMA,
    DIGIT_0,
    GLOBAL_UPDATE,
    GLOBAL_WRITE,
    HASH_FACTOR,
    HIGHS,
    IGNORE,
    LANES,
    MAX_LINE_BYTES,
    NEWLINE,
    ONES,
    READ_KINDS,
    SHARED_WINDOW_END,
    SPACE,
    WRITE,
    emit_ranges,
    find_line_end,
    find_opcode,
    find_row,
    parse_decimal,
    parse_hex8,
)
from depgraph.system.compiled import compiled

MAX_RANGES_PER_LINE = 2 * LANES

# Why `scan_lines` returned.
DONE = 0
AT_LAUNCH = 1
NEW_OPCODE = 2
NEW_LAUNCH_KEY = 3
ROWS_FULL = 4
RANGES_FULL = 5

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


def _word(text: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(text, "little"))


_MEMTRACE = _word(b"MEMTRACE")
_CTX = _word(b": CTX 0x")
_LAUNCH_1 = _word(b" - LAUNC")
_GRID_1 = _word(b" - grid_")
_GRID_2 = _word(b"launch_i")
_SM_ID = _word(b" - SM_id")
_CTA = _word(b" - CTA \0")
_WARP = _word(b" - warp ")
_SEVEN_BYTES = np.uint64(0x00FFFFFFFFFFFFFF)


@compiled
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


@compiled
def parse_lanes(text, words, position, end, lanes):
    """Decode up to 32 addresses ``0x`` + 16 digits, each followed by a blank or the line's end.

    Returns the number decoded into `lanes` and the position after the last one.
    """
    previous_high = _ZERO
    high = _ZERO
    count = 0
    while count < LANES and position + 18 <= end:
        if text[position] != DIGIT_0 or text[position + 1] != 0x78:
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
        if position + 18 < end and after != SPACE and after != 0x0D and after != NEWLINE:
            break
        lanes[count] = (high << np.uint64(32)) | low
        count += 1
        position += 18
        if position < end and text[position] == SPACE:
            position += 1
    return count, position


@compiled
def line_end_at(words, position, end, known):
    """Return where the line at `position` ends; `known` if that is not the end of one above.

    A line is searched for its end once, however many records it holds.
    """
    return known if known >= position else find_line_end(words, position, end)


@compiled
def note_damaged(counters, kind):
    """Count an access line that lost something, and remember the first."""
    counters[kind] += 1
    if counters[FIRST_DAMAGED] == 0:
        counters[FIRST_DAMAGED] = counters[LINES] + 1
        counters[FIRST_DAMAGE] = kind


@compiled
def find_launch(context, identifier, launch_context, launch_id, launch_index):
    """Return the part's current index of a launch key, or -1 - slot where it is to be entered."""
    slots = launch_context.shape[0]
    mixed = (context ^ (np.uint64(identifier) * HASH_FACTOR)) * HASH_FACTOR
    slot = np.int64((mixed >> np.uint64(32)) & np.uint64(slots - 1))
    while launch_index[slot] >= 0:
        if launch_id[slot] == identifier and launch_context[slot] == context:
            return slot
        slot = (slot + 1) & (slots - 1)
    return -1 - slot


@compiled
def parse_access_head(text, words, position, end):
    """Decode an access line up to its opcode.

    Returns (launch id, packed block coordinates, opcode position); the position is -1 if the
    line is no access line. Coordinates are packed as ``x + (y << 31) + (z << 47)``.
    """
    bad = (np.int64(-1), np.int64(-1), np.int64(-1))
    if position + 8 <= end and words[position] == _SM_ID:
        _, position = parse_decimal(text, position + 9)
    if position + 18 > end or words[position] != _GRID_1 or words[position + 8] != _GRID_2:
        return bad
    identifier, position = parse_decimal(text, position + 18)
    if identifier < 0 or position + 7 > end or words[position] & _SEVEN_BYTES != _CTA:
        return bad
    x, position = parse_decimal(text, position + 7)
    if x < 0 or x >= 1 << 31 or text[position] != COMMA:
        return bad
    y, position = parse_decimal(text, position + 1)
    if y < 0 or y >= 1 << 16 or text[position] != COMMA:
        return bad
    z, position = parse_decimal(text, position + 1)
    if z < 0 or z >= 1 << 16 or position + 8 > end or words[position] != _WARP:
        return bad
    warp, position = parse_decimal(text, position + 8)
    if warp < 0 or position + 3 > end or text[position] != SPACE or text[position + 1] != 0x2D:
        return bad
    return identifier, x | (y << 31) | (z << 47), np.int64(position + 3)


@compiled
def scan_lines(
    text,
    words,
    position,
    end,
    opcode_words,
    opcode_meaning,
    opcode_width,
    opcode_count,
    launch_context,
    launch_id,
    launch_index,
    row_launch,
    row_cta,
    row_accesses,
    row_instructions,
    row_table,
    range_row,
    range_kind,
    range_start,
    range_end,
    counters,
    sizes,
    state,
    lanes,
):
    """Scan the lines in ``text[position:end]``; every line there ends with a newline or at `end`.

    Parameters
    ----------
    text, words : uint8[n], uint64[n - 7]
        The buffer, as bytes and as overlapping words, padded by `PADDING` bytes.
    position, end : int
        Where to start (a line start, or where the last call stopped) and stop.
    opcode_words, opcode_meaning, opcode_width, opcode_count : arrays of one row per opcode slot
        Hash table of opcode texts with what they do to global memory and how wide a lane is.
    launch_context, launch_id, launch_index : arrays of one row per slot
        Hash table from (context, launch id) to the launch of this part it now stands for.
    row_launch, row_cta, row_accesses, row_instructions : arrays of one row per block
    row_table : int32[slots]
        Hash table of the rows.
    range_row, range_kind, range_start, range_end : arrays of one element a range
        Output, in the order of the text.
    counters : int64[N_COUNTERS]
    sizes : int64[2]
        Rows and ranges in use.
    state : int64[STATE_SIZE]
        What is known of the line that `position` is in, from call to call.
    lanes : uint64[32]
        Scratch.

    Returns
    -------
    status : int
        `DONE`, or what the caller has to do before it calls again.
    position : int
        Start of the record to go on with.
    detail : int
        For `NEW_OPCODE` its position, for `NEW_LAUNCH_KEY` the launch id.
    """
    last_context = _ZERO
    last_identifier = np.int64(-1)
    last_launch = np.int64(-1)
    last_slot = np.int64(-1)
    line_end = state[LINE_END]
    while position < end:
        is_marked = words[position] == _MEMTRACE and words[position + 8] == _CTX
        high, bad = parse_hex8(words[position + 16])
        low, bad_low = parse_hex8(words[position + 24])
        is_marked = is_marked and bad | bad_low == _ZERO
        is_launch = is_marked and words[position + 32] == _LAUNCH_1
        identifier = np.int64(-1)
        cta = np.int64(-1)
        at_opcode = np.int64(-1)
        if is_marked and not is_launch:
            identifier, cta, at_opcode = parse_access_head(text, words, position + 32, end)
        slot = np.int64(-1)
        length = 0
        at_lanes = position
        if at_opcode >= 0:
            slot, length = find_opcode(words, at_opcode, opcode_words)
            at_lanes = at_opcode + length + 3
            is_word = text[at_opcode] >= 0x41 and text[at_opcode] <= 0x5A
            if not is_word or length == 0 or at_lanes > end or text[at_lanes - 2] != 0x2D:
                at_opcode = np.int64(-1)

        # Most lines by far: an access with 32 addresses and nothing else.
        expected_end = at_lanes + 19 * LANES
        is_plain = at_opcode >= 0 and expected_end < end and text[expected_end] == NEWLINE
        if not is_plain:
            line_end = line_end_at(words, position, end, line_end)
            if line_end - position > MAX_LINE_BYTES:
                counters[OVERLONG_LINES] += 1
                counters[LINES] += 1
                position = line_end + 1
                continue
            start = position
            if words[position] != _MEMTRACE or words[position + 8] != _CTX:
                start = find_memtrace(words, position, line_end)
                if start == line_end:
                    counters[FOREIGN_LINES] += 1
                    counters[LINES] += 1
                    position = line_end + 1
                    continue
                counters[SPLICED_LINES] += 1
                position = start
                continue
            if is_launch:
                state[LINE_END] = line_end
                return AT_LAUNCH, position, np.int64(0)
            if at_opcode < 0 or at_lanes > line_end + 3:
                next_start = find_memtrace(words, position + 1, line_end)
                if _is_verbose(words, position + 16, line_end):
                    counters[VERBOSE_LINES] += 1
                else:
                    note_damaged(counters, MALFORMED_LINES)
                if next_start < line_end:
                    counters[SPLICED_LINES] += 1
                    position = next_start
                else:
                    counters[LINES] += 1
                    position = line_end + 1
                continue
        if slot < 0:
            state[LINE_END] = line_end
            return NEW_OPCODE, position, at_opcode

        context = (high << np.uint64(32)) | low
        if identifier != last_identifier or context != last_context:
            last_slot = find_launch(context, identifier, launch_context, launch_id, launch_index)
            if last_slot < 0:
                state[LINE_END] = line_end
                return NEW_LAUNCH_KEY, position, identifier
            last_context = context
            last_identifier = identifier
            last_launch = np.int64(launch_index[last_slot])
        n_rows = sizes[0]
        row = find_row(last_launch, cta, row_launch, row_cta, row_table)
        if row < 0:
            if n_rows >= row_launch.shape[0] or 2 * n_rows >= row_table.shape[0]:
                state[LINE_END] = line_end
                return ROWS_FULL, position, np.int64(0)
            row_table[-1 - row] = n_rows
            row = n_rows
            row_launch[row] = last_launch
            row_cta[row] = cta
            row_accesses[row] = 0
            row_instructions[row] = 0
            sizes[0] = n_rows + 1
        n_ranges = sizes[1]
        if n_ranges + MAX_RANGES_PER_LINE > range_row.shape[0]:
            state[LINE_END] = line_end
            return RANGES_FULL, position, np.int64(0)

        meaning = opcode_meaning[slot]
        after = at_lanes
        count = np.int64(0)
        if meaning == IGNORE:
            opcode_count[slot] += 1
            counters[ACCESS_LINES] += 1
            row_instructions[row] += 1
            if is_plain and text[expected_end - 1] == SPACE and text[expected_end - 18] == 0x78:
                counters[LINES] += 1
                position = expected_end + 1
                continue
        else:
            stop = expected_end if is_plain else line_end
            count, after = parse_lanes(text, words, at_lanes, stop, lanes)
        if is_plain:
            # With fewer addresses the line is shorter, and the newline is of another one.
            line_end = (
                expected_end if count == LANES else line_end_at(words, position, end, line_end)
            )
        if meaning != IGNORE:
            largest = _ZERO
            for lane in range(count):
                largest = max(largest, lanes[lane])
            kind = ACCESS_LINES
            if count == 0:
                kind = EMPTY_LINES
            elif largest >= ADDRESS_END:
                kind = OUT_OF_RANGE_LINES
            elif count < LANES:
                kind = SHORT_LINES
            elif after + 2 < line_end and text[after] == DIGIT_0 and text[after + 1] == 0x78:
                kind = LONG_LINES
            if kind == ACCESS_LINES:
                counters[ACCESS_LINES] += 1
            else:
                note_damaged(counters, kind)
            if count > 0 and largest < ADDRESS_END:
                opcode_count[slot] += 1
                if meaning == ASYNC_COPY and largest < SHARED_WINDOW_END:
                    counters[SHARED_SIDE_LINES] += 1
                else:
                    row_instructions[row] += 1
                    row_accesses[row] += 1
                    if largest == _ZERO:
                        counters[ZERO_LINES] += 1
                    width = opcode_width[slot]
                    if meaning != GLOBAL_WRITE:
                        n_ranges = emit_ranges(
                            lanes, count, width, row, READ_KINDS[meaning],
                            range_row, range_kind, range_start, range_end, n_ranges,
                        )  # fmt: skip
                    if meaning == GLOBAL_WRITE or meaning == GLOBAL_UPDATE:
                        n_ranges = emit_ranges(
                            lanes, count, width, row, WRITE,
                            range_row, range_kind, range_start, range_end, n_ranges,
                        )  # fmt: skip
                    sizes[1] = n_ranges
        next_start = line_end
        if line_end - after > 2:
            next_start = find_memtrace(words, after, line_end)
        if next_start < line_end:
            counters[SPLICED_LINES] += 1
            position = next_start
        else:
            counters[LINES] += 1
            position = line_end + 1
    state[LINE_END] = line_end
    return DONE, end, np.int64(0)


@compiled
def _is_verbose(words, position, line_end):
    """Tell whether ``MEMTRACE: CTX 0x...`` goes on as ``, Inspecting CUfunction``."""
    inspecting = _word_inspect
    while position < line_end:
        if words[position] == inspecting:
            return True
        position += 1
        if words[position] & np.uint64(0xFF) == np.uint64(SPACE):
            return words[position + 1] == inspecting
    return False


_word_inspect = _word(b"Inspecti")
