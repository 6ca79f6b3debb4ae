"""Durations that the input itself states: a described program, or a simulator's trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from depgraph.timing.durations import Durations, block_name, counted_durations

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from depgraph.graph.block_graph import BlockGraph


def default_durations(graph: BlockGraph) -> Durations:
    """Return what to take for durations where the user gives no times.

    Parameters
    ----------
    graph : BlockGraph

    Returns
    -------
    Durations
        What the input states, if it does so for any block of a kernel; else counts. A block for
        which it states nothing usable is given the median of its kernel's other blocks; in a kernel
        without any, the others' median time per instruction. How many there are is noted.

    Raises
    ------
    ModelError
        If the graph carries neither.
    """
    if graph.duration is None:
        return counted_durations(graph)
    is_kernel = graph.kernel[graph.operation_of_block] >= 0
    is_usable = np.isfinite(graph.duration) & (graph.duration >= 0)
    if not (is_kernel & is_usable).any():
        return counted_durations(graph)
    values = np.where(is_kernel & is_usable, graph.duration, 0.0)
    notes = _fill(graph, values, is_kernel & ~is_usable)
    return Durations(values, graph.duration_unit, "as the input states them", notes)


def _fill(
    graph: BlockGraph, values: NDArray[np.float64], missing: NDArray[np.bool_]
) -> tuple[str, ...]:
    """Give the missing blocks durations, in place; say which they are."""
    if not missing.any():
        return ()
    cost = np.ones(graph.n_blocks) if graph.cost is None else np.maximum(graph.cost, 1)
    present = ~missing & (graph.kernel[graph.operation_of_block] >= 0)
    rate = float(np.median(values[present] / cost[present]))
    for operation in np.unique(graph.operation_of_block[missing]).tolist():
        blocks = slice(graph.first_block[operation], graph.first_block[operation + 1])
        own, others = values[blocks], present[blocks]
        given = np.median(own[others]) if others.any() else cost[blocks] * rate
        values[blocks] = np.where(others, own, given)
    first = block_name(graph, int(np.argmax(missing)))
    count = int(missing.sum())
    which = first if count == 1 else f"{first} and {count - 1} more"
    return (
        (
            f"no usable duration is stated for {count} of {int((missing | present).sum())} blocks "
            f"({which}): they are given the median of their kernel's other blocks, or the others' "
            "median time per instruction"
        ),
    )
