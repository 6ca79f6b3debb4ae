"""Predictions: what blocks take alone, how those of one SM slow each other, how far to trust it.

A duration is what a block took beside the others of its wave. With contention it is the work of the
block instead: what it would take at a rate of 1, with nothing beside it on its SM.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.gpu.model import Gpu, MeasuredErrors, calibrated_gpu
from depgraph.schedule.policy import HOLDS, IGNORED, Rules, Schedule
from depgraph.schedule.simulate import run_rules
from depgraph.timing.program_times import Durations, kernel_makespans

if TYPE_CHECKING:
    from depgraph.gpu.sm_resources import SmResources
    from depgraph.gpu.sm_sharing import SmSharing
    from depgraph.graph.block_graph import BlockGraph
    from depgraph.scenario.scenario import Scenario

Contention = Literal["none", "sm", "full"]

_GOLDEN = 0.6180339887498949
# What of a kernel's measured time is work, at least, in microseconds.
_LEAST_WORK = 0.15


def work_of_blocks(
    graph: BlockGraph,
    timing: Durations,
    on: SmResources,
    sms: int | None,
    sharing: SmSharing,
    microsecond: float,
    *,
    in_step: bool = False,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what each block would take at a rate of 1, and the part of kernels that holds no SM.

    `on`, `sms` (None for those of its model) and `sharing` are of the GPU that durations were
    measured on; the part, float64[n_operations], is 0 for copies and memsets; `microsecond` is in
    their unit. `in_step` lets all SMs work alike, so that what takes the slots of a kernel as they
    fall free is spread as evenly as that kernel was.
    """
    durations, sms = timing.values, sms or on.gpu.sms
    sharing = sharing._replace(fill=sharing.fill * microsecond)
    alone = kernel_makespans(graph, durations, on.occupancy * sms)
    most = np.maximum(alone - _LEAST_WORK * microsecond, 0.0)
    lead = np.minimum(sharing.lead * microsecond, most) * (graph.kernel >= 0)
    index = np.arange(graph.n_blocks) - graph.first_block[graph.operation_of_block]
    index //= sms if in_step else 1
    # Spread evenly whatever their number, and neighbours apart; measured blocks have a spread.
    place = 2 * np.modf(index * _GOLDEN)[0] - 1
    together = 1 - 1 / np.maximum(on.occupancy, 1)
    together[np.isin(graph.kernel, list(timing.of_blocks))] = 0.0
    shape = durations * (1 + sharing.spread * together[graph.operation_of_block] * place)
    rules = Rules(
        joins=IGNORED,
        waits_for_all=True,
    )
    run = run_rules("alone", rules, graph, shape, on, sms, sharing=sharing)
    start, end = run.of_operations(graph.first_block)
    taken = end - start
    factor = np.divide(alone - lead, taken, out=np.zeros(len(taken)), where=taken > 0)
    values: NDArray[np.float64] = shape * factor[graph.operation_of_block]
    return values, lead


_HARDWARE_MARGIN = 1.1


def time_alone(scenario: Scenario) -> NDArray[np.float64]:
    """Return what each block of a contended scenario takes alone on an SM: float64[n_blocks]."""
    sharing = scenario.sharing
    if sharing is None:
        return scenario.durations
    slowed = 1 + sharing.slowdown * sharing.load_of(1)
    values: NDArray[np.float64] = scenario.durations * slowed[scenario.graph.operation_of_block]
    return values


def contended_bound(scenario: Scenario) -> float:
    """Return the time below which no schedule of a contended scenario can stay.

    The longest path of blocks that are alone on their SMs, or the work of all blocks on SMs that
    are all full. Hardware was shorter than that of a full SM by up to a tenth (samples/validation:
    part of a kernel's time is filling and draining the GPU), so a tenth is taken off.
    """
    sharing = scenario.sharing
    path = scenario.bound_graph.longest_path(time_alone(scenario))
    if sharing is None or math.isinf(scenario.sms):
        return path
    work = np.zeros(len(sharing.load))
    np.add.at(work, scenario.graph.operation_of_block, scenario.durations)
    full = sharing.full_time(work) / scenario.sms
    return max(path, full / _HARDWARE_MARGIN, scenario.memory)


