"""The schedule of a program as it is launched beside the one with the change proposed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from depgraph.analysis.run_times import proposal_of
from depgraph.mechanisms.cuda_graph import CudaGraph
from depgraph.mechanisms.predicted_time import graph_chain, predicted_schedule
from depgraph.mechanisms.serial import serial
from depgraph.system.ratios import ratio

if TYPE_CHECKING:
    from depgraph.analysis.findings import Findings
    from depgraph.schedule.schedule import Schedule

_CHAIN = "one kernel after another"


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Schedules of the predicted times: with contention, and what a CUDA graph costs.

    Their names say what they are.

    Attributes
    ----------
    chain : Schedule
        One kernel after another.
    streams, changed : Schedule or None
        In the program's own streams, if it has several; with what is proposed, if anything is.
    """

    chain: Schedule
    streams: Schedule | None = None
    changed: Schedule | None = None

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """All that there are."""
        return tuple(s for s in (self.chain, self.streams, self.changed) if s is not None)

    @property
    def gain(self) -> float | None:
        """Speedup by the change, over the program as it is launched; None where there is none."""
        if self.changed is None:
            return None
        return ratio((self.streams or self.chain).makespan, self.changed.makespan)


def side_by_side(found: Findings, *, separate_buffers: bool) -> SideBySide:
    """Schedule a program as it is and with the change proposed; without one if it has children.

    Parameters
    ----------
    found, separate_buffers
        As `proposal_of` takes them.
    """
    scenario, streams = found.scenario, found.launched.streams
    if scenario.launches is not None:
        return SideBySide(replace(serial(scenario), name=_CHAIN))
    proposal = proposal_of(found, separate_buffers=separate_buffers)
    launched = predicted_schedule(proposal.graph, scenario, proposal.as_graph.time)
    if streams > 1:
        time = found.graph_prediction.chain.time
        alone = SideBySide(
            chain=replace(predicted_schedule(graph_chain(scenario), scenario, time), name=_CHAIN),
            streams=replace(launched, name=f"in its {streams} streams"),
        )
    else:
        is_free = scenario.priced.launch.is_off
        alone = SideBySide(replace(launched, name=_CHAIN if is_free else "as a CUDA graph"))
    if not proposal.change:
        return alone
    changed = predicted_schedule(CudaGraph(), proposal.scenario, proposal.changed.time)
    return replace(alone, changed=replace(changed, name=proposal.change))
