"""Byte scanner for where in a warp's accesses each access of an NVBit log stands.

A second reading of the log, only where positions are asked for: once to count each warp's
accesses, once to emit ranges with their positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.parsers.nvbit.scanner_jit import (
    LINE_END,
    MAX_RANGES_PER_LINE,
    find_launch,
    find_memtrace,
    line_end_at,
    parse_lanes,
    read_access,
)
from depgraph.parsers.scanning.tables_jit import (
    ADDRESS_END,
    ASYNC_COPY,
    IGNORE,
    SHARED_WINDOW_END,
    add_lanes,
    largest_of,
)
from depgraph.parsers.scanning.text_jit import DIGIT_0, MAX_LINE_BYTES, X_BITS, Y_BITS
from depgraph.system.compiled import compiled_helper, compiled_in_place, compiled_within

if TYPE_CHECKING:
    from depgraph.parsers.nvbit.scanner_jit import Launches
    from depgraph.system.arrays import FirstBlocks, Grids
    from depgraph.trace.records import Ranges

# Why `scan_positions` returned.
DONE = 0
NEW_OPCODE = 1
RANGES_FULL = 2

WARPS = 32  # of a block at most

# Elements of `state`, beside `LINE_END`.
N_RANGES = 1
STATE_SIZE = 2


class Program(NamedTuple):
    """What the first reading has found."""

    launches: Launches  # `index` is that of an operation
    first_block: FirstBlocks
    grid: Grids


class Warps(NamedTuple):
    """Accesses of each warp."""

    steps: int  # positions are counted in 1/steps of a warp's accesses; 0 to count accesses only
    seen: NDArray[np.int32]  # [n_blocks, WARPS]: so far; updated
    totals: NDArray[np.int32]  # [n_blocks, WARPS]: in all


class Positioned(NamedTuple):
    """Ranges, whose rows are blocks, with their positions."""

    ranges: Ranges
    first: NDArray[np.uint8]  # share done before the access, in steps, rounded up
    last: NDArray[np.uint8]  # share done with it, rounded down


@compiled_within
def block_of(access, program):
    """Return the block that made an access; -1 if the program has no such block."""
    at_launch = find_launch(program.launches, access.context, access.identifier)
    if at_launch < 0:
        return np.int64(-1)
    operation = program.launches.index[at_launch]
    x = access.cta & ((1 << X_BITS) - 1)
    y = (access.cta >> X_BITS) & ((1 << Y_BITS) - 1)
    z = access.cta >> (X_BITS + Y_BITS)
    grid = program.grid
    if x >= grid[operation, 0] or y >= grid[operation, 1] or z >= grid[operation, 2]:
        return np.int64(-1)
    return program.first_block[operation] + x + grid[operation, 0] * (y + grid[operation, 1] * z)


@compiled_helper
def warp_before(text, at_opcode):
    """Return the number of the warp that stands before an opcode."""
    warp = np.int64(0)
    factor = np.int64(1)
    at = at_opcode - 4
    while text[at] >= DIGIT_0 and text[at] <= DIGIT_0 + 9:
        warp += factor * (np.int64(text[at]) - DIGIT_0)
        factor *= 10
        at -= 1
    return warp % WARPS


@compiled_within
def place_lanes(out, n, block, warp, warps, lanes, count, meaning, width):
    """Count an access of a warp, and append what it touches; return the new number of ranges."""
    ordinal = np.int64(warps.seen[block, warp])
    warps.seen[block, warp] += 1
    if warps.steps == 0:
        return n
    total = np.int64(warps.totals[block, warp])
    after = add_lanes(out.ranges, n, block, meaning, lanes, count, width)
    for i in range(n, after):
        out.first[i] = (warps.steps * ordinal + total - 1) // total
        out.last[i] = warps.steps * (ordinal + 1) // total
    return after


@compiled_in_place
def scan_positions(text, words, position, end, opcodes, program, warps, out, state, lanes):
    """Scan lines in ``text[position:end]``; return status, position, where a new opcode is."""
    while position < end:
        line_end = line_end_at(words, position, end, state[LINE_END])
        state[LINE_END] = line_end
        start = line_end
        if line_end - position <= MAX_LINE_BYTES:
            start = find_memtrace(words, position, line_end)
        if start == line_end:
            position = line_end + 1
            continue
        next_start = find_memtrace(words, start + 1, line_end)
        following = next_start if next_start < line_end else line_end + 1
        access = read_access(text, words, start, end, opcodes.words)
        if access.at_opcode < 0 or access.at_lanes > line_end + 3:
            position = following
            continue
        if access.slot < 0:
            return NEW_OPCODE, position, access.at_opcode
        if state[N_RANGES] + MAX_RANGES_PER_LINE > out.first.shape[0]:
            return RANGES_FULL, position, np.int64(0)
        position = following
        meaning = opcodes.meaning[access.slot]
        block = block_of(access, program)
        if meaning == IGNORE or block < 0:
            continue
        count, _ = parse_lanes(text, words, access.at_lanes, next_start, lanes)
        largest = largest_of(lanes, count)
        is_shared_side = meaning == ASYNC_COPY and largest < SHARED_WINDOW_END
        if count > 0 and largest < ADDRESS_END and not is_shared_side:
            warp = warp_before(text, access.at_opcode)
            width = opcodes.width[access.slot]
            state[N_RANGES] = place_lanes(
                out, state[N_RANGES], block, warp, warps, lanes, count, meaning, width
            )
    return DONE, end, np.int64(0)
