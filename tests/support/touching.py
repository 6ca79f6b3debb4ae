"""Programs from what their blocks touch."""

import numpy as np
from programs import find_dependences
from random_programs import one_row
from small_graphs import scenario_of

from depgraph.footprint.footprints import join_footprints


def program_of(
    touched, sizes, *, allocations=(), shape=one_row, durations=None, sms=np.inf, **more
):
    """Return a program whose blocks touch `touched`: (block, kind, first byte, past the last)."""
    columns = zip(*touched, strict=True) if touched else ([], [], [], [])
    block, kind, start, end = (
        np.array(column, dtype)
        for column, dtype in zip(columns, (np.int32, np.uint8, np.uint64, np.uint64), strict=True)
    )
    first_block = np.cumsum([0, *sizes])
    n_blocks = int(first_block[-1])
    footprints = join_footprints(block, kind, start, end, n_blocks)
    kernel = np.arange(len(sizes), dtype=np.int32)
    graph = find_dependences(footprints, first_block, kernel)[0]
    return scenario_of(
        graph, np.ones(n_blocks) if durations is None else durations, sms=sms,
        grid=shape(graph), read_footprints=lambda: footprints, allocations=allocations, **more,
    )  # fmt: skip
