"""Mechanisms beside each other: what each reaches of the upper bound on the speedup."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from depgraph.analysis.bound import (
    Basis,
    Bound,
    LaunchFigures,
    Outcome,
    Paths,
    bound_of,
    limits_of,
    outcome_of,
)
from depgraph.errors import DeadlockError, ModelError, NotApplicableError
from depgraph.graph.program import Communication
from depgraph.mechanisms import Against, Availability, Mechanism, Rules
from depgraph.mechanisms.base import (
    ChangedCosts,
    Serial,
    charges_of,
    run_mechanism,
    run_without_launches,
    serial,
)
from depgraph.mechanisms.child_kernels import Cdp
from depgraph.mechanisms.cuda_graph import CudaGraph
from depgraph.mechanisms.predicted_time import (
    Predicted,
    in_microseconds,
    predicted_chain,
    predicted_time,
)
from depgraph.scenario.contention import contended_bound, contended_serial
from depgraph.schedule.policy import ANOMALY, Schedule
from depgraph.system.text import ratio, share_of_gain
from depgraph.system.workers import NOBODY, Steps
from depgraph.timing.program_times import kernel_makespans

if TYPE_CHECKING:
    import pandas as pd

    from depgraph.scenario.scenario import Scenario


OTHER_SCALES = {each.value for each in Against if each.is_another_scale}
"""What rows are compared with that say nothing of those beside them."""
_NOT_BOUNDED = (
    "predictions are not held to the bound of predictions, which is for blocks that wait before "
    "they start"
)
_CLOSE = 1e-9  # times that are no more apart than this are alike


class Comparison(NamedTuple):
    """Outcomes of several mechanisms on several GPU sizes."""

    limits: tuple[Bound, ...]
    outcomes: tuple[Outcome, ...]
    left_out: dict[str, str]  # mechanism to why it has no row
    basis: Basis  # what they rest on

    def best(self, sms: float, *, without_hardware: bool = False) -> Outcome | None:
        """Return the fastest of the mechanisms whose blocks wait before they start."""
        # Others cut blocks up, or wait inside them; what the GPU or the code lacks is none either.
        left_out = {Availability.LIMIT.value}
        if without_hardware:
            left_out.add(Availability.HARDWARE.value)
        return max(
            (
                o
                for o in self.outcomes
                if o.sms == sms
                and o.availability not in left_out
                and o.against == Against.BLOCK.value
                and not o.deadlock
                and not o.lacking
            ),
            key=lambda o: o.speedup,
            default=None,
        )

    @property
    def notes(self) -> list[str]:
        """What mechanisms assumed, and why some have no row."""
        rows: dict[str, dict[str, None]] = {}
        for outcome in self.outcomes:
            for note in outcome.assumptions:
                rows.setdefault(note, {})[outcome.mechanism] = None
        for outcome in self.outcomes:
            is_predicted = self.basis.has_contention and outcome.predicted is not None
            if is_predicted and outcome.against != Against.BLOCK.value:
                rows.setdefault(_NOT_BOUNDED, {})[outcome.mechanism] = None
        return [
            *(f"{', '.join(names)}: {note}" for note, names in rows.items()),
            *(f"{name} is left out: {reason}" for name, reason in self.left_out.items()),
            *(
                f"on {b.sms:.0f} SMs predictions may be below {b.lower_bound:.4g}, the lower bound "
                f"for fixed durations, down to {b.contended:.4g} {self.basis.unit}: a block alone "
                "on its SM is faster, and tasks that do not start as kernels save their starts"
                for b in self.limits
                if b.contended is not None and b.contended < b.lower_bound
            ),
        ]

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per mechanism and GPU size."""
        import pandas as pd

        names = [f.name for f in fields(Outcome) if f.name not in {"launching", "figures"}]
        return pd.DataFrame(
            [[getattr(outcome, name) for name in names] for outcome in self.outcomes],
            columns=names,
        )


def schedule_of(
    scenario: Scenario, mechanism: Mechanism | None, costs: ChangedCosts | None = None
) -> Schedule:
    """Return the schedule of a mechanism on one number of SMs; None for serialized launches."""
    if mechanism is None:
        return serial(scenario)
    return run_mechanism(mechanism, scenario, charges_of(mechanism, costs or {}, scenario))[0]


