"""Align two sequences of launches: by what is the same, then by what is nearly the same."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depgraph.timing.align_jit import longest_common_subsequence

UNPAIRED = -1

# What is compared, from strict to lenient: keys of the n and of the m elements.
Level = tuple["Sequence[Hashable | None]", "Sequence[Hashable | None]"]


def align(levels: Sequence[Level]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pair two sequences in order; return partner and level of each element of the first, or -1.

    The first level takes a longest common subsequence of the whole; each further one does the
    same between neighbouring pairs that are there already. Partners ascend; None is like nothing.
    O(n * m / 64) time for each level, O(n + m) memory; see `depgraph.timing.align_jit`.
    """
    n, m = (len(keys) for keys in levels[0])
    partner = np.full(n, UNPAIRED, np.int64)
    found_by = np.full(n, UNPAIRED, np.int64)
    for number, (first, second) in enumerate(levels):
        a, b, n_tokens = _tokens(first, second)
        for a_low, a_high, b_low, b_high in _gaps(partner, m):
            with np.errstate(over="ignore"):
                found = longest_common_subsequence(a[a_low:a_high], b[b_low:b_high], n_tokens)
            paired = np.flatnonzero(found >= 0)
            partner[a_low + paired] = b_low + found[paired]
            found_by[a_low + paired] = number
    return partner, found_by


def _tokens(
    first: Sequence[Hashable | None], second: Sequence[Hashable | None]
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    numbers: dict[Any, int] = {}
    a = [numbers.setdefault(key, len(numbers)) for key in first]
    b = [numbers.setdefault(key, len(numbers)) for key in second]
    nothing, n_tokens = numbers.get(None, -1), len(numbers)
    return (
        np.array([n_tokens if token == nothing else token for token in a], np.int64),
        np.array([n_tokens + 1 if token == nothing else token for token in b], np.int64),
        n_tokens + 2,
    )


def _gaps(partner: NDArray[np.int64], m: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the ranges between neighbouring pairs that hold elements of both sequences."""
    at = np.flatnonzero(partner >= 0)
    a_low, a_high = np.append(0, at + 1), np.append(at, len(partner))
    b_low, b_high = np.append(0, partner[at] + 1), np.append(partner[at], m)
    open_ = np.flatnonzero((a_high > a_low) & (b_high > b_low))
    rows = np.stack([a_low, a_high, b_low, b_high], axis=1)[open_]
    yield from (tuple(row) for row in rows.tolist())
