"""Memory where footprints do not tell all: of modules, of nobody, and at two addresses."""

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
from depgraph.parsers.recording.tensor_maps import decode, maps_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray


_MAPPINGS = frozenset({"map", "unmap"})  # events of virtual memory, which no recording keeps


class SpecialMemory:
    """Notes with launches whether they touch memory of which footprints do not tell all."""

    def __init__(self, events: Sequence[dict[str, Any]]) -> None:
        self._ordinary, self._aliases = OrdinaryMemory(events), Aliases(events)
        self._parameters = {
            event["number"]: bytes.fromhex(event["bytes"])
            for event in events
            if event["event"] == "params"
        }

    def without_mappings(self, events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the events that are kept."""
        return (event for event in events if event["event"] not in _MAPPINGS)

    def note(self, event: dict[str, Any], table: str, rows: NDArray[Any]) -> None:
        """Note what a launch touches by a table of it."""
        if table == "sectors" and self._ordinary.is_left_by(rows):
            event["writes_elsewhere"] = 1
        if len(rows) and self._is_aliased(event, table, rows):
            event["aliased"] = 1

    def _is_aliased(self, event: dict[str, Any], table: str, rows: NDArray[Any]) -> bool:
        if table == "sectors":
            return self._aliases.hold_any_of(rows)
        if table != "maps" or not self._aliases:
            return False  # which tiles are loaded, their maps tell
        loaded = (decode(row["words"].tolist()) for row in rows)
        given = maps_in(self._parameters.get(event["number"], b""))
        return any(
            tensor is None or self._aliases.overlap(tensor.address, tensor.end)
            for tensor in [*loaded, *(tensor for _, tensor in given)]
        )


def _joined(spans: Iterable[tuple[int, int]]) -> NDArray[np.uint64]:
    """Return the starts and ends of ranges, those that touch as one."""
    joined: list[list[int]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1][1] = max(end, joined[-1][1])
        else:
            joined.append([start, end])
    return np.array(joined, np.uint64).reshape(-1, 2).T


class Aliases:
    """Memory that was mapped at two addresses at one time, at both of them."""

    def __init__(self, events: Sequence[dict[str, Any]]) -> None:
        mapped: dict[int, tuple[int, int, int]] = {}  # by address: memory, offset, bytes
        found = set()
        for event in events:
            if event["event"] == "unmap":
                end = event["address"] + event["bytes"]
                mapped = {at: its for at, its in mapped.items() if not event["address"] <= at < end}
            elif event["event"] == "map":
                address, size, offset = event["address"], event["bytes"], event["offset"]
                for at, (memory, first, length) in mapped.items():
                    low, high = max(first, offset), min(first + length, offset + size)
                    if memory == event["memory"] and low < high:
                        found |= {(at + low - first, at + high - first)}
                        found |= {(address + low - offset, address + high - offset)}
                mapped[address] = event["memory"], offset, size
        self._start, self._end = _joined(found)

    def __bool__(self) -> bool:
        """Whether there is any."""
        return len(self._start) > 0

    def overlap(self, start: int, end: int) -> bool:
        """Tell whether bytes between two addresses are such memory."""
        return bool(((self._start < end) & (start < self._end)).any())

    def hold_any_of(self, rows: NDArray[Any]) -> bool:
        """Tell whether blocks touch any of it, by their sectors and pages."""
        if not self:
            return False
        is_page = rows["number"] >= IS_PAGE
        size = np.where(is_page, np.uint64(PAGE_BYTES), np.uint64(SECTOR_BYTES))
        start = (rows["number"] & ~(IS_PAGE | IS_WRITTEN)) * size
        place = np.searchsorted(self._start, start + size - np.uint64(1), "right") - 1
        return bool(((place >= 0) & (start < self._end[place])).any())


class OrdinaryMemory:
    """What is allocated at any time, but for memory of modules."""

    def __init__(self, events: Sequence[dict[str, Any]]) -> None:
        self._start, self._end = _joined(
            (event["address"], event["address"] + event["bytes"])
            for event in events
            if event["event"] == "alloc" and not event["flags"] & OF_A_MODULE
        )

    def is_left_by(self, rows: NDArray[Any]) -> bool:
        """Tell whether blocks write anything else, by their sectors and pages."""
        rows = rows[~self._holds_whole(rows["number"])]  # most are: bits tell of the others
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

    def _holds_whole(self, number: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Tell which sectors and pages lie in it from their first to their last byte."""
        if not len(self._start):
            return np.zeros(len(number), np.bool_)
        is_page = number >= IS_PAGE
        size = np.where(is_page, np.uint64(PAGE_BYTES), np.uint64(SECTOR_BYTES))
        start = (number & ~(IS_PAGE | IS_WRITTEN)) * size
        place = np.searchsorted(self._start, start, "right") - 1
        found: NDArray[np.bool_] = (place >= 0) & (start + size <= self._end[place])
        return found


def _last_bit(mask: NDArray[np.uint32]) -> NDArray[np.int64]:
    return np.frexp(mask.astype(np.float64))[1].astype(np.int64) - 1


def _first_bit(mask: NDArray[np.uint32]) -> NDArray[np.int64]:
    return _last_bit(mask & (~mask + np.uint32(1)))
