"""Schedules of a block graph on a GPU: when and where every block runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from depgraph.errors import ModelError
from depgraph.jit.schedule import serial_schedule
from depgraph.launch import OFF
from depgraph.room import shares
from depgraph.rules import Rules, run_rules
from depgraph.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from depgraph.graph import BlockGraph
    from depgraph.launch import LaunchModel

__all__ = ["PRIORITIES", "Schedule", "dataflow", "serial"]


def serial(
    graph: BlockGraph,
    durations: NDArray[np.float64],
    occupancy: NDArray[np.int64],
    sms: int,
    *,
    launch: LaunchModel = OFF,
    as_graph: bool = False,
) -> Schedule:
    """Run kernels one after another, as a GPU does for one stream.

    Each kernel's blocks go, in block order, to the first free of ``sms * occupancy`` slots.

    Parameters
    ----------
    graph : BlockGraph
    durations : float64[n_blocks]
    occupancy : int64[n_operations]
        Resident blocks per SM.
    sms : int
    launch : LaunchModel
        What launches cost; nothing before a host copy.
    as_graph : bool
        Whether the kernels are launched as a CUDA graph, a chain of nodes, and not one by one.
    """
    is_kernel = graph.kernel >= 0
    each, gap, once = launch.host, launch.gap, 0.0
    if as_graph:
        each, gap, once = launch.node, launch.path, launch.graph.value
    issued = np.cumsum(is_kernel * each.value) + once * is_kernel
    gaps = is_kernel * gap.value
    start, slot, _ = serial_schedule(durations, graph.first_block, occupancy * sms, issued, gaps)
    # The slots of a kernel are dealt out to the SMs in turn.
    return Schedule("serial", start, start + durations, slot % np.int32(sms))


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


def dataflow(
    graph: BlockGraph,
    durations: NDArray[np.float64],
    occupancy: NDArray[np.int64],
    sms: int,
    *,
    priority: str = "oldest-first",
) -> Schedule:
    """Start every block once the blocks it depends on have ended and an SM has room.

    A block of a kernel with occupancy o takes 1/o of an SM, a host copy none. Blocks that wait
    hold no room. Among ready blocks that fit the one first in `priority` goes to the SM with the
    most room.

    Parameters
    ----------
    graph : BlockGraph
    durations : float64[n_blocks]
    occupancy : int64[n_operations]
    sms : int
    priority : {"oldest-first", "newest-first", "longest-path-first"}

    Raises
    ------
    ModelError
        If `priority` is unknown.
    """
    if priority not in PRIORITIES:
        message = f"priority {priority!r}: give one of {', '.join(PRIORITIES)}"
        raise ModelError(message)
    order = PRIORITIES[priority](graph, durations)
    rules = Rules(order=order, strict=False)
    room = shares(graph.kernel, occupancy)
    return run_rules(f"dataflow, {priority}", rules, graph, durations, room, sms)
