"""Upper bound on the speedup over serialized launches, and how close to it schedules come."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import ModelError
from depgraph.gpu.model import MeasuredErrors
from depgraph.graph.block_graph import BlockGraph
from depgraph.graph.dependences import KIND_NAMES
from depgraph.graph.program import Communication
from depgraph.mechanisms.base import Dataflow, Mechanism, Serial, run_mechanism, serial
from depgraph.scenario.scenario import MeasuredSchedule, Scenario
from depgraph.schedule.policy import ANOMALY, PRIORITIES, Against, Rules, Schedule
from depgraph.system.text import ratio, share_of, share_of_gain
from depgraph.system.workers import NOBODY, Steps, available_jobs
from depgraph.timing.program_times import default_durations

if TYPE_CHECKING:
    import pandas as pd

    from depgraph.scenario.contention import Trust

_CLOSE = 1e-9
MEMORY = "memory bandwidth"
"""What limits a program whose bytes take longer than anything else."""
MANY_SIZES = 8
"""More sizes than this are a curve: one line each, one dataflow schedule each."""
_FIXED = (
    "the bound holds for fixed durations: measured overlap has beaten it by up to 15 % "
    "on an A100 where caches were reused better"
)
_LAUNCHES = "bounds, schedules and curves leave launch costs out, which are stated on their own"


class LaunchCosts(NamedTuple):
    """The makespan of one and the same serial program, launched in two ways."""

    serial: float  # one by one, from the host
    cuda_graph: float  # as a CUDA graph in which each kernel waits for the one before it


class LaunchFigures(NamedTuple):
    """The child kernels of one schedule."""

    # made, possible: launches from the device
    made: int
    possible: int
    over_cdp: float  # speedup over launching all of them; 0 where that deadlocks
    overhead: float  # time that warps stall in launches, summed
    queueing: float  # time that child blocks wait for their slots once they are launched, summed
    child_share: float  # part of the blocks' work that child kernels do, 0 to 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one mechanism achieves on one GPU size."""

    mechanism: str
    availability: str
    sms: float
    makespan: float  # with what launches cost; infinite in a deadlock
    speedup: float  # serial time over makespan, both with what launches cost; 0 in a deadlock
    # launch_speedup, overlap_speedup: the two factors of `speedup`: the overlap's is without launch
    # costs on either side, what is left is the launches'
    launch_speedup: float
    overlap_speedup: float
    # (overlap_speedup - 1) / (upper bound - 1); None where the upper bound is 1.
    share_of_bound: float | None
    # Share of the SMs that blocks at work hold, 0 to 1, of the resource that sets the work, without
    # launch costs.
    utilization: float
    held: float  # the same, blocks that wait in their slots included
    waiting: float  # time that blocks spend waiting in a slot, summed over the blocks
    # The bound that it is compared with: "assumed steps", or the value of an `Against`.
    against: str
    lower_bound: float  # that bound, on the makespan: no mechanism of this sort is shorter
    upper_bound: float  # on the speedup over serialized launches, by that bound
    assumptions: tuple[str, ...]
    deadlock: str = ""  # the first block that never runs; empty if all do
    # Makespan that would be measured: as blocks that share an SM slow each other, with what
    # launches cost. None where durations are no times. No bound for fixed durations holds for it.
    predicted: float | None = None
    predicted_us: float | None = None  # the same in microseconds
    # predicted_low_us, predicted_high_us: the range that nine of ten measured times lie in; None
    # where nobody measured how far predictions of its family are off
    predicted_low_us: float | None = None
    predicted_high_us: float | None = None
    predicted_serial_us: float | None = None  # the kernels one after another, launched as it is
    predicted_speedup: float | None = None  # that over `predicted_us`
    predicted_overlap: float | None = None  # the same without launch costs on either side
    family: str = ""  # programs whose errors make the range; "" where none are like it
    errors: MeasuredErrors | None = None  # their errors
    launching: LaunchFigures | None = None  # of a mechanism that is about child kernels
    figures: Mapping[str, int] = field(default_factory=dict)  # that the mechanism counts
    # Where there are collectives, (overlap_speedup - 1) / (ideal - 1), ideal being the speedup if
    # computation and communication hid each other and neither slowed the other.
    share_of_ideal: float | None = None
    lacking: str = ""  # what the GPU or the code of the kernels lacks for it; empty for nothing

    @property
    def share_of_upper_bound(self) -> float | None:
        """Share of the bound that all rows of a size have, None where another one holds."""
        return self.share_of_bound if self.against == Against.BLOCK.value else None


