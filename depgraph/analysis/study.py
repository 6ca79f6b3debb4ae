"""One program on one GPU size, with all that a report shows of it: computed once, plain data."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depgraph.analysis import kernel_groups
from depgraph.analysis.answer import Conclusion, Verdict, conclusion_of
from depgraph.analysis.bound import (
    Basis,
    Bound,
    BoundTable,
    Paths,
    bound,
    bound_one,
    limits_of,
    work_done,
)
from depgraph.analysis.compare_mechanisms import Comparison, compare_mechanisms
from depgraph.analysis.findings import Findings
from depgraph.analysis.metrics import metrics_of
from depgraph.analysis.next_steps import AS_USUAL, Invocation
from depgraph.analysis.renaming import Renaming
from depgraph.analysis.run_times import SideBySide, side_by_side
from depgraph.errors import DeadlockError, NotApplicableError
from depgraph.graph.block_graph import BlockGraph
from depgraph.graph.dependences import KIND_NAMES, PairSummary
from depgraph.graph.program import DeviceLaunches, Kernel
from depgraph.graph.queries import KernelSlack, PathStep, critical_path, kernel_slacks
from depgraph.mechanisms import Mechanism
from depgraph.mechanisms.base import (
    ChangedCosts,
    Dataflow,
    run_mechanism,
    run_without_launches,
    serial,
)
from depgraph.scenario.scenario import Scenario
from depgraph.schedule.policy import PRIORITIES, Schedule
from depgraph.system.text import ratio, share_of
from depgraph.system.workers import NOBODY, Steps
from depgraph.timing.matched_profile import AluUse
from depgraph.timing.profile import Site


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


_SWEEP_POINTS = 14
# Of the priorities, newest-first hardly ever wins: it is left out where many sizes are tried.
_SWEEP_PRIORITIES = ("oldest-first", "longest-path-first")
_KIND_CHOICES = (("RAW",), ("RAW", "WAR"), ("RAW", "WAW"), ("RAW", "REUSE"))


@dataclass(frozen=True, slots=True)
class Curve:
    """Speedup against the number of SMs."""

    name: str
    sms: tuple[int, ...]
    speedup: tuple[float, ...]
    is_bound: bool  # whether nothing can be above it, rather than something reaches it


@dataclass(frozen=True, slots=True)
class KindCost:
    """What the upper bound on the speedup becomes when only some dependences count."""

    name: str  # such as "RAW + WAR"
    edges: int  # distinct edges and kinds that these add to RAW only, or all of RAW
    upper_bound: float  # on the speedup over serialized launches
    critical_path: float


@dataclass(frozen=True, eq=False)
class Study(Timeline):
    """What the reports are made from: plain values, nothing of which is worked out again."""

    table: BoundTable  # at that size alone
    conclusion: Conclusion
    comparison: Comparison | None  # with what launches cost
    side_by_side: SideBySide
    curves: tuple[Curve, ...]
    bend: float  # SMs at which the critical path takes over from the work as the limit
    costs: tuple[KindCost, ...]
    renaming: Renaming | None  # None where addresses are not known
    loads: tuple[kernel_groups.KernelLoad, ...]
    slacks: tuple[KernelSlack, ...]
    functions: tuple[kernel_groups.FunctionLoad, ...]  # longest first
    group_by: str  # what kernels are added up by there, one of `GROUPINGS`
    # Share of the SMs that blocks at work hold on average, 0 to 1, by the name of the schedule.
    utilizations: Mapping[str, float]
    metrics: Mapping[str, float]  # that a CI can set thresholds on
    alu: AluUse | None  # how busy the arithmetic was, where the profile says so
    metadata: Mapping[str, Any]  # the store's provenance

    @property
    def title(self) -> str:
        """What was traced: the name of the first source."""
        sources = self.metadata.get("sources", [])
        return Path(sources[0]["path"]).name if sources else "program"

    @property
    def basis(self) -> Basis:
        """What all numbers rest on."""
        return self.table.basis

    @property
    def bound(self) -> Bound:
        """The bound with all dependences that the graph has."""
        return self.table.bounds[0]

    @property
    def renamed(self) -> Bound:
        """The bound with RAW dependences only, as if no buffer were used twice."""
        return self.table.bounds[-1]

    @property
    def verdict(self) -> Verdict:
        """What keeps the program slow."""
        return self.conclusion.verdict

    def utilization(self, schedule: Schedule) -> float:
        """Return the share of the SMs that blocks at work hold on average, 0 to 1."""
        return self.utilizations[schedule.name]

    @property
    def time_on_path(self) -> dict[int, float]:
        """Time that each kernel with a block on the critical path takes of it."""
        return {step.kernel: step.duration for step in self.path}


def study(
    scenario: Scenario,
    *,
    mechanisms: Sequence[Mechanism] = (),
    drawn: Sequence[Mechanism] = (),
    costs: ChangedCosts | None = None,
    coarse: BlockGraph | None = None,
    invocation: Invocation = AS_USUAL,
    group_by: str = kernel_groups.NAME,
    steps: Steps = NOBODY,
) -> Study:
    """Compute what the reports show.

    Parameters
    ----------
    scenario : Scenario
        On the number of SMs to study.
    mechanisms : sequence of Mechanism
        Those that get a row.
    drawn : sequence of Mechanism
        Those that get a row, a schedule and a curve; one that the program lacks something for gets
        none of the last two.
    costs : mapping, optional
        Mechanism to the costs that are not the defaults.
    coarse : BlockGraph, optional
        The same blocks tracked by sectors or lines, to show what false sharing costs.
    invocation : Invocation
        How the user asked, for the commands among the next steps.
    group_by : str
        What kernels are added up by, one of `GROUPINGS`.
    steps : Steps
        Is told how far it is.

    Raises
    ------
    ModelError
        If no profile tells what kernels are to be added up by.
    """
    groups = kernel_groups.group_names(scenario, group_by)
    costs = costs or {}
    table = bound(scenario, scenario.sms, steps=steps)
    alone = scenario.without_launches()
    best = min(table.bounds[0].schedules[1:], key=lambda row: row.makespan).mechanism
    dataflow = next(each for each in map(Dataflow, PRIORITIES) if each.label == best)
    own = serial(alone), run_mechanism(dataflow, alone)[0]
    schedules = _schedules(scenario, drawn, costs, steps)
    names = {s.name for s in schedules}
    others = (s for s in schedules if s.name not in {o.name for o in own})
    timeline = timeline_of(scenario, *own, *others)
    compared = [*drawn, *mechanisms]
    facts = Findings(scenario, invocation, table.bounds)
    conclusion = conclusion_of(facts)
    separate_buffers = conclusion.verdict.names_buffers
    return Study(
        **vars(timeline),
        table=table,
        curves=(*_curves(alone), *_swept(scenario, drawn, names, costs, steps)),
        bend=ratio(scenario.on(1).work, table.bounds[0].critical_path),
        costs=_kind_costs(alone, coarse),
        comparison=compare_mechanisms(
            scenario, [scenario.sms], compared, costs=_costs_of(compared, costs), steps=steps
        )
        if compared
        else None,
        conclusion=conclusion,
        side_by_side=side_by_side(facts, separate_buffers=separate_buffers),
        renaming=facts.renaming,
        loads=tuple(facts.loads),
        slacks=tuple(kernel_slacks(scenario.bound_graph, scenario.least_durations)),
        functions=kernel_groups.loads_by_group(facts.loads, groups, timeline.path),
        group_by=group_by,
        utilizations={
            s.name: share_of(work_done(scenario, s), s.makespan) for s in timeline.schedules
        },
        metrics=metrics_of(table.bounds[0], scenario, table.bounds[-1]),
        alu=scenario.alu,
        metadata=scenario.metadata,
    )


def _costs_of(mechanisms: Sequence[Mechanism], costs: ChangedCosts) -> ChangedCosts:
    return {m.name: costs[m.name] for m in mechanisms if m.name in costs}


def _schedules(
    scenario: Scenario, drawn: Sequence[Mechanism], costs: ChangedCosts, steps: Steps
) -> list[Schedule]:
    """Return the schedules of mechanisms, without launch costs, of those that have one."""
    schedules = []
    steps.begin("schedules", len(drawn))
    for mechanism in drawn:
        steps.done()
        with suppress(NotApplicableError, DeadlockError):
            schedules.append(run_without_launches(mechanism, costs, scenario)[0])
    return schedules


def _swept(
    scenario: Scenario,
    drawn: Sequence[Mechanism],
    names: Collection[str],
    costs: ChangedCosts,
    steps: Steps,
) -> Iterator[Curve]:
    """Yield a curve for each of the mechanisms with these names."""
    if not drawn:
        return
    sizes = sweep_sizes(int(scenario.sms))
    outcomes = compare_mechanisms(
        scenario, sizes, drawn, costs=_costs_of(drawn, costs), predicted=False, steps=steps
    ).outcomes
    for name in (mechanism.label for mechanism in drawn if mechanism.label in names):
        points = [o for o in outcomes if o.mechanism == name]
        sms, speedup = (int(o.sms) for o in points), (o.overlap_speedup for o in points)
        yield Curve(name, tuple(sms), tuple(speedup), is_bound=False)


def sweep_sizes(sms: int) -> list[int]:
    """Return SM counts for a curve: evenly spaced on a logarithmic scale, `sms` among them."""
    largest = max(4 * sms, 16)
    sizes = {round(size) for size in np.geomspace(1, largest, _SWEEP_POINTS).tolist()}
    return sorted(sizes | {sms})


def _curves(scenario: Scenario) -> Iterator[Curve]:
    """Yield what bounds the speedup and what dataflow reaches of it."""
    sizes = tuple(sweep_sizes(int(scenario.sms)))
    chosen = {"": scenario}
    if scenario.graph.kinds > {"RAW"}:
        chosen[", RAW only"] = scenario.with_kinds({"RAW"})
    for name, each in chosen.items():
        paths = Paths.of(each)
        bounds = [bound_one(each.on(s), priorities=_SWEEP_PRIORITIES, paths=paths) for s in sizes]
        if not name and paths.intra_block is not None:
            inside = tuple(b.intra_block_upper_bound or 1.0 for b in bounds)
            yield Curve("intra-block bound", sizes, inside, is_bound=True)
        most = tuple(b.upper_bound for b in bounds)
        yield Curve(f"upper bound{name}", sizes, most, is_bound=True)
        best = tuple(max(row.speedup for row in b.schedules[1:]) for b in bounds)
        yield Curve(f"best dataflow{name}", sizes, best, is_bound=False)


def _kind_costs(scenario: Scenario, coarse: BlockGraph | None) -> tuple[KindCost, ...]:
    def bounds_of(kept: BlockGraph) -> tuple[float, float]:
        limits = limits_of(scenario.with_graph(kept))
        return limits.upper_bound, limits.critical_path

    graph = scenario.graph
    costs = []
    together = tuple(kind for kind in KIND_NAMES if kind in graph.kinds)
    known = (kinds for kinds in _KIND_CHOICES if set(kinds) <= graph.kinds)
    for kinds in dict.fromkeys([*known, together]) if "RAW" in graph.kinds else ():
        kept = graph.with_kinds(kinds)
        count = sum(getattr(p, kind.lower()) for p in kept.pairs() for kind in kinds)
        costs.append(KindCost(" + ".join(kinds), count, *bounds_of(kept)))
    if coarse is not None and costs:
        added = coarse.count_edges_not_in(graph)
        costs.append(KindCost("with false sharing", costs[-1].edges + added, *bounds_of(coarse)))
    return tuple(costs)
