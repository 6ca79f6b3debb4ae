"""What launches from the device cost a schedule, and how long child kernels wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from depgraph.mechanisms import Rules
    from depgraph.scenario.scenario import Scenario
    from depgraph.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class LaunchFigures:
    """The child kernels of one schedule."""

    # made, possible: launches from the device
    made: int
    possible: int
    over_cdp: float  # speedup over launching all of them; 0 where that deadlocks
    overhead: float  # time that warps stall in launches, summed
    queueing: float  # time that child blocks wait for their slots once they are launched, summed
    child_share: float  # part of the blocks' work that child kernels do, 0 to 1


def launch_figures(
    schedule: Schedule, rules: Rules, scenario: Scenario, cdp: float
) -> LaunchFigures | None:
    """Return what became of launches, None without any; `cdp` is the makespan with all of them."""
    found, launching = schedule.children, rules.launching
    if found is None or launching is None:
        return None
    launches = launching.launches
    instruction = np.cumsum(launches.begins_instruction) - 1
    lanes = np.bincount(instruction, weights=np.where(found.launched, launches.lanes, 0))
    overhead = launching.stall * (lanes > 0) + launching.lane_stall * lanes
    waited = found.start - found.issued[found.launch]
    of_children = float(launches.child_work[found.launched].sum())
    own = launches.without_work_of(found.launched).inlined(scenario.own_durations).sum()
    return LaunchFigures(
        made=int(found.launched.sum()),
        possible=len(launches),
        over_cdp=cdp / schedule.makespan if np.isfinite(cdp) and schedule.makespan else 0.0,
        overhead=float(overhead.sum()),
        queueing=float(waited.sum()),
        child_share=of_children / (of_children + float(own)) if of_children else 0.0,
    )
