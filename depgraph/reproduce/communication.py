"""ConCCL and FlashOverlap: a matrix product beside a collective."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depgraph.reproduce.figures import Published
from depgraph.reproduce.programs import makespan, scenario_of
from depgraph.system.ratios import ratio

if TYPE_CHECKING:
    from depgraph.reproduce.figures import Inputs, Reproduction

_LADDER = ("c3", "c3-first", "c3-reserved", "c3-both", "c3-dma", "c3-dma(8)")


def c3(inputs: Inputs) -> Reproduction:
    """Return which share of the ideal gain each rung of ConCCL's ladder reaches."""
    published = Published(inputs, "c3")
    scenario = scenario_of(inputs.workload("conccl"), "MI300X")
    serial = makespan(scenario, "serial")
    gains = {policy: serial / makespan(scenario, policy) for policy in _LADDER}
    # Of two that take as long as each other the ideal is twice as fast.
    figures = [published.figure(policy, 100 * (gain - 1)) for policy, gain in gains.items()]
    return published.found([*figures, published.figure("best", max(gains.values()))])


def flashoverlap(inputs: Inputs) -> Reproduction:
    """Return what FlashOverlap's public predictor was asked for."""
    published = Published(inputs, "flashoverlap")
    scenario = scenario_of(inputs.workload("flashoverlap"), "A100")
    serial, groups = (makespan(scenario, policy) for policy in ("serial", "c3-groups(2)"))
    return published.found(
        [published.figure("predictor", groups), published.figure("best", ratio(serial, groups))]
    )
