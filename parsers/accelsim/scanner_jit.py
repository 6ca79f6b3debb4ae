"""Byte scanner for Accel-Sim kernel traces: compiled, restartable, over one buffer at a time.

It reads grouped text (``.traceg``: instructions below the thread block that ran them) and raw text
(``.trace``: every line names its block) of all tracer versions. What differs is told by `Kernel`.

`scan_lines` returns whenever it meets something that is rare and better handled in Python (a new
opcode, a full table), together with the position of the line it stopped at; the caller deals with
it and calls again. What has to survive from buffer to buffer is in `Kernel.state`. Bulk copies are
only noted: most traces have none, and need no compiled reader of them.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.parsers.scanning.scanning_jit import (
    ADDRESS_END,
    ASYNC_COPY,
    COMMA,
    DIGIT_0,
    IGNORE,
    LANES,
    MAX_LINE_BYTES,
    MINUS,
    SHARED_WINDOW_END,
    SPACE,
    add_lanes,
    find_line_end,
    find_opcode,
    largest_of,
    parse_hex8,
    read_coordinates,
    read_hex,
    read_number,
    read_signed,
    skip_token,
    take_row,
    word_of,
)
from depgraph.system.compiled import compiled_helper, compiled_scanner, compiled_within

# Why `scan_lines` returned.
DONE, NEW_OPCODE, ROWS_FULL, RANGES_FULL, BULK_LINES_FULL = range(5)

MAX_RANGES_PER_LINE = 2 * LANES

# Added to what an opcode means for global memory.
MEANING = 7
WINDOWED = 8  # a generic address: lanes in the shared or local window do not count
BULK = 16  # a bulk or tensor copy: a list of addresses of its own

# Elements of `windows`.
SHARED_BEGIN, SHARED_END, LOCAL_BEGIN, LOCAL_END = range(4)

# Elements of `state`.
BLOCK = 0  # packed coordinates, -1 where no thread block has begun
ROW = 1  # of that block, -1 where it has no instruction yet
DECLARED = 2  # instructions of the warp as the trace says, -1 for no warp
SEEN = 3  # instructions of the warp
IN_BLOCK = 4  # 1 between #BEGIN_TB and #END_TB
N_BULK_LINES = 5  # noted
STATE_SIZE = 6

# Columns of `Kernel.bulk_lines`.
BULK_OPCODE = 0  # where it starts
BULK_STOP = 1  # where the line ends
BULK_SLOT = 2  # of the opcode
BULK_ROW = 3
BULK_LINE = 4  # its number
BULK_COLUMNS = 5

# Elements of `counters`.
N_COUNTERS = 17
(
    LINES, INSTRUCTION_LINES, ACCESS_LINES, MASKED_LINES, SHARED_SIDE_LINES, WINDOW_LINES,
    ZERO_LINES, SUPERSET_LINES, HOLE_LINES, UNTRACED_LINES, WRONG_COUNTS, FOREIGN_LINES,
    MALFORMED_LINES, BLOCKLESS_LINES, OVERLONG_LINES, OUT_OF_RANGE_LINES,
    FIRST_DAMAGED,  # 1 + line number within the text, 0 for none
) = range(N_COUNTERS)  # fmt: skip

_MAX_REGISTERS = 64  # in one instruction, of one kind
_ZERO = np.uint64(0)
_CR = 0x0D
_HASH = 0x23
_DIGIT_9 = 0x39
_EQUALS = 0x3D
_CAPITAL_A = 0x41
_CAPITAL_Z = 0x5A
_LETTER_A = 0x61
_LETTER_F = 0x66
_LETTER_X = 0x78
_BEGIN_TB = word_of(b"#BEGIN_T")
_END_TB = word_of(b"#END_TB\0")
_THREAD_BLOCK = word_of(b"thread b")
_WARP = word_of(b"warp = \0")
_INSTS = word_of(b"insts = ")
_CLUSTER = word_of(b"cluster ")
_SEVEN_BYTES = np.uint64(0x00FFFFFFFFFFFFFF)


class Kernel(NamedTuple):
    """The kernel whose text is scanned."""

    launch: int  # its index in the part
    is_grouped: bool  # whether instructions stand below their thread block
    columns: int  # columns in front of the program counter
    lists_active_lanes: bool  # whether more lanes may be listed than the mask has (old tracers)
    # [4]: where the shared and the local window of generic addresses begin and end.
    windows: NDArray[np.uint64]
    state: NDArray[np.int64]  # [STATE_SIZE]
    lanes: NDArray[np.uint64]  # [32]: scratch
    bulk_lines: NDArray[np.int64]  # [n, BULK_COLUMNS]: bulk copies that were met


class Instruction(NamedTuple):
    """The columns of an instruction up to its opcode."""

    block: np.int64  # coordinates as `read_coordinates` packs them; -1 if there is no block
    mask: np.uint64  # the lanes that take part
    at_opcode: np.int64  # where the opcode starts; -1 if the line is damaged


@compiled_helper
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
        state[BLOCK], _ = read_coordinates(text, at, stop, np.int64(COMMA))
        state[ROW] = -1
        if state[BLOCK] >= 0:
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


@compiled_helper
def note_damaged(counters, kind, line):
    """Count a line that lost something, and remember the first by its 1-based number."""
    counters[kind] += 1
    if counters[FIRST_DAMAGED] == 0 or line < counters[FIRST_DAMAGED]:
        counters[FIRST_DAMAGED] = line


@compiled_helper
def end_warp(state, counters):
    """Compare the instructions of a warp with their declared number."""
    if state[DECLARED] >= 0 and state[DECLARED] != state[SEEN]:
        counters[WRONG_COUNTS] += 1
    state[DECLARED] = -1


@compiled_helper
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
                position + 1 >= stop or text[position] != DIGIT_0 or text[position + 1] != _LETTER_X
            ):
                break
            lanes[count], position = read_hex(text, position, stop)
            if position < 0:
                return bad
            count += 1
        has_more = (
            position + 1 < stop and text[position] == DIGIT_0 and text[position + 1] == _LETTER_X
        )
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


@compiled_helper
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


@compiled_helper
def is_shared_side(lanes, count, largest, windows):
    """Tell whether the lanes of an asynchronous copy are the shared addresses it writes to."""
    if largest < SHARED_WINDOW_END:
        return True
    smallest = lanes[0]
    for lane in range(count):
        smallest = min(smallest, lanes[lane])
    return smallest >= windows[SHARED_BEGIN] and largest < windows[SHARED_END]


@compiled_within
def read_instruction(text, words, p, stop, kernel):
    """Decode the columns of the line at `p` up to its opcode."""
    block = kernel.state[BLOCK]
    destinations = np.int64(-1)
    mask = _ZERO
    bad = ~_ZERO
    if (
        # Most lines by far: a counter of four digits, and fewer than ten destinations.
        kernel.is_grouped
        and kernel.columns == 0
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
        skipped = kernel.columns
        is_placed = True
        if not kernel.is_grouped:
            block, p = read_coordinates(text, p, stop, np.int64(SPACE))
            is_placed = block >= 0
            p = skip_token(text, words, p, stop)
            skipped -= 3
        for _ in range(skipped):
            p = skip_token(text, words, p, stop)
        after = skip_token(text, words, p, stop)
        if is_placed and after - p >= 5 and after + 10 <= stop and text[after + 8] == SPACE:
            mask, bad = parse_hex8(words[after])
            p = skip_token(text, words, after, stop)
            destinations, p = read_number(text, p, stop)
    if bad != _ZERO or destinations < 0 or destinations > _MAX_REGISTERS:
        return Instruction(block, mask, np.int64(-1))
    for _ in range(destinations):
        p = skip_token(text, words, p, stop)
    is_opcode = p < stop and text[p] >= _CAPITAL_A and text[p] <= _CAPITAL_Z
    return Instruction(block, mask, np.int64(p) if is_opcode else np.int64(-1))


@compiled_helper
def is_instruction(text, words, p, stop):
    """Tell whether the line at `p` is an instruction."""
    first = text[p]
    is_decimal = first >= DIGIT_0 and first <= _DIGIT_9
    is_letter = first >= _LETTER_A and first <= _LETTER_F and words[p] != _CLUSTER
    return p < stop and (is_decimal or is_letter)


@compiled_helper
def read_width(text, words, at_opcode, stop):
    """Decode the column behind the sources; return it and the next one's start, -1 if bad."""
    p = skip_token(text, words, at_opcode, stop)
    sources, p = read_number(text, p, stop)
    if sources < 0 or sources > _MAX_REGISTERS:
        return np.int64(-1), p
    for _ in range(sources):
        p = skip_token(text, words, p, stop)
    return read_number(text, p, stop)


