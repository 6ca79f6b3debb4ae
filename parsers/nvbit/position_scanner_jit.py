"""Byte scanner for where in a warp's accesses each access of an NVBit log stands.

A second reading of the log, only where positions are asked for: once to count each warp's
accesses, once to emit ranges with their positions.
"""

from __future__ import annotations

import numpy as np

from depgraph.parsers.nvbit.scanner_jit import (
    LINE_END,
    find_launch,
    find_memtrace,
    line_end_at,
    parse_access_head,
    parse_lanes,
)
from depgraph.parsers.scanning.text_jit import (
    ADDRESS_END,
    ASYNC_COPY,
    DIGIT_0,
    GLOBAL_UPDATE,
    GLOBAL_WRITE,
    IGNORE,
    LANES,
    MAX_LINE_BYTES,
    READ_KINDS,
    SHARED_WINDOW_END,
    WRITE,
    emit_ranges,
    find_opcode,
    parse_hex8,
)
from depgraph.system.compiled import compiled

# Why `scan_positions` returned.
DONE = 0
NEW_OPCODE = 1
RANGES_FULL = 2

WARPS = 32  # of a block at most
MAX_RANGES_PER_LINE = 2 * LANES
_DASH = 0x2D
_X_BITS = 31
_Y_BITS = 16
_ZERO = np.uint64(0)


@compiled
def scan_positions(
    text,
    words,
    position,
    end,
    opcode_words,
    opcode_meaning,
    opcode_width,
    launch_context,
    launch_id,
    launch_operation,
    first_block,
    grid,
    steps,
    seen,
    totals,
    range_block,
    range_kind,
    range_start,
    range_end,
    range_first,
    range_last,
    n_ranges,
    state,
    lanes,
):
    """Scan the lines in ``text[position:end]``.

    Parameters
    ----------
    text, words : uint8[n], uint64[n - 7]
        The buffer, as bytes and as overlapping words.
    position, end : int
    opcode_words, opcode_meaning, opcode_width
        Hash table of opcode texts.
    launch_context, launch_id, launch_operation
        Hash table from (context, launch id) to an operation.
    first_block : int64[n_operations + 1]
    grid : int64[n_operations, 3]
    steps : int
        Positions are counted in 1/steps of a warp's accesses; 0 to count accesses only.
    seen : int32[n_blocks, WARPS]
        Accesses of each warp so far; updated.
    totals : int32[n_blocks, WARPS]
        Accesses of each warp in all.
    range_block, range_kind, range_start, range_end, range_first, range_last
        Output: `range_first` is the share done before the access, rounded up, `range_last` the
        share done with it, rounded down.
    n_ranges : int
        Ranges in use.
    state : int64[STATE_SIZE]
        What is known of the line that `position` is in, from call to call.
    lanes : uint64[32]
        Scratch.

    Returns
    -------
    status, position, detail, n_ranges : int
        `detail` is where the new opcode starts.
    """
    line_end = state[LINE_END]
    while position < end:
        line_end = line_end_at(words, position, end, line_end)
        if line_end - position > MAX_LINE_BYTES:
            position = line_end + 1
            continue
        start = find_memtrace(words, position, line_end)
        if start == line_end:
            position = line_end + 1
            continue
        next_start = find_memtrace(words, start + 1, line_end)
        following = next_start if next_start < line_end else line_end + 1
        stop = min(next_start, line_end)
        high, bad = parse_hex8(words[start + 16])
        low, bad_low = parse_hex8(words[start + 24])
        if bad | bad_low != _ZERO:
            position = following
            continue
        identifier, cta, at_opcode = parse_access_head(text, words, start + 32, end)
        if at_opcode < 0:
            position = following
            continue
        slot, length = find_opcode(words, at_opcode, opcode_words)
        at_lanes = at_opcode + length + 3
        if length == 0 or at_lanes > end or text[at_lanes - 2] != _DASH:
            position = following
            continue
        if at_lanes > line_end + 3:
            position = following
            continue
        state[LINE_END] = line_end
        if slot < 0:
            return NEW_OPCODE, position, at_opcode, n_ranges
        if n_ranges + MAX_RANGES_PER_LINE > len(range_block):
            return RANGES_FULL, position, np.int64(0), n_ranges
        position = following
        meaning = opcode_meaning[slot]
        place = find_launch(
            (high << np.uint64(32)) | low, identifier, launch_context, launch_id, launch_operation
        )
        if meaning == IGNORE or place < 0:
            continue
        operation = launch_operation[place]
        x = cta & ((1 << _X_BITS) - 1)
        y = (cta >> _X_BITS) & ((1 << _Y_BITS) - 1)
        z = cta >> (_X_BITS + _Y_BITS)
        if x >= grid[operation, 0] or y >= grid[operation, 1] or z >= grid[operation, 2]:
            continue
        block = first_block[operation] + x + grid[operation, 0] * (y + grid[operation, 1] * z)
        warp = np.int64(0)
        factor = np.int64(1)
        at = at_opcode - 4
        while text[at] >= DIGIT_0 and text[at] <= DIGIT_0 + 9:
            warp += factor * (np.int64(text[at]) - DIGIT_0)
            factor *= 10
            at -= 1
        warp %= WARPS
        count, _ = parse_lanes(text, words, at_lanes, stop, lanes)
        largest = _ZERO
        for lane in range(count):
            largest = max(largest, lanes[lane])
        if count == 0 or largest >= ADDRESS_END:
            continue
        if meaning == ASYNC_COPY and largest < SHARED_WINDOW_END:
            continue
        ordinal = np.int64(seen[block, warp])
        seen[block, warp] += 1
        if steps == 0:
            continue
        total = np.int64(totals[block, warp])
        first = (steps * ordinal + total - 1) // total
        last = steps * (ordinal + 1) // total
        before = n_ranges
        if meaning != GLOBAL_WRITE:
            n_ranges = emit_ranges(
                lanes, count, opcode_width[slot], block, READ_KINDS[meaning],
                range_block, range_kind, range_start, range_end, n_ranges,
            )  # fmt: skip
        if meaning == GLOBAL_WRITE or meaning == GLOBAL_UPDATE:
            n_ranges = emit_ranges(
                lanes, count, opcode_width[slot], block, WRITE,
                range_block, range_kind, range_start, range_end, n_ranges,
            )  # fmt: skip
        for i in range(before, n_ranges):
            range_first[i] = first
            range_last[i] = last
    state[LINE_END] = line_end
    return DONE, end, np.int64(0), n_ranges
