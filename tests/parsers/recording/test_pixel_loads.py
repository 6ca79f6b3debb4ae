"""Loads of columns of pixels (im2col) against pixels counted one by one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pixels import naive_bytes
from recordings import KERNEL, recording

from depgraph.extraction.pipeline import analyse
from depgraph.parsers import open_trace
from depgraph.parsers.recording.tensor_maps import PixelMap, columns_of, decode, pixel_ranges

A = 1 << 20
OFFSET_BITS = {1: 16, 2: 8, 3: 5}


@st.composite
def loads(draw):
    """Draw a tensor of pixels, and loads of it that begin in its box."""
    spatial = draw(st.integers(1, 3))
    small = st.integers(1, 6)
    sizes = [draw(st.sampled_from([2, 4, 6])), *(draw(small) for _ in range(spatial + 1))]
    lower = [draw(st.integers(-3, 1)) for _ in range(spatial)]
    upper = [draw(st.integers(max(-2, low - n + 1), 2)) for n, low in zip(sizes[1:], lower)]  # noqa: B905
    steps = [1, *(draw(st.integers(1, 3)) for _ in range(spatial)), 1]
    strides = [4]
    for size in sizes[:-1]:
        strides.append(strides[-1] * size + draw(st.sampled_from([0, 0, 4])))
    tensor = PixelMap(
        A, 4, tuple(sizes), tuple(strides), tuple(lower), tuple(upper),
        draw(st.sampled_from([2, 4])), draw(st.integers(1, 20)), tuple(steps),
    )  # fmt: skip
    found = []
    for _ in range(draw(st.integers(1, 4))):
        place = [2 * draw(st.integers(0, 2))]
        for d in range(spatial):
            count = (sizes[d + 1] - 1 + upper[d] - lower[d]) // steps[d + 1]
            place.append(lower[d] + steps[d + 1] * draw(st.integers(0, count)))
        place.append(draw(st.integers(0, sizes[-1])))
        offset = [draw(st.integers(0, 4)) for _ in range(spatial)]
        found.append((draw(st.integers(0, 1)), place, offset))
    return tensor, found


def packed(offset):
    bits = OFFSET_BITS[len(offset)]
    return sum(value << bits * d for d, value in enumerate(offset))


@given(loads())
def test_columns_read_the_pixels_that_are_in_the_tensor(case):
    tensor, made = case
    columns = columns_of(
        tensor,
        np.array([block for block, _, _ in made]),
        np.array([place for _, place, _ in made], np.int32),
        np.array([packed(offset) for *_, offset in made], np.uint32),
    )
    column, start, end = pixel_ranges(tensor, columns)
    found = {
        (int(columns.block[c]), at)
        for c, s, e in zip(column, start.tolist(), end.tolist(), strict=True)
        for at in range(s, e, tensor.element)
    }
    assert found == {
        (block, at) for block, place, offset in made for at in naive_bytes(tensor, place, offset)
    }


IMAGE = PixelMap(A, 2, (64, 8, 6, 2), (2, 128, 1024, 6144), (-1, -1), (-1, -1), 32, 16, (1,) * 4)


@pytest.mark.parametrize(
    ("at", "changes"),
    [
        ((0, 9, 0, 0), {}),  # right of the box
        ((0, -2, 0, 0), {}),
        ((0, 0, 0, 0), {"steps": (1, 2, 1, 1)}),  # between two steps
        ((0, -1, -1, 0), {"steps": (1, 1, 1, 2)}),  # nobody knows what steps between images do
        ((0, -1, -1, 0), {"upper": (-9, 0)}),  # an empty box
    ],
)
def test_what_no_convolution_does_is_not_understood(at, changes):
    tensor = replace(IMAGE, **changes)
    at, none = np.array([at], np.int32), np.zeros(1, np.uint32)
    assert columns_of(tensor, np.zeros(1, np.int64), at, none) is None


def words_of(tensor):
    """Return the words of a map of two-byte elements in four dimensions."""
    words = [0] * 16
    words[0] = tensor.address
    words[1] = 1 | 3 << 4 | 6 << 7 | tensor.strides[1] // 16 << 32
    words[2] = tensor.strides[2] // 16 | tensor.strides[3] // 16 << 32
    words[4] = tensor.sizes[0] - 1 | (tensor.sizes[1] - 1) << 32
    words[5] = tensor.sizes[2] - 1 | (tensor.sizes[3] - 1) << 32
    words[6] = (tensor.channels - 1) << 56
    corners = bytes(value & 255 for value in (*tensor.lower, *tensor.upper))
    words[7] = int.from_bytes(corners, "little") | (tensor.pixels - 1) << 32
    return words


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        ([1, 1], [(A, A + 2 * 1024)]),  # the middle of a filter of three by three: two whole rows
        ([0, 0], [(A, A + 7 * 128)]),  # its corner: the row above is not there, nor is a pixel
        ([2, 2], [(A + 1024 + 128, A + 2 * 1024), (A + 2 * 1024 + 128, A + 3 * 1024)]),
    ],
)
def test_a_convolution_reads_where_its_filter_does(tmp_path, offset, expected):
    assert decode(words_of(IMAGE)) == IMAGE
    tiles = [(9, 0, 1, (c, -1, -1, 0, 0), 0, 1, packed(offset)) for c in (0, 32)]
    path = recording(
        tmp_path, KERNEL | {"unseen": []}, tiles=tiles, maps=[(1, 9, words_of(IMAGE), 1, 1)]
    )
    extraction = analyse(open_trace(path))
    (kernel,) = extraction.kernels
    assert not kernel.untraced
    touched = extraction.footprints.load().of_block(0)
    ranges = zip(touched.start.tolist(), touched.end.tolist(), strict=True)
    assert [r for r in ranges if r[0] >= A] == expected


def test_a_load_in_another_mode_than_its_map_is_not_understood(tmp_path):
    path = recording(
        tmp_path, KERNEL, tiles=[(9, 0, 1, (0,) * 5, 0, 0, 0)], maps=[(1, 9, words_of(IMAGE), 1, 1)]
    )
    (kernel,) = analyse(open_trace(path)).kernels
    assert kernel.untraced == "a tensor map that is not understood"
