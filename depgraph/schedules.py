"""Schedules of a block graph on a GPU: when and where every block runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from depgraph.errors import ModelError
from depgraph.jit.graph import invert_lists
from depgraph.jit.schedule import dataflow_schedule, serial_schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd
    from numpy.typing import NDArray

    from depgraph.graph import BlockGraph


@dataclass(frozen=True, slots=True)
class Schedule:
    """When every block starts and on which SM.

    Attributes
    ----------
    name : str
    start, end : float64[n_blocks]
        In the unit of the durations.
    sm : int32[n_blocks]
    """

    name: str
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    sm: NDArray[np.int32]

    @property
    def makespan(self) -> float:
        """When the last block ends."""
        return float(self.end.max(initial=0.0))

    def to_pandas(self, graph: BlockGraph) -> pd.DataFrame:
        """Return one row a block: kernel, block (within the kernel), sm, start, end."""
        import pandas as pd

        kernel, index = graph.block_names()
        return pd.DataFrame(
            {
                "kernel": kernel,
                "block": index,
                "sm": self.sm,
                "start": self.start,
                "end": self.end,
            }
        )


def serial(
    graph: BlockGraph,
    durations: NDArray[np.float64],
    occupancy: NDArray[np.int64],
    sms: int,
    *,
    launch_gap: float = 0.0,
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
    launch_gap : float
        Time before each kernel; none before a host copy.
    """
    gap = np.where(graph.kernel >= 0, launch_gap, 0.0)
    start, slot, _ = serial_schedule(durations, graph.first_block, occupancy * sms, gap)
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


PRIORITIES: dict[
    str, Callable[[BlockGraph, NDArray[np.float64]], NDArray[np.int64]]
] = {
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

    A block of a kernel with occupancy o takes 1/o of an SM, a host copy none. Blocks that wait hold no room. Among
    ready blocks that fit the one first in `priority` goes to the SM with the most room.

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
    order = PRIORITIES[priority](graph, durations).astype(np.int32)
    rank = np.empty(graph.n_blocks, np.int32)
    rank[order] = np.arange(graph.n_blocks, dtype=np.int32)
    # Room is counted in units that every 1/o is a whole number of: sums stay exact.
    capacity = math.lcm(*np.unique(occupancy).tolist())
    room = np.where(graph.kernel >= 0, capacity // occupancy, 0)
    class_size, class_of_operation = np.unique(room, return_inverse=True)
    block_set_offsets, block_sets = invert_lists(
        graph.set_offsets, graph.set_blocks, graph.n_blocks
    )
    set_join_offsets, set_joins = invert_lists(
        graph.source_offsets, graph.sources, len(graph.set_operation)
    )
    start, sm = dataflow_schedule(
        durations,
        order,
        rank,
        class_of_operation.astype(np.int32),
        class_size,
        capacity,
        sms,
        graph.operation_of_block,
        graph.set_offsets,
        graph.set_blocks,
        block_set_offsets,
        block_sets,
        graph.source_offsets,
        set_join_offsets,
        set_joins,
        graph.target_offsets,
        graph.targets,
    )
    return Schedule(f"dataflow, {priority}", start, start + durations, sm)