def compare_mechanisms(
    scenario: Scenario,
    sms: Sequence[float],
    mechanisms: Sequence[Mechanism],
    *,
    costs: ChangedCosts | None = None,
    predicted: bool = True,
    steps: Steps = NOBODY,
) -> Comparison:
    """Run every mechanism on every GPU size.

    Parameters
    ----------
    sms : sequence of float
        SM counts; infinity for no limit.
    costs : mapping, optional
        Mechanism to the costs that are not the defaults.
    predicted : bool
        Predict times, too, where the scenario has any.
    steps : Steps
        Is told how far it is.

    Raises
    ------
    ModelError
        If a mechanism or a cost makes no sense. A mechanism that the program lacks something for
        gets no row, and `Comparison.left_out` says why.
    """
    costs = costs or {}
    unknown = sorted(set(costs) - {m.name for m in mechanisms})
    if unknown:
        from depgraph.mechanisms import MECHANISMS

        hint = "is not among those asked for" if unknown[0] in MECHANISMS else "does not exist"
        raise ModelError(f"cost of {unknown[0]}: that mechanism {hint}")
    paths = Paths.of(scenario)
    limits: list[Bound] = []
    outcomes: list[Outcome] = []
    swept: list[Swept] = []
    left_out: dict[str, str] = {}
    steps.begin("mechanisms", len(sms) * len(mechanisms))
    for size in sms:
        sized = scenario.on(size)
        limit = limits_of(sized, paths)
        if predicted and sized.has_predictions:
            contended = sized.contended
            limit = limit._replace(
                contended=contended_bound(contended),
                contended_serial=contended_serial(contended),
            )
        limits.append(limit)
        chains: dict[bool, Predicted] | None = {} if predicted and sized.is_timed else None
        all_launched = _all_launched(mechanisms, costs, sized)
        for mechanism in mechanisms:
            steps.done()
            lacking = mechanism.lacking_for(sized)
            if lacking and mechanism.only_where_available:
                if mechanism.needs_launches and sized.launches is None:
                    continue
                left_out[mechanism.label] = f"{lacking} (--hypothetical shows it)"
                continue
            try:
                outcome = _outcome(mechanism, costs, limit, sized, chains, all_launched)
            except NotApplicableError as error:
                is_special = mechanism.needs_launches or mechanism.needs_collectives
                if mechanism.asked_by_name or not is_special:
                    left_out[mechanism.label] = str(error)
                continue
            if lacking:
                notes = (f"hypothetical: {lacking}", *outcome.assumptions)
                outcome = replace(outcome, assumptions=notes, lacking=lacking)
            outcomes.append(outcome)
            swept.append(
                Swept(
                    outcome.mechanism, mechanism.freedom, outcome.sms, outcome.makespan,
                    mechanism.slower_because,
                )
            )  # fmt: skip
    worse = anomaly_notes(swept, scenario.unit)
    outcomes = [
        replace(o, assumptions=(*o.assumptions, *notes))
        for o, notes in zip(outcomes, worse, strict=True)
    ]
    return Comparison(
        limits=tuple(limits),
        outcomes=tuple(outcomes),
        left_out=left_out,
        basis=Basis.of(scenario),
    )


def _outcome(
    mechanism: Mechanism,
    costs: ChangedCosts,
    limit: Bound,
    scenario: Scenario,
    chains: dict[bool, Predicted] | None,
    all_launched: float,
) -> Outcome:
    """Run a mechanism with launch costs and, where there are any, without."""
    charges = charges_of(mechanism, costs, scenario)
    try:
        schedule, rules = run_mechanism(mechanism, scenario, charges)
        alone = None
        if not scenario.launch.is_off:
            alone = run_without_launches(mechanism, costs, scenario)
    except DeadlockError as error:
        rules = mechanism.rules(scenario, charges)
        return _deadlocked(mechanism, rules, limit, scenario, error)
    notes = tuple(charges.notes)
    outcome = outcome_of(mechanism, schedule, rules, notes, limit, scenario, alone=alone)
    outcome = _with_share_of_ideal(outcome, mechanism, scenario)
    if mechanism.needs_launches:
        figures = launch_figures(schedule, rules, scenario, all_launched)
        outcome = replace(outcome, launching=figures)
    if chains is None:
        return outcome
    try:
        time = predicted_time(mechanism, scenario, costs)
    except DeadlockError as error:
        note = f"nothing is predicted: with contention {error.place} waits forever"
        return replace(outcome, assumptions=(*outcome.assumptions, note))
    as_graph = isinstance(mechanism, CudaGraph)
    if as_graph not in chains:  # the kernels one after another, launched in the same way
        chains[as_graph] = predicted_chain(mechanism, scenario)
    return _with_prediction(outcome, time, chains[as_graph], mechanism, scenario)


def _deadlocked(
    mechanism: Mechanism, rules: Rules, limits: Bound, scenario: Scenario, error: DeadlockError
) -> Outcome:
    """Return the row of a mechanism that deadlocks."""
    against, bound = bound_of(rules, limits, scenario)
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


