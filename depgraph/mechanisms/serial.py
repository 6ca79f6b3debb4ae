"""Serialized launches: every kernel waits for the one before it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from depgraph.mechanisms.base import Availability, Mechanism
from depgraph.mechanisms.costs import LAUNCH, serialized
from depgraph.schedule.schedule import Schedule
from depgraph.schedule.simulate_jit import serial_schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from depgraph.mechanisms.costs import Charges
    from depgraph.scenario.scenario import Scenario
    from depgraph.schedule.policy import Rules


class Serial(Mechanism):
    """What a GPU does with the kernels of one stream."""

    name = "serial"
    rule = "a kernel starts once the whole kernel before it has ended"
    cost = "launches: host and gap of each kernel"
    family = "streams"
    availability = Availability.SHIPS
    source = "CUDA C++ programming guide, streams"
    costs = (LAUNCH,)

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Let every operation wait for all before it."""
        return serialized(program, charges)


def serial(scenario: Scenario, *, as_graph: bool = False) -> Schedule:
    """Run kernels one after another, as a GPU does for one stream.

    Each kernel's blocks go, in block order, to the first free of as many slots as its blocks fit
    on the SMs; each kernel pays for its launch, a copy or memset does not.

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
    gaps = is_kernel * float(gap.value)
    if as_graph:
        each, once = launch.node, launch.graph.value
        gaps = chain_paths(scenario)
    issued = np.cumsum(is_kernel * float(each.value)) + once * is_kernel
    start, slot, _ = serial_schedule(durations, graph.first_block, slots, issued, gaps)
    # The slots of a kernel are dealt out to the SMs in turn.
    sm = slot % np.int32(size)
    return Schedule("serial", start, start + durations, sm, least=scenario.memory)


def chain_paths(scenario: Scenario) -> NDArray[np.float64]:
    """Return what a chain of a CUDA graph needs before each operation: float64[n_operations]."""
    paths = graph_paths(scenario) * scenario.is_kernel
    paths[np.flatnonzero(scenario.is_kernel)[:1]] = 0.0
    return paths


def graph_paths(scenario: Scenario) -> NDArray[np.float64]:
    """Return what a CUDA graph needs before each operation of a branch: float64[n_operations]."""
    launch = scenario.launch
    paths = np.full(scenario.graph.n_operations, launch.path.value)
    if math.isfinite(launch.path_share):
        paths = np.minimum(paths, launch.path_share * scenario.kernel_times)
    return paths
