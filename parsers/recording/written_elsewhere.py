"""Whether a launch writes memory of a module, such as `__constant__` variables, or nobody's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.parsers.recording.allocations import OF_A_MODULE
from depgraph.parsers.recording.sectors_jit import (
    IS_PAGE,
    IS_WRITTEN,
    PAGE_BYTES,
    PIECE_BYTES,
    SECTOR_BYTES,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class OrdinaryMemory:
    """What is allocated at any time, but for memory of modules."""

    def __init__(self, events: Sequence[dict[str, Any]]) -> None:
        spans = sorted(
            (event["address"], event["address"] + event["bytes"])
            for event in events
            if event["event"] == "alloc" and not event["flags"] & OF_A_MODULE
        )
        joined: list[list[int]] = []
        for start, end in spans:
            if joined and start <= joined[-1][1]:
                joined[-1][1] = max(end, joined[-1][1])
            else:
                joined.append([start, end])
        self._start, self._end = np.array(joined, np.uint64).reshape(-1, 2).T

    def is_left_by(self, rows: NDArray[Any]) -> bool:
        """Tell whether blocks write anything else, by their sectors and pages."""
        number = rows["number"]
        is_page = number >= IS_PAGE
        has_bits = (rows["written"] != 0) | (is_page & (rows["read"] != 0))
        is_written = has_bits & (~is_page | (number & IS_WRITTEN != 0))
        rows, is_page = rows[is_written], is_page[is_written]
        number = rows["number"] & ~(IS_PAGE | IS_WRITTEN)
        size = np.where(is_page, np.uint64(PAGE_BYTES), np.uint64(SECTOR_BYTES))
        unit = np.where(is_page, np.uint64(PIECE_BYTES), np.uint64(1))
        low = np.where(is_page, rows["read"], rows["written"])
        high = np.where(is_page, rows["written"], np.uint32(0))
        last = np.where(high > 0, 32 + _last_bit(high), _last_bit(low)).astype(np.uint64)
        first = np.where(low > 0, _first_bit(low), 32 + _first_bit(high)).astype(np.uint64)
        start, end = number * size + first * unit, number * size + last * unit
        place = np.searchsorted(self._start, start, "right") - 1
        if (place < 0).any():
            return True
        return bool((end >= self._end[place]).any())


def _last_bit(mask: NDArray[np.uint32]) -> NDArray[np.int64]:
    return np.frexp(mask.astype(np.float64))[1].astype(np.int64) - 1


def _first_bit(mask: NDArray[np.uint32]) -> NDArray[np.int64]:
    return _last_bit(mask & (~mask + np.uint32(1)))
