"""What nodes touch, and what their blocks hand on to each other."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from depgraph.apply.values import touched_by_nodes
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
