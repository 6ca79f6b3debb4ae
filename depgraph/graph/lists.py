"""Lists of numbers one after another, as two arrays: where each begins, and what stands in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from depgraph.system.arrays import Lists, Offsets

Value = TypeVar("Value", bound="np.generic[Any]")


def lists_of(lists: Iterable[ArrayLike]) -> Lists:
    """Put lists into two arrays: int64[n + 1] and int32[...]."""
    arrays = [np.asarray(values, np.int32) for values in lists]
    return list_offsets([len(a) for a in arrays]), np.concatenate([np.empty(0, np.int32), *arrays])


def distinct(values: NDArray[Value]) -> NDArray[Value]:
    """Return each value once, ascending."""
    # `numpy.unique` uses a hash table since NumPy 2.3, which takes 20 times as long on 5 million
    # numbers most of which differ.
    ordered = np.sort(values)
    is_first = np.ones(len(ordered), np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    kept: NDArray[Value] = ordered[is_first]
    return kept


def list_offsets(sizes: ArrayLike) -> NDArray[np.int64]:
    """Return where lists of some sizes begin, and where the last one ends: int64[n + 1]."""
    sizes = np.asarray(sizes, np.int64)
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def gather_lists(
    offsets: Offsets, values: NDArray[Value], chosen: NDArray[np.integer[Any]]
) -> tuple[NDArray[np.int64], NDArray[Value]]:
    """Return the chosen lists, in the order in which they are chosen."""
    begins = offsets[chosen]
    sizes = offsets[1:][chosen] - begins
    gathered = list_offsets(sizes)
    places = np.arange(gathered[-1])
    places += np.repeat(begins - gathered[:-1], sizes)
    return gathered, values[places]


def concatenate_lists(pieces: Sequence[Lists]) -> Lists:
    """Put lists behind other lists."""
    sizes = [np.diff(offsets) for offsets, _ in pieces]
    return list_offsets(np.concatenate(sizes)), np.concatenate([values for _, values in pieces])


def list_of_each(offsets: Offsets) -> NDArray[np.int32]:
    """Return in which list each value stands: int32[...]."""
    return np.repeat(np.arange(len(offsets) - 1, dtype=np.int32), np.diff(offsets))