def contended_serial(scenario: Scenario) -> float:
    """Return what the kernels of a contended scenario take one after another."""
    rules = Rules(waits_for_all=True)
    return run_contended("serial", rules, scenario).makespan


def run_contended(name: str, rules: Rules, scenario: Scenario) -> Schedule:
    """Schedule the blocks of a contended scenario, whose durations are their work, by rules."""
    sharing = scenario.sharing
    if sharing is not None:
        lead = np.broadcast_to(sharing.lead, scenario.graph.n_operations)
        rules = _with_leads(rules, rules.graph or scenario.graph, lead)
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
    return schedule._replace(least=scenario.memory)


def _with_leads(rules: Rules, graph: BlockGraph, lead: NDArray[np.float64]) -> Rules:
    """Add to rules what kernels take until their blocks run.

    The tasks of persistent workers belong to one kernel, which the first of them pays for. A kernel
    whose blocks wait in their slots opens no earlier than those launched before it: it would take
    the slots of what it waits for. Nor do they save it by waiting there: what they wait for drains.
    """
    is_kernel = graph.kernel >= 0
    if rules.workers:
        first = is_kernel & (np.cumsum(is_kernel) == 1)
        return replace(rules, enter=rules.enter + first * lead)
    joins = np.broadcast_to(rules.joins, len(graph.join_kind))
    waits = np.zeros(graph.n_operations, np.bool_)
    waits[graph.join_target_operation[joins == HOLDS]] = True
    waits[rules.gates.target[rules.gates.holds]] = True
    is_gated = np.zeros(graph.n_operations, np.bool_)
    is_gated[rules.gates.target[~rules.gates.holds]] = True
    before = np.maximum.accumulate(np.where(is_gated, 0.0, lead))
    gates = rules.gates
    held = np.where(gates.holds, lead[gates.target], 0.0)
    return replace(
        rules,
        launch=rules.launch + np.where(waits & is_kernel & ~is_gated, before, lead),
        gates=replace(gates, lead=gates.lead - held),
    )


EAGER = "eager times"
"""How far times of kernels that were launched one by one are from those in a CUDA graph."""


class Trust(NamedTuple):
    """How far predictions can be trusted."""

    gpu: str  # that they are for
    constants_of: str  # the GPU that their constants were fitted on, the same or another one
    contention: bool  # whether they count it
    errors: tuple[MeasuredErrors, ...]  # how far predictions with them were off, by family

    def of(self, family: str) -> MeasuredErrors | None:
        """Return the errors of a family; None without contention or constants of this GPU."""
        if self.gpu != self.constants_of or not self.contention:
            return None
        return next((each for each in self.errors if each.family == family), None)

    @property
    def caveat(self) -> str:
        """All of it in a sentence."""
        if not self.errors:
            measured = "nobody compared them with measurements (depgraph calibrate does)"
        else:
            off = (each.in_short for each in self.errors)
            measured = (
                f"of programs measured on an {self.errors[0].gpu} that no constant was fitted to, "
                f"times were off by (on average, nine of ten at most): {'; '.join(off)}"
            )
        if self.constants_of != self.gpu:
            of = f"constants of the {self.constants_of}"
            return f"predictions on {self.gpu} are not validated: {of}; {measured}"
        without = "" if self.contention else " not validated without contention;"
        return f"predictions:{without} {measured}"


def trust_in(gpu: Gpu, *, contention: bool) -> Trust:
    """Return how far predictions for a GPU can be trusted."""
    calibrated = calibrated_gpu(gpu)
    return Trust(gpu.name, calibrated.name, contention, calibrated.errors)
