"""What nodes touch, and what their blocks hand on to each other."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from depgraph.apply.values import ALIGNMENT, Touched, touched_by_nodes
from depgraph.footprint.footprints import join_footprints
from depgraph.trace.records import READ, SYNC_READ, WRITE

rows = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.sampled_from([READ, WRITE, SYNC_READ]),
        st.integers(0, 12),
        st.integers(1, 5),
    ),
    min_size=1,
    max_size=20,
)
FIRST = 1 << 46


def footprints(found):
    block, kind, start, size = (np.array(column) for column in zip(*found, strict=True))
    start = (start + FIRST).astype(np.uint64)
    end = start + size.astype(np.uint64)
    return join_footprints(block.astype(np.int32), kind.astype(np.uint8), start, end, 5)


@given(rows)
def test_what_a_block_writes_unread_and_others_read_is_handed_on(found):
    """Blocks 0 and 1 are of a first node, the others of a second."""
    known = footprints(found)
    ordering = set(known.block[known.kind == SYNC_READ].tolist())
    touched = touched_by_nodes(known, np.array([0, 0, 1, 1, 1]), {0: 0, 1: 1}, 2)
    for node, blocks in ((0, {0, 1}), (1, {2, 3, 4})):
        reads, writes = (
            {
                (block, at)
                for block, kind, start, size in found
                if block in blocks and (kind == WRITE) is is_write
                for at in range(start, start + size)
            }
            for is_write in (False, True)
        )
        wanted = {at for _, at in reads} & {at for _, at in writes - reads}
        if not blocks & ordering:
            wanted = set()
        ranges = touched.handed_on.get(node, np.empty((0, 2), np.int64)) - FIRST
        assert {at for low, high in ranges.tolist() for at in range(low, high)} == wanted


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20), st.booleans()), max_size=5),
    st.lists(st.integers(0, 50), min_size=1, max_size=5, unique=True).map(sorted),
)
def test_pointers_across_which_a_range_goes_on_move_together(found, words):
    """Unless an allocation can begin there; another node's ranges do not count."""
    first = FIRST + ALIGNMENT - 16
    of_node = sorted((first + start, first + start + size) for start, size, mine in found if mine)
    rows = [(0, start, end) for start, end in of_node]
    rows += [(1, first, first + 60)]
    node, start, end = (np.array(column) for column in zip(*rows, strict=True))
    touched = Touched(
        node.astype(np.int32), np.zeros(len(rows), bool),
        start.astype(np.uint64), end.astype(np.uint64),
    )  # fmt: skip
    numbers = touched.tied(0, [first + word for word in words])
    for place in range(1, len(words)):
        at = first + words[place]
        goes_on = any(start < at < end for start, end in of_node)
        is_tied = goes_on and at % ALIGNMENT != 0
        assert (numbers[place] == numbers[place - 1]) == is_tied
