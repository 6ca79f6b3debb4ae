"""The lower bounds on the makespan, and how close to them schedules come."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import DeadlockError
from depgraph.gpu.model import MeasuredErrors
from depgraph.graph.block_graph import BlockGraph
from depgraph.graph.graph_jit import Shares, intra_block_finish
from depgraph.mechanisms import Mechanism, Rules
from depgraph.mechanisms.base import serial
from depgraph.scenario.scenario import Scenario
from depgraph.schedule.policy import ANOMALY, Against, Schedule
from depgraph.system.text import ratio, share_of, share_of_gain


class LaunchCosts(NamedTuple):
    """The makespan of one and the same serial program, launched in two ways."""

    serial: float  # one by one, from the host
    cuda_graph: float  # as a CUDA graph in which each kernel waits for the one before it


def launch_costs(scenario: Scenario) -> LaunchCosts | None:
    """Work out what launches cost; None where they cost nothing."""
    if scenario.launch.is_off:
        return None
    return LaunchCosts(serial(scenario).makespan, serial(scenario, as_graph=True).makespan)


_NONE = np.empty(0, np.float64)
_CLOSE = 1e-9
MEMORY = "memory bandwidth"
"""What limits a program whose bytes take longer than anything else."""


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


def intra_block_path(
    graph: BlockGraph,
    durations: NDArray[np.float64],
    *,
    join_need: NDArray[np.float64] | None = None,  # [n_joins]; default: the graph's positions
) -> float:
    """Return the critical path where blocks may wait anywhere inside."""
    needs = (
        _NONE if join_need is None else join_need,
        _NONE if join_need is not None or graph.first_use is None else graph.first_use,
        _NONE if join_need is not None or graph.last_use is None else graph.last_use,
    )
    finish = intra_block_finish(graph.arrays, durations, Shares(*needs))
    return float(finish.max(initial=0.0))


class Paths(NamedTuple):
    """The critical paths of a program: they do not depend on the number of SMs."""

    block: float
    intra_block: float | None

    @classmethod
    def of(cls, scenario: Scenario) -> "Paths":
        """Find the critical paths along certain dependences."""
        graph, inside = scenario.bound_graph, None
        if graph.first_use is not None:
            inside = intra_block_path(graph, scenario.own_durations)
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
        launches=launch_costs(scenario),
    )


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
    against, bound = _bound_of(alone_rules, limits, scenario)
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
        held = max(busy, held_share(scenario, alone_schedule, on_sms=on_sms))
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


def deadlocked(
    mechanism: Mechanism, rules: Rules, limits: Bound, scenario: Scenario, error: DeadlockError
) -> Outcome:
    """Return the row of a mechanism that deadlocks."""
    against, bound = _bound_of(rules, limits, scenario)
    others = f", as do {error.others} more blocks" if error.others else ""
    return Outcome(
        mechanism=mechanism.label,
        availability=mechanism.availability.value,
        sms=limits.sms,
        makespan=np.inf,
        speedup=0.0,
        launch_speedup=1.0,
        overlap_speedup=0.0,
        share_of_bound=None,
        utilization=0.0,
        held=0.0,
        waiting=np.inf,
        against=against,
        lower_bound=bound,
        upper_bound=ratio(limits.serial, bound),
        assumptions=(f"deadlock: {error.place} waits forever{others}", *rules.assumptions),
        deadlock=error.place,
    )


def _bound_of(rules: Rules, limits: Bound, scenario: Scenario) -> tuple[str, float]:
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
        need = _NONE if rules.join_need is None else rules.join_need[graph.join_certain]
        path = intra_block_path(graph.certain(), scenario.own_durations, join_need=need)
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


def held_share(
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
