"""What blocks would take alone on an SM, and schedules in which they slow each other.

A duration is what a block took beside the others of its wave. With contention it is the work of the
block instead, found so that each kernel alone, on the GPU that it was measured on, takes as long as
it was measured to take.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from depgraph.gpu.sm_sharing import SmSharing, calibrated_gpu, sm_sharing
from depgraph.schedule.policy import IGNORED, Rules
from depgraph.schedule.simulate import run_rules
from depgraph.system.time_units import convert_time
from depgraph.timing.durations import kernel_makespans

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from depgraph.gpu.measured_errors import MeasuredErrors
    from depgraph.graph.block_graph import BlockGraph
    from depgraph.scenario.scenario import Scenario
    from depgraph.schedule.schedule import Schedule

Contention = Literal["none", "sm", "full"]
CHOICES: tuple[str, ...] = get_args(Contention)

_GOLDEN = 0.6180339887498949
# What of a kernel's measured time is work, at least, in microseconds.
_LEAST_WORK = 0.15
_HARDWARE_MARGIN = 1.1


def sharing_of(scenario: Scenario) -> SmSharing | None:
    """Return how blocks slow each other, as the user chose; None if they do not.

    Durations that count instructions are no times: nothing is measured that they could be fitted
    to.
    """
    if scenario.contention == "none" or scenario.unit == "instructions":
        return None
    return sm_sharing(scenario.resources, carve_outs=scenario.contention == "full")


@dataclass(frozen=True, slots=True)
class Trust:
    """How far predictions can be trusted.

    Attributes
    ----------
    gpu : str
        That they are for.
    constants_of : str
        The GPU that their constants were fitted on, the same or another one.
    contention : bool
        Whether they count it.
    errors : MeasuredErrors or None
        How far predictions with these constants were off; None if nobody measured that.
    """

    gpu: str
    constants_of: str
    contention: bool
    errors: MeasuredErrors | None

    @property
    def caveat(self) -> str:
        """All of it in a sentence."""
        measured = "nobody compared them with measurements (depgraph calibrate does)"
        if self.errors is not None:
            measured = self.errors.sentence(contention=self.contention)
        if self.constants_of == self.gpu:
            return f"predictions: {measured}"
        of = f"constants of the {self.constants_of}"
        return f"predictions on {self.gpu} are uncalibrated: {of}; {measured}"


def trust_in(scenario: Scenario) -> Trust | None:
    """Return how far predictions can be trusted; None where durations are no times."""
    if scenario.unit == "instructions":
        return None
    gpu = scenario.resources.gpu
    calibrated = calibrated_gpu(gpu)
    counted = scenario.sharing is not None
    return Trust(gpu.name, calibrated.name, counted, calibrated.errors)


def work_of_blocks(scenario: Scenario) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what each block would take at a rate of 1, and the part of kernels that holds no SM.

    Parameters
    ----------
    scenario : Scenario

    Returns
    -------
    work : float64[n_blocks]
    lead : float64[n_operations]
        0 for host copies.
    """
    graph, durations = scenario.graph, scenario.durations
    on = scenario.measured_on(graph) if scenario.measured_on else scenario.resources
    sms = scenario.measured_sms or on.gpu.sms
    sharing = sm_sharing(on, carve_outs=scenario.contention == "full")
    microsecond = convert_time(1.0, "us", scenario.unit, scenario.clock_mhz) or 0.0
    alone = kernel_makespans(graph, durations, on.occupancy * sms)
    most = np.maximum(alone - _LEAST_WORK * microsecond, 0.0)
    lead = np.minimum(sharing.lead * microsecond, most) * scenario.is_kernel
    shape = durations
    if not scenario.timing.of_blocks:
        index = np.arange(graph.n_blocks) - graph.first_block[graph.operation_of_block]
        # Spread evenly whatever their number, and neighbours apart.
        place = 2 * np.modf(index * _GOLDEN)[0] - 1
        together = 1 - 1 / np.maximum(on.occupancy, 1)
        shape = durations * (1 + sharing.spread * together[graph.operation_of_block] * place)
    rules = Rules(
        joins=np.full(len(graph.join_kind), IGNORED, np.uint8),
        waits_for_all=True,
    )
    run = run_rules("alone", rules, graph, shape, on, sms, sharing=sharing)
    full = np.flatnonzero(np.diff(graph.first_block))
    first = graph.first_block[:-1][full]
    taken = np.zeros(graph.n_operations)
    if len(full):
        taken[full] = np.maximum.reduceat(run.end, first) - np.minimum.reduceat(run.start, first)
    factor = np.divide(alone - lead, taken, out=np.zeros(len(taken)), where=taken > 0)
    values: NDArray[np.float64] = shape * factor[graph.operation_of_block]
    return values, lead


def time_alone(scenario: Scenario) -> NDArray[np.float64]:
    """Return what each block of a contended scenario takes alone on an SM: float64[n_blocks]."""
    sharing = scenario.sharing
    if sharing is None:
        return scenario.durations
    slowed = 1 + sharing.slowdown * sharing.load
    values: NDArray[np.float64] = scenario.durations * slowed[scenario.graph.operation_of_block]
    return values


def contended_bound(scenario: Scenario) -> float:
    """Return the time below which no schedule of a contended scenario can stay.

    The longest path of blocks that are alone on their SMs, or the work of all blocks on SMs that
    are all full. Hardware was shorter than that of a full SM by up to a tenth (samples/validation:
    part of a kernel's time is filling and draining the GPU), so a tenth is taken off.
    """
    sharing = scenario.sharing
    path = longest_path(scenario.bound_graph, time_alone(scenario))
    if sharing is None or math.isinf(scenario.sms):
        return path
    work = float(scenario.durations @ sharing.load[scenario.graph.operation_of_block])
    full = work / (scenario.sms * sharing.best_throughput)
    return max(path, full / _HARDWARE_MARGIN, scenario.memory)


def contended_serial(scenario: Scenario) -> float:
    """Return what the kernels of a contended scenario take one after another."""
    rules = Rules(waits_for_all=True)
    return run_contended("serial", rules, scenario).makespan


def longest_path(graph: BlockGraph, durations: NDArray[np.float64]) -> float:
    """Return the length of the longest path through a graph."""
    return float(graph.earliest_finish(durations)[0].max(initial=0.0))


def run_contended(name: str, rules: Rules, scenario: Scenario) -> Schedule:
    """Schedule the blocks of a scenario, whose durations are their work, by some rules.

    Parameters
    ----------
    name : str
        Of the schedule.
    rules : Rules
        Of `Scenario.contended`.
    scenario : Scenario
        The contended one.

    Raises
    ------
    DeadlockError
        If the rules let some block wait forever.
    """
    sharing = scenario.sharing
    rules = replace(rules, launch=rules.launch + (0.0 if sharing is None else sharing.lead))
    if rules.unlimited:
        rules = replace(rules, durations=time_alone(scenario))
    schedule = run_rules(
        name,
        rules,
        scenario.graph,
        scenario.durations,
        scenario.resources,
        scenario.sms,
        sharing=sharing,
    )
    return replace(schedule, least=scenario.memory)
