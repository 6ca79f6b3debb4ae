"""One program on one GPU size, with all that a report shows of it: computed once, plain data."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.analysis.answer import conclusion_of
from depgraph.analysis.bound import bound, bound_one
from depgraph.analysis.compare_mechanisms import (
    compare_mechanisms,
    run_mechanism,
    run_without_launches,
)
from depgraph.analysis.findings import Findings
from depgraph.analysis.kernel_groups import NAME, group_names
from depgraph.analysis.metrics import metrics_of
from depgraph.analysis.next_steps import AS_USUAL
from depgraph.analysis.outcome import Paths, limits_of, work_done
from depgraph.analysis.side_by_side import side_by_side
from depgraph.analysis.timeline import Timeline, timeline_of
from depgraph.errors import DeadlockError, NotApplicableError
from depgraph.graph.kinds import KIND_NAMES
from depgraph.graph.queries import kernel_slacks
from depgraph.mechanisms.costs import charges_of
from depgraph.mechanisms.dataflow import Dataflow
from depgraph.mechanisms.serial import serial
from depgraph.schedule.policy import PRIORITIES
from depgraph.system.ratios import ratio, share_of
from depgraph.system.steps import NOBODY

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from depgraph.analysis.answer import Conclusion
    from depgraph.analysis.basis import Basis
    from depgraph.analysis.bound import BoundTable
    from depgraph.analysis.compare_mechanisms import Comparison
    from depgraph.analysis.kernel_loads import KernelLoad
    from depgraph.analysis.next_steps import Invocation
    from depgraph.analysis.outcome import Bound
    from depgraph.analysis.renaming import Renaming
    from depgraph.analysis.side_by_side import SideBySide
    from depgraph.analysis.verdict import Verdict
    from depgraph.graph.block_graph import BlockGraph
    from depgraph.graph.queries import KernelSlack, PathStep
    from depgraph.mechanisms import Mechanism
    from depgraph.mechanisms.costs import ChangedCosts
    from depgraph.scenario.scenario import Scenario
    from depgraph.schedule.schedule import Schedule
    from depgraph.system.steps import Steps
    from depgraph.timing.matched_profile import AluUse

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


@dataclass(frozen=True, slots=True)
class FunctionLoad:
    """All launches of one function, operator, module, line or range."""

    name: str
    kernels: int
    time: float  # of the kernels alone, summed
    utilization: float  # share of the SMs that their blocks hold in that time, 0 to 1
    on_path: float  # time of the critical path


@dataclass(frozen=True, eq=False)
class Study(Timeline):
    """What the reports are made from: plain values, nothing of which is worked out again.

    Attributes
    ----------
    table : BoundTable
        At that size alone.
    conclusion : Conclusion
        The verdict, and what it rests on.
    comparison : Comparison or None
        What mechanisms reach, with what launches cost.
    side_by_side : SideBySide
        Schedules of the program as it is launched and, if anything is proposed, with that.
    curves : tuple of Curve
    bend : float
        SMs at which the critical path takes over from the work as the limit.
    costs : tuple of KindCost
    renaming : Renaming or None
        What renaming buffers would bring; None where addresses are not known.
    loads, slacks : tuple of KernelLoad, tuple of KernelSlack
        How each kernel, alone, fills the SMs, and how much slack it has.
    functions : tuple of FunctionLoad
        The kernels by function, or by what else they are grouped by, longest first.
    group_by : str
        What kernels are added up by, one of `GROUPINGS`.
    utilizations : mapping of str to float
        Share of the SMs that blocks at work hold on average, 0 to 1, by the name of the schedule.
    metrics : mapping of str to float
        The numbers that a CI can set thresholds on.
    alu : AluUse or None
        How busy the arithmetic was while kernels ran, where the profile says so.
    metadata : mapping
        The store's provenance.
    """

    table: BoundTable
    conclusion: Conclusion
    comparison: Comparison | None
    side_by_side: SideBySide
    curves: tuple[Curve, ...]
    bend: float
    costs: tuple[KindCost, ...]
    renaming: Renaming | None
    loads: tuple[KernelLoad, ...]
    slacks: tuple[KernelSlack, ...]
    functions: tuple[FunctionLoad, ...]
    group_by: str
    utilizations: Mapping[str, float]
    metrics: Mapping[str, float]
    alu: AluUse | None
    metadata: Mapping[str, Any]

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
    group_by: str = NAME,
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
    groups = group_names(scenario, group_by)
    costs = costs or {}
    table = bound(scenario, scenario.sms, steps=steps)
    alone = scenario.without_launches()
    own = serial(alone), _best_dataflow(alone, table.bounds[0])
    schedules = _schedules(scenario, drawn, costs, steps)
    names = {s.name for s in schedules}
    others = (s for s in schedules if s.name not in {o.name for o in own})
    timeline = timeline_of(scenario, *own, *others)
    compared = [*drawn, *mechanisms]
    found = Findings(scenario, invocation, table.bounds)
    conclusion = conclusion_of(found)
    separate_buffers = conclusion.verdict.names_buffers
    return Study(
        **vars(timeline),
        table=table,
        curves=(*_curves(alone), *_swept(scenario, drawn, names, costs, steps)),
        bend=ratio(scenario.on(1).work, table.bounds[0].critical_path),
        costs=_kind_costs(alone, coarse),
        comparison=(
            _compared(scenario, [scenario.sms], compared, costs, steps) if compared else None
        ),
        conclusion=conclusion,
        side_by_side=side_by_side(found, separate_buffers=separate_buffers),
        renaming=found.renaming,
        loads=tuple(found.loads),
        slacks=tuple(kernel_slacks(scenario.bound_graph, scenario.least_durations)),
        functions=_functions(found.loads, groups, timeline.path),
        group_by=group_by,
        utilizations={
            s.name: share_of(work_done(scenario, s), s.makespan) for s in timeline.schedules
        },
        metrics=metrics_of(table.bounds[0], scenario, table.bounds[-1]),
        alu=scenario.alu,
        metadata=scenario.metadata,
    )


def _functions(
    loads: Sequence[KernelLoad], names: Mapping[int, str], path: Sequence[PathStep]
) -> tuple[FunctionLoad, ...]:
    """Add kernels up by their group."""
    time_on_path = {step.kernel: step.duration for step in path}
    groups: dict[str, list[KernelLoad]] = {}
    for load in loads:
        groups.setdefault(names[load.kernel], []).append(load)
    found = []
    for name, own in groups.items():
        time = sum(load.time for load in own)
        busy = sum(load.time * load.utilization for load in own)
        on_path = sum(time_on_path.get(load.kernel, 0.0) for load in own)
        found.append(FunctionLoad(name, len(own), time, share_of(busy, time), on_path))
    return tuple(sorted(found, key=lambda f: (-f.time, f.name)))


def _compared(
    scenario: Scenario,
    sizes: Sequence[float],
    mechanisms: Sequence[Mechanism],
    costs: ChangedCosts,
    steps: Steps,
) -> Comparison:
    changed = {m.name: costs[m.name] for m in mechanisms if m.name in costs}
    return compare_mechanisms(scenario, sizes, mechanisms, costs=changed, steps=steps)


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
    outcomes = _compared(scenario, sizes, drawn, costs, steps).outcomes
    for mechanism in drawn:
        points = [o for o in outcomes if o.mechanism == mechanism.label]
        if mechanism.label in names:
            yield Curve(
                mechanism.label,
                tuple(int(o.sms) for o in points),
                tuple(o.overlap_speedup for o in points),
                is_bound=False,
            )


def _best_dataflow(scenario: Scenario, found: Bound) -> Schedule:
    """Return the shortest of the dataflow schedules."""
    best = min(found.schedules[1:], key=lambda row: row.makespan).mechanism
    for mechanism in map(Dataflow, PRIORITIES):
        if mechanism.label == best:
            break
    return run_mechanism(mechanism, scenario, charges_of(mechanism, {}, scenario))[0]


def sweep_sizes(sms: int) -> list[int]:
    """Return SM counts for a curve: evenly spaced on a logarithmic scale, `sms` among them."""
    largest = max(4 * sms, 16)
    sizes = {round(size) for size in np.geomspace(1, largest, _SWEEP_POINTS).tolist()}
    return sorted(sizes | {sms})


def _curves(scenario: Scenario) -> tuple[Curve, ...]:
    sizes = sweep_sizes(int(scenario.sms))
    curves = []
    chosen = {"": scenario}
    kinds = scenario.graph.kinds
    if kinds != {"RAW"} and "RAW" in kinds:
        chosen[", RAW only"] = scenario.with_kinds({"RAW"})
    for name, kept in chosen.items():
        paths = Paths.of(kept)
        bounds = [
            bound_one(kept.on(size), priorities=_SWEEP_PRIORITIES, paths=paths) for size in sizes
        ]
        sms_of_curve = tuple(sizes)
        if kept is scenario and paths.intra_block is not None:
            intra_block = tuple(b.intra_block_upper_bound or 1.0 for b in bounds)
            curves.append(
                Curve(f"intra-block bound{name}", sms_of_curve, intra_block, is_bound=True)
            )
        curves += [
            Curve(
                f"upper bound{name}",
                sms_of_curve,
                tuple(b.upper_bound for b in bounds),
                is_bound=True,
            ),
            Curve(
                f"best dataflow{name}",
                sms_of_curve,
                tuple(max(row.speedup for row in b.schedules[1:]) for b in bounds),
                is_bound=False,
            ),
        ]
    return tuple(curves)


def _kind_costs(scenario: Scenario, coarse: BlockGraph | None) -> tuple[KindCost, ...]:
    def bounds_of(kept: BlockGraph) -> tuple[float, float]:
        found = limits_of(scenario.with_graph(kept))
        return found.upper_bound, found.critical_path

    graph = scenario.graph
    costs = []
    together = tuple(kind for kind in KIND_NAMES if kind in graph.kinds)
    known = (kinds for kinds in _KIND_CHOICES if set(kinds) <= graph.kinds)
    for kinds in dict.fromkeys([*known, together]) if "RAW" in graph.kinds else ():
        kept = graph.with_kinds(kinds)
        pairs = kept.pairs()
        count = sum(getattr(p, kind.lower()) for p in pairs for kind in kinds)
        costs.append(KindCost(" + ".join(kinds), count, *bounds_of(kept)))
    if coarse is not None and costs:
        added = coarse.count_edges_not_in(graph)
        costs.append(KindCost("with false sharing", costs[-1].edges + added, *bounds_of(coarse)))
    return tuple(costs)
