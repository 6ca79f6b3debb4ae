"""Ranges of bytes: int64[n, 2], by address, none touching another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Ranges = NDArray[np.int64]

_ADDRESSES = np.iinfo(np.int64)


def ranges_of(pairs: Iterable[tuple[int, int]]) -> Ranges:
    """Join pairs of a first byte and the one after the last, in any order."""
    return joined(np.array([*pairs], dtype=np.int64).reshape(-1, 2))


def joined(ranges: NDArray[np.int64]) -> Ranges:
    """Join ranges that overlap or touch, in any order."""
    if not len(ranges):
        return ranges
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    ends = np.maximum.accumulate(ranges[:, 1])
    begins = np.append(True, ranges[1:, 0] > ends[:-1])
    last = np.append(np.flatnonzero(begins)[1:] - 1, len(ranges) - 1)
    return np.stack([ranges[begins, 0], ends[last]], axis=1)


def runs_of(places: NDArray[np.int64]) -> Ranges:
    """Join places of single bytes, in increasing order."""
    new = np.append(True, np.diff(places) > 1)[: len(places)]
    last = np.append(new[1:], True)[: len(places)]
    return np.stack([places[new], places[last] + 1], axis=1)


def without(ranges: Ranges, taken: Ranges) -> Ranges:
    """Return what others leave of ranges."""
    low = np.append(_ADDRESSES.min, taken[:, 1])  # of the gaps between the others
    high = np.append(taken[:, 0], _ADDRESSES.max)
    first = np.searchsorted(high, ranges[:, 0], "right")
    n = np.maximum(np.searchsorted(low, ranges[:, 1], "left") - first, 0)
    which = np.repeat(np.arange(len(ranges)), n)
    gap = np.arange(len(which)) + np.repeat(first - np.cumsum(n) + n, n)
    starts = np.maximum(low[gap], ranges[which, 0])
    return np.stack([starts, np.minimum(high[gap], ranges[which, 1])], axis=1)


def within(ranges: Ranges, others: Ranges) -> Ranges:
    """Return what ranges and others have in common."""
    return without(ranges, without(ranges, others))


def meets(ranges: NDArray[np.int64], others: Ranges) -> NDArray[np.bool_]:
    """Tell which ranges, in any order, have a byte in common with others: bool[n]."""
    starts = np.append(others[:, 0], _ADDRESSES.max)
    return starts[np.searchsorted(others[:, 1], ranges[:, 0], "right")] < ranges[:, 1]
