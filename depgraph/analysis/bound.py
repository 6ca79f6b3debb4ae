"""Upper bound on the speedup over serialized launches, and what dataflow schedules reach."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from depgraph.analysis.outcome import Bound, Outcome, Paths, launch_costs, limits_of, outcome_of
from depgraph.errors import ModelError
from depgraph.graph.block_graph import BlockGraph
from depgraph.graph.dependences import KIND_NAMES
from depgraph.graph.program import Communication
from depgraph.mechanisms.base import Dataflow, Serial, run_mechanism, serial
from depgraph.scenario.scenario import MeasuredSchedule, Scenario
from depgraph.schedule.policy import PRIORITIES, Rules, Schedule
from depgraph.system.workers import NOBODY, Steps, available_jobs
from depgraph.timing.durations import default_durations

if TYPE_CHECKING:
    import pandas as pd

    from depgraph.scenario.contention import Trust


class Basis(NamedTuple):
    """What all numbers of an answer rest on."""

    unit: str  # of all times
    durations: str  # where they come from
    gpu: str  # whose limits apply
    gpu_is_assumed: bool  # nobody named it
    occupancy: tuple[int, int]  # least and most resident blocks per SM among the kernels
    # kernels, blocks: of the program
    kernels: int
    blocks: int
    # dependences, known_kinds: kinds that count, and all that the graph knows, such as
    # "RAW,WAR,WAW"
    dependences: str
    known_kinds: str
    # launches_cost, has_contention: whether launches cost anything, and blocks of one SM slow each
    # other in predictions
    launches_cost: bool
    has_contention: bool
    has_collectives: bool  # whether some of its kernels communicate over links
    measured: MeasuredSchedule | None  # how the program ran when it was profiled
    # assumptions, uncertain: what times and limits rest on; what of the dependences is not certain
    assumptions: tuple[str, ...]
    uncertain: tuple[str, ...]
    trust: Trust | None  # how far predictions can be trusted; None where durations are no times

    @classmethod
    def of(cls, scenario: Scenario) -> Basis:
        """Take from a scenario what its numbers rest on."""
        graph = scenario.graph
        of_kernels = scenario.occupancy[scenario.is_kernel].tolist()
        return cls(
            unit=scenario.unit,
            durations=scenario.timing.source,
            gpu=scenario.resources.gpu.name,
            gpu_is_assumed=scenario.resources.gpu_is_assumed,
            occupancy=(min(of_kernels, default=1), max(of_kernels, default=1)),
            kernels=len(scenario.kernels),
            blocks=graph.n_blocks,
            dependences=scenario.dependences,
            known_kinds=",".join(kind for kind in KIND_NAMES if kind in graph.known_kinds),
            launches_cost=not scenario.launch.is_off,
            has_contention=scenario.sharing is not None,
            has_collectives=bool(Communication.from_metadata(scenario.metadata).collectives),
            measured=scenario.measured,
            assumptions=scenario.assumptions,
            uncertain=tuple(scenario.uncertainty.notes),
            trust=scenario.trust,
        )


MANY_SIZES = 8
"""More sizes than this are a curve: one line each, one dataflow schedule each."""
_FIXED = (
    "the bound holds for fixed durations: measured overlap has beaten it by up to 15 % "
    "on an A100 where caches were reused better"
)
_LAUNCHES = "bounds, schedules and curves leave launch costs out, which are stated on their own"


class BoundTable(NamedTuple):
    """Bounds for several GPU sizes and choices of dependences."""

    bounds: tuple[Bound, ...]
    basis: Basis  # what they rest on
    notes: tuple[str, ...]  # what bounds count and what they leave out

    @property
    def unit(self) -> str:
        """Unit of all times."""
        return self.basis.unit

    @property
    def occupancy(self) -> tuple[int, int]:
        """Least and most resident blocks per SM among the kernels."""
        return self.basis.occupancy

    @property
    def is_curve(self) -> bool:
        """Whether there are so many sizes that each is a point of a curve."""
        return len({b.sms for b in self.bounds}) > MANY_SIZES

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What all times rest on, and the notes."""
        return (*self.basis.assumptions, *self.notes)

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per schedule, with the bound that it is compared with."""
        import pandas as pd

        of_bound = (
            "sms", "dependences", "serial", "critical_path", "work", "lower_bound", "limited_by",
            "upper_bound",
        )  # fmt: skip
        return pd.DataFrame(
            [
                {
                    **{name: getattr(bound, name) for name in of_bound},
                    "schedule": row.mechanism,
                    **{n: getattr(row, n) for n in ("makespan", "speedup", "utilization")},
                    "unit": self.unit,
                }
                for bound in self.bounds
                for row in bound.schedules
            ]
        )


def bound_one(
    scenario: Scenario,
    *,
    priorities: Iterable[str] = PRIORITIES,
    paths: Paths | None = None,
) -> Bound:
    """Bound the speedup on one GPU size; launch costs are beside the schedules, in none."""
    launches = launch_costs(scenario)
    scenario = scenario.without_launches()
    serially = serial(scenario)
    limits = limits_of(scenario, paths, serially)
    names = list(priorities)
    if math.isinf(scenario.sms):
        names = names[:1]

    def row_of(priority: str) -> Outcome:
        mechanism = Dataflow(priority)
        if math.isinf(scenario.sms):
            plan, rules = _without_limit(mechanism.label, scenario), Rules()
        else:
            plan, rules = run_mechanism(mechanism, scenario)
        return outcome_of(mechanism, plan, rules, (), limits, scenario)

    first = outcome_of(Serial(), serially, Rules(), (), limits, scenario)
    with ThreadPoolExecutor(len(names) or 1) as pool:
        rows = (first, *pool.map(row_of, names))
    return limits._replace(schedules=rows, launches=launches)


def _without_limit(name: str, scenario: Scenario) -> Schedule:
    """Start every block once all it waits for has ended."""
    end, _ = scenario.graph.earliest_finish(scenario.durations)
    nowhere = np.zeros(len(end), np.int32)
    return Schedule(name, end - scenario.durations, end, nowhere, least=scenario.memory)


def bound(
    program: Scenario | BlockGraph, sms: float | Sequence[float], *, steps: Steps = NOBODY
) -> BoundTable:
    """Bound the speedup for one or several GPU sizes, with all dependences and with RAW only.

    Parameters
    ----------
    program : Scenario or BlockGraph
        A graph alone runs on the GPU that its trace suggests, blocks as long as the input states
        or as they have instructions.
    sms : number or sequence of numbers
        SM counts; infinity for no limit.
    steps : Steps
        Is told how far it is.

    Returns
    -------
    BoundTable
        Of more than `MANY_SIZES` sizes with one dataflow schedule each, not all of them.

    Raises
    ------
    ModelError
        If an SM count is below 1, or the graph lacks what a default needs.
    """
    sizes = [sms] if isinstance(sms, (int, float)) else list(sms)
    for size in sizes:
        if size < 1 or (not math.isinf(size) and size != int(size)):
            message = f"{size} SMs: give whole numbers from 1, or inf"
            raise ModelError(message)
    if isinstance(program, BlockGraph):
        program = Scenario(graph=program, timing=default_durations(program))
    chosen, renamed = [program], None
    if program.graph.kinds != {"RAW"} and "RAW" in program.graph.kinds:
        renamed = program.with_kinds({"RAW"})
        if len(renamed.graph.join_kind) < len(program.graph.join_kind):
            chosen.append(renamed)
    priorities = list(PRIORITIES)[: 1 if len(sizes) > MANY_SIZES else None]
    paths = [Paths.of(each) for each in chosen]

    def bound_for(choice: tuple[float, Scenario, Paths]) -> Bound:
        size, scenario, known = choice
        found = bound_one(scenario.on(size), priorities=priorities, paths=known)
        steps.done()
        return found

    choices = [(size, s, p) for size in sizes for s, p in zip(chosen, paths, strict=True)]
    steps.begin("bounds", len(choices))
    # Each of them makes its schedules side by side already; more at once would cost memory.
    with ThreadPoolExecutor(max(1, available_jobs() // max(1, len(priorities)))) as pool:
        bounds = list(pool.map(bound_for, choices))
    if renamed is not None and len(chosen) == 1:
        # Without WAR and WAW nothing else is left out: the same answer.
        bounds = [b for found in bounds for b in (found, found._replace(dependences="RAW"))]
    notes = [_FIXED]
    if left_out := ", ".join(sorted(program.graph.known_kinds - program.graph.kinds)):
        notes.append(f"{left_out} dependences left out")
    if not program.launch.is_off:
        notes.append(_LAUNCHES)
    return BoundTable(tuple(bounds), Basis.of(program), tuple(notes))
