"""Mechanisms beside each other: what each reaches of the upper bound on the speedup."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from depgraph.analysis.basis import Basis
from depgraph.analysis.launch_figures import launch_figures
from depgraph.analysis.outcome import (
    Outcome,
    Paths,
    deadlocked,
    limits_of,
    outcome_of,
    with_prediction,
)
from depgraph.errors import DeadlockError, ModelError, NotApplicableError
from depgraph.graph.program import Communication
from depgraph.mechanisms import Against, Availability
from depgraph.mechanisms.costs import charges_of, without_launch_costs
from depgraph.mechanisms.serial import Serial, serial
from depgraph.scenario.contention import contended_bound, contended_serial
from depgraph.schedule.schedule import Swept, anomaly_notes
from depgraph.schedule.simulate import run_rules
from depgraph.system.ratios import ratio, share_of_gain
from depgraph.system.steps import NOBODY
from depgraph.timing.durations import kernel_makespans

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from depgraph.analysis.outcome import Bound
    from depgraph.mechanisms import Mechanism, Rules
    from depgraph.mechanisms.costs import ChangedCosts, Charges
    from depgraph.mechanisms.predicted_time import Predicted
    from depgraph.scenario.scenario import Scenario
    from depgraph.schedule.schedule import Schedule
    from depgraph.system.steps import Steps


OTHER_SCALES = {each.value for each in Against if each.is_another_scale}
"""What rows are compared with that say nothing of those beside them."""
_NOT_BOUNDED = (
    "predictions are not held to the bound of predictions, which is for blocks that wait before "
    "they start"
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Outcomes of several mechanisms on several GPU sizes.

    Attributes
    ----------
    left_out : dict
        Mechanism to why it has no row.
    basis : Basis
        What they rest on.
    """

    limits: tuple[Bound, ...]
    outcomes: tuple[Outcome, ...]
    left_out: dict[str, str]
    basis: Basis

    def best(self, sms: float, *, without_hardware: bool = False) -> Outcome | None:
        """Return the fastest of the mechanisms whose blocks wait before they start.

        Others cut blocks up, or wait inside them; what the GPU or the code lacks is none either.
        """
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
        said: dict[str, dict[str, None]] = {}
        for outcome in self.outcomes:
            for note in outcome.assumptions:
                said.setdefault(note, {})[outcome.mechanism] = None
        for outcome in self.outcomes:
            is_predicted = self.basis.has_contention and outcome.predicted is not None
            if is_predicted and outcome.against != Against.BLOCK.value:
                said.setdefault(_NOT_BOUNDED, {})[outcome.mechanism] = None
        return [f"{', '.join(names)}: {note}" for note, names in said.items()] + [
            f"{name} is left out: {reason}" for name, reason in self.left_out.items()
        ]

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per mechanism and GPU size."""
        import pandas as pd

        names = [f.name for f in fields(Outcome) if f.name not in {"launching", "figures"}]
        return pd.DataFrame(
            [[getattr(outcome, name) for name in names] for outcome in self.outcomes],
            columns=names,
        )


def run_mechanism(
    mechanism: Mechanism, scenario: Scenario, charges: Charges
) -> tuple[Schedule, Rules]:
    """Schedule a scenario, on one number of SMs, under a mechanism."""
    rules = mechanism.rules(scenario, charges)
    schedule = run_rules(
        mechanism.label,
        rules,
        scenario.graph,
        scenario.durations,
        scenario.resources,
        scenario.sms,
    )
    return replace(schedule, least=scenario.memory), rules


def schedule_of(
    scenario: Scenario, mechanism: Mechanism | None, costs: ChangedCosts | None = None
) -> Schedule:
    """Return the schedule of a mechanism on one number of SMs; None for serialized launches."""
    if mechanism is None:
        return serial(scenario)
    return run_mechanism(mechanism, scenario, charges_of(mechanism, costs or {}, scenario))[0]


def run_without_launches(
    mechanism: Mechanism, costs: ChangedCosts, scenario: Scenario
) -> tuple[Schedule, Rules]:
    """Schedule a scenario under a mechanism without launch costs, as bounds count.

    Where launches cost anything, those costs of launches that the user gave are left out too.
    """
    if not scenario.launch.is_off:
        costs = without_launch_costs(mechanism, costs)
        scenario = scenario.without_launches()
    return run_mechanism(mechanism, scenario, charges_of(mechanism, costs, scenario))


def compare_mechanisms(
    scenario: Scenario,
    sms: Sequence[float],
    mechanisms: Sequence[Mechanism],
    *,
    costs: ChangedCosts | None = None,
    steps: Steps = NOBODY,
) -> Comparison:
    """Run every mechanism on every GPU size.

    Parameters
    ----------
    sms : sequence of float
        SM counts; infinity for no limit.
    costs : mapping, optional
        Mechanism to the costs that are not the defaults.
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
        if sized.has_predictions:
            contended = sized.contended
            limit = replace(
                limit,
                contended=contended_bound(contended),
                contended_serial=contended_serial(contended),
            )
        limits.append(limit)
        chains = _Chains(sized)
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
                found = _outcome(mechanism, costs, limit, sized, chains, all_launched)
            except NotApplicableError as error:
                is_special = mechanism.needs_launches or mechanism.needs_collectives
                if mechanism.asked_by_name or not is_special:
                    left_out[mechanism.label] = str(error)
                continue
            if lacking:
                notes = (f"hypothetical: {lacking}", *found.assumptions)
                found = replace(found, assumptions=notes, lacking=lacking)
            outcomes.append(found)
            swept.append(
                Swept(
                    found.mechanism, mechanism.freedom, found.sms, found.makespan,
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
    chains: _Chains,
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
        return deadlocked(mechanism, rules, limit, scenario, error)
    charged = tuple(charges.notes)
    found = outcome_of(mechanism, schedule, rules, charged, limit, scenario, alone=alone)
    found = _beside_communication(found, mechanism, scenario)
    if mechanism.needs_launches:
        figures = launch_figures(schedule, rules, scenario, all_launched)
        found = replace(found, launching=figures)
    if not scenario.is_timed:
        return found
    from depgraph.mechanisms.predicted_time import predicted_time

    try:
        time = predicted_time(mechanism, scenario, costs)
    except DeadlockError as error:
        note = f"nothing is predicted: with contention {error.place} waits forever"
        return replace(found, assumptions=(*found.assumptions, note))
    return with_prediction(found, time, chains.of(mechanism), mechanism, scenario)


class _Chains:
    """What the kernels one after another are predicted to take; worked out when asked for."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._known: dict[bool, Predicted] = {}

    def of(self, mechanism: Mechanism) -> Predicted:
        """Return the chain that is launched in the same way as by a mechanism."""
        from depgraph.mechanisms.cuda_graph import CudaGraph
        from depgraph.mechanisms.predicted_time import predicted_chain

        sort = isinstance(mechanism, CudaGraph)
        if sort not in self._known:
            self._known[sort] = predicted_chain(mechanism, self._scenario)
        return self._known[sort]


def _beside_communication(found: Outcome, mechanism: Mechanism, scenario: Scenario) -> Outcome:
    """Say what an outcome is of the ideal where there are collectives, and whether links count."""
    collectives = Communication.from_metadata(scenario.metadata).collectives
    talks = np.isin(scenario.functions, list(collectives))
    if not talks.any() or math.isinf(scenario.sms):
        return found
    slots = scenario.occupancy * int(scenario.sms)
    alone = kernel_makespans(scenario.graph, scenario.durations, slots)
    ideal = ratio(alone.sum(), max(alone[talks].sum(), alone[~talks].sum()))
    found = replace(found, share_of_ideal=share_of_gain(found.overlap_speedup, ideal))
    knows_links = mechanism.needs_collectives or isinstance(mechanism, Serial)
    if knows_links or found.against in OTHER_SCALES:
        return found
    return replace(found, against=Against.NO_LINKS.value)


def _all_launched(
    mechanisms: Sequence[Mechanism], costs: ChangedCosts, scenario: Scenario
) -> float:
    """Return the makespan with all child kernels launched, if a mechanism is about these."""
    if scenario.launches is None or not any(m.needs_launches for m in mechanisms):
        return math.inf
    from depgraph.mechanisms.child_kernels import Cdp

    try:
        return run_mechanism(Cdp(), scenario, charges_of(Cdp(), costs, scenario))[0].makespan
    except DeadlockError:
        return math.inf
