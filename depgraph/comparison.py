"""Mechanisms beside each other: what each gets of the gain that is possible."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from depgraph.anomalies import ANOMALY, Swept, anomaly_notes
from depgraph.errors import DeadlockError, ModelError
from depgraph.jit.fine import fine_finish
from depgraph.launch import OFF
from depgraph.mechanisms import MECHANISMS, Charges, NotApplicableError, Program
from depgraph.mechanisms.gemms import is_gemm
from depgraph.room import sm_room
from depgraph.rules import Against, run_rules
from depgraph.schedules import serial

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pandas as pd
    from numpy.typing import NDArray

    from depgraph.bounds import Occupancies
    from depgraph.extraction import Kernel
    from depgraph.footprint import Footprints
    from depgraph.graph import BlockGraph
    from depgraph.launch import LaunchModel
    from depgraph.mechanisms import Mechanism, Quantity, Rules
    from depgraph.room import Room
    from depgraph.schedule import Schedule
    from depgraph.timing import Durations

_NONE = np.empty(0, np.float64)
_CLOSE = 1e-9


@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """What mechanisms may want to know of a program beside its graph; attributes as `Program`."""

    functions: tuple[str, ...] = ()
    grid: NDArray[np.int64] | None = None
    block: NDArray[np.int64] | None = None
    opaque: NDArray[np.bool_] | None = None
    all_kinds: BlockGraph | None = None
    read_footprints: Callable[[], Footprints] | None = None
    cuttable: NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What no schedule on one GPU size can be below.

    Attributes
    ----------
    sms : float
    serial : float
        Kernels one after another, launches for nothing.
    launched_serial : float
        The same with what launches cost.
    critical_path, work : float
    fine_path : float or None
        Critical path where blocks may wait anywhere inside; None without positions.
    """

    sms: float
    serial: float
    launched_serial: float
    critical_path: float
    work: float
    fine_path: float | None

    @property
    def block(self) -> float:
        """The bound for mechanisms whose blocks wait before they start."""
        return max(self.critical_path, self.work)

    @property
    def fine(self) -> float | None:
        """The bound for mechanisms whose blocks may wait anywhere inside."""
        return None if self.fine_path is None else max(self.fine_path, self.work)


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
        Which part of the gain that is possible the overlap gets; None where nothing is.
    utilization : float
        Work over makespan without launch costs.
    waiting : float
        Time that blocks spend waiting in a slot, summed over the blocks.
    against : str
        The bound that it is held against: "block", "fine", "fine, assumed" or "work".
    bound : float
        That bound.
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
    waiting: float
    against: str
    bound: float
    assumptions: tuple[str, ...]
    deadlock: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Outcomes of several mechanisms on several GPU sizes.

    Attributes
    ----------
    limits : tuple of Limits
    outcomes : tuple of Outcome
    left_out : dict
        Mechanism to why it has no row.
    unit, durations, gpu, dependences : str
    launch : LaunchModel
    assumptions : tuple of str
    """

    limits: tuple[Limits, ...]
    outcomes: tuple[Outcome, ...]
    left_out: dict[str, str]
    unit: str
    durations: str
    gpu: str
    dependences: str
    launch: LaunchModel = OFF
    assumptions: tuple[str, ...] = field(default=())

    def to_pandas(self) -> pd.DataFrame:
        """Return one row a mechanism and GPU size."""
        import pandas as pd

        names = Outcome.__slots__
        return pd.DataFrame(
            [[getattr(outcome, name) for name in names] for outcome in self.outcomes],
            columns=list(names),
        )


def facts_of(
    kernels: Sequence[Kernel], graph: BlockGraph, read_footprints: Callable[[], Footprints]
) -> ProgramFacts:
    """Collect what mechanisms may want to know.

    Parameters
    ----------
    kernels : sequence of Kernel
    graph : BlockGraph
        With every kind of dependence that is known.
    read_footprints : callable
    """
    functions = [""] * graph.n_operations
    shape = np.ones((2, graph.n_operations, 3), np.int64)
    opaque = np.zeros(graph.n_operations, np.bool_)
    cuttable = np.zeros(graph.n_operations, np.bool_)
    for kernel in kernels:
        functions[kernel.operation] = kernel.name
        shape[:, kernel.operation] = kernel.grid, kernel.block
        opaque[kernel.operation] = kernel.unseen is not None
        stated = kernel.cuttable
        cuttable[kernel.operation] = is_gemm(kernel.name) if stated is None else stated
    return ProgramFacts(
        tuple(functions), shape[0], shape[1], opaque, graph, read_footprints, cuttable
    )


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
    finish = fine_finish(
        durations,
        graph.first_block,
        graph.set_operation,
        graph.set_offsets,
        graph.set_blocks,
        graph.join_target_operation,
        graph.source_offsets,
        graph.sources,
        graph.target_offsets,
        graph.targets,
        _NONE if join_need is None else join_need,
        _NONE if join_need is not None or graph.first_use is None else graph.first_use,
        _NONE if join_need is not None or graph.last_use is None else graph.last_use,
    )
    return float(finish.max(initial=0.0))


def run_mechanism(
    mechanism: Mechanism,
    program: Program,
    charges: Charges,
) -> tuple[Schedule, Rules]:
    """Schedule a program under a mechanism.

    Raises
    ------
    NotApplicableError
        If the program lacks what the mechanism needs.
    ModelError
        If its rules make no sense.
    """
    rules = mechanism.rules(program, charges)
    schedule = run_rules(
        mechanism.label, rules, program.graph, program.durations, program.room, program.sms
    )
    return schedule, rules


def program_of(
    graph: BlockGraph,
    sms: float,
    durations: Durations,
    occupancy: Occupancies,
    *,
    launch: LaunchModel = OFF,
    facts: ProgramFacts | None = None,
    room: Room | None = None,
) -> Program:
    """Put together what mechanisms look at."""
    facts = facts or ProgramFacts()
    return Program(
        graph=graph,
        durations=durations.values,
        room=room or sm_room(graph, occupancy),
        occupancy=occupancy.values,
        sms=sms,
        launch=launch,
        functions=facts.functions,
        grid=facts.grid,
        block=facts.block,
        opaque=facts.opaque,
        all_kinds=facts.all_kinds,
        read_footprints=facts.read_footprints,
        cuttable=facts.cuttable,
    )


def charges_of(
    mechanism: Mechanism,
    costs: Mapping[str, Mapping[str, Quantity]],
    durations: Durations,
    occupancy: Occupancies,
    launch: LaunchModel = OFF,
    *,
    without_launches: bool = False,
) -> Charges:
    """Return the costs of a mechanism as the user changed them, in the durations' unit.

    Parameters
    ----------
    mechanism : Mechanism
    costs : mapping
        Mechanism to the costs that are not the defaults.
    durations : Durations
    occupancy : Occupancies
    launch : LaunchModel
    without_launches : bool
        Whether launch costs are left out, those that the user gave too.

    Raises
    ------
    ModelError
        If the user changed a cost that the mechanism does not have.
    """
    changed = dict(costs.get(mechanism.name, {}))
    if without_launches:
        launch = OFF
        for cost in mechanism.costs:
            if cost.is_launch:
                changed.pop(cost.name, None)
    try:
        return Charges(
            mechanism.costs,
            changed,
            unit=durations.unit,
            clock_mhz=occupancy.gpu.boost_clock_mhz,
            launches=launch,
        )
    except ModelError as error:
        raise ModelError(f"{mechanism.name}: {error}") from None


def compare_mechanisms(
    graph: BlockGraph,
    sms: Sequence[float],
    mechanisms: Sequence[Mechanism],
    *,
    durations: Durations,
    occupancy: Occupancies,
    launch: LaunchModel = OFF,
    costs: Mapping[str, Mapping[str, Quantity]] | None = None,
    facts: ProgramFacts | None = None,
) -> Comparison:
    """Run every mechanism on every GPU size.

    Parameters
    ----------
    graph : BlockGraph
    sms : sequence of float
        SM counts; infinity for no limit.
    mechanisms : sequence of Mechanism
    durations : Durations
    occupancy : Occupancies
    launch : LaunchModel
        What launches cost, in the unit of the durations.
    costs : mapping, optional
        Mechanism to the costs that are not the defaults.
    facts : ProgramFacts, optional

    Raises
    ------
    ModelError
        If a mechanism or a cost makes no sense. A mechanism that the program lacks something for
        gets no row, and `Comparison.left_out` says why.
    """
    costs = costs or {}
    unknown = sorted(set(costs) - {m.name for m in mechanisms})
    if unknown:
        hint = "is not among those asked for" if unknown[0] in MECHANISMS else "does not exist"
        raise ModelError(f"cost of {unknown[0]}: that mechanism {hint}")
    room = sm_room(graph, occupancy)
    limits: list[Limits] = []
    outcomes: list[Outcome] = []
    swept: list[Swept] = []
    left_out: dict[str, str] = {}
    for size in sms:
        program = program_of(
            graph, size, durations, occupancy, launch=launch, facts=facts, room=room
        )
        limit = limits_of(program)
        limits.append(limit)
        for mechanism in mechanisms:
            charges = charges_of(mechanism, costs, durations, occupancy, launch)
            free = charges_of(mechanism, costs, durations, occupancy, launch, without_launches=True)
            try:
                found = _outcome(mechanism, program, limit, charges, free)
            except NotApplicableError as error:
                left_out[mechanism.label] = str(error)
                continue
            outcomes.append(found)
            swept.append(
                Swept(
                    found.mechanism, mechanism.freedom, found.sms, found.makespan,
                    mechanism.slower_because,
                )
            )  # fmt: skip
    worse = anomaly_notes(swept, durations.unit)
    outcomes = [
        replace(o, assumptions=(*o.assumptions, *notes))
        for o, notes in zip(outcomes, worse, strict=True)
    ]
    notes = [*durations.assumptions, *occupancy.assumptions]
    if room.note:
        notes.append(room.note)
    return Comparison(
        limits=tuple(limits),
        outcomes=tuple(outcomes),
        left_out=left_out,
        unit=durations.unit,
        durations=durations.source,
        gpu=occupancy.gpu.name,
        dependences=",".join(kind for kind in ("RAW", "WAR", "WAW") if kind in graph.kinds),
        launch=launch,
        assumptions=(*notes, *launch.describe(durations.unit)),
    )


def limits_of(program: Program) -> Limits:
    """Work out what no schedule of a program can be below."""
    graph = program.graph
    finish, _ = graph.earliest_finish(program.durations)
    slots = max(graph.n_blocks if np.isinf(program.sms) else int(program.sms), 1)
    plain = graph, program.durations, program.occupancy, slots
    return Limits(
        sms=program.sms,
        serial=serial(*plain).makespan,
        launched_serial=serial(*plain, launch=program.launch).makespan,
        critical_path=float(finish.max(initial=0.0)),
        work=program.room.work(graph.operation_of_block, program.durations, program.sms),
        fine_path=None if graph.first_use is None else fine_path(graph, program.durations),
    )  # fmt: skip


def _outcome(
    mechanism: Mechanism, program: Program, limit: Limits, charges: Charges, free: Charges
) -> Outcome:
    """Run a mechanism with launch costs and, where there are any, without."""
    try:
        schedule, rules = run_mechanism(mechanism, program, charges)
        alone = schedule, rules
        if not program.launch.is_off:
            alone = run_mechanism(mechanism, program, free)
    except DeadlockError as error:
        return _deadlocked(mechanism, program, limit, charges, error)
    against, bound = _bound_of(alone[1], program, limit)
    makespan = alone[0].makespan
    gain = _ratio(limit.launched_serial, schedule.makespan)
    overlap = _ratio(limit.serial, makespan)
    possible = _ratio(limit.serial, bound)
    work = 0.0 if rules.unlimited else limit.work
    notes = [*charges.notes, *rules.assumptions]
    if makespan > schedule.makespan * (1 + _CLOSE):
        notes.append(f"faster than without launch costs ({makespan:.4g}): {ANOMALY}")
    return Outcome(
        mechanism=mechanism.label,
        availability=mechanism.availability.value,
        sms=limit.sms,
        makespan=schedule.makespan,
        gain=gain,
        launch_gain=gain / overlap if overlap > 0 else 1.0,
        overlap_gain=overlap,
        share_of_bound=(overlap - 1) / (possible - 1) if possible > 1 + 1e-12 else None,
        utilization=work / makespan if makespan > 0 else 0.0,
        waiting=schedule.waiting,
        against=against,
        bound=bound,
        assumptions=tuple(notes),
    )


def _deadlocked(
    mechanism: Mechanism, program: Program, limit: Limits, charges: Charges, error: DeadlockError
) -> Outcome:
    """Return the row of a mechanism whose blocks wait for each other."""
    rules = mechanism.rules(program, charges)
    against, bound = _bound_of(rules, program, limit)
    return Outcome(
        mechanism=mechanism.label,
        availability=mechanism.availability.value,
        sms=limit.sms,
        makespan=np.inf,
        gain=0.0,
        launch_gain=1.0,
        overlap_gain=0.0,
        share_of_bound=None,
        utilization=0.0,
        waiting=np.inf,
        against=against,
        bound=bound,
        assumptions=(
            f"deadlock: {error.place} waits for ever, as do {error.others} more blocks",
            *rules.assumptions,
        ),
        deadlock=error.place,
    )


def _bound_of(rules: Rules, program: Program, limit: Limits) -> tuple[str, float]:
    """Return the bound that a mechanism is compared with, and its name."""
    against, bound = rules.against.value, limit.block
    if rules.unlimited:
        bound = limit.critical_path
    elif rules.against is Against.WORK:
        bound = limit.work
    elif rules.against is Against.FINE and rules.steps_assumed:
        against = "fine, assumed"
        path = fine_path(
            rules.graph or program.graph,
            program.durations,
            join_need=_NONE if rules.join_need is None else rules.join_need,
        )
        bound = max(path, limit.work)
    elif rules.against is Against.FINE and limit.fine is not None:
        bound = limit.fine
    return against, bound


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else 1.0
