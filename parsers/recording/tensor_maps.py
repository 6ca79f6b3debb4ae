"""What tensor maps describe, decoded from their words, and which bytes a load of a tile reads.

cuBLAS and cuDNN make their maps without a call that could be watched. The layout was found with
4 500 maps of known shape (`cuTensorMapEncodeTiled`, `cuTensorMapEncodeIm2col`; driver 580, H100): a
map is 64 bytes long, and every number in it stands at one place.

A load of pixels (im2col, as convolutions use it) takes a number of them from a first one on, along
the innermost dimension of a box of pixels, then along the next one, then from the next image, each
moved by the offset that the load gives: where a filter reads. Pixels that this moves out of the
tensor are read as zeros (PTX ISA, "Tensors", im2col mode).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint64]]
"""Ranges of bytes: of which load, column or block each is, where it begins and where it ends."""
MOST_DIMENSIONS = 5
# Bytes of an element by the code of its type.
_ELEMENT_BYTES = (1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2)
_STRIDE_UNIT = 16
_ADDRESS_END = 1 << 57
_MAP_BYTES = 64
_LOW = (1 << 32) - 1
_PARAMETER_BYTES = 8
_ALWAYS_SET = 1 << 56  # of word 6: a box is a multiple of 16 bytes wide
_IM2COL = 1  # bit 0 of word 1
# Of each word of the map of a not interleaved tensor the bits that were never set: of a tiled one,
# and in the last word of one whose pixels are loaded.
_UNUSED_BITS = (
    0xFE0000000000000F, 0xFFF8180C, 0, 0xFFFF000000000000, 0, 0, 0x00FF800000000000
)  # fmt: skip
_UNUSED_OF_BOX, _UNUSED_OF_PIXELS = 0xFFFFFFFF00000000, 0xFFFFFC0000000000
_BITS_OF_CORNER = 16
# Bits of an offset, of a corner or of a load, in each dimension of pixels, by their number.
_OFFSET_BITS = {1: 16, 2: 8, 3: 5}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in global memory."""

    address: int
    element: int  # bytes
    sizes: tuple[int, ...]  # elements in each dimension, the innermost first
    strides: tuple[int, ...]  # bytes from one element to the next in each dimension

    @property
    def end(self) -> int:
        """The first byte after the tensor."""
        last = sum((n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True))
        return self.address + last + self.element


@dataclass(frozen=True, slots=True)
class PixelMap(Tensor):
    """A tensor of pixels, channels first, images last: a load takes a column of them (im2col)."""

    lower: tuple[int, ...]  # where the pixels that are taken begin, in all dimensions between
    upper: tuple[int, ...]  # and end: as far from the last pixel of the tensor
    channels: int  # of each pixel
    pixels: int  # of a column
    steps: tuple[int, ...]  # from one pixel to the next, in each dimension


