"""Schedules of a program on one GPU size, with all that a picture of them needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from depgraph.graph.queries import critical_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from depgraph.graph.block_graph import BlockGraph
    from depgraph.graph.launches import DeviceLaunches
    from depgraph.graph.pairs import PairSummary
    from depgraph.graph.program import Kernel
    from depgraph.graph.queries import PathStep
    from depgraph.scenario.scenario import Scenario
    from depgraph.schedule.schedule import Schedule
    from depgraph.timing.launch_sites import Site


@dataclass(frozen=True, eq=False)
class Timeline:
    """Schedules of a program on one GPU size."""

    sms: int  # number of SMs
    # unit, source: of all times; where they come from
    unit: str
    source: str
    graph: BlockGraph  # the dependences that count
    kernels: Sequence[Kernel]  # in launch order
    sites: Mapping[int, Site]  # where in the code kernels were launched, by kernel number
    # durations, shares: how long blocks take, and what they take of an SM, those of children after
    # the program's
    durations: NDArray[np.float64]
    shares: NDArray[np.float64]
    path: Sequence[PathStep]  # the critical path
    schedules: tuple[Schedule, ...]

    @property
    def pairs(self) -> Sequence[PairSummary]:
        """What depends on what, a pair of kernels each."""
        return self.graph.pairs()

    @property
    def launches(self) -> DeviceLaunches | None:
        """Child kernels that blocks can launch; None where there are none."""
        return self.graph.launches


def timeline_of(scenario: Scenario, *schedules: Schedule) -> Timeline:
    """Put schedules of a scenario beside what a picture of them needs."""
    shares, launches = scenario.shares, scenario.launches
    if launches is not None:
        shares = np.concatenate([shares, shares[launches.block[launches.child_blocks[0]]]])
    return Timeline(
        sms=int(scenario.sms),
        unit=scenario.unit,
        source=scenario.timing.source,
        graph=scenario.graph,
        kernels=scenario.kernels,
        sites=scenario.sites,
        durations=scenario.durations,
        shares=shares,
        path=critical_path(scenario.bound_graph, scenario.least_durations),
        schedules=schedules,
    )
