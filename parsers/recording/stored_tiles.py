"""Which block stores which tile of a tensor, inferred from the tiles that it loads.

Nothing shows the tiles that a kernel stores by TMA, only the tensor that it stores to. But a block
of a matrix product stores the rows of the one operand and the columns of the other that it loads,
and a block of an attention stores where it loads its query. Such a rule is taken if by it the
blocks together store each element exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from depgraph.parsers.recording.tensor_maps import tile_ranges

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from depgraph.parsers.recording.tensor_maps import TensorMap

_MOST_RULES = 512
_MOST_RANGES = 1 << 22


class Loads(NamedTuple):
    """The loads of tiles through one map, in the order in which they were issued.

    Attributes
    ----------
    tensor : TensorMap
    at : int32[n, rank]
        First element of each.
    issuer : int64[n]
        The block that issued each.
    load, receiver : int64[m]
        Which load each block gets, its own and those that are multicast to it.
    """

    tensor: TensorMap
    at: NDArray[np.int32]
    issuer: NDArray[np.int64]
    load: NDArray[np.int64]
    receiver: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Tiles:
    """Boxes of elements, each stored by a block.

    Attributes
    ----------
    block : int64[n]
    low, high : int64[n, rank]
    """

    block: NDArray[np.int64]
    low: NDArray[np.int64]
    high: NDArray[np.int64]

    def cover(self, sizes: Sequence[int]) -> bool:
        """Tell whether they are a grid of boxes that holds each element once."""
        cell = np.zeros(len(self.block), np.int64)
        cells = 1
        for d, size in enumerate(sizes):
            cuts, place = np.unique(self.low[:, d], return_inverse=True)
            if cuts[0] != 0 or (self.high[:, d] != np.append(cuts[1:], size)[place]).any():
                return False
            cell = cell * len(cuts) + place
            cells *= len(cuts)
        return cells == len(cell) == len(np.unique(cell))


def infer_tiles(
    stored: TensorMap, loads: Sequence[Loads]
) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint64]] | None:
    """Return which block stores which bytes of a tensor, as far as its loads tell.

    Where several rules hold, as for a square matrix and its transpose, a block is given what it
    stores by any of them.

    Parameters
    ----------
    stored : TensorMap
    loads : sequence of Loads
        Of all maps that the kernel loads through.

    Returns
    -------
    (int64[n], uint64[n], uint64[n]) or None
        Blocks, starts and ends; None where no rule holds.
    """
    rules = list(_rules(stored, loads))
    if not rules or len(rules) > _MOST_RULES:
        return None
    for is_split in (False, True):
        known: dict[tuple[int, tuple[int, ...]], _Numbered] = {}
        found = [_tiles_by(rule, stored, loads, known, is_split=is_split) for rule in rules]
        fitting = [tiles for tiles in found if tiles and tiles.cover(stored.sizes)]
        if fitting:
            return _bytes_of(stored, fitting)
    return None


_Rule = tuple[tuple[int, int] | None, ...]


def _rules(stored: TensorMap, loads: Sequence[Loads]) -> Iterator[_Rule]:
    """Yield where a tile may begin and end: in each dimension as the loads do in one, or whole."""
    choices: list[list[tuple[int, int] | None]] = [
        [
            None,
            *((m, d) for m, each in enumerate(loads) for d, n in enumerate(each.tensor.sizes)
              if n == size),
        ]
        for size in stored.sizes
    ]  # fmt: skip
    if np.prod([float(len(each)) for each in choices]) > _MOST_RULES:
        return
    for rule in product(*choices):
        used = [choice for choice in rule if choice is not None]
        if used and len(set(used)) == len(used):
            yield rule


class _Numbered(NamedTuple):
    """Tiles of which parts are loaded: a block may work on several, one after another.

    Attributes
    ----------
    key : int64[n, 2]
        Block, and number among the tiles of that block; ascending, each once.
    low, high : int64[n, rank]
        What is loaded of the tensor for each.
    """

    key: NDArray[np.int64]
    low: NDArray[np.int64]
    high: NDArray[np.int64]


def _tiles_by(
    rule: _Rule,
    stored: TensorMap,
    loads: Sequence[Loads],
    known: dict[tuple[int, tuple[int, ...]], _Numbered],
    *,
    is_split: bool,
) -> _Tiles | None:
    """Return the tiles by a rule; None where maps disagree about how many there are.

    Parameters
    ----------
    known : dict
        By map and chosen dimensions; those that are found are added.
    is_split : bool
        Whether a block begins another tile wherever it begins anew in a dimension not chosen.
    """
    chosen: dict[int, tuple[int, ...]] = {}
    for choice in rule:
        if choice is not None:
            chosen[choice[0]] = (*chosen.get(choice[0], ()), choice[1])
    parts = {}
    for m, dimensions in chosen.items():
        key = m, tuple(sorted(dimensions))
        if key not in known:
            known[key] = _numbered(loads[m], key[1], is_split=is_split)
        parts[m] = known[key]
    first = next(iter(parts.values()))
    if any(not np.array_equal(part.key, first.key) for part in parts.values()):
        return None
    n = len(first.key)
    low, high = np.zeros((2, n, len(rule)), np.int64)
    for d, choice in enumerate(rule):
        high[:, d] = stored.sizes[d]
        if choice is not None:
            low[:, d], high[:, d] = (ends[:, choice[1]] for ends in parts[choice[0]][1:])
    return _Tiles(first.key[:, 0], low, high)


def _numbered(loads: Loads, dimensions: tuple[int, ...], *, is_split: bool) -> _Numbered:
    """Give the tiles of each block numbers, and say what is loaded for each."""
    number = np.zeros(len(loads.at), np.int64)
    others = [d for d in range(loads.at.shape[1]) if d not in dimensions]
    if is_split and others:
        order = np.argsort(loads.issuer, kind="stable")
        at, issuer = loads.at[order], loads.issuer[order]
        begins = (at[1:, others] < at[:-1, others]).any(axis=1) & (issuer[1:] == issuer[:-1])
        count = np.append(0, np.cumsum(begins))
        first = np.searchsorted(issuer, issuer)
        number[order] = count - count[first]
    pairs = np.stack([loads.receiver, number[loads.load]], axis=1)
    key, place = np.unique(pairs, axis=0, return_inverse=True)
    place = place.reshape(-1)
    box, sizes = np.array(loads.tensor.box), np.array(loads.tensor.sizes)
    begin = loads.at[loads.load].astype(np.int64)
    low = np.tile(sizes.astype(np.int64), (len(key), 1))
    high = np.zeros_like(low)
    np.minimum.at(low, place, np.maximum(begin, 0))
    np.maximum.at(high, place, np.minimum(begin + box, sizes))
    return _Numbered(key, low, high)


def _bytes_of(
    stored: TensorMap, found: Sequence[_Tiles]
) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint64]] | None:
    """Return the bytes of tiles, or None if they are too many pieces."""
    columns = []
    pieces = 0
    for tiles in found:
        extent = tiles.high - tiles.low
        pieces += int(np.prod(extent[:, 1:], axis=1).sum())
        if pieces > _MOST_RANGES:
            return None
        for box in np.unique(extent, axis=0):
            own = np.flatnonzero((extent == box).all(axis=1))
            whole = replace(stored, box=tuple(box.tolist()), steps=(1,) * len(box))
            tile, start, end = tile_ranges(whole, tiles.low[own].astype(np.int32))
            columns.append((tiles.block[own][tile], start, end))
    block, start, end = (np.concatenate(column) for column in zip(*columns, strict=True))
    return block, start, end
