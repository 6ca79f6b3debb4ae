"""One program on one GPU size, with all that a report shows of it: computed once, plain data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.analysis.bound import bound, bound_one
from depgraph.analysis.compare_mechanisms import charges_of, run_mechanism
from depgraph.analysis.findings import Findings
from depgraph.analysis.kernel_groups import NAME, group_names
from depgraph.analysis.next_steps import AS_USUAL
from depgraph.analysis.outcome import Paths, limits_of
from depgraph.analysis.verdict import verdict_of
from depgraph.graph.queries import critical_path
from depgraph.graph.slack import kernel_slacks
from depgraph.mechanisms.dataflow import Dataflow
from depgraph.mechanisms.serial import serial
from depgraph.schedule.priorities import PRIORITIES
from depgraph.system.ratios import ratio, share_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from depgraph.analysis.bound import BoundTable
    from depgraph.analysis.compare_mechanisms import Comparison
    from depgraph.analysis.kernel_loads import KernelLoad
    from depgraph.analysis.next_steps import Asked
    from depgraph.analysis.outcome import Bound
    from depgraph.analysis.renaming import Renaming
    from depgraph.analysis.verdict import Verdict
    from depgraph.graph.block_graph import BlockGraph, PairSummary
    from depgraph.graph.program import Kernel
    from depgraph.graph.queries import PathStep
    from depgraph.graph.slack import KernelSlack
    from depgraph.scenario.scenario import Scenario
    from depgraph.schedule.schedule import Schedule

_SWEEP_POINTS = 14
# Of the priorities, newest-first hardly ever wins: it is left out where many sizes are tried.
_SWEEP_PRIORITIES = ("oldest-first", "longest-path-first")
_KIND_CHOICES = (("RAW",), ("RAW", "WAR"), ("RAW", "WAW"), ("RAW", "WAR", "WAW"))


@dataclass(frozen=True, slots=True)
class Curve:
    """Speedup against the number of SMs.

    Attributes
    ----------
    name : str
    sms : tuple of int
    speedup : tuple of float
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
    critical_path : float
    """

    name: str
    edges: int
    upper_bound: float
    critical_path: float


@dataclass(frozen=True)
class Study:
    """What the reports are made from.

    Attributes
    ----------
    scenario : Scenario
        On the number of SMs that is studied.
    pairs : sequence of PairSummary
    table : BoundTable
        At that size alone.
    schedules : tuple of Schedule
        Serial first, without launch costs.
    curves : tuple of Curve
    bend : float
        SMs at which the critical path takes over from the work as the limit.
    costs : tuple of KindCost
    comparison : Comparison or None
        What mechanisms reach, with what launches cost.
    asked : Asked
        How the user asked.
    group_by : str
        What kernels are added up by, one of `GROUPINGS`.
    """

    scenario: Scenario
    pairs: Sequence[PairSummary]
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
        return kernel_slacks(self.scenario.bound_graph, self.scenario.durations)

    @cached_property
    def path(self) -> list[PathStep]:
        """The critical path."""
        return critical_path(self.scenario.bound_graph, self.scenario.durations)

    def utilization(self, schedule: Schedule) -> float:
        """Return the share of the SMs that blocks at work hold on average, 0 to 1."""
        return share_of(self.scenario.work, schedule.makespan)


def study(
    scenario: Scenario,
    *,
    extra_schedules: Sequence[Schedule] = (),
    extra_curves: Sequence[Curve] = (),
    coarse: BlockGraph | None = None,
    comparison: Comparison | None = None,
    asked: Asked = AS_USUAL,
    group_by: str = NAME,
) -> Study:
    """Compute what the reports show.

    Parameters
    ----------
    scenario : Scenario
        On the number of SMs to study.
    extra_schedules : sequence of Schedule
        Shown beside serial and dataflow.
    extra_curves : sequence of Curve
        Shown beside the bound and dataflow.
    coarse : BlockGraph, optional
        The same blocks tracked by sectors or lines, to show what false sharing costs.
    comparison : Comparison, optional
    asked : Asked
        How the user asked, for the commands among the next steps.
    group_by : str
        What kernels are added up by, one of `GROUPINGS`.

    Raises
    ------
    ModelError
        If no profile tells what kernels are to be added up by.
    """
    group_names(scenario, group_by)
    table = bound(scenario, scenario.sms)
    alone = scenario.without_launches()
    schedules = (serial(alone), _best_dataflow(alone, table.bounds[0]))
    known = {schedule.name for schedule in schedules}
    path = table.bounds[0].critical_path
    return Study(
        scenario=scenario,
        pairs=scenario.graph.pairs(),
        table=table,
        schedules=(*schedules, *(s for s in extra_schedules if s.name not in known)),
        curves=(*_curves(alone), *extra_curves),
        bend=ratio(scenario.on(1).work, path),
        costs=_kind_costs(alone, coarse),
        comparison=comparison,
        asked=asked,
        group_by=group_by,
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
    chosen = {"all dependences": scenario}
    kinds = scenario.graph.kinds
    if kinds != {"RAW"} and "RAW" in kinds:
        chosen["RAW only"] = scenario.with_kinds({"RAW"})
    for name, kept in chosen.items():
        paths = Paths.of(kept)
        bounds = [
            bound_one(kept.on(size), priorities=_SWEEP_PRIORITIES, paths=paths) for size in sizes
        ]
        sms_of_curve = tuple(sizes)
        if kept is scenario and paths.intra_block is not None:
            intra_block = tuple(b.intra_block_upper_bound or 1.0 for b in bounds)
            curves.append(
                Curve(f"intra-block bound, {name}", sms_of_curve, intra_block, is_bound=True)
            )
        curves += [
            Curve(
                f"upper bound, {name}",
                sms_of_curve,
                tuple(b.upper_bound for b in bounds),
                is_bound=True,
            ),
            Curve(
                f"best dataflow, {name}",
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
    for kinds in _KIND_CHOICES:
        if not set(kinds) <= graph.kinds:
            continue
        kept = graph.with_kinds(kinds)
        pairs = kept.pairs()
        count = sum(getattr(p, kind.lower()) for p in pairs for kind in kinds)
        costs.append(KindCost(" + ".join(kinds), count, *bounds_of(kept)))
    if coarse is not None and costs:
        added = coarse.count_edges_not_in(graph)
        costs.append(KindCost("with false sharing", costs[-1].edges + added, *bounds_of(coarse)))
    return tuple(costs)
