"""What varies from run to run is covered by a tolerance only where it is returned."""

from __future__ import annotations

import numpy as np
import pytest
from fake_graphs import OTHER, POOL, FakeProgram, Kernel
from hypothesis import given
from hypothesis import strategies as st

from depgraph.apply.byte_ranges import joined, meets, ranges_of, runs_of, within, without
from depgraph.apply.varying import dense_range, find_varying

some = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 6)), max_size=6).map(
    lambda pairs: [(start, start + size) for start, size in pairs]
)


def places(ranges):
    return {byte for start, end in ranges for byte in range(start, end)}


@given(some, some)
def test_ranges_are_sets_of_bytes(first, second):
    a, b = ranges_of(first), ranges_of(second)
    assert places(a) == places(first)
    assert places(without(a, b)) == places(first) - places(second)
    assert places(within(a, b)) == places(first) & places(second)
    order = np.array(first, np.int64).reshape(-1, 2)
    assert meets(order, b).tolist() == [bool(places([r]) & places(second)) for r in first]
    runs = runs_of(np.array(sorted(places(first)), np.int64))
    assert runs.tolist() == a.tolist() == joined(order).tolist()


# The first kernel writes scratch, the second a returned tensor (kept), the third a weight.
PROGRAM = FakeProgram(
    [
        Kernel(reads=[], writes=[(1024, 64)]),
        Kernel(reads=[(1024, 64)], writes=[(0, 64)]),
        Kernel(reads=[(1024, 64)], writes=[(-512, 64)]),
    ],
    kept=[(0, 512)],
)
SCRATCH, RETURNED, WEIGHT = POOL + 1024, POOL, OTHER + 512


def found(*starts, returned=((RETURNED, RETURNED + 64),)):
    varying = ranges_of((start + 8, start + 10) for start in starts)
    return find_varying(PROGRAM.plan(), varying, returned)


def test_a_reproducible_graph_is_compared_in_every_byte():
    nothing = found()
    assert [len(each) for each in (nothing.ranges, nothing.excused, nothing.unchecked)] == [0] * 3


def test_a_tolerance_stands_for_a_returned_tensor_and_for_scratch():
    both = found(SCRATCH, RETURNED)
    assert not len(both.unchecked)
    assert both.excused.tolist() == [[RETURNED, RETURNED + 64], [SCRATCH, SCRATCH + 64]]


def test_a_returned_tensor_that_does_not_vary_is_compared():
    assert found(SCRATCH).excused.tolist() == [[SCRATCH, SCRATCH + 64]]


@pytest.mark.parametrize("returned", [[], [(RETURNED, RETURNED + 64)]])
def test_a_weight_that_varies_cannot_be_checked(returned):
    """A training step that returns its loss, or nothing."""
    assert found(WEIGHT, returned=returned).unchecked.tolist() == [[WEIGHT + 8, WEIGHT + 10]]


def test_a_result_that_no_tolerance_is_for_cannot_be_checked():
    assert found(RETURNED, returned=[]).unchecked.tolist() == [[RETURNED + 8, RETURNED + 10]]


@pytest.mark.parametrize(
    ("shape", "strides", "bytes_"),
    [
        ((4, 8), (8, 1), (100, 228)),
        ((4, 8), (1, 4), (100, 228)),
        ((), (), (100, 104)),
        ((4, 8), (16, 1), None),
        ((4, 8), (0, 1), None),
        ((0, 8), (8, 1), None),
    ],
)
def test_a_tensor_with_others_between_its_elements_has_no_bytes_of_its_own(shape, strides, bytes_):
    assert dense_range(100, shape, strides, 4) == bytes_
