"""How kernels are launched, and what mechanisms are compared with: serial, dataflow, ideal."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import ModelError
from depgraph.mechanisms.base import Availability, Charges, Cost, Mechanism, word
from depgraph.scenario.scenario import Scenario
from depgraph.schedule.policy import IGNORED, PRIORITIES, Gates, Rules, Schedule
from depgraph.schedule.simulate import run_rules
from depgraph.schedule.simulate_jit import serial_schedule

LAUNCH = Cost(
    "launch",
    1.0,
    "launches",
    "instead of what the launch model says: a time that the GPU needs before each kernel",
    "--launch",
    is_launch=True,
)
INVOCATION = LAUNCH._replace(
    meaning="instead of what the launch model says: a time for each kernel, one after another, "
    "ahead of the GPU",
)


class Launching(NamedTuple):
    """What launches cost each operation."""

    enter: NDArray[np.floating[Any]]  # [n_operations]: time to issue it, one after another
    launch: NDArray[np.floating[Any]]  # [n_operations]: on the GPU, once it is issued and may start


def one_by_one(program: Scenario, charges: Charges) -> Launching:
    """Launch kernels into streams: the host issues each, the GPU needs its gap before each."""
    if charges.is_given(LAUNCH.name):
        return Launching(program.is_kernel * 0.0, program.is_kernel * charges.time(LAUNCH.name))
    model = charges.launches
    return Launching(program.is_kernel * model.host.value, program.is_kernel * model.gap.value)


def ahead(program: Scenario, charges: Charges, *, name: str | None = None) -> Launching:
    """Launch kernels that wait on the GPU: the host issues each, the first alone pays the gap."""
    none = program.is_kernel * 0.0
    if name is not None and charges.is_given(name):
        return Launching(program.is_kernel * charges.time(name), none)
    model = charges.launches
    return Launching(program.is_kernel * model.host.value + first(program, model.gap.value), none)


def once(program: Scenario, charges: Charges) -> Launching:
    """Launch the whole program as one kernel."""
    model = charges.launches
    none = program.is_kernel * 0.0
    return Launching(none + first(program, model.host.value + model.gap.value), none)


def serialized(program: Scenario, charges: Charges, **others: Any) -> Rules:
    """Return rules by which each kernel waits for all before it, launched one by one."""
    launching = one_by_one(program, charges)
    return Rules(waits_for_all=True, enter=launching.enter, launch=launching.launch, **others)


def gated(launching: Launching, gates: Gates, **others: Any) -> Rules:
    """Return rules by which kernels wait for whole kernels, and for nothing else unless told."""
    usual: dict[str, Any] = {"joins": IGNORED, "enter": launching.enter, "launch": launching.launch}
    return Rules(gates=gates, **(usual | others))


def first(program: Scenario, time: float) -> NDArray[np.float64]:
    """Return a time for the first kernel and none for the others: float64[n_operations]."""
    times = np.zeros(program.graph.n_operations)
    kernels = np.flatnonzero(program.is_kernel)
    times[kernels[:1]] = time
    return times


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
    """Run kernels one after another: launched one by one, or as a CUDA graph that is a chain."""
    # Each kernel's blocks go, in block order, to the first free of as many slots as its blocks fit
    # on the SMs; each kernel pays for its launch, a copy or memset does not.
    graph, durations = scenario.graph, scenario.durations
    # More SMs than a kernel has blocks stay empty.
    size = int(min(scenario.sms, np.diff(graph.first_block).max(initial=1)))
    slots = scenario.occupancy * size
    launch, is_kernel = scenario.launch, scenario.is_kernel
    each, gap, once = launch.host, launch.gap, 0.0
    gaps = is_kernel * float(gap.value)
    if as_graph:
        each, once = launch.node, launch.graph.value
        gaps = graph_paths(scenario) * is_kernel
        gaps[np.flatnonzero(is_kernel)[:1]] = 0.0
    issued = np.cumsum(is_kernel * float(each.value)) + once * is_kernel
    start, slot, _ = serial_schedule(durations, graph.first_block, slots, issued, gaps)
    # The slots of a kernel are dealt out to the SMs in turn.
    sm = slot % np.int32(size)
    return Schedule("serial", start, start + durations, sm, least=scenario.memory)


def graph_paths(scenario: Scenario) -> NDArray[np.float64]:
    """Return what a CUDA graph needs before each operation of a branch: float64[n_operations]."""
    launch = scenario.launch
    paths = np.full(scenario.graph.n_operations, launch.path.value)
    if math.isfinite(launch.path_share):
        paths = np.minimum(paths, launch.path_share * scenario.kernel_times)
    return paths


DEFAULT_PRIORITY = "oldest-first"
BEST = "best priority"


class Dataflow(Mechanism):
    """All kernels of the program in one pool; `priority` is that among blocks that are ready."""

    name = "dataflow"
    signature = "dataflow(oldest-first|newest-first|longest-path-first|best)"
    takes = (word,)
    rule = (
        "a block starts once all blocks that it depends on have ended; waiting blocks hold no "
        "slot; of those that are ready the oldest (default), the newest, or the one with the "
        "longest path to the end goes first; best: whichever of the three is fastest"
    )
    cost = "launches: the host issues each kernel, ahead of the GPU; no gaps"
    availability = Availability.HARDWARE
    source = "Kuper et al., the dependence tool for Accel-Sim (rkuper/accel-sim-scripts)"
    among_all = ((), (BEST,))

    def __init__(self, priority: str = DEFAULT_PRIORITY) -> None:
        if priority == "best":
            priority = BEST
        if priority not in (*PRIORITIES, BEST):
            raise ModelError(f"priority {priority!r}: give one of {', '.join(PRIORITIES)}, best")
        self.priority = priority

    @property
    def label(self) -> str:
        """The name with the priority."""
        return f"{self.name} ({self.priority})"

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Order ready blocks by the priority."""
        rules = Rules(strict=False, enter=ahead(program, charges).enter)
        graph, durations = program.graph, program.durations
        if self.priority != BEST:
            return replace(rules, order=PRIORITIES[self.priority](graph, durations))
        shortest = {}
        for name, priority in PRIORITIES.items():
            ordered = replace(rules, order=priority(graph, durations))
            plan = run_rules(name, ordered, graph, durations, program.resources, program.sms)
            shortest[name] = plan.makespan, ordered
        best = min(shortest, key=lambda name: shortest[name][0])
        return shortest[best][1].assuming(f"the best of three priorities: {best}")


class Ideal(Mechanism):
    """Dataflow on unlimited SMs: the critical path."""

    name = "ideal"
    rule = "a block starts once all blocks that it depends on have ended, on unlimited SMs"
    availability = Availability.LIMIT
    source = "Kuper et al., the dependence tool for Accel-Sim (rkuper/accel-sim-scripts)"

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Take away the limit on SMs."""
        del program, charges
        return Rules(unlimited=True, assumptions=("unlimited SMs: no utilization",))
