"""From masks of sectors and pages to ranges of bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from depgraph.system.compiled import compiled_if_large
from depgraph.trace import records

if TYPE_CHECKING:
    from numpy.typing import NDArray

SECTOR_BYTES = 32
PAGE_BYTES = 32 * SECTOR_BYTES
IS_PAGE = np.uint64(1 << 63)
MOST_RUNS = 48  # of a sector: 16 of each of three kinds
_READ = np.uint8(records.READ)
_WRITE = np.uint8(records.WRITE)
_SYNC_READ = np.uint8(records.SYNC_READ)


class Masks(NamedTuple):
    """Sectors and pages that blocks touched: a bit of a mask is a byte, or a sector of a page.

    The lowest bit is the first.

    Attributes
    ----------
    row : int32[n]
    number : uint64[n]
        Address over 32; of a page address over 1024, and `IS_PAGE`.
    read, written, synchronised : uint32[n]
    """

    row: NDArray[np.int32]
    number: NDArray[np.uint64]
    read: NDArray[np.uint32]
    written: NDArray[np.uint32]
    synchronised: NDArray[np.uint32]


@compiled_if_large
def ranges_of_masks(masks, row, kind, start, end):
    """Write a range for each run of bytes; return how many there are.

    What a block reads plainly counts as that, whatever else reads it.

    Parameters
    ----------
    masks : Masks
    row, kind, start, end : int32[m], uint8[m], uint64[m], uint64[m]
        With room for 48 ranges a sector, at most.
    """
    n = 0
    for i in range(len(masks.row)):
        number = masks.number[i]
        bytes_of_bit = np.uint64(1)
        base = number * np.uint64(SECTOR_BYTES)
        if number & IS_PAGE:
            bytes_of_bit = np.uint64(SECTOR_BYTES)
            base = (number ^ IS_PAGE) * np.uint64(PAGE_BYTES)
        for way in range(3):
            bits = np.int64(masks.read[i])
            of_kind = _READ
            if way == 1:
                bits = np.int64(masks.synchronised[i]) & ~np.int64(masks.read[i])
                of_kind = _SYNC_READ
            elif way == 2:
                bits = np.int64(masks.written[i])
                of_kind = _WRITE
            bit = 0
            while bits != 0:
                while bits & 1 == 0:
                    bits >>= 1
                    bit += 1
                first = bit
                while bits & 1 == 1:
                    bits >>= 1
                    bit += 1
                row[n] = masks.row[i]
                kind[n] = of_kind
                start[n] = base + np.uint64(first) * bytes_of_bit
                end[n] = base + np.uint64(bit) * bytes_of_bit
                n += 1
    return n
