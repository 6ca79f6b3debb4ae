"""Launches from the device, as tests describe them."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st
from random_programs import programs

from depgraph.graph.program import JOINS, DeviceLaunches

_KINDS = {
    "block": (np.int64, 0), "at": (np.float64, 0.5), "warp": (np.int64, -1),
    "lanes": (np.int64, 1), "child_grid": (np.int64, 1), "child_duration": (np.float64, 1),
    "inline": (np.float64, 1), "join": (np.uint8, 0), "stream": (np.int64, -1),
    "items": (np.int64, 1),
}  # fmt: skip


def launches_of(rows):
    """Return launches from one dictionary each; what is not said is small and equal."""
    rows = [{**row, "join": JOINS.index(row.get("join", "none"))} for row in rows]
    return DeviceLaunches(
        *(np.array([row.get(k, usual) for row in rows], t) for k, (t, usual) in _KINDS.items())
    ).in_order()


def with_launches(program, launches):
    """Return a program whose blocks can launch; its durations are their own work."""
    own = program.durations
    graph = replace(program.graph, duration=own, launches=launches)
    timing = replace(program.timing, values=launches.inlined(own))
    return replace(program, graph=graph, timing=timing)


@st.composite
def launching_programs(draw, **options):
    """Return a random program some of whose blocks can launch."""
    program = draw(programs(**options))
    return with_launches(program, draw(device_launches(program)))


@st.composite
def device_launches(draw, program, most=6):
    """Return some launches of the blocks of a program, times of small whole numbers."""
    rows = draw(
        st.lists(
            st.fixed_dictionaries(
                {
                    "block": st.integers(0, program.graph.n_blocks - 1),
                    "at": st.sampled_from([0.0, 0.25, 0.5, 1.0]),
                    "warp": st.integers(-1, 1),
                    "lanes": st.integers(1, 3),
                    "child_grid": st.integers(1, 3),
                    "child_duration": st.integers(0, 6),
                    "inline": st.integers(0, 9),
                    "join": st.sampled_from(JOINS),
                    "stream": st.integers(-1, 1),
                    "items": st.integers(0, 9),
                }
            ),
            min_size=1,
            max_size=most,
        )
    )
    return launches_of(rows)
