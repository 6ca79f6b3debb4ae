"""How long the program takes now, would take as a CUDA graph and with a change, and at least."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from depgraph.system.ratios import ratio
from depgraph.system.text import counted, show_bytes
from depgraph.system.time_units import convert_time

if TYPE_CHECKING:
    from depgraph.analysis.findings import Findings
    from depgraph.scenario.trust import Trust

_ANYTHING = 1.02  # a smaller speedup is none
_IN_PARALLEL = "with independent branches side by side"


@dataclass(frozen=True, slots=True)
class PredictedTime:
    """A predicted time in microseconds, and the range that nine of ten measured ones lie in.

    Attributes
    ----------
    low_us, high_us : float or None
        None where nobody measured how far such predictions are off.
    """

    us: float
    low_us: float | None
    high_us: float | None


@dataclass(frozen=True, slots=True)
class Times:
    """Times of a program on one GPU size, in microseconds.

    Attributes
    ----------
    now_us, now_sms : float or None, int or None
        Wall time of the run that was profiled; the SMs that it had, if these are others.
    as_graph : PredictedTime
        One kernel after another as the nodes of a CUDA graph; of several streams, those in it.
    change : str
        What would make it faster, such as "with 2 reused buffers (4.0 KiB) separated"; empty for
        nothing.
    changed : PredictedTime or None
        The time with that change, as a CUDA graph.
    least_us : float
        What any schedule needs for the same blocks, with the change if there is one.
    """

    now_us: float | None
    now_sms: int | None
    as_graph: PredictedTime
    change: str
    changed: PredictedTime | None
    least_us: float

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


@dataclass(frozen=True, slots=True)
class Proposal:
    """What would make a program faster, in the unit of its durations.

    Attributes
    ----------
    as_graph : float
        The program as a CUDA graph.
    change : str
        As in `Times`.
    changed, least : float
        With that change, and what any schedule needs.
    what_ifs : tuple of str
        That separate the buffers which the change is about.
    """

    as_graph: float
    change: str
    changed: float
    least: float
    what_ifs: tuple[str, ...] = ()


def proposal_of(found: Findings, *, separate_buffers: bool) -> Proposal:
    """Return what is proposed for a program without child kernels on a number of SMs.

    Parameters
    ----------
    found : Findings
    separate_buffers : bool
        Whether the verdict proposes to keep buffers apart.
    """
    # Captured as it is launched, a program keeps what its streams let overlap, and nothing else.
    parallel = found.graph_prediction.makespan
    as_graph = max(found.graph_chain / found.launched.speedup, parallel)
    least = found.bound.lower_bound
    proposal = Proposal(as_graph, "", as_graph, least)
    if found.graph_prediction.speedup > _ANYTHING and as_graph > _ANYTHING * parallel:
        proposal = Proposal(as_graph, _IN_PARALLEL, parallel, least)
    renamed, chosen, renaming = found.renamed_prediction, found.buffer_set, found.renaming
    if separate_buffers and renamed is not None and chosen is not None and renaming is not None:
        proposal = replace(proposal, least=ratio(found.bound.serial, chosen.upper_bound))
        if renamed.makespan < proposal.changed:
            own = [renaming.buffers[number] for number in chosen.buffers]
            size = show_bytes(sum(each.size for each in own))
            change = f"with {counted(len(own), 'reused buffer')} ({size}) separated"
            what_ifs = tuple(chosen.what_ifs)
            proposal = replace(proposal, change=change, changed=renamed.makespan, what_ifs=what_ifs)
    return proposal


def times_of(found: Findings, *, separate_buffers: bool) -> Times | None:
    """Return the times of a program; None where durations are no times, or SMs are unlimited.

    Parameters
    ----------
    found, separate_buffers
        As `proposal_of` takes them.
    """
    scenario, run = found.scenario, found.launched.run
    microsecond = convert_time(1.0, scenario.unit, "us", scenario.clock_mhz)
    if microsecond is None or math.isinf(scenario.sms) or scenario.launches is not None:
        return None
    trust = scenario.trust
    proposal = proposal_of(found, separate_buffers=separate_buffers)
    least = proposal.least * microsecond
    return Times(
        now_us=None if run is None else run.wall * microsecond,
        now_sms=None if run is None or run.sms == scenario.sms else run.sms,
        as_graph=_with_range(proposal.as_graph * microsecond, trust, least),
        change=proposal.change,
        changed=(
            _with_range(proposal.changed * microsecond, trust, least) if proposal.change else None
        ),
        least_us=least,
    )


def _with_range(time: float, trust: Trust | None, least: float) -> PredictedTime:
    """Add the range to a predicted time: no schedule takes less than the least."""
    errors = None if trust is None else trust.errors
    if trust is None or errors is None or not trust.contention:
        return PredictedTime(time, None, None)
    off = errors.nine_of_ten  # relative to what was measured
    low = max(time / (1 + off), min(least, time))
    return PredictedTime(time, low, time / (1 - off))
