"""The schedule of a program as it is launched beside the one with the change proposed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from depgraph.analysis.run_times import proposal_of
from depgraph.mechanisms.baselines import serial
from depgraph.mechanisms.cuda_graph import CudaGraph
from depgraph.mechanisms.predicted_time import graph_chain, predicted_schedule
from depgraph.system.time_units import ratio

if TYPE_CHECKING:
    from depgraph.analysis.findings import Findings
    from depgraph.schedule.schedule import Schedule

_CHAIN = "one kernel after another"


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Schedules of the predicted times, named for what they are."""

    chain: Schedule  # one kernel after another
    streams: Schedule | None = None  # in the program's own streams, if it has several
    changed: Schedule | None = None  # with what is proposed, if anything is

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


def side_by_side(facts: Findings, *, separate_buffers: bool) -> SideBySide:
    """Schedule a program as it is and with the change proposed; without one if it has children."""
    scenario, streams = facts.scenario, facts.launched.streams
    if scenario.launches is not None:
        return SideBySide(replace(serial(scenario), name=_CHAIN))
    proposal = proposal_of(facts, separate_buffers=separate_buffers)
    launched = predicted_schedule(proposal.graph, scenario, proposal.as_graph.time)
    if streams > 1:
        time = facts.graph_prediction.chain.time
        alone = SideBySide(
            chain=replace(predicted_schedule(graph_chain(scenario), scenario, time), name=_CHAIN),
            streams=replace(launched, name=f"in its {streams} streams"),
        )
    else:
        is_free = scenario.priced.launch.is_off
        as_graph = f"as a {scenario.resources.gpu.graph}"
        alone = SideBySide(replace(launched, name=_CHAIN if is_free else as_graph))
    if not proposal.change:
        return alone
    changed = predicted_schedule(CudaGraph(), proposal.scenario, proposal.changed.time)
    return replace(alone, changed=replace(changed, name=proposal.change))
