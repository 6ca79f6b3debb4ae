"""One program on one GPU size, with all that a report shows of it: computed once, plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.bounds import bound, bound_one, work_per_sm
from depgraph.comparison import fine_path
from depgraph.inspection import critical_path
from depgraph.launch import OFF
from depgraph.schedules import dataflow, serial
from depgraph.slack import kernel_slacks
from depgraph.utilization import block_shares, kernel_loads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from depgraph.bounds import Bound, BoundTable, MeasuredSchedule, Occupancies
    from depgraph.comparison import Comparison
    from depgraph.extraction import Kernel
    from depgraph.graph import BlockGraph, PairSummary
    from depgraph.inspection import PathStep
    from depgraph.launch import LaunchModel
    from depgraph.schedules import Schedule
    from depgraph.slack import KernelSlack
    from depgraph.timing import Durations
    from depgraph.utilization import KernelLoad

_SWEEP_POINTS = 14
# Of the priorities, newest-first hardly ever wins: it is left out where many sizes are tried.
_SWEEP_PRIORITIES = ("oldest-first", "longest-path-first")
_KIND_CHOICES = (("RAW",), ("RAW", "WAR"), ("RAW", "WAW"), ("RAW", "WAR", "WAW"))


@dataclass(frozen=True, slots=True)
class Curve:
    """A gain against the number of SMs.

    Attributes
    ----------
    name : str
    sms : tuple of int
    gain : tuple of float
    is_bound : bool
        Whether nothing can be above it, rather than something reaches it.
    """

    name: str
    sms: tuple[int, ...]
    gain: tuple[float, ...]
    is_bound: bool


@dataclass(frozen=True, slots=True)
class KindCost:
    """What the bound on the gain becomes when only some dependences count.

    Attributes
    ----------
    name : str
        Such as "RAW + WAR".
    edges : int
        Distinct edges and kinds that these add to RAW alone, or all of RAW.
    gain : float
        Bound on the gain.
    critical_path : float
    """

    name: str
    edges: int
    gain: float
    critical_path: float


@dataclass(frozen=True)
class Study:
    """What the reports are made from.

    Attributes
    ----------
    sms : int
    graph : BlockGraph
    kernels : sequence of Kernel
    pairs : sequence of PairSummary
    durations : Durations
    occupancy : Occupancies
    table : BoundTable
        At `sms` alone.
    schedules : tuple of Schedule
        Serial first.
    curves : tuple of Curve
    bend : float
        SMs at which the critical path takes over from the work as the limit.
    costs : tuple of KindCost
    metadata : mapping
        The store's provenance.
    comparison : Comparison or None
        What mechanisms reach.
    """

    sms: int
    graph: BlockGraph
    kernels: Sequence[Kernel]
    pairs: Sequence[PairSummary]
    durations: Durations
    occupancy: Occupancies
    table: BoundTable
    schedules: tuple[Schedule, ...]
    curves: tuple[Curve, ...]
    bend: float
    costs: tuple[KindCost, ...]
    metadata: Mapping[str, Any]
    comparison: Comparison | None = None

    @property
    def unit(self) -> str:
        """Unit of all times."""
        return self.durations.unit

    @property
    def bound(self) -> Bound:
        """The bound with all dependences that the graph has."""
        return self.table.bounds[0]

    @property
    def renamed(self) -> Bound:
        """The bound with RAW dependences alone, as if no buffer were used twice."""
        return self.table.bounds[-1]

    @cached_property
    def shares(self) -> NDArray[np.float64]:
        """Share of an SM that each block takes."""
        return block_shares(self.graph, self.occupancy.values)

    @cached_property
    def loads(self) -> list[KernelLoad]:
        """How each kernel, alone, fills the SMs."""
        return kernel_loads(self.graph, self.durations.values, self.occupancy.values, self.sms)

    @cached_property
    def slacks(self) -> list[KernelSlack]:
        """How much slack each kernel has."""
        return kernel_slacks(self.graph, self.durations.values)

    @cached_property
    def path(self) -> list[PathStep]:
        """The critical path."""
        return critical_path(self.graph, self.durations.values)

    @property
    def unseen_share(self) -> float:
        """Share of the kernels of which the trace cannot show every access."""
        return sum(k.unseen is not None for k in self.kernels) / max(1, len(self.kernels))

    def utilization(self, schedule: Schedule) -> float:
        """Return the work over the makespan of a schedule, 0 to 1."""
        work = work_per_sm(self.graph, self.durations.values, self.occupancy.values) / self.sms
        return work / schedule.makespan if schedule.makespan > 0 else 0.0


def study(
    graph: BlockGraph,
    kernels: Sequence[Kernel],
    sms: int,
    *,
    durations: Durations,
    occupancy: Occupancies,
    launch: LaunchModel = OFF,
    extra_schedules: Sequence[Schedule] = (),
    extra_curves: Sequence[Curve] = (),
    coarse: BlockGraph | None = None,
    metadata: Mapping[str, Any] | None = None,
    comparison: Comparison | None = None,
    measured: MeasuredSchedule | None = None,
) -> Study:
    """Compute what the reports show.

    Parameters
    ----------
    graph : BlockGraph
    kernels : sequence of Kernel
    sms : int
    durations : Durations
    occupancy : Occupancies
    launch : LaunchModel
        What launches cost, in the unit of the durations: a line beside the bound.
    extra_schedules : sequence of Schedule
        Shown beside serial and dataflow.
    extra_curves : sequence of Curve
        Shown beside the bound and dataflow.
    coarse : BlockGraph, optional
        The same blocks tracked by sectors or lines, to show what false sharing costs.
    metadata : mapping, optional
    comparison : Comparison, optional
    measured : MeasuredSchedule, optional
        How the program ran when it was profiled.
    """
    times, places = durations.values, occupancy.values
    table = bound(
        graph,
        sms,
        durations=durations,
        occupancy=occupancy,
        launch=launch,
        measured=measured,
    )
    one_sm = work_per_sm(graph, times, places)
    path = table.bounds[0].critical_path
    return Study(
        sms=sms,
        graph=graph,
        kernels=kernels,
        pairs=graph.pairs(),
        durations=durations,
        occupancy=occupancy,
        table=table,
        schedules=(
            serial(graph, times, places, sms),
            dataflow(graph, times, places, sms, priority=_best_priority(table.bounds[0])),
            *extra_schedules,
        ),
        curves=(*_curves(graph, times, places, sms), *extra_curves),
        bend=one_sm / path if path > 0 else 1.0,
        costs=_kind_costs(graph, coarse, times, places, sms),
        metadata=metadata or {},
        comparison=comparison,
    )


def _best_priority(found: Bound) -> str:
    """Return the priority of the shortest dataflow schedule."""
    best = min(found.schedules[1:], key=lambda achieved: achieved.makespan)
    return best.schedule.removeprefix("dataflow, ")


def sweep_sizes(sms: int) -> list[int]:
    """Return SM counts for a curve: evenly spaced on a logarithmic scale, `sms` among them."""
    largest = max(4 * sms, 16)
    sizes = {round(size) for size in np.geomspace(1, largest, _SWEEP_POINTS).tolist()}
    return sorted(sizes | {sms})


def _curves(
    graph: BlockGraph,
    times: NDArray[np.float64],
    places: NDArray[np.int64],
    sms: int,
) -> tuple[Curve, ...]:
    sizes = sweep_sizes(sms)
    curves = []
    graphs = {"all dependences": graph}
    if graph.kinds != {"RAW"} and "RAW" in graph.kinds:
        graphs["RAW alone"] = graph.with_kinds({"RAW"})
    for name, kept in graphs.items():
        bounds = [
            bound_one(kept, times, places, size, priorities=_SWEEP_PRIORITIES) for size in sizes
        ]
        sms_of_curve = tuple(sizes)
        if kept is graph and graph.first_use is not None:
            path = fine_path(graph, times)
            fine = tuple(b.serial / max(path, b.work) if path else 1.0 for b in bounds)
            curves.append(Curve(f"fine bound, {name}", sms_of_curve, fine, is_bound=True))
        curves += [
            Curve(f"bound, {name}", sms_of_curve, tuple(b.gain for b in bounds), is_bound=True),
            Curve(
                f"best dataflow, {name}",
                sms_of_curve,
                tuple(max(a.gain for a in b.schedules[1:]) for b in bounds),
                is_bound=False,
            ),
        ]
    return tuple(curves)


def _kind_costs(
    graph: BlockGraph,
    coarse: BlockGraph | None,
    times: NDArray[np.float64],
    places: NDArray[np.int64],
    sms: int,
) -> tuple[KindCost, ...]:
    def gain_of(kept: BlockGraph) -> tuple[float, float]:
        found = bound_one(kept, times, places, sms, priorities=())
        return found.gain, found.critical_path

    costs = []
    for kinds in _KIND_CHOICES:
        if not set(kinds) <= graph.kinds:
            continue
        kept = graph.with_kinds(kinds)
        pairs = kept.pairs()
        count = sum(getattr(p, kind.lower()) for p in pairs for kind in kinds)
        costs.append(KindCost(" + ".join(kinds), count, *gain_of(kept)))
    if coarse is not None and costs:
        added = coarse.count_edges_not_in(graph)
        costs.append(KindCost("with false sharing", costs[-1].edges + added, *gain_of(coarse)))
    return tuple(costs)


def size_text(sms: float) -> str:
    """Name a GPU size."""
    return "unlimited SMs" if math.isinf(sms) else f"{sms:.0f} SM" + "s" * (sms != 1)
