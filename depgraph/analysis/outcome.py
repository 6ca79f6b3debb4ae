"""What no schedule can be shorter than, and how near to that schedules come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from depgraph.analysis.launch_costs import launch_costs
from depgraph.gpu.sm_resources import share_of
from depgraph.graph.paths_jit import Shares, intra_block_finish
from depgraph.mechanisms.serial import serial
from depgraph.schedule.anomalies import ANOMALY
from depgraph.schedule.policy import Against

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from depgraph.analysis.launch_costs import LaunchCosts
    from depgraph.errors import DeadlockError
    from depgraph.graph.block_graph import BlockGraph
    from depgraph.mechanisms import Mechanism, Rules
    from depgraph.scenario.scenario import Scenario
    from depgraph.schedule.schedule import Schedule

_NONE = np.empty(0, np.float64)
_CLOSE = 1e-9


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one mechanism achieves on one GPU size.

    Attributes
    ----------
    mechanism : str
    availability : str
    sms : float
    makespan : float
        With what launches cost; infinite if its blocks wait for each other for ever.
    gain : float
        Serial time over makespan, both with what launches cost; 0 if it never ends.
    launch_gain, overlap_gain : float
        The two factors of `gain`: the overlap's is without launch costs on either side, what is
        left is the launches'.
    share_of_bound : float or None
        Which part of the gain that is possible the overlap gets, 1 at most; None where nothing is.
    utilization : float
        Share of the SMs that blocks at work hold, 0 to 1, of the resource that sets the work,
        without launch costs.
    held : float
        The same, blocks that wait in their slots included.
    waiting : float
        Time that blocks spend waiting in a slot, summed over the blocks.
    against : str
        The bound that it is compared with: "block", "fine", "fine, assumed" or "work".
    bound : float
        That bound: no mechanism of this sort is shorter.
    assumptions : tuple of str
    deadlock : str
        The first block that never runs; empty if all do.
    """

    mechanism: str
    availability: str
    sms: float
    makespan: float
    gain: float
    launch_gain: float
    overlap_gain: float
    share_of_bound: float | None
    utilization: float
    held: float
    waiting: float
    against: str
    bound: float
    assumptions: tuple[str, ...]
    deadlock: str = ""


@dataclass(frozen=True, slots=True)
class Bound:
    """The bounds on one GPU size, for one choice of dependences.

    Attributes
    ----------
    sms : float
        Number of SMs, infinite for no limit.
    dependences : str
        Kinds that count, such as "RAW,WAR,WAW".
    serial : float
        Kernels one after another, launches for nothing.
    critical_path : float
        Longest path through the block graph, along dependences that certainly are.
    work : float
        Time that the SMs need if the most used of their resources never idles.
    memory : float
        Time that the memory bandwidth takes at least; 0 where it does not count.
    fine_path : float or None
        Critical path where blocks may wait anywhere inside; None without positions.
    schedules : tuple of Outcome
        With launches for nothing, serial first; empty where none were asked for.
    launches : LaunchCosts or None
        What launches cost on top of that; None where they cost nothing.
    """

    sms: float
    dependences: str
    serial: float
    critical_path: float
    work: float
    memory: float = 0.0
    fine_path: float | None = None
    schedules: tuple[Outcome, ...] = ()
    launches: LaunchCosts | None = None

    @property
    def lower_bound(self) -> float:
        """No schedule that honours the dependences is shorter, while blocks take as long."""
        return max(self.critical_path, self.work, self.memory)

    @property
    def intra_block_bound(self) -> float | None:
        """The same where blocks may wait anywhere inside; None without positions."""
        return None if self.fine_path is None else max(self.fine_path, self.work, self.memory)

    @property
    def work_bound(self) -> float:
        """The same where blocks may be cut up."""
        return max(self.work, self.memory)

    @property
    def gain(self) -> float:
        """Upper bound on the speedup: serial over lower bound."""
        return ratio(self.serial, self.lower_bound)

    @property
    def launched_serial(self) -> float:
        """Kernels one after another, with what launches cost."""
        return self.serial if self.launches is None else self.launches.serial

    @property
    def limited_by(self) -> str:
        """Which of the terms makes the lower bound."""
        if self.memory > max(self.critical_path, self.work):
            return "memory bandwidth"
        return "critical path" if self.critical_path >= self.work else "work"

    @property
    def reached(self) -> Outcome:
        """The shortest of the schedules whose blocks wait before they start."""
        return min(
            (s for s in self.schedules if s.against == Against.BLOCK.value),
            key=lambda schedule: schedule.makespan,
        )


def ratio(numerator: float, denominator: float) -> float:
    """Return a ratio of times; 1 where there is nothing to do."""
    return numerator / denominator if denominator > 0 else 1.0


def longest_path(graph: BlockGraph, durations: NDArray[np.float64]) -> float:
    """Return the critical path: the time that unlimited SMs need."""
    finish, _ = graph.earliest_finish(durations)
    return float(finish.max(initial=0.0))


def fine_path(
    graph: BlockGraph,
    durations: NDArray[np.float64],
    *,
    join_need: NDArray[np.float64] | None = None,
) -> float:
    """Return the critical path where blocks may wait anywhere inside.

    Parameters
    ----------
    graph : BlockGraph
    durations : float64[n_blocks]
    join_need : float64[n_joins], optional
        Share of a target's work before it needs a join; default from the graph's positions.
    """
    needs = (
        _NONE if join_need is None else join_need,
        _NONE if join_need is not None or graph.first_use is None else graph.first_use,
        _NONE if join_need is not None or graph.last_use is None else graph.last_use,
    )
    finish = intra_block_finish(graph.arrays, durations, Shares(*needs))
    return float(finish.max(initial=0.0))


