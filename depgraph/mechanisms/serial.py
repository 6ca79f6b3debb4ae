"""Serialized launches: every kernel waits for the one before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from depgraph.mechanisms.base import Availability, Mechanism
from depgraph.mechanisms.costs import LAUNCH, serialized
from depgraph.schedule.schedule import Schedule
from depgraph.schedule.simulate_jit import serial_schedule

if TYPE_CHECKING:
    from depgraph.mechanisms.costs import Charges
    from depgraph.scenario.scenario import Scenario
    from depgraph.schedule.policy import Rules


class Serial(Mechanism):
    """What a GPU does with the kernels of one stream."""

    name = "serial"
    rule = "a kernel starts once the whole kernel before it has ended"
    cost = "launches: host and gap of each kernel"
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
    if as_graph:
        each, gap, once = launch.node, launch.path, launch.graph.value
    issued = np.cumsum(is_kernel * float(each.value)) + once * is_kernel
    gaps = is_kernel * float(gap.value)
    start, slot, _ = serial_schedule(durations, graph.first_block, slots, issued, gaps)
    # The slots of a kernel are dealt out to the SMs in turn.
    sm = slot % np.int32(size)
    return Schedule("serial", start, start + durations, sm, least=scenario.memory)