@dataclass(frozen=True, slots=True)
class TensorMap(Tensor):
    """A tensor in global memory, and the box that one load of it takes."""

    box: tuple[int, ...]  # elements of a load in each dimension, those between steps included
    steps: tuple[int, ...]  # of which every so many-th is loaded
    # In a dimension of stride 0 all elements are one, and its size is 1: how many there are of it.
    # Matrix products have such maps for operands that all products of a batch share.
    copies: tuple[int, ...] = ()

    def places(self, at: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return where loads begin, by the elements that are there once: int32[n, dimensions]."""
        found = at[:, : len(self.sizes)]
        if max(self.copies, default=1) > 1:
            is_copy = np.array(self.copies) > 1
            is_inside = (found >= 0) & (found < np.array(self.copies))
            found = np.where(is_copy, ~is_inside, found).astype(np.int32)
        return found

    @property
    def rows(self) -> int:
        """Rows of a box that one load of it takes."""
        pairs = zip(self.box[1:], self.steps[1:], strict=True)
        return prod(-(-size // step) for size, step in pairs)


def decode(words: Sequence[int]) -> TensorMap | PixelMap | None:
    """Decode a map, eight words; None for an interleaved one."""

    def bits(word: int, low: int, n: int) -> int:
        return int(words[word]) >> low & ((1 << n) - 1)

    code, rank, is_interleaved = bits(1, 7, 4), bits(1, 4, 3) + 1, bits(1, 11, 2)
    if is_interleaved or code >= len(_ELEMENT_BYTES) or rank > MOST_DIMENSIONS:
        return None
    element = _ELEMENT_BYTES[code]
    sizes = [bits(4, 0, 32), bits(4, 32, 32), bits(5, 0, 32), bits(5, 32, 32), bits(6, 0, 32)]
    low = [bits(1, 32, 32), bits(2, 0, 32), bits(2, 32, 32), bits(3, 0, 32)]
    high = [bits(3, 32 + 4 * i, 4) for i in range(MOST_DIMENSIONS - 1)]
    strides = [_STRIDE_UNIT * (a | b << 32) for a, b in zip(low, high, strict=True)]
    # The hardware takes every element of the innermost dimension.
    steps = [0, *(bits(6, 32 + 3 * i, 3) for i in range(1, MOST_DIMENSIONS))]
    tensor = Tensor(
        address=int(words[0]),
        element=element,
        sizes=tuple(n + 1 for n in sizes[:rank]),
        strides=(element, *strides[: rank - 1]),
    )
    every = tuple(n + 1 for n in steps[:rank])
    first = bits(6, 56, 8) + 1  # of the innermost dimension
    if not bits(1, 0, 1):
        box = (first, *(bits(7, 8 * i, 8) + 1 for i in range(rank - 1)))
        return _of_boxes(tensor, box, every)
    if rank - 2 not in _OFFSET_BITS or not _is_possible(tensor):
        return None
    width = _OFFSET_BITS[rank - 2]
    places = [base + width * i for base in (0, _BITS_OF_CORNER) for i in range(rank - 2)]
    unsigned = [bits(7, low, width) for low in places]
    corners = [value - (value >> (width - 1) << width) for value in unsigned]
    pixels = bits(7, 32, 10) + 1
    return PixelMap(
        tensor.address, tensor.element, tensor.sizes, tensor.strides,
        tuple(corners[: rank - 2]), tuple(corners[rank - 2 :]), first, pixels, every,
    )  # fmt: skip


def _of_boxes(found: Tensor, box: tuple[int, ...], steps: tuple[int, ...]) -> TensorMap | None:
    """Return a map of boxes, its elements each there once; None if there can be no such tensor."""
    pairs = list(zip(found.sizes, found.strides, strict=True))
    copies = tuple(n if stride == 0 else 1 for n, stride in pairs)
    sizes = tuple(1 if stride == 0 else n for n, stride in pairs)
    if any(m > 1 and wide > 1 for m, wide in zip(copies, box, strict=True)):
        return None
    tensor = TensorMap(found.address, found.element, sizes, found.strides, box, steps, copies)
    return tensor if _is_possible(tensor) else None


def maps_in(content: bytes) -> list[tuple[int, TensorMap | PixelMap]]:
    """Return what looks like a tensor map among the parameters of a kernel, and where it stands."""
    # Maps stand at multiples of 64 of the address; where `content` begins is not known.
    found = []
    for place in range(0, len(content) - _MAP_BYTES + 1, _PARAMETER_BYTES):
        words = np.frombuffer(content, "<u8", _MAP_BYTES // 8, place).tolist()
        last = _UNUSED_OF_PIXELS if words[1] & _IM2COL else _UNUSED_OF_BOX
        is_clean = not any(w & bad for w, bad in zip(words, (*_UNUSED_BITS, last), strict=True))
        if is_clean and words[1] & ~_IM2COL and words[6] & _ALWAYS_SET:
            tensor = decode(words)
            if tensor is not None and not _has_more(words, tensor):
                found.append((place, tensor))
    return found


def _has_more(words: Sequence[int], tensor: Tensor) -> bool:
    """Tell whether something stands where a map of so many dimensions has no size or box."""
    rank = len(tensor.sizes)
    sizes = words[4] | words[5] << 64 | (words[6] & _LOW) << 128
    is_box = isinstance(tensor, TensorMap)
    return bool(sizes >> 32 * rank or (is_box and words[7] >> 8 * (rank - 1)))


def _is_possible(found: Tensor) -> bool:
    return (
        0 < found.address < _ADDRESS_END
        and found.address % _STRIDE_UNIT == 0
        and found.end <= _ADDRESS_END
        and all(s > 0 or n == 1 for n, s in zip(found.sizes, found.strides, strict=True))
    )


def tile_ranges(
    tensor: TensorMap, at: NDArray[np.int32], width: NDArray[np.int64] | None = None
) -> Bytes:
    """Return load, start and end of each row that loads of tiles read, inside the tensor."""
    load = np.arange(len(at))
    first = np.maximum(at[:, 0].astype(np.int64), 0)
    wide = np.int64(tensor.box[0]) if width is None else width
    last = np.minimum(at[:, 0].astype(np.int64) + wide, tensor.sizes[0])
    start = tensor.address + first * tensor.element
    size = (last - first) * tensor.element
    load, start, size = (values[size > 0] for values in (load, start, size))
    for d in range(1, len(tensor.sizes)):
        offsets = np.arange(0, tensor.box[d], tensor.steps[d])
        place = at[load, d].astype(np.int64)[:, None] + offsets
        inside = (place >= 0) & (place < tensor.sizes[d])
        which, _ = np.nonzero(inside)
        start = start[which] + place[inside] * tensor.strides[d]
        load, size = load[which], size[which]
    return load, start.astype(np.uint64), (start + size).astype(np.uint64)


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


def pixel_ranges(tensor: PixelMap, columns: Columns) -> Bytes:
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
) -> Bytes:
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
