"""Arrays of footprints and of the block graph: dtype, shape and unit of each; lists as two arrays.

An *operation* is a kernel, a copy or a memset, in program order; *global* numbers of blocks count
through all of them. At the end: objects from columns and back, and put together by a key.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Value = TypeVar("Value", bound=np.generic)
_Thing = TypeVar("_Thing")
_Key = TypeVar("_Key", bound=Hashable)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    _Row = TypeVar("_Row", bound=DataclassInstance)

PerOperation = NDArray[np.int64]
"""int64[n_operations]: a number for each operation."""
KernelNumbers = NDArray[np.int32]
"""int32[n_operations]: the kernel that each operation is, ``-1 - i`` for copy or memset i."""
FirstBlocks = NDArray[np.int64]
"""int64[n_operations + 1]: global number of the first block of each operation."""
AddressSpaces = NDArray[np.int32]
"""int32[n_operations]: number of the address space of each operation."""
Operations = NDArray[np.int32]
"""int32[n]: operations, by their place in program order."""

PerBlock = NDArray[np.int64]
"""int64[n_blocks]: a number for each block, by its global number."""
OperationOfBlock = NDArray[np.int32]
"""int32[n_blocks]: which operation each block belongs to."""
BlockTimes = NDArray[np.float64]
"""float64[n_blocks]: a time of each block, in the unit of the graph."""
Blocks = NDArray[np.int32]
"""int32[n]: global block numbers."""

Offsets = NDArray[np.int64]
"""int64[n + 1]: where each of n lists begins among their values, and where the last one ends."""
Lists = tuple[Offsets, NDArray[np.int32]]
"""Lists of numbers one after another: offsets and values."""
SetNumbers = NDArray[np.int32]
"""int32[n]: numbers of sets of a graph."""
Sets = tuple[Operations, Offsets, Blocks]
"""Sets of blocks of an operation each: the operations, and the blocks as lists."""
Edges = tuple[Blocks, Blocks, NDArray[np.uint8]]
"""Of each edge the block waited for, the block that waits, and the kind or code."""
Mask = NDArray[np.bool_]
"""bool[n]"""

Addresses = NDArray[np.uint64]
"""uint64[n]: addresses of GPU memory, in bytes."""
AccessKinds = NDArray[np.uint8]
"""uint8[n]: `READ`, `WRITE`, `SYNC_READ` or `LDGSTS_READ` of `depgraph.trace.records`."""

Text = NDArray[np.uint8]
"""uint8[n]: a buffer of text, behind which a scanner may read `PADDING` bytes."""
Words = NDArray[np.uint64]
"""uint64[n - 7]: the same buffer as overlapping words, see `overlapping_words`."""


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


def distinct_rows(
    rows: NDArray[np.integer[Any]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where each row stands first, rows ascending, and which of them each row is."""
    # `numpy.unique` compares rows as a whole, which takes ten times as long.
    order = np.lexsort(rows.T[::-1])
    ordered = rows[order]
    is_first = np.ones(len(rows), np.bool_)
    is_first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    number = np.empty(len(rows), np.int64)
    number[order] = np.cumsum(is_first) - 1
    return order[is_first], number


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


def rows_of(kind: type[_Row], columns: Mapping[str, Iterable[Any]]) -> list[_Row]:
    """Return objects with the defaults of fields that have no column; the first field has one."""
    return list(map(kind, *(columns.get(f.name, repeat(f.default)) for f in fields(kind))))


def columns_of(rows: Sequence[Any], names: Iterable[str]) -> dict[str, list[Any]]:
    """Return an attribute of all objects under each name."""
    return {name: list(map(attrgetter(name), rows)) for name in names}


def grouped(things: Iterable[_Thing], key: Callable[[_Thing], _Key]) -> dict[_Key, list[_Thing]]:
    """Return the things of each key; keys and things keep the order in which they come.

    >>> grouped(["raw", "war", "edge"], len)
    {3: ['raw', 'war'], 4: ['edge']}
    """
    groups: dict[_Key, list[_Thing]] = {}
    for thing in things:
        groups.setdefault(key(thing), []).append(thing)
    return groups