class Bound(NamedTuple):
    """The bounds on one GPU size, for one choice of dependences."""

    sms: float  # number of SMs, infinite for no limit
    dependences: str  # kinds that count, such as "RAW,WAR,WAW"
    serial: float  # makespan of serialized launches, which cost nothing
    critical_path: float  # longest path through the block graph, along certain dependences
    work: float  # time that the SMs need if the most used of their resources never idles
    memory: float = 0.0  # time that the memory bandwidth takes at least; 0 where it does not count
    # Critical path where blocks may wait anywhere inside; None without positions.
    intra_block_path: float | None = None
    # Launches cost nothing, serial first; empty where none were asked for.
    schedules: tuple[Outcome, ...] = ()
    # What launches cost on top of that; None where they cost nothing.
    launches: LaunchCosts | None = None
    # contended, contended_serial: the lower bound, and the makespan of serialized launches, where
    # blocks that share an SM slow each other; None where they do not, or nothing is predicted
    contended: float | None = None
    contended_serial: float | None = None

    @property
    def contended_upper_bound(self) -> float | None:
        """Upper bound on predicted speedups; None without contention."""
        if self.contended is None or self.contended_serial is None:
            return None
        return ratio(self.contended_serial, self.contended)

    @property
    def lower_bound(self) -> float:
        """Only faster blocks could beat this: no schedule with these dependences is shorter."""
        return max(self.critical_path, self.work, self.memory)

    @property
    def intra_block_bound(self) -> float | None:
        """The same where blocks may wait anywhere inside; None without positions."""
        path = self.intra_block_path
        return None if path is None else max(path, self.work, self.memory)

    @property
    def intra_block_upper_bound(self) -> float | None:
        """Upper bound on the speedup where blocks may wait inside; None without positions."""
        bound = self.intra_block_bound
        return None if bound is None else ratio(self.serial, bound)

    @property
    def upper_bound(self) -> float:
        """Upper bound on the speedup over serialized launches: serial over lower bound."""
        return ratio(self.serial, self.lower_bound)

    @property
    def launched_serial(self) -> float:
        """Makespan of serialized launches, with what they cost."""
        return self.serial if self.launches is None else self.launches.serial

    @property
    def limited_by(self) -> str:
        """Which of the terms makes the lower bound."""
        if self.memory > max(self.critical_path, self.work):
            return MEMORY
        return "critical path" if self.critical_path >= self.work else "work"

    @property
    def reached(self) -> Outcome:
        """The shortest of the schedules whose blocks wait before they start."""
        whole = (each for each in self.schedules if each.against == Against.BLOCK.value)
        return min(whole, key=attrgetter("makespan"))


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


def bound_one(
    scenario: Scenario,
    *,
    priorities: Iterable[str] = PRIORITIES,
    paths: Paths | None = None,
) -> Bound:
    """Bound the speedup on one GPU size; launch costs are beside the schedules, in none."""
    launches = _launch_costs(scenario)
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


class Paths(NamedTuple):
    """The critical paths of a program: they do not depend on the number of SMs."""

    block: float
    intra_block: float | None

    @classmethod
    def of(cls, scenario: Scenario) -> Paths:
        """Find the critical paths along certain dependences."""
        graph, inside = scenario.bound_graph, None
        if graph.first_use is not None:
            inside = graph.intra_block_path(scenario.own_durations)
        return cls(graph.longest_path(scenario.least_durations), inside)


def limits_of(
    scenario: Scenario, paths: Paths | None = None, serially: Schedule | None = None
) -> Bound:
    """Return the lower bounds on every schedule of a scenario."""
    paths = paths or Paths.of(scenario)
    return Bound(
        sms=scenario.sms,
        dependences=scenario.dependences,
        serial=(serially or serial(scenario.without_launches())).makespan,
        critical_path=paths.block,
        work=scenario.work,
        memory=scenario.memory,
        intra_block_path=paths.intra_block,
        launches=_launch_costs(scenario),
    )


def _launch_costs(scenario: Scenario) -> LaunchCosts | None:
    """Work out what launches cost; None where they cost nothing."""
    if scenario.launch.is_off:
        return None
    return LaunchCosts(serial(scenario).makespan, serial(scenario, as_graph=True).makespan)


def outcome_of(
    mechanism: Mechanism,
    schedule: Schedule,
    rules: Rules,
    charged: tuple[str, ...],
    limits: Bound,
    scenario: Scenario,
    *,
    alone: tuple[Schedule, Rules] | None = None,
) -> Outcome:
    """Compare a schedule with the bound of its sort; `alone`: with launches that cost nothing."""
    alone_schedule, alone_rules = alone or (schedule, rules)
    against, bound = bound_of(alone_rules, limits, scenario)
    makespan = alone_schedule.makespan
    speedup = ratio(limits.launched_serial, schedule.makespan)
    overlap, possible = ratio(limits.serial, makespan), ratio(limits.serial, bound)
    on_sms = _on_sms(alone_rules, scenario)
    work = work_done(scenario, alone_schedule, on_sms=on_sms)
    if alone_rules.against is Against.WORK:
        work = min(work, _work_of(alone_rules, scenario))
    busy = 0.0 if rules.unlimited else share_of(work, makespan)
    # Blocks that are cut up are at work in more slots than their schedule shows.
    held = busy
    if not rules.unlimited:
        held = max(busy, _held_share(scenario, alone_schedule, on_sms=on_sms))
    notes = [*charged, *rules.assumptions]
    if makespan > schedule.makespan * (1 + _CLOSE):
        notes.append(f"faster than without launch costs ({makespan:.4g}): {ANOMALY}")
    return Outcome(
        mechanism=mechanism.label,
        availability=mechanism.availability.value,
        sms=limits.sms,
        makespan=schedule.makespan,
        speedup=speedup,
        launch_speedup=ratio(speedup, overlap),
        overlap_speedup=overlap,
        share_of_bound=_share_of_bound(overlap, possible),
        utilization=busy,
        held=held,
        waiting=schedule.waiting,
        against=against,
        lower_bound=bound,
        upper_bound=possible,
        assumptions=tuple(notes),
        figures=rules.figures,
    )