@compiled_within
def row_of(block, kernel, touches):
    """Return the row of a block, most often that of the line above; -1 if there is no room."""
    state = kernel.state
    if state[ROW] < 0 or block != state[BLOCK]:
        row = take_row(touches.rows, touches.sizes, kernel.launch, block)
        if row < 0:
            return row
        state[ROW] = row
        state[BLOCK] = block
    return state[ROW]


@compiled_within
def note_bulk(kernel, at_opcode, stop, slot, row, line):
    """Note a bulk copy, to be read with others; tell whether there was room for it."""
    n = kernel.state[N_BULK_LINES]
    if n == kernel.bulk_lines.shape[0]:
        return False
    kernel.bulk_lines[n, BULK_OPCODE] = at_opcode
    kernel.bulk_lines[n, BULK_STOP] = stop
    kernel.bulk_lines[n, BULK_SLOT] = slot
    kernel.bulk_lines[n, BULK_ROW] = row
    kernel.bulk_lines[n, BULK_LINE] = line
    kernel.state[N_BULK_LINES] = n + 1
    return True


@compiled_within
def count_instruction(touches, opcodes, slot, row):
    """Count an instruction that is no side of an asynchronous copy."""
    opcodes.count[slot] += 1
    touches.rows.instructions[row] += 1


