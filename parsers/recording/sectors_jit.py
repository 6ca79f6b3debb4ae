"""From masks of sectors and pages to ranges of bytes."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.recorder.raw_recording import IS_PAGE, IS_WRITTEN, PAGE_BYTES, SECTOR_BYTES
from depgraph.system.compiled import compiled_if_large
from depgraph.trace import records

PIECE_BYTES = PAGE_BYTES // 64
MOST_RUNS = 48  # of a sector: 16 of each of three kinds
_READ = np.uint8(records.READ)
_WRITE = np.uint8(records.WRITE)
_SYNC_READ = np.uint8(records.SYNC_READ)


# The lowest bit is the first. A page is read, or written: `read` and `written` are the halves of
# its mask.
class Masks(NamedTuple):
    """Sectors and pages that blocks touched: a bit of a mask is a byte, or 16 bytes of a page."""

    row: NDArray[np.int32]
    number: NDArray[np.uint64]  # address / 32; of a page / 1024, `IS_PAGE` and maybe `IS_WRITTEN`
    read: NDArray[np.uint32]
    written: NDArray[np.uint32]
    synchronised: NDArray[np.uint32]


@compiled_if_large
def _add_runs(bits, of_row, of_kind, base, bytes_of_bit, row, kind, start, end, n):
    """Write a range for each run of bits from place n on; return the place behind them."""
    one = np.uint64(1)
    at = base
    while bits != np.uint64(0):
        while bits & one == np.uint64(0):
            bits >>= one
            at += np.uint64(bytes_of_bit)
        row[n] = of_row
        kind[n] = of_kind
        start[n] = at
        while bits & one == one:
            bits >>= one
            at += np.uint64(bytes_of_bit)
        end[n] = at
        n += 1
    return n


@compiled_if_large
def ranges_of_masks(masks, first, row, kind, start, end):
    """Write ranges of masks while there is room; return the first mask left, and how many."""
    # A range is a run of bytes; a plain read counts as that.
    n = 0
    for i in range(first, len(masks.row)):
        if n + MOST_RUNS > len(row):
            return i, n
        number = masks.number[i]
        if number & IS_PAGE:
            base = (number & ~(IS_PAGE | IS_WRITTEN)) * np.uint64(PAGE_BYTES)
            of_kind = _WRITE if number & IS_WRITTEN else _READ
            bits = np.uint64(masks.read[i]) | np.uint64(masks.written[i]) << np.uint64(32)
            n = _add_runs(bits, masks.row[i], of_kind, base, PIECE_BYTES, row, kind, start, end, n)
            continue
        base = number * np.uint64(SECTOR_BYTES)
        bits = np.uint64(masks.read[i])
        n = _add_runs(bits, masks.row[i], _READ, base, 1, row, kind, start, end, n)
        bits = np.uint64(masks.synchronised[i] & ~masks.read[i])
        n = _add_runs(bits, masks.row[i], _SYNC_READ, base, 1, row, kind, start, end, n)
        bits = np.uint64(masks.written[i])
        n = _add_runs(bits, masks.row[i], _WRITE, base, 1, row, kind, start, end, n)
    return len(masks.row), n


def rows_at(rows: NDArray[Any], places: NDArray[np.integer[Any]]) -> NDArray[Any]:
    """Return rows of a table of a recording, which NumPy itself copies field by field."""
    words = rows.view(np.uint64).reshape(len(rows), rows.itemsize // 8)
    return np.take(words, places, axis=0).view(rows.dtype).reshape(-1)


def runs_of(
    sectors: NDArray[Any], row_of: NDArray[np.int32], at_once: int
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.uint64], NDArray[np.uint64]]]:
    """Yield row, kind, start and end of some ranges after others, in arrays that are used again."""
    room = min(MOST_RUNS * len(sectors), max(MOST_RUNS, at_once))
    row, kind = np.empty(room, np.int32), np.empty(room, np.uint8)
    start, end = np.empty((2, room), np.uint64)
    for low in range(0, len(sectors), at_once):
        these = sectors[low : low + at_once]
        columns = (np.ascontiguousarray(these[name]) for name in Masks._fields[1:])
        masks = Masks(row_of[low : low + at_once], *columns)
        first = 0
        while first < len(these):
            first, n = ranges_of_masks(masks, first, row, kind, start, end)
            yield row[:n], kind[:n], start[:n], end[:n]
