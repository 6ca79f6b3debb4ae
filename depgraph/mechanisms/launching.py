"""What mechanisms keep of launch costs: who issues kernels, and what the GPU needs before each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.mechanisms.costs import Charges, Cost
from depgraph.schedule.policy import IGNORED, Gates, Rules

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from depgraph.scenario.scenario import Scenario

LAUNCH = Cost(
    "launch",
    1.0,
    "launches",
    "instead of what the launch model says: a time that the GPU needs before each kernel",
    "--launch",
    is_launch=True,
)
INVOCATION = Cost(
    "launch",
    1.0,
    "launches",
    "instead of what the launch model says: a time for each kernel, one after another, ahead of "
    "the GPU",
    "--launch",
    is_launch=True,
)


@dataclass(frozen=True, slots=True)
class Launching:
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


def gated(program: Scenario, launching: Launching, gates: Gates, **others: Any) -> Rules:
    """Return rules by which kernels wait for whole kernels, and for nothing else unless told."""
    usual: dict[str, Any] = {
        "joins": np.full(len(program.graph.join_kind), IGNORED, np.uint8),
        "enter": launching.enter,
        "launch": launching.launch,
    }
    return Rules(gates=gates, **(usual | others))


def first(program: Scenario, time: float) -> NDArray[np.float64]:
    """Return a time for the first kernel and none for the others: float64[n_operations]."""
    times = np.zeros(program.graph.n_operations)
    kernels = np.flatnonzero(program.is_kernel)
    times[kernels[:1]] = time
    return times
