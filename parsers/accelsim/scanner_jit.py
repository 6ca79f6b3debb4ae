"""Byte scanner for Accel-Sim kernel traces: compiled, restartable, over one buffer at a time.

It reads grouped text (``.traceg``: instructions below the thread block that ran them) and raw text
(``.trace``: every line names its block) of all tracer versions. What differs is told by `layout`.

`scan_lines` returns whenever it meets something that is rare and better handled in Python (a new
opcode, a full table), together with the position of the line it stopped at; the caller deals with
it and calls again. What has to survive from buffer to buffer is in `state`.
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
    IGNORE,
    LANES,
    MAX_LINE_BYTES,
    MINUS,
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
    read_hex,
    read_number,
    read_signed,
    skip_token,
)
from depgraph.system.compiled import compiled

# Why `scan_lines` returned.
DONE = 0
NEW_OPCODE = 1
ROWS_FULL = 2
RANGES_FULL = 3

# Added to what an opcode means for global memory.
MEANING = 7
WINDOWED = 8  # a generic address: lanes in the shared or local window do not count
BULK = 16  # a bulk or tensor copy: a list of addresses of its own

# Elements of `layout`.
IS_GROUPED = 0
COLUMNS_BEFORE_PC = 1
LISTS_ACTIVE_LANES = 2  # versions that may list more lanes than the mask has
LAYOUT_SIZE = 3

# Elements of `windows`.
SHARED_BEGIN = 0
SHARED_END = 1
LOCAL_BEGIN = 2
LOCAL_END = 3

# Elements of `state`.
BLOCK = 0  # packed coordinates, -1 where no thread block has begun
ROW = 1  # of that block, -1 where it has no instruction yet
DECLARED = 2  # instructions of the warp as the trace says, -1 for no warp
SEEN = 3  # instructions of the warp
IN_BLOCK = 4  # 1 between #BEGIN_TB and #END_TB
STATE_SIZE = 5

# Elements of `counters`.
LINES = 0
INSTRUCTION_LINES = 1
ACCESS_LINES = 2
FOREIGN_LINES = 3
MALFORMED_LINES = 4
FIRST_DAMAGED = 5  # 1 + line number within the text, 0 for none
BLOCKLESS_LINES = 6
MASKED_LINES = 7
SHARED_SIDE_LINES = 8
WINDOW_LINES = 9
ZERO_LINES = 10
SUPERSET_LINES = 11
HOLE_LINES = 12
UNTRACED_LINES = 13
WRONG_COUNTS = 14
OVERLONG_LINES = 15
OUT_OF_RANGE_LINES = 16
N_COUNTERS = 17

_MAX_BULK_BYTES = 1 << 20
_MAX_REGISTERS = 64  # in one instruction, of one kind
_ZERO = np.uint64(0)
_CR = 0x0D
_HASH = 0x23
_EQUALS = 0x3D
_EOL = 0x0A


def _word(text: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(text, "little"))


_BEGIN_TB = _word(b"#BEGIN_T")
_END_TB = _word(b"#END_TB\0")
_THREAD_BLOCK = _word(b"thread b")
_WARP = _word(b"warp = \0")
_INSTS = _word(b"insts = ")
_CLUSTER = _word(b"cluster ")
_SEVEN_BYTES = np.uint64(0x00FFFFFFFFFFFFFF)


@compiled
def read_coordinates(text, position, stop, separator):
    """Decode ``x,y,z``; return them packed and the position after them, -1 if they are bad."""
    x, position = parse_decimal(text, position)
    if x < 0 or x >= 1 << 31 or position >= stop or text[position] != separator:
        return np.int64(-1), position
    y, position = parse_decimal(text, position + 1)
    if y < 0 or y >= 1 << 16 or position >= stop or text[position] != separator:
        return np.int64(-1), position
    z, position = parse_decimal(text, position + 1)
    if z < 0 or z >= 1 << 16 or position > stop:
        return np.int64(-1), position
    return x | (y << 31) | (z << 47), position


@compiled
def read_structure(text, words, position, stop, state, counters):
    """Take a line that is no instruction: a block or warp that begins or ends, or foreign text."""
    while position < stop and text[position] == SPACE:
        position += 1
    if position >= stop or text[position] == MINUS:
        return
    word = words[position]
    if text[position] == _HASH:
        if word == _BEGIN_TB:
            end_warp(state, counters)
            state[BLOCK] = -1
            state[ROW] = -1
            state[IN_BLOCK] = 1
        elif word & _SEVEN_BYTES == _END_TB:
            end_warp(state, counters)
            state[IN_BLOCK] = 0
        return
    at = position
    while at < stop and text[at] != _EQUALS:
        at += 1
    at += 1
    while at < stop and text[at] == SPACE:
        at += 1
    if word == _THREAD_BLOCK:
        end_warp(state, counters)
        packed, after = read_coordinates(text, at, stop, np.int64(COMMA))
        state[BLOCK] = packed
        state[ROW] = -1
        if packed >= 0 and after <= stop:
            return
    elif word & _SEVEN_BYTES == _WARP:
        end_warp(state, counters)
        return
    elif word == _INSTS:
        declared, _ = read_number(text, at, stop)
        state[DECLARED] = declared
        state[SEEN] = 0
        if declared >= 0:
            return
    elif word == _CLUSTER:
        return
    counters[FOREIGN_LINES] += 1


@compiled
def note_damaged(counters):
    """Remember the first line that lost something."""
    if counters[FIRST_DAMAGED] == 0:
        counters[FIRST_DAMAGED] = counters[LINES] + 1


@compiled
def end_warp(state, counters):
    """Compare the instructions of a warp with their declared number."""
    if state[DECLARED] >= 0 and state[DECLARED] != state[SEEN]:
        counters[WRONG_COUNTS] += 1
    state[DECLARED] = -1


@compiled
def read_addresses(text, position, stop, mask, lists_active_lanes, lanes):
    """Decode ``MODE addresses`` into `lanes`, one element an accessing lane.

    Returns (lanes, 1 where more lanes are listed than the mask has, 1 where a base and stride
    come with a mask of several runs); the number is -1 if the line is bad.
    """
    bad = (np.int64(-1), np.int64(0), np.int64(0))
    wanted = np.int64(0)
    bits = mask
    while bits != _ZERO:
        bits &= bits - np.uint64(1)
        wanted += 1
    mode, position = read_number(text, position, stop)
    if mode < 0 or mode > 2:
        return bad
    if mode == 0:
        count = np.int64(0)
        while count < LANES and position < stop:
            # Nothing but an address starts with 0x; fork traces leave the 0x out.
            if count >= wanted and (
                position + 1 >= stop or text[position] != DIGIT_0 or text[position + 1] != 0x78
            ):
                break
            lanes[count], position = read_hex(text, position, stop)
            if position < 0:
                return bad
            count += 1
        has_more = position + 1 < stop and text[position] == DIGIT_0 and text[position + 1] == 0x78
        if count < wanted or has_more:
            return bad
        return count, np.int64(count > wanted), np.int64(0)
    base, position = read_hex(text, position, stop)
    if position < 0:
        return bad
    lanes[0] = base
    count = np.int64(1)
    if mode == 1:
        stride, position = read_signed(text, position, stop)
        if position < 0:
            return bad
        first = np.int64(0)
        while (mask >> np.uint64(first)) & np.uint64(1) == _ZERO:
            first += 1
        last = first
        for lane in range(first + 1, LANES):
            if (mask >> np.uint64(lane)) & np.uint64(1) != _ZERO:
                lanes[count] = base + np.uint64((lane - first) * stride)
                count += 1
                last = np.int64(lane)
        return count, np.int64(0), np.int64(last - first + 1 != wanted)
    while count < LANES and (count < wanted or (lists_active_lanes and position < stop)):
        delta, after = read_signed(text, position, stop)
        if after < 0:
            if count >= wanted:
                break
            return bad
        lanes[count] = lanes[count - 1] + np.uint64(delta)
        position = after
        count += 1
    return count, np.int64(count > wanted), np.int64(0)


@compiled
def drop_windows(lanes, count, windows):
    """Keep the lanes outside the shared and the local window; return their number."""
    kept = np.int64(0)
    for lane in range(count):
        address = lanes[lane]
        if address >= windows[SHARED_BEGIN] and address < windows[SHARED_END]:
            continue
        if address >= windows[LOCAL_BEGIN] and address < windows[LOCAL_END]:
            continue
        lanes[kept] = address
        kept += 1
    return kept


@compiled
def read_bulk_head(text, position, stop):
    """Decode ``MBAR MULTICAST [MASK] BYTES OUTSIDE MODE`` and the number of addresses.

    Returns (mode, addresses, bytes an address stands for, base, position behind); mode -1 if the
    line holds no such columns, mode 0 if there is nothing to copy.
    """
    bad = (np.int64(-1), np.int64(0), np.int64(0), _ZERO, position)
    _, position = read_hex(text, position, stop)
    if position < 0:
        return bad
    multicast, position = read_number(text, position, stop)
    if multicast < 0 or multicast > 1:
        return bad
    if multicast == 1:
        _, position = read_hex(text, position, stop)
        if position < 0:
            return bad
    total, position = read_number(text, position, stop)
    outside, position = read_number(text, position, stop)
    mode, position = read_number(text, position, stop)
    if total < 0 or outside < 0 or (mode != 3 and mode != 4):
        return bad
    base = _ZERO
    if mode == 4:
        base, position = read_hex(text, position, stop)
        if position < 0:
            return bad
    number, position = read_number(text, position, stop)
    # Every address but a base takes two characters at least.
    if number < 0 or number > stop - position + 2 or total > _MAX_BULK_BYTES:
        return bad
    if number == 0 or outside >= total:
        return np.int64(0), np.int64(0), np.int64(0), base, position
    each = (total - outside + number - 1) // number
    return mode, number, each, base, position


@compiled
def emit_bulk(
    text, position, stop, mode, number, each, base, row, meaning,
    range_row, range_kind, range_start, range_end, n,
):  # fmt: skip
    """Append the bytes of a bulk copy; return the new number of ranges, -1 if the line is bad."""
    width = np.uint64(each)
    address = base
    for i in range(number):
        if mode == 3:
            address, position = read_hex(text, position, stop)
        elif i > 0:
            delta, position = read_signed(text, position, stop)
            address += np.uint64(delta)
        if position < 0 or address == _ZERO or address >= ADDRESS_END:
            return np.int64(-1)
        if meaning != GLOBAL_WRITE:
            range_row[n] = row
            range_kind[n] = READ_KINDS[meaning]
            range_start[n] = address
            range_end[n] = address + width
            n += 1
        if meaning == GLOBAL_WRITE or meaning == GLOBAL_UPDATE:
            range_row[n] = row
            range_kind[n] = WRITE
            range_start[n] = address
            range_end[n] = address + width
            n += 1
    return np.int64(n)


@compiled
def scan_lines(
    text,
    words,
    position,
    end,
    layout,
    windows,
    state,
    launch,
    opcode_words,
    opcode_meaning,
    opcode_width,
    opcode_count,
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
    lanes,
):
    """Scan the lines in ``text[position:end]``; every line there ends with a newline or at `end`.

    Parameters
    ----------
    text, words : uint8[n], uint64[n - 7]
        The buffer, as bytes and as overlapping words, padded by `PADDING` bytes.
    position, end : int
        Where to start (a line start, or where the last call stopped) and stop.
    layout : int64[LAYOUT_SIZE]
    windows : uint64[4]
        Where the shared and the local window of generic addresses begin and end.
    state : int64[STATE_SIZE]
    launch : int
        Index of this kernel in the part.
    opcode_words, opcode_meaning, opcode_width, opcode_count : arrays of one row per opcode slot
        Hash table of opcode texts with what they do to global memory and how wide a lane is.
    row_launch, row_cta, row_accesses, row_instructions : arrays of one row per block
    row_table : int32[slots]
        Hash table of the rows.
    range_row, range_kind, range_start, range_end : arrays of one element a range
        Output, in the order of the text.
    counters : int64[N_COUNTERS]
    sizes : int64[2]
        Rows and ranges in use.
    lanes : uint64[32]
        Scratch.

    Returns
    -------
    status : int
        `DONE`, or what the caller has to do before it calls again.
    position : int
        Start of the line to go on with.
    detail : int
        For `NEW_OPCODE` its position, for `RANGES_FULL` how many ranges the line may need.
    """
    grouped = layout[IS_GROUPED] != 0
    columns = layout[COLUMNS_BEFORE_PC]
    while position < end:
        line_end = find_line_end(words, position, end)
        if line_end - position > MAX_LINE_BYTES:
            counters[OVERLONG_LINES] += 1
            note_damaged(counters)
            counters[LINES] += 1
            position = line_end + 1
            continue
        stop = line_end
        if stop > position and text[stop - 1] == _CR:
            stop -= 1
        p = position
        while p < stop and text[p] == SPACE:
            p += 1
        first = text[p]
        is_instruction = (first >= DIGIT_0 and first <= 0x39) or (
            first >= 0x61 and first <= 0x66 and words[p] != _CLUSTER
        )
        if p >= stop or not is_instruction:
            read_structure(text, words, p, stop, state, counters)
            counters[LINES] += 1
            position = line_end + 1
            continue

        # Columns up to the opcode.
        block = state[BLOCK]
        good = True
        destinations = np.int64(-1)
        mask = _ZERO
        bad = _ZERO
        if (
            # Most lines by far: a counter of four digits, and fewer than ten destinations.
            grouped
            and columns == 0
            and p + 17 <= stop
            and text[p + 4] == SPACE
            and text[p + 13] == SPACE
            and text[p + 15] == SPACE
            and text[p + 16] != SPACE
        ):
            mask, bad = parse_hex8(words[p + 5])
            destinations = np.int64(text[p + 14]) - DIGIT_0
            p += 16
        else:
            skipped = columns
            if not grouped:
                block, p = read_coordinates(text, p, stop, np.int64(SPACE))
                good = block >= 0
                p = skip_token(text, words, p, stop)
                skipped -= 3
            for _ in range(skipped):
                p = skip_token(text, words, p, stop)
            after = skip_token(text, words, p, stop)
            if after - p < 5 or after + 10 > stop or text[after + 8] != SPACE:
                good = False
            else:
                mask, bad = parse_hex8(words[after])
                p = skip_token(text, words, after, stop)
                destinations, p = read_number(text, p, stop)
        good = bool(good and bad == _ZERO and destinations >= 0 and destinations <= _MAX_REGISTERS)
        if good:
            for _ in range(destinations):
                p = skip_token(text, words, p, stop)
            good = p < stop and text[p] >= 0x41 and text[p] <= 0x5A
        slot = np.int64(-1)
        length = 0
        if good:
            slot, length = find_opcode(words, p, opcode_words)
            good = length > 0 and p + length < stop
        if not good:
            counters[MALFORMED_LINES] += 1
            note_damaged(counters)
            state[SEEN] += 1
            counters[LINES] += 1
            position = line_end + 1
            continue
        if slot < 0:
            return NEW_OPCODE, position, np.int64(p)
        if grouped and block < 0:
            counters[BLOCKLESS_LINES] += 1
            note_damaged(counters)
            state[SEEN] += 1
            counters[LINES] += 1
            position = line_end + 1
            continue

        # The row of the block.
        row = state[ROW]
        if row < 0 or block != state[BLOCK]:
            row = find_row(launch, block, row_launch, row_cta, row_table)
            if row < 0:
                n_rows = sizes[0]
                if n_rows >= row_launch.shape[0]:
                    return ROWS_FULL, position, np.int64(0)
                row_table[-1 - row] = n_rows
                row = n_rows
                row_launch[row] = launch
                row_cta[row] = block
                row_accesses[row] = 0
                row_instructions[row] = 0
                sizes[0] = n_rows + 1
            state[ROW] = row
            state[BLOCK] = block
        meaning = opcode_meaning[slot] & MEANING

        if meaning == IGNORE or mask == _ZERO:
            # Both sides of an asynchronous copy look the same when no lane takes part.
            if meaning != ASYNC_COPY:
                row_instructions[row] += 1
                opcode_count[slot] += 1
            if meaning != IGNORE:
                counters[MASKED_LINES] += 1
            counters[INSTRUCTION_LINES] += 1
            state[SEEN] += 1
            counters[LINES] += 1
            position = line_end + 1
            continue

        # Sources, width, addresses.
        p = skip_token(text, words, p, stop)
        sources, p = read_number(text, p, stop)
        good = sources >= 0 and sources <= _MAX_REGISTERS
        width = np.int64(-1)
        if good:
            for _ in range(sources):
                p = skip_token(text, words, p, stop)
            width, p = read_number(text, p, stop)
            good = width >= 0
        n_ranges = sizes[1]
        counts = True
        seen = True
        fault = MALFORMED_LINES
        if good and opcode_meaning[slot] & BULK != 0:
            mode, number, each, base, p = read_bulk_head(text, p, stop)
            if n_ranges + 2 * number > range_row.shape[0]:
                return RANGES_FULL, position, 2 * number
            if mode < 0:
                seen = False
            elif mode > 0:
                n_ranges = emit_bulk(
                    text, p, stop, mode, number, each, base, row, meaning,
                    range_row, range_kind, range_start, range_end, n_ranges,
                )  # fmt: skip
                good = n_ranges >= 0
        elif good and width == 0:
            seen = False
        elif good:
            if n_ranges + 2 * LANES > range_row.shape[0]:
                return RANGES_FULL, position, np.int64(2 * LANES)
            count, superset, holes = read_addresses(
                text, p, stop, mask, layout[LISTS_ACTIVE_LANES] != 0, lanes
            )
            largest = _ZERO
            smallest = ADDRESS_END
            for lane in range(count):
                largest = max(largest, lanes[lane])
                smallest = min(smallest, lanes[lane])
            if largest >= ADDRESS_END:
                fault = OUT_OF_RANGE_LINES
            good = bool(count >= 0 and largest < ADDRESS_END)
            if good:
                counters[SUPERSET_LINES] += superset
                counters[HOLE_LINES] += holes
                if meaning == ASYNC_COPY and (
                    largest < SHARED_WINDOW_END
                    or (smallest >= windows[SHARED_BEGIN] and largest < windows[SHARED_END])
                ):
                    counters[SHARED_SIDE_LINES] += 1
                    counts = False
                else:
                    if opcode_meaning[slot] & WINDOWED != 0:
                        count = drop_windows(lanes, count, windows)
                    if count == 0:
                        counters[WINDOW_LINES] += 1
                        seen = False
                    elif largest == _ZERO:
                        counters[ZERO_LINES] += 1
                    if meaning != GLOBAL_WRITE:
                        n_ranges = emit_ranges(
                            lanes, count, opcode_width[slot], row, READ_KINDS[meaning],
                            range_row, range_kind, range_start, range_end, n_ranges,
                        )  # fmt: skip
                    if meaning == GLOBAL_WRITE or meaning == GLOBAL_UPDATE:
                        n_ranges = emit_ranges(
                            lanes, count, opcode_width[slot], row, WRITE,
                            range_row, range_kind, range_start, range_end, n_ranges,
                        )  # fmt: skip
        if good:
            sizes[1] = n_ranges
            if counts:
                row_instructions[row] += 1
                opcode_count[slot] += 1
                if seen:
                    row_accesses[row] += 1
                    counters[ACCESS_LINES] += 1
                elif opcode_meaning[slot] & BULK != 0 or width == 0:
                    counters[UNTRACED_LINES] += 1
            counters[INSTRUCTION_LINES] += 1
        else:
            counters[fault] += 1
            note_damaged(counters)
        state[SEEN] += 1
        counters[LINES] += 1
        position = line_end + 1
    return DONE, end, np.int64(0)