def _share_of_bound(speedup: float, possible: float) -> float | None:
    """Return the share of a possible speedup; what rounding alone puts above counts as all."""
    share = share_of_gain(speedup, possible)
    if share is None or possible <= 1 + 1e-12:
        return None
    return min(1.0, share) if speedup <= possible * (1 + _CLOSE) else share


def bound_of(rules: Rules, limits: Bound, scenario: Scenario) -> tuple[str, float]:
    """Return the bound that a mechanism is compared with, and its name."""
    against, bound = rules.against.value, limits.lower_bound
    if rules.unlimited:
        against = Against.UNLIMITED.value
        bound = max(limits.critical_path, limits.memory)
    elif rules.against is Against.WORK:
        bound = max(min(limits.work, _work_of(rules, scenario)), limits.memory)
    elif rules.against is Against.ENGINES:
        bound = _bound_with_engines(rules, scenario)
    elif rules.against is Against.INTRA_BLOCK and rules.steps_assumed:
        against = "assumed steps"
        graph = rules.graph or scenario.graph
        need = np.empty(0)
        if rules.join_need is not None:
            need = rules.join_need[graph.join_certain]
        path = graph.certain().intra_block_path(scenario.own_durations, need)
        bound = max(path, limits.work, limits.memory)
    elif rules.against is Against.INTRA_BLOCK and limits.intra_block_bound is not None:
        bound = limits.intra_block_bound
    return against, bound


def _work_of(rules: Rules, scenario: Scenario) -> float:
    """Return the work of blocks that a mechanism makes longer or shorter."""
    if rules.durations is None:
        return scenario.work
    operations = scenario.graph.operation_of_block
    return scenario.resources.work(operations, rules.durations, scenario.sms)


def _bound_with_engines(rules: Rules, scenario: Scenario) -> float:
    """Return the lower bound where copy engines take what rules give them."""
    places, durations = rules.places, rules.durations
    if places is None or durations is None:
        raise TypeError("rules put blocks on copy engines")
    path = scenario.bound_graph.longest_path(durations)
    of_block = scenario.graph.operation_of_block
    there = np.where(_on_sms(rules, scenario), durations, 0.0)
    return max(path, scenario.resources.work(of_block, there, scenario.sms), scenario.memory)


def _on_sms(rules: Rules, scenario: Scenario) -> NDArray[np.bool_] | bool:
    """Return which blocks run on SMs rather than on copy engines: bool[n_blocks], or all."""
    if rules.places is None:
        return True
    on_sms: NDArray[np.bool_] = rules.places.first < scenario.sms
    return on_sms[scenario.graph.operation_of_block]


def _held_share(
    scenario: Scenario, schedule: Schedule, *, on_sms: NDArray[np.bool_] | bool = True
) -> float:
    """Return the share of the SMs that blocks hold, waiting or not, 0 to 1, but on copy engines."""
    if np.isinf(scenario.sms):
        return 0.0
    held = float(((schedule.end - schedule.start) * scenario.shares * on_sms).sum())
    if schedule.children is not None and scenario.launches is not None:
        children = schedule.children
        parent = scenario.launches.block[children.launch]
        held += float(((children.end - children.start) * scenario.shares[parent]).sum())
    return share_of(held / scenario.sms, schedule.makespan)


def work_done(
    scenario: Scenario, schedule: Schedule, *, on_sms: NDArray[np.bool_] | bool = True
) -> float:
    """Return the time that all SMs need for what a schedule does, as `SmResources.work` counts."""
    # Where blocks launch child kernels this depends on which are launched, and may be above the
    # least work that the bound counts.
    launches, durations = scenario.launches, np.where(on_sms, scenario.durations, 0.0)
    if launches is not None and schedule.children is not None:
        ran = schedule.children.launched
        durations = launches.without_work_of(ran).inlined(scenario.own_durations)
        np.add.at(durations, launches.block[ran], launches.child_work[ran])
    return scenario.resources.work(scenario.graph.operation_of_block, durations, scenario.sms)
