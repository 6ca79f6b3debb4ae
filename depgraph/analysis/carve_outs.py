"""Kernels that cannot share SMs, as they need different shares of the L1 cache."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from depgraph.mechanisms.costs import charges_of
from depgraph.mechanisms.cuda_graph import CudaGraph
from depgraph.scenario.contention import run_contended

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from depgraph.scenario.scenario import Scenario

_ANY = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class CarveOutConflict:
    """A kernel that cannot join another one on an SM, where both would run at a time."""

    # first, second: kernel numbers: the second cannot join the first
    first: int
    second: int
    set_to: int  # bytes of shared memory that an SM is set to for the first
    needed: int  # bytes that it must be set to for the second


def without_carve_outs(scenario: Scenario) -> Scenario:
    """Return the scenario with all kernels preferring the same carve-out: any may share an SM."""
    return replace(scenario, contention="sm")


def carve_out_conflicts(scenario: Scenario) -> list[CarveOutConflict]:
    """Find kernels that would run at a time as a CUDA graph, but cannot share SMs."""
    sharing = scenario.sharing
    if sharing is None or sharing.carve_outs is None or math.isinf(scenario.sms):
        return []
    if not sharing.carve_outs.keep_apart(scenario.is_kernel):
        return []
    least = np.where(scenario.is_kernel, sharing.carve_outs.least, 0)
    chosen = np.where(scenario.is_kernel, sharing.carve_outs.chosen, _ANY)
    start, end = _times(without_carve_outs(scenario).contended)
    number = scenario.graph.kernel
    found = []
    for second in np.flatnonzero(least > chosen.min()).tolist():
        together = (start < end[second]) & (end > start[second]) & (chosen < least[second])
        found += [
            CarveOutConflict(
                int(number[first]), int(number[second]), int(chosen[first]), int(least[second])
            )
            for first in np.flatnonzero(together).tolist()
        ]  # fmt: skip
    return sorted(found, key=lambda each: (each.first, each.second))


def _times(contended: Scenario) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return when kernels of a CUDA graph start and end: float64[n_operations] each."""
    policy, graph = CudaGraph(), contended.graph
    rules = policy.rules(contended, charges_of(policy, {}, contended))
    schedule = run_contended(policy.name, rules, contended)
    start, end = (np.zeros(graph.n_operations) for _ in range(2))
    full = np.flatnonzero(np.diff(graph.first_block))
    if len(full):
        first = graph.first_block[:-1][full]
        start[full] = np.minimum.reduceat(schedule.start, first)
        end[full] = np.maximum.reduceat(schedule.end, first)
    return start, end
