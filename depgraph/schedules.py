"""Schedules of a block graph on a GPU: when and where every block runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from depgraph.jit.schedule import serial_schedule
from depgraph.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from depgraph.graph import BlockGraph
    from depgraph.scenario import Scenario

__all__ = ["PRIORITIES", "Schedule", "serial"]


def serial(scenario: Scenario, *, as_graph: bool = False) -> Schedule:
    """Run kernels one after another, as a GPU does for one stream.

    Each kernel's blocks go, in block order, to the first free of as many slots as its blocks fit
    on the SMs; each kernel pays for its launch, a host copy does not.

    Parameters
    ----------
    scenario : Scenario
        On one number of SMs.
    as_graph : bool
        Whether the kernels are launched as a CUDA graph, a chain of nodes, and not one by one.
    """
    graph, durations = scenario.graph, scenario.durations
    # More SMs than a kernel has blocks stay empty.
    size = int(min(scenario.sms, np.diff(graph.first_block).max(initial=1)))
    slots = scenario.occupancy * size
    launch, is_kernel = scenario.launch, scenario.is_kernel
    each, gap, once = launch.host, launch.gap, 0.0
    if as_graph:
        each, gap, once = launch.node, launch.path, launch.graph.value
    issued = np.cumsum(is_kernel * each.value) + once * is_kernel
    gaps = is_kernel * gap.value
    start, slot, _ = serial_schedule(durations, graph.first_block, slots, issued, gaps)
    # The slots of a kernel are dealt out to the SMs in turn.
    sm = slot % np.int32(size)
    return Schedule("serial", start, start + durations, sm, least=scenario.memory)


Priority = "Callable[[BlockGraph, NDArray[np.float64]], NDArray[np.int64]]"


def oldest_first(graph: BlockGraph, durations: NDArray[np.float64]) -> NDArray[np.int64]:
    """Order blocks by program order."""
    del durations
    return np.arange(graph.n_blocks)


def newest_first(graph: BlockGraph, durations: NDArray[np.float64]) -> NDArray[np.int64]:
    """Order kernels from the last to the first, the blocks of a kernel in block order."""
    del durations
    return np.lexsort((np.arange(graph.n_blocks), -graph.operation_of_block))


def longest_path_first(graph: BlockGraph, durations: NDArray[np.float64]) -> NDArray[np.int64]:
    """Order blocks by the longest path from their start to the end of the program."""
    return np.lexsort((np.arange(graph.n_blocks), -graph.longest_tail(durations)))


PRIORITIES: dict[str, Callable[[BlockGraph, NDArray[np.float64]], NDArray[np.int64]]] = {
    "oldest-first": oldest_first,
    "newest-first": newest_first,
    "longest-path-first": longest_path_first,
}