def _with_prediction(
    outcome: Outcome, time: Predicted, chain: Predicted, mechanism: Mechanism, scenario: Scenario
) -> Outcome:
    """Add what is predicted, of the mechanism and of the chain that is launched in the same way."""
    shown = in_microseconds(time, mechanism, scenario)
    if shown is None:
        return outcome
    return replace(
        outcome,
        predicted=time.time,
        predicted_us=shown.us,
        predicted_low_us=shown.low_us,
        predicted_high_us=shown.high_us,
        predicted_serial_us=scenario.microseconds(chain.time),
        predicted_speedup=ratio(chain.time, time.time),
        predicted_overlap=ratio(chain.free, time.free),
        family=shown.family,
        errors=shown.errors,
    )


def _with_share_of_ideal(outcome: Outcome, mechanism: Mechanism, scenario: Scenario) -> Outcome:
    """Say what an outcome is of the ideal where there are collectives, and whether links count."""
    collectives = Communication.from_metadata(scenario.metadata).collectives
    communicates = np.isin(scenario.functions, list(collectives))
    # Unlimited SMs have no such ideal, and beat that of any size.
    unlimited = math.isinf(scenario.sms) or outcome.against == Against.UNLIMITED.value
    if unlimited or not communicates.any():
        return outcome
    slots = scenario.occupancy * int(scenario.sms)
    alone = kernel_makespans(scenario.graph, scenario.durations, slots)
    ideal = ratio(alone.sum(), max(alone[communicates].sum(), alone[~communicates].sum()))
    outcome = replace(outcome, share_of_ideal=share_of_gain(outcome.overlap_speedup, ideal))
    knows_links = mechanism.needs_collectives or isinstance(mechanism, Serial)
    if knows_links or outcome.against in OTHER_SCALES:
        return outcome
    return replace(outcome, against=Against.NO_LINKS.value)


def _all_launched(
    mechanisms: Sequence[Mechanism], costs: ChangedCosts, scenario: Scenario
) -> float:
    """Return the makespan with all child kernels launched, if a mechanism is about these."""
    if scenario.launches is None or not any(m.needs_launches for m in mechanisms):
        return math.inf
    try:
        return run_mechanism(Cdp(), scenario, charges_of(Cdp(), costs, scenario))[0].makespan
    except DeadlockError:
        return math.inf


def launch_figures(
    schedule: Schedule, rules: Rules, scenario: Scenario, cdp: float
) -> LaunchFigures | None:
    """Return what became of launches, None without any; `cdp` is the makespan with all of them."""
    children, launching = schedule.children, rules.launching
    if children is None or launching is None:
        return None
    launches = launching.launches
    instruction = np.cumsum(launches.begins_instruction) - 1
    lanes = np.bincount(instruction, weights=np.where(children.launched, launches.lanes, 0))
    overhead = launching.stall * (lanes > 0) + launching.lane_stall * lanes
    waited = children.start - children.issued[children.launch]
    of_children = float(launches.child_work[children.launched].sum())
    own = launches.without_work_of(children.launched).inlined(scenario.own_durations).sum()
    return LaunchFigures(
        made=int(children.launched.sum()),
        possible=len(launches),
        over_cdp=cdp / schedule.makespan if np.isfinite(cdp) and schedule.makespan else 0.0,
        overhead=float(overhead.sum()),
        queueing=float(waited.sum()),
        child_share=of_children / (of_children + float(own)) if of_children else 0.0,
    )


class Swept(NamedTuple):
    """One point of a sweep."""

    label: str  # of the row
    # Which sweep of a parameter it belongs to, and a number that grows as the rules loosen.
    freedom: tuple[str, float] | None
    sms: float
    makespan: float
    slower_because: str = ANOMALY  # than a point of the sweep with less freedom


def anomaly_notes(points: Sequence[Swept], unit: str) -> list[tuple[str, ...]]:
    """Say of each point of a sweep which one with less room, or a smaller parameter, is faster."""
    # Graham, "Bounds on multiprocessing timing anomalies", SIAM Journal on Applied Mathematics
    # 17(2), 1969: a schedule that takes what is ready may become longer with more machines, shorter
    # jobs or fewer constraints.
    notes = []
    for point in points:
        found = []
        fewer = [p for p in points if p.label == point.label and p.sms < point.sms]
        best = min(fewer, key=lambda p: p.makespan, default=None)
        if best and _is_slower(point, best):
            text = f"slower than on {best.sms:.0f} SMs ({best.makespan:.4g} {unit})"
            found.append(f"{text}: {ANOMALY}")
        tighter = [
            p
            for p in points
            if p.sms == point.sms
            and p.freedom is not None
            and point.freedom is not None
            and p.freedom[0] == point.freedom[0]
            and p.freedom[1] < point.freedom[1]
        ]
        best = min(tighter, key=lambda p: p.makespan, default=None)
        if best and _is_slower(point, best):
            text = f"slower than {best.label} ({best.makespan:.4g} {unit})"
            found.append(f"{text}: {point.slower_because}")
        notes.append(tuple(found))
    return notes


def _is_slower(point: Swept, other: Swept) -> bool:
    return point.makespan > other.makespan * (1 + _CLOSE)