@compiled_within
def take_access(text, words, instruction, stop, slot, row, kernel, opcodes, touches, counters):
    """Enter what a memory instruction touches; return what is wrong with it, -1 if nothing is."""
    width, p = read_width(text, words, instruction.at_opcode, stop)
    if width < 0:
        return MALFORMED_LINES
    if width == 0:
        counters[UNTRACED_LINES] += 1
        count_instruction(touches, opcodes, slot, row)
        return -1
    lanes = kernel.lanes
    count, superset, holes = read_addresses(
        text, p, stop, instruction.mask, kernel.lists_active_lanes, lanes
    )
    if count < 0:
        return MALFORMED_LINES
    largest = largest_of(lanes, count)
    if largest >= ADDRESS_END:
        return OUT_OF_RANGE_LINES
    counters[SUPERSET_LINES] += superset
    counters[HOLE_LINES] += holes
    meaning = opcodes.meaning[slot] & MEANING
    if meaning == ASYNC_COPY and is_shared_side(lanes, count, largest, kernel.windows):
        counters[SHARED_SIDE_LINES] += 1
        return -1
    count_instruction(touches, opcodes, slot, row)
    if opcodes.meaning[slot] & WINDOWED != 0:
        count = drop_windows(lanes, count, kernel.windows)
    if count == 0:
        counters[WINDOW_LINES] += 1
        return -1
    counters[ZERO_LINES] += largest == _ZERO
    counters[ACCESS_LINES] += 1
    touches.rows.accesses[row] += 1
    touches.sizes[1] = add_lanes(
        touches.ranges, touches.sizes[1], row, meaning, lanes, count, opcodes.width[slot]
    )
    return -1


@compiled_scanner(2)
def scan_lines(text, words, position, end, kernel, opcodes, touches, counters):
    """Scan the lines in ``text[position:end]``, each of which ends with a newline or at `end`.

    Returns `DONE`, or what the caller has to do before it calls again; the start of the line to go
    on with; and for `NEW_OPCODE` its position. `kernel.bulk_lines` are to be read before the buffer
    or `opcodes` change.
    """
    while position < end:
        line_end = find_line_end(words, position, end)
        line = counters[LINES] + 1
        stop = line_end
        if stop > position and text[stop - 1] == _CR:
            stop -= 1
        p = position
        while p < stop and text[p] == SPACE:
            p += 1
        if line_end - position > MAX_LINE_BYTES:
            note_damaged(counters, np.int64(OVERLONG_LINES), line)
        elif not is_instruction(text, words, p, stop):
            read_structure(text, words, p, stop, kernel.state, counters)
        else:
            instruction = read_instruction(text, words, p, stop, kernel)
            slot = np.int64(-1)
            length = np.int64(0)
            if instruction.at_opcode >= 0:
                slot, length = find_opcode(words, instruction.at_opcode, opcodes.words)
            is_readable = length > 0 and instruction.at_opcode + length < stop
            if is_readable and slot < 0:
                return NEW_OPCODE, position, instruction.at_opcode
            if is_readable and instruction.block >= 0:
                row = row_of(instruction.block, kernel, touches)
                if row < 0:
                    return ROWS_FULL, position, np.int64(0)
                meaning = opcodes.meaning[slot] & MEANING
                if meaning == IGNORE or instruction.mask == _ZERO:
                    counters[INSTRUCTION_LINES] += 1
                    counters[MASKED_LINES] += meaning != IGNORE
                    # Both sides of an asynchronous copy look the same when no lane takes part.
                    if meaning != ASYNC_COPY:
                        count_instruction(touches, opcodes, slot, row)
                elif opcodes.meaning[slot] & BULK != 0:
                    if not note_bulk(kernel, instruction.at_opcode, stop, slot, row, line):
                        return BULK_LINES_FULL, position, np.int64(0)
                else:
                    if touches.sizes[1] + MAX_RANGES_PER_LINE > touches.ranges.row.shape[0]:
                        return RANGES_FULL, position, np.int64(0)
                    fault = take_access(
                        text, words, instruction, stop, slot, row,
                        kernel, opcodes, touches, counters,
                    )  # fmt: skip
                    if fault < 0:
                        counters[INSTRUCTION_LINES] += 1
                    else:
                        note_damaged(counters, fault, line)
            else:
                fault = np.int64(BLOCKLESS_LINES if is_readable else MALFORMED_LINES)
                note_damaged(counters, fault, line)
            kernel.state[SEEN] += 1
        counters[LINES] += 1
        position = line_end + 1
    return DONE, end, np.int64(0)
