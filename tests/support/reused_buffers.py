"""Random programs whose bytes are spread out, so that each is a buffer of its own."""

from dataclasses import replace

import numpy as np
from programs import BASE, footprints_of, graph_of, n_blocks_of
from small_graphs import kernels_of, scenario_of

from depgraph.analysis.buffers import BLOCK_BYTES
from depgraph.footprint.footprints import Footprints
from depgraph.scenario.scenario import Scenario

SPREAD = BLOCK_BYTES
"""Bytes of a random program that each become so many, so that they are buffers of their own."""


def spread(footprints: Footprints) -> Footprints:
    """Return a program whose every byte is a whole block of an allocator."""
    base = np.uint64(BASE)
    start, end = (
        (at - base) * np.uint64(SPREAD) + base for at in (footprints.start, footprints.end)
    )
    return Footprints(footprints.block, footprints.kind, start, end)


def traced(program, durations=None, sms=2, frees=None) -> Scenario:
    """Return the scenario of a program in which each byte is a block of an allocator."""
    footprints, first_block, _ = footprints_of(program)
    graph = graph_of(program, frees=frees)
    return scenario_of(
        graph if frees is None else replace(graph, frees=spread(graph.frees)),
        np.ones(n_blocks_of(program)) if durations is None else durations,
        kernels=kernels_of(np.diff(first_block).tolist()),
        read_footprints=lambda: spread(footprints),
        sms=sms,
    )


def overwriting(n):
    """Return n kernels that each overwrite one buffer, and all but the first another one."""
    return [{0: (set(), {0})}, *({k: (set(), {0, 1})} for k in range(1, n))]


def address(byte):
    return BASE + byte * SPREAD
