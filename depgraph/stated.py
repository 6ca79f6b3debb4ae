"""Durations that the input itself states: a described program, or a simulator's trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from depgraph.timing import Durations, counted_durations

if TYPE_CHECKING:
    from depgraph.graph import BlockGraph


def default_durations(graph: BlockGraph) -> Durations:
    """Return what to take for durations where the user gives no times.

    Parameters
    ----------
    graph : BlockGraph

    Returns
    -------
    Durations
        What the input states, if it does so for every block of a kernel; else counts.

    Raises
    ------
    ModelError
        If the graph carries neither.
    """
    if graph.duration is None:
        return counted_durations(graph)
    is_kernel = graph.kernel[graph.operation_of_block] >= 0
    values = np.where(is_kernel, graph.duration, 0.0)
    if np.isnan(values).any():
        return counted_durations(graph)
    return Durations(values, graph.duration_unit, "as the input states them")
