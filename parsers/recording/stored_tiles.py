"""Which block stores which tile of a tensor, inferred from the tiles that it loads.

Nothing shows the tiles that a kernel stores by TMA, only the tensor that it stores to. But a block
of a matrix product stores the rows of the one operand and the columns of the other that it loads,
and a block of an attention stores where it loads its query. Such a rule is taken if by it the
blocks together store each element exactly once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.parsers.recording.tensor_maps import Bytes, TensorMap, tile_ranges

_MOST_RULES = 512
_MOST_RANGES = 1 << 22


class _Tiling(Enum):
    """When a block goes on to another tile."""

    ONE = "never"
    ANEW = "where it begins anew in a dimension in which its tile has no place"
    EACH = "with each load"


class Loads(NamedTuple):
    """The loads of tiles through one map, in the order in which they were issued."""

    tensor: TensorMap
    row: NDArray[np.int64]  # [n]: place of each among the loads of the kernel
    at: NDArray[np.int32]  # [n, rank]: first element of each
    issuer: NDArray[np.int64]  # [n]: the block that issued each
    load: NDArray[np.int64]  # [m]: which load each block gets, multicast ones too
    receiver: NDArray[np.int64]


class _Pieces(NamedTuple):
    """The same of one tensor, through one map, or through several that differ in their boxes."""

    sizes: tuple[int, ...]  # of the tensor
    low: NDArray[np.int64]  # [n, rank]: which of its elements each load takes
    high: NDArray[np.int64]
    issuer: NDArray[np.int64]  # as in `Loads`
    load: NDArray[np.int64]
    receiver: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Tiles:
    """Boxes of elements, each stored by a block."""

    block: NDArray[np.int64]
    low: NDArray[np.int64]  # [n, rank]
    high: NDArray[np.int64]

    def cover(self, sizes: Sequence[int]) -> bool:
        """Tell whether they are a grid of boxes that holds each element once."""
        elements = (self.high - self.low).prod(axis=1).sum()
        if not len(self.block) or elements != np.prod(sizes, dtype=np.int64):
            return False
        cell = np.zeros(len(self.block), np.int64)
        cells = 1
        for d, size in enumerate(sizes):
            cuts, place = np.unique(self.low[:, d], return_inverse=True)
            if cuts[0] != 0 or (self.high[:, d] != np.append(cuts[1:], size)[place]).any():
                return False
            cell = cell * len(cuts) + place
            cells *= len(cuts)
        return cells == len(cell) == len(np.unique(cell))


def infer_tiles(stored: TensorMap, loads: Sequence[Loads]) -> Bytes | None:
    """Return which block stores which bytes (starts, ends) of a tensor; None if no rule holds."""
    # Where several rules hold, as for a square matrix and its transpose, a block is given
    # what it stores by any of them. A tensor of wider elements than all that is loaded may be
    # one that several blocks add to: no rule is looked for.
    if stored.element > max((each.tensor.element for each in loads), default=0):
        return None
    pieces = list(_pieces_of(loads))
    rules = list(_rules(stored, pieces))
    if not rules or len(rules) > _MOST_RULES:
        return None
    for tiling in _Tiling:
        known: dict[tuple[int, tuple[int, ...]], _Numbered] = {}
        found = [_tiles_by(rule, stored, pieces, known, tiling) for rule in rules]
        fitting = [tiles for tiles in found if tiles and tiles.cover(stored.sizes)]
        if fitting:
            distinct = {(t.block.tobytes(), t.low.tobytes(), t.high.tobytes()): t for t in fitting}
            return _bytes_of(stored, list(distinct.values()))
    return None


def _pieces_of(loads: Sequence[Loads]) -> Iterator[_Pieces]:
    """Yield what is loaded through each map, and of each tensor by maps with several boxes."""
    # A tile of 96 columns may be loaded as one of 64 and one of 32.
    of_tensor: dict[TensorMap, list[Loads]] = {}
    for each in loads:
        yield _joined([each])
        of_tensor.setdefault(replace(each.tensor, box=each.tensor.sizes), []).append(each)
    for parts in of_tensor.values():
        boxes = {each.tensor.box for each in parts}
        if len(boxes) == len(parts) > 1:
            yield _joined(parts)


def _joined(parts: Sequence[Loads]) -> _Pieces:
    first = np.cumsum([0, *(len(each.at) for each in parts)])
    order = np.argsort(np.concatenate([each.row for each in parts]))
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    sizes = parts[0].tensor.sizes
    at = np.concatenate([each.at.astype(np.int64) for each in parts])
    end = np.concatenate([each.at.astype(np.int64) + each.tensor.box for each in parts])
    return _Pieces(
        sizes,
        np.maximum(at, 0)[order],
        np.minimum(end, sizes)[order],
        np.concatenate([each.issuer for each in parts])[order],
        place[np.concatenate([p.load + low for p, low in zip(parts, first[:-1], strict=True)])],
        np.concatenate([each.receiver for each in parts]),
    )


_Rule = tuple[tuple[int, int] | None, ...]


def _rules(stored: TensorMap, pieces: Sequence[_Pieces]) -> Iterator[_Rule]:
    """Yield where a tile may begin and end: in each dimension as the loads do in one, or whole."""
    parts = [
        (m, d, size)
        for m, each in enumerate(pieces)
        for d, size in enumerate(each.sizes)
        if (each.high[:, d] - each.low[:, d] < size).any()
    ]
    choices: list[list[tuple[int, int] | None]] = [
        [None, *((m, d) for m, d, n in parts if n == size)] for size in stored.sizes
    ]
    if np.prod([float(len(each)) for each in choices]) > _MOST_RULES:
        return
    for rule in product(*choices):
        used = [choice for choice in rule if choice is not None]
        if used and len(set(used)) == len(used):
            yield rule


class _Numbered(NamedTuple):
    """Tiles of which parts are loaded: a block may work on several, one after another."""

    key: NDArray[np.int64]  # [n, 2]: block, and number among its tiles; ascending, each once
    low: NDArray[np.int64]  # [n, rank]: what is loaded of the tensor for each
    high: NDArray[np.int64]


def _tiles_by(
    rule: _Rule,
    stored: TensorMap,
    pieces: Sequence[_Pieces],
    known: dict[tuple[int, tuple[int, ...]], _Numbered],
    tiling: _Tiling,
) -> _Tiles | None:
    """Return the tiles by a rule; None where maps disagree about how many there are."""
    chosen: dict[int, tuple[int, ...]] = {}
    for choice in rule:
        if choice is not None:
            chosen[choice[0]] = (*chosen.get(choice[0], ()), choice[1])
    parts = {}
    for m, dimensions in chosen.items():
        key = m, tuple(sorted(dimensions))
        if key not in known:
            known[key] = _numbered(pieces[m], key[1], tiling)
        parts[m] = known[key]
    first = next(iter(parts.values()))
    if any(not np.array_equal(part.key, first.key) for part in parts.values()):
        return None
    low, high = np.zeros((2, len(first.key), len(rule)), np.int64)
    for d, choice in enumerate(rule):
        high[:, d] = stored.sizes[d]
        if choice is not None:
            low[:, d], high[:, d] = (ends[:, choice[1]] for ends in parts[choice[0]][1:])
    is_inside = (low < high).all(axis=1)  # blocks of a grid that is too large do nothing
    return _Tiles(first.key[is_inside, 0], low[is_inside], high[is_inside])


def _numbered(pieces: _Pieces, dimensions: tuple[int, ...], tiling: _Tiling) -> _Numbered:
    """Give the tiles of each block numbers, and say what is loaded for each."""
    number = np.zeros(len(pieces.low), np.int64)
    others = [d for d in range(len(pieces.sizes)) if d not in dimensions]
    if tiling is not _Tiling.ONE:
        order = np.argsort(pieces.issuer, kind="stable")
        at, issuer = pieces.low[order], pieces.issuer[order]
        begins = np.ones(max(0, len(at) - 1), np.bool_)
        if tiling is _Tiling.ANEW:
            begins = (at[1:, others] < at[:-1, others]).any(axis=1) & (issuer[1:] == issuer[:-1])
        count = np.append(0, np.cumsum(begins))
        number[order] = count - count[np.searchsorted(issuer, issuer)]
    most = int(number.max(initial=0)) + 1
    pairs, place = np.unique(pieces.receiver * most + number[pieces.load], return_inverse=True)
    key = np.stack(np.divmod(pairs, most), axis=1)
    low = np.tile(np.array(pieces.sizes), (len(key), 1))
    high = np.zeros_like(low)
    np.minimum.at(low, place, pieces.low[pieces.load])
    np.maximum.at(high, place, pieces.high[pieces.load])
    return _Numbered(key, low, high)


def _bytes_of(stored: TensorMap, found: Sequence[_Tiles]) -> Bytes | None:
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
