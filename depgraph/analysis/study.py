"""One program on one GPU size, with all that a report shows of it: computed once, plain data."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.analysis.bound import bound, bound_one
from depgraph.analysis.compare_mechanisms import (
    charges_of,
    compare_mechanisms,
    run_mechanism,
    run_without_launches,
)
from depgraph.analysis.findings import Findings
from depgraph.analysis.kernel_groups import NAME, group_names
from depgraph.analysis.metrics import metrics_of
from depgraph.analysis.next_steps import AS_USUAL
from depgraph.analysis.outcome import Paths, limits_of, work_done
from depgraph.analysis.verdict import verdict_of
from depgraph.errors import DeadlockError, NotApplicableError
from depgraph.graph.kinds import KIND_NAMES
from depgraph.graph.queries import critical_path, kernel_slacks
from depgraph.mechanisms.dataflow import Dataflow
from depgraph.mechanisms.serial import serial
from depgraph.schedule.priorities import PRIORITIES
from depgraph.system.ratios import ratio, share_of
from depgraph.system.steps import NOBODY

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from depgraph.analysis.bound import BoundTable
    from depgraph.analysis.compare_mechanisms import Comparison
    from depgraph.analysis.kernel_loads import KernelLoad
    from depgraph.analysis.next_steps import Asked
    from depgraph.analysis.outcome import Bound
    from depgraph.analysis.renaming import Renaming
    from depgraph.analysis.verdict import Verdict
    from depgraph.graph.block_graph import BlockGraph
    from depgraph.graph.pairs import PairSummary
    from depgraph.graph.program import Kernel
    from depgraph.graph.queries import KernelSlack, PathStep
    from depgraph.mechanisms import Mechanism
    from depgraph.mechanisms.costs import ChangedCosts
    from depgraph.scenario.scenario import Scenario
    from depgraph.schedule.schedule import Schedule
    from depgraph.system.steps import Steps

_SWEEP_POINTS = 14
# Of the priorities, newest-first hardly ever wins: it is left out where many sizes are tried.
_SWEEP_PRIORITIES = ("oldest-first", "longest-path-first")
_KIND_CHOICES = (("RAW",), ("RAW", "WAR"), ("RAW", "WAW"), ("RAW", "REUSE"))


@dataclass(frozen=True, slots=True)
class Curve:
    """Speedup against the number of SMs.

    Attributes
    ----------
    is_bound : bool
        Whether nothing can be above it, rather than something reaches it.
    """

    name: str
    sms: tuple[int, ...]
    speedup: tuple[float, ...]
    is_bound: bool


@dataclass(frozen=True, slots=True)
class KindCost:
    """What the upper bound on the speedup becomes when only some dependences count.

    Attributes
    ----------
    name : str
        Such as "RAW + WAR".
    edges : int
        Distinct edges and kinds that these add to RAW only, or all of RAW.
    upper_bound : float
        On the speedup over serialized launches.
    """

    name: str
    edges: int
    upper_bound: float
    critical_path: float


@dataclass(frozen=True, slots=True)
class FunctionLoad:
    """All launches of one function, operator, module, line or range.

    Attributes
    ----------
    time : float
        Of the kernels alone, summed.
    utilization : float
        Share of the SMs that their blocks hold in that time, 0 to 1.
    on_path : float
        Time of the critical path.
    """

    name: str
    kernels: int
    time: float
    utilization: float
    on_path: float


@dataclass(frozen=True)
class Study:
    """What the reports are made from.

    Attributes
    ----------
    scenario : Scenario
        On the number of SMs that is studied.
    table : BoundTable
        At that size alone.
    schedules : tuple of Schedule
        Serial first, without launch costs.
    bend : float
        SMs at which the critical path takes over from the work as the limit.
    comparison : Comparison or None
        What mechanisms reach, with what launches cost.
    asked : Asked
        How the user asked.
    group_by : str
        What kernels are added up by, one of `GROUPINGS`.
    """

    scenario: Scenario
    table: BoundTable
    schedules: tuple[Schedule, ...]
    curves: tuple[Curve, ...]
    bend: float
    costs: tuple[KindCost, ...]
    comparison: Comparison | None = None
    asked: Asked = AS_USUAL
    group_by: str = NAME

    @property
    def sms(self) -> int:
        """Number of SMs."""
        return int(self.scenario.sms)

    @property
    def graph(self) -> BlockGraph:
        """The dependences that count."""
        return self.scenario.graph

    @property
    def kernels(self) -> Sequence[Kernel]:
        """All kernels, in launch order."""
        return self.scenario.kernels

    @property
    def pairs(self) -> Sequence[PairSummary]:
        """What depends on what, a pair of kernels each."""
        return self.scenario.pairs

    @property
    def title(self) -> str:
        """What was traced: the name of the first source."""
        sources = self.metadata.get("sources", [])
        return Path(sources[0]["path"]).name if sources else "program"

    @property
    def unit(self) -> str:
        """Unit of all times."""
        return self.scenario.unit

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The store's provenance."""
        return self.scenario.metadata

    @property
    def bound(self) -> Bound:
        """The bound with all dependences that the graph has."""
        return self.table.bounds[0]

    @property
    def renamed(self) -> Bound:
        """The bound with RAW dependences only, as if no buffer were used twice."""
        return self.table.bounds[-1]

    @cached_property
    def findings(self) -> Findings:
        """What the verdict is made from."""
        return Findings(self.scenario, self.asked, self.table.bounds)

    @cached_property
    def verdict(self) -> Verdict:
        """What keeps the program slow."""
        return verdict_of(self.findings)

    @property
    def renaming(self) -> Renaming | None:
        """What renaming buffers would bring; None where addresses are not known."""
        return self.findings.renaming

    @cached_property
    def loads(self) -> list[KernelLoad]:
        """How each kernel, alone, fills the SMs."""
        return self.findings.loads

    @cached_property
    def slacks(self) -> list[KernelSlack]:
        """How much slack each kernel has."""
        return kernel_slacks(self.scenario.bound_graph, self.scenario.least_durations)

    @cached_property
    def path(self) -> list[PathStep]:
        """The critical path."""
        return critical_path(self.scenario.bound_graph, self.scenario.least_durations)

    @cached_property
    def time_on_path(self) -> dict[int, float]:
        """Time that each kernel with a block on the critical path takes of it."""
        return {step.kernel: step.duration for step in self.path}

    @cached_property
    def functions(self) -> list[FunctionLoad]:
        """The kernels by function, or by what else they are grouped by, longest first."""
        names = group_names(self.scenario, self.group_by)
        launches: dict[str, list[KernelLoad]] = {}
        for load in self.loads:
            launches.setdefault(names[load.kernel], []).append(load)
        found = []
        for name, loads in launches.items():
            time = sum(load.time for load in loads)
            busy = sum(load.time * load.utilization for load in loads)
            on_path = sum(self.time_on_path.get(load.kernel, 0.0) for load in loads)
            found.append(FunctionLoad(name, len(loads), time, share_of(busy, time), on_path))
        return sorted(found, key=lambda f: (-f.time, f.name))

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The numbers that a CI can set thresholds on."""
        return metrics_of(self.bound, self.scenario, self.renamed)

    def utilization(self, schedule: Schedule) -> float:
        """Return the share of the SMs that blocks at work hold on average, 0 to 1."""
        return share_of(work_done(self.scenario, schedule), schedule.makespan)

    @cached_property
    def shares(self) -> NDArray[np.float64]:
        """What blocks take of an SM, those of children after the program's: float64[n]."""
        shares, launches = self.scenario.shares, self.scenario.launches
        if launches is None:
            return shares
        return np.concatenate([shares, shares[launches.block[launches.child_blocks[0]]]])


def study(
    scenario: Scenario,
    *,
    mechanisms: Sequence[Mechanism] = (),
    drawn: Sequence[Mechanism] = (),
    costs: ChangedCosts | None = None,
    coarse: BlockGraph | None = None,
    asked: Asked = AS_USUAL,
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
    asked : Asked
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
    group_names(scenario, group_by)
    costs = costs or {}
    table = bound(scenario, scenario.sms, steps=steps)
    alone = scenario.without_launches()
    own = serial(alone), _best_dataflow(alone, table.bounds[0])
    schedules = _schedules(scenario, drawn, costs, steps)
    compared = [*drawn, *mechanisms]
    return Study(
        scenario=scenario,
        table=table,
        schedules=(*own, *(s for s in schedules if s.name not in {o.name for o in own})),
        curves=(
            *_curves(alone),
            *_swept(scenario, drawn, {s.name for s in schedules}, costs, steps),
        ),
        bend=ratio(scenario.on(1).work, table.bounds[0].critical_path),
        costs=_kind_costs(alone, coarse),
        comparison=(
            _compared(scenario, [scenario.sms], compared, costs, steps) if compared else None
        ),
        asked=asked,
        group_by=group_by,
    )


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
