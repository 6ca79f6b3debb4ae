"""Schedules in which blocks of one SM slow each other, and their bound.

A duration is what a block took beside the others of its wave. With contention it is the work of the
block instead (`depgraph.scenario.work_alone`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from depgraph.schedule.policy import HOLDS, PLACES, Rules
from depgraph.schedule.simulate import run_rules

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from depgraph.graph.block_graph import BlockGraph
    from depgraph.scenario.scenario import Scenario
    from depgraph.schedule.schedule import Schedule

_HARDWARE_MARGIN = 1.1


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
    return replace(schedule, least=scenario.memory)


def _with_leads(rules: Rules, graph: BlockGraph, lead: NDArray[np.float64]) -> Rules:
    """Add to rules what kernels take until their blocks run.

    The tasks of persistent workers belong to one kernel, which the first of them pays for. A kernel
    whose blocks wait in their slots opens no earlier than those launched before it: it would take
    the slots of what it waits for.
    """
    is_kernel = graph.kernel >= 0
    if rules.workers:
        first = is_kernel & (np.cumsum(is_kernel) == 1)
        return replace(rules, enter=rules.enter + first * lead)
    joins = np.full(len(graph.join_kind), PLACES) if rules.joins is None else rules.joins
    waits = np.zeros(graph.n_operations, np.bool_)
    waits[graph.join_target_operation[joins == HOLDS]] = True
    waits[rules.gates.target[rules.gates.holds]] = True
    is_gated = np.zeros(graph.n_operations, np.bool_)
    is_gated[rules.gates.target[~rules.gates.holds]] = True
    before = np.maximum.accumulate(np.where(is_gated, 0.0, lead))
    return replace(
        rules, launch=rules.launch + np.where(waits & is_kernel & ~is_gated, before, lead)
    )