@dataclass(frozen=True, slots=True)
class Paths:
    """The critical paths of a program: they do not depend on the number of SMs."""

    block: float
    fine: float | None

    @classmethod
    def of(cls, scenario: Scenario) -> Paths:
        """Find the critical paths along dependences that certainly are."""
        graph = scenario.bound_graph
        fine = None if graph.first_use is None else fine_path(graph, scenario.durations)
        return cls(longest_path(graph, scenario.durations), fine)


def limits_of(
    scenario: Scenario, paths: Paths | None = None, serially: Schedule | None = None
) -> Bound:
    """Work out what no schedule of a scenario can be below.

    Parameters
    ----------
    scenario : Scenario
        On one number of SMs.
    paths : Paths, optional
        Where they are known already.
    serially : Schedule, optional
        Kernels one after another, launches for nothing, where that is known already.
    """
    paths = paths or Paths.of(scenario)
    return Bound(
        sms=scenario.sms,
        dependences=scenario.dependences,
        serial=(serially or serial(scenario.without_launches())).makespan,
        critical_path=paths.block,
        work=scenario.work,
        memory=scenario.memory,
        fine_path=paths.fine,
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
    """Compare a schedule with the bound that holds for mechanisms of its sort.

    Parameters
    ----------
    mechanism : Mechanism
    schedule : Schedule
    rules : Rules
        Of the mechanism for this scenario.
    charged : tuple of str
        What was charged.
    limits : Bound
    scenario : Scenario
    alone : (Schedule, Rules), optional
        The same with launches for nothing; default they cost nothing anyway.
    """
    alone_schedule, alone_rules = alone or (schedule, rules)
    against, bound = _bound_of(alone_rules, limits, scenario)
    makespan = alone_schedule.makespan
    gain = ratio(limits.launched_serial, schedule.makespan)
    overlap, possible = ratio(limits.serial, makespan), ratio(limits.serial, bound)
    busy = 0.0 if rules.unlimited else share_of(limits.work, makespan)
    # Blocks that are cut up are at work in more slots than their schedule shows.
    held = 0.0 if rules.unlimited else max(busy, held_share(scenario, alone_schedule))
    notes = [*charged, *rules.assumptions]
    if makespan > schedule.makespan * (1 + _CLOSE):
        notes.append(f"faster than without launch costs ({makespan:.4g}): {ANOMALY}")
    return Outcome(
        mechanism=mechanism.label,
        availability=mechanism.availability.value,
        sms=limits.sms,
        makespan=schedule.makespan,
        gain=gain,
        launch_gain=gain / overlap if overlap > 0 else 1.0,
        overlap_gain=overlap,
        # What is above a bound by rounding alone counts as all of it.
        share_of_bound=(min(1.0, (overlap - 1) / (possible - 1)) if possible > 1 + 1e-12 else None),
        utilization=busy,
        held=held,
        waiting=schedule.waiting,
        against=against,
        bound=bound,
        assumptions=tuple(notes),
    )


def deadlocked(
    mechanism: Mechanism, rules: Rules, limits: Bound, scenario: Scenario, error: DeadlockError
) -> Outcome:
    """Return the row of a mechanism whose blocks wait for each other for ever."""
    against, bound = _bound_of(rules, limits, scenario)
    others = f", as do {error.others} more blocks" if error.others else ""
    return Outcome(
        mechanism=mechanism.label,
        availability=mechanism.availability.value,
        sms=limits.sms,
        makespan=np.inf,
        gain=0.0,
        launch_gain=1.0,
        overlap_gain=0.0,
        share_of_bound=None,
        utilization=0.0,
        held=0.0,
        waiting=np.inf,
        against=against,
        bound=bound,
        assumptions=(f"deadlock: {error.place} waits for ever{others}", *rules.assumptions),
        deadlock=error.place,
    )


def _bound_of(rules: Rules, limits: Bound, scenario: Scenario) -> tuple[str, float]:
    """Return the bound that a mechanism is compared with, and its name."""
    against, bound = rules.against.value, limits.lower_bound
    if rules.unlimited:
        bound = max(limits.critical_path, limits.memory)
    elif rules.against is Against.WORK:
        bound = limits.work_bound
    elif rules.against is Against.FINE and rules.steps_assumed:
        against = "fine, assumed"
        graph = rules.graph or scenario.graph
        need = _NONE if rules.join_need is None else rules.join_need[graph.join_certain]
        path = fine_path(graph.certain(), scenario.durations, join_need=need)
        bound = max(path, limits.work_bound)
    elif rules.against is Against.FINE and limits.intra_block_bound is not None:
        bound = limits.intra_block_bound
    return against, bound


def held_share(scenario: Scenario, schedule: Schedule) -> float:
    """Return the share of the SMs that blocks of a schedule hold, waiting or not, 0 to 1."""
    if np.isinf(scenario.sms):
        return 0.0
    held = float(((schedule.end - schedule.start) * scenario.shares).sum())
    return share_of(held / scenario.sms, schedule.makespan)
