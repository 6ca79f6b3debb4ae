"""Which bytes loads of columns of pixels read: TMA in im2col mode, as convolutions use it.

A load takes a number of pixels from a first one on, along the innermost dimension of a box of
pixels, then along the next one, then from the next image, each moved by the offset that the load
gives: where a filter reads. Pixels that this moves out of the tensor are read as zeros (PTX ISA,
"Tensors", im2col mode).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from depgraph.parsers.recording.tensor_maps import PixelMap

# Bits of the offset in each dimension of pixels, by their number.
_OFFSET_BITS = {1: 16, 2: 8, 3: 5}


class Columns(NamedTuple):
    """Columns of pixels that blocks load."""

    block: NDArray[np.int64]  # [n]
    first: NDArray[np.int64]  # [n]: number of the first pixel, counted along the box
    offset: NDArray[np.int64]  # [n, dimensions of pixels]
    channel: NDArray[np.int64]  # [n]: first and end
    end: NDArray[np.int64]


def columns_of(
    tensor: PixelMap,
    block: NDArray[np.int64],
    at: NDArray[np.int32],
    packed: NDArray[np.uint32],
) -> Columns | None:
    """Return the columns of loads at some places, with packed offsets; None if one is no pixel."""
    counts = _counts(tensor)
    if min(counts) <= 0 or tensor.steps[-1] != 1:
        return None
    place = at[:, 1:].astype(np.int64)
    place[:, :-1] -= tensor.lower
    steps = np.array(tensor.steps[1:])
    number, rest = np.divmod(place, steps)
    if rest.any() or (number < 0).any() or (number[:, :-1] >= counts).any():
        return None
    first = number[:, -1]
    for d in range(len(counts) - 1, -1, -1):
        first = first * counts[d] + number[:, d]
    bits = _OFFSET_BITS[len(counts)]
    shifts = bits * np.arange(len(counts))
    offset = packed.astype(np.int64)[:, None] >> shifts & ((1 << bits) - 1)
    channel = np.clip(at[:, 0].astype(np.int64), 0, tensor.sizes[0])
    end = np.clip(at[:, 0].astype(np.int64) + tensor.channels, 0, tensor.sizes[0])
    return _joined(Columns(block, first, offset, channel, end))


def _counts(tensor: PixelMap) -> list[int]:
    """Return how many pixels a box has in each dimension between channels and images."""
    sizes, steps = tensor.sizes[1:-1], tensor.steps[1:-1]
    corners = zip(sizes, tensor.lower, tensor.upper, steps, strict=True)
    return [(size - 1 + upper - lower) // step + 1 for size, lower, upper, step in corners]


def _joined(columns: Columns) -> Columns:
    """Join columns of a block whose channels lie side by side; drop doubled ones."""
    keys = (columns.end, columns.channel, *columns.offset.T, columns.first, columns.block)
    order = np.lexsort(keys)
    block, first, offset, channel, end = (values[order] for values in columns)
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (
        (np.diff(block) != 0)
        | (np.diff(first) != 0)
        | (np.diff(offset, axis=0) != 0).any(axis=1)
        | (channel[1:] > end[:-1])
    )
    places = np.flatnonzero(begins)
    end = np.maximum.reduceat(end, places) if len(places) else end
    return Columns(block[places], first[places], offset[places], channel[places], end)


def pixel_ranges(
    tensor: PixelMap, columns: Columns
) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint64]]:
    """Return column, start and end of each range of bytes that columns read, inside the tensor."""
    counts = _counts(tensor)
    row, last_row = columns.first // counts[0], (columns.first + tensor.pixels - 1) // counts[0]
    rows = last_row - row + 1
    column = np.repeat(np.arange(len(row)), rows)
    row = row[column] + np.arange(len(column)) - np.repeat(np.cumsum(rows) - rows, rows)
    first = np.maximum(columns.first[column], row * counts[0]) - row * counts[0]
    end = np.minimum(columns.first[column] + tensor.pixels, (row + 1) * counts[0]) - row * counts[0]
    start = np.full(len(column), tensor.address, np.int64)
    inside = columns.channel[column] < columns.end[column]
    for d in range(1, len(counts)):
        row, number = np.divmod(row, counts[d])
        place = tensor.lower[d] + number * tensor.steps[d + 1] + columns.offset[column, d]
        inside &= (place >= 0) & (place < tensor.sizes[d + 1])
        start += place * tensor.strides[d + 1]
    inside &= row < tensor.sizes[-1]
    start += row * tensor.strides[-1]
    step = tensor.steps[1]
    low = tensor.lower[0] + columns.offset[column, 0]
    first = np.maximum(first, -(low // step))  # the first that is not left of the tensor
    end = np.minimum(end, -((low - tensor.sizes[1]) // step))
    chosen = np.flatnonzero(inside & (first < end))
    column, start, first, end, low = (v[chosen] for v in (column, start, first, end, low))
    return _bytes_of(tensor, columns, column, start + (low + first * step) * tensor.strides[1],
                     end - first)  # fmt: skip


def _bytes_of(
    tensor: PixelMap,
    columns: Columns,
    column: NDArray[np.int64],
    start: NDArray[np.int64],  # of the first pixel of a row
    pixels: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the bytes of rows of pixels: one range where whole pixels lie side by side."""
    step = tensor.steps[1] * tensor.strides[1]
    size = (columns.end - columns.channel)[column] * tensor.element
    if size.size and (size == step).all():
        size *= pixels
    else:
        row = np.repeat(np.arange(len(column)), pixels)
        number = np.arange(len(row)) - np.repeat(np.cumsum(pixels) - pixels, pixels)
        column, size, start = column[row], size[row], start[row] + number * step
    start += columns.channel[column] * tensor.element
    return column, start.astype(np.uint64), (start + size).astype(np.uint64)
