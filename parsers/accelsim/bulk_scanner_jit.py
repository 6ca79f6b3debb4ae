"""Byte scanner for the bulk copies (TMA) of Accel-Sim kernel traces.

Compiled when a trace is the first to have one.
"""

import numpy as np

from depgraph.parsers.accelsim.scanner_jit import (
    ACCESS_LINES,
    BULK_LINE,
    BULK_OPCODE,
    BULK_ROW,
    BULK_SLOT,
    BULK_STOP,
    INSTRUCTION_LINES,
    MALFORMED_LINES,
    MEANING,
    N_BULK_LINES,
    UNTRACED_LINES,
    note_damaged,
    read_width,
)
from depgraph.parsers.scanning.scanning_jit import (
    ADDRESS_END,
    add_range,
    read_hex,
    read_number,
    read_signed,
)
from depgraph.system.compiled import compiled_helper, compiled_in_place, compiled_within

_LISTED = 3  # what MODE says of the addresses
_DELTAS = 4
_MAX_BYTES = 1 << 20
_ZERO, _ONE = np.uint64(0), np.uint64(1)


@compiled_helper
def read_bulk_head(text, position, stop):
    """Decode ``MBAR MULTICAST [MASK] BYTES OUTSIDE MODE`` and the number of addresses.

    Returns (mode, addresses, bytes an address stands for, base, position behind, whether the copy
    is for several blocks); mode -1 if the line holds no such columns, mode 0 if there is nothing to
    copy.
    """
    bad = (np.int64(-1), np.int64(0), np.int64(0), _ZERO, position, False)
    _, position = read_hex(text, position, stop)
    if position < 0:
        return bad
    multicast, position = read_number(text, position, stop)
    if multicast < 0 or multicast > 1:
        return bad
    receivers = _ZERO
    if multicast == 1:
        receivers, position = read_hex(text, position, stop)
        if position < 0:
            return bad
    is_shared = receivers > _ONE and receivers & (receivers - _ONE) != _ZERO
    total, position = read_number(text, position, stop)
    outside, position = read_number(text, position, stop)
    mode, position = read_number(text, position, stop)
    if total < 0 or outside < 0 or (mode != _LISTED and mode != _DELTAS):
        return bad
    base = _ZERO
    if mode == _DELTAS:
        base, position = read_hex(text, position, stop)
        if position < 0:
            return bad
    number, position = read_number(text, position, stop)
    # Every address but a base takes two characters at least.
    if number < 0 or number > stop - position + 2 or total > _MAX_BYTES:
        return bad
    if number == 0 or outside >= total:
        return np.int64(0), np.int64(0), np.int64(0), base, position, is_shared
    each = (total - outside + number - 1) // number
    return mode, number, each, base, position, is_shared


@compiled_within
def add_bulk(text, position, stop, head, row, meaning, ranges, n):
    """Append the bytes of a bulk copy (`head`: see above); return how many ranges, -1 if bad."""
    mode, number, each, address = head
    width = np.uint64(each)
    for i in range(number):
        if mode == _LISTED:
            address, position = read_hex(text, position, stop)
        elif i > 0:
            delta, position = read_signed(text, position, stop)
            address += np.uint64(delta)
        if position < 0 or address == _ZERO or address >= ADDRESS_END:
            return np.int64(-1)
        n = add_range(ranges, n, row, meaning, address, address + width)
    return np.int64(n)


@compiled_in_place
def scan_bulk_lines(text, words, first, kernel, opcodes, touches, counters):
    """Append what bulk lines touch; return the line to go on with, and the ranges it may need."""
    for i in range(first, kernel.state[N_BULK_LINES]):
        noted = kernel.bulk_lines[i]
        stop, slot, row = noted[BULK_STOP], noted[BULK_SLOT], noted[BULK_ROW]
        width, p = read_width(text, words, noted[BULK_OPCODE], stop)
        mode, number, each, base, p, is_shared = read_bulk_head(text, p, stop)
        n = touches.sizes[1]
        if n + 2 * number > touches.ranges.row.shape[0]:
            return np.int64(i), 2 * number
        if width < 0:
            n = np.int64(-1)
        elif mode > 0:
            meaning = opcodes.meaning[slot] & MEANING
            head = (mode, number, each, base)
            n = add_bulk(text, p, stop, head, row, meaning, touches.ranges, n)
        if n < 0:
            note_damaged(counters, MALFORMED_LINES, noted[BULK_LINE])
            continue
        touches.sizes[1] = n
        touches.rows.instructions[row] += 1
        opcodes.count[slot] += 1
        counters[INSTRUCTION_LINES] += 1
        # Which blocks a multicast is for the line says only in numbers of their cluster.
        if mode < 0 or is_shared:
            counters[UNTRACED_LINES] += 1
        if mode >= 0:
            touches.rows.accesses[row] += 1
            counters[ACCESS_LINES] += 1
    kernel.state[N_BULK_LINES] = 0
    return np.int64(0), np.int64(0)
