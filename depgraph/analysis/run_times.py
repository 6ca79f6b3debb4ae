"""How long a program takes now, as a CUDA graph, with a change and at least; schedules of both."""

import math
from typing import NamedTuple

from depgraph.analysis.findings import Findings
from depgraph.mechanisms.base import Mechanism, serial
from depgraph.mechanisms.cuda_graph import CudaGraph
from depgraph.mechanisms.predicted_time import (
    Predicted,
    PredictedTime,
    graph_chain,
    in_microseconds,
    predicted_schedule,
)
from depgraph.scenario.contention import contended_bound
from depgraph.scenario.scenario import Scenario
from depgraph.schedule.policy import Schedule
from depgraph.system.text import convert_time, counted, ratio, show_bytes

_ANYTHING = 1.02  # a smaller speedup is none
_IN_PARALLEL = "with independent branches side by side"
_CHAIN = "one kernel after another"


class Times(NamedTuple):
    """Times of a program on one GPU size, in microseconds."""

    now_us: float | None  # wall time of the run that was profiled
    now_sms: int | None  # the SMs that it had, if these are others
    # One kernel after another as the nodes of a CUDA graph; of several streams, those in it.
    as_graph: PredictedTime
    change: str  # such as "with 2 reused buffers (4.0 KiB) separated"; empty for none
    changed: PredictedTime | None  # with that change, as a CUDA graph
    # What any schedule needs for the same blocks, with the change if there is one: the lower of
    # the bounds for fixed durations and for predictions, in which a block alone on its SM is
    # faster and what a kernel takes to start may be saved.
    least_us: float
    graph: str  # what the GPU's vendor calls a CUDA graph

    @property
    def best(self) -> PredictedTime:
        """The shortest of what is predicted."""
        return self.as_graph if self.changed is None else self.changed

    @property
    def speedup(self) -> float | None:
        """What that brings over now; None where now is not known, or on other SMs."""
        if self.now_us is None or self.now_sms is not None:
            return None
        return ratio(self.now_us, self.best.us)


class Proposal(NamedTuple):
    """What would make a program faster, in the unit of its durations."""

    as_graph: Predicted  # the program as a CUDA graph
    graph: Mechanism  # that graph
    change: str  # as in `Times`
    changed: Predicted  # with that change
    scenario: Scenario  # with the buffers separated which the change is about
    least: float  # what any schedule needs


def proposal_of(found: Findings, *, separate_buffers: bool) -> Proposal:
    """Return what is proposed for a program without child kernels on a number of SMs."""
    # Captured as it is launched, a program keeps what its streams let overlap, and nothing else.
    graph, launched = found.launched_graph
    parallel = found.graph_prediction
    as_graph = max(launched, parallel.time, key=lambda each: each.time)
    proposal = Proposal(as_graph, graph, "", as_graph, found.scenario, found.bound.lower_bound)
    if parallel.gain > _ANYTHING and as_graph.time > _ANYTHING * parallel.makespan:
        proposal = proposal._replace(change=_IN_PARALLEL, changed=parallel.time)
    renamed, chosen, renaming = found.renamed_prediction, found.buffer_set, found.renaming
    if separate_buffers and renamed is not None and chosen is not None and renaming is not None:
        proposal = proposal._replace(least=ratio(found.bound.serial, chosen.upper_bound))
        if renamed.makespan < proposal.changed.time:
            own = [renaming.buffers[number] for number in chosen.buffers]
            size = show_bytes(sum(each.size for each in own))
            proposal = proposal._replace(
                change=f"with {counted(len(own), 'reused buffer')} ({size}) separated",
                changed=renamed.time,
                scenario=found.renamed_scenario,
            )
    return proposal


def times_of(found: Findings, *, separate_buffers: bool) -> Times | None:
    """Return the times of a program; None where durations are no times, or SMs are unlimited."""
    scenario, run = found.scenario, found.launched.run
    microsecond = convert_time(1.0, scenario.unit, "us", scenario.clock_mhz)
    if microsecond is None or math.isinf(scenario.sms) or scenario.launches is not None:
        return None
    proposal = proposal_of(found, separate_buffers=separate_buffers)
    least = proposal.least
    if scenario.has_predictions:
        least = min(least, contended_bound(proposal.scenario.contended))
    least *= microsecond
    shown = in_microseconds(proposal.as_graph, proposal.graph, scenario)
    if shown is None:
        return None
    then = None
    if proposal.change:
        then = in_microseconds(proposal.changed, CudaGraph(), proposal.scenario)
    return Times(
        now_us=None if run is None else run.wall * microsecond,
        now_sms=None if run is None or run.sms == scenario.sms else run.sms,
        as_graph=shown,
        change=proposal.change,
        changed=then,
        least_us=least,
        graph=scenario.resources.gpu.graph,
    )


class SideBySide(NamedTuple):
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
        return SideBySide(serial(scenario)._replace(name=_CHAIN))
    proposal = proposal_of(facts, separate_buffers=separate_buffers)
    launched = predicted_schedule(proposal.graph, scenario, proposal.as_graph.time)
    if streams > 1:
        time = facts.graph_prediction.chain.time
        alone = SideBySide(
            chain=predicted_schedule(graph_chain(scenario), scenario, time)._replace(name=_CHAIN),
            streams=launched._replace(name=f"in its {streams} streams"),
        )
    else:
        is_free = scenario.priced.launch.is_off
        as_graph = f"as a {scenario.resources.gpu.graph}"
        alone = SideBySide(launched._replace(name=_CHAIN if is_free else as_graph))
    if not proposal.change:
        return alone
    changed = predicted_schedule(CudaGraph(), proposal.scenario, proposal.changed.time)
    return alone._replace(changed=changed._replace(name=proposal.change))
