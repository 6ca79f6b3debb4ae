"""Mechanisms for a study: what all of them reach, and schedules and curves of those to draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from depgraph.comparison import (
    charges_of,
    compare_mechanisms,
    program_of,
    run_mechanism,
)
from depgraph.errors import DeadlockError
from depgraph.mechanisms import NotApplicableError
from depgraph.study import Curve, sweep_sizes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from depgraph.comparison import Comparison, ProgramFacts
    from depgraph.mechanisms import Mechanism, Quantity
    from depgraph.model import Model
    from depgraph.schedule import Schedule


@dataclass(frozen=True, slots=True)
class MechanismStudy:
    """What mechanisms reach.

    Attributes
    ----------
    comparison : Comparison
        On the size of the study alone.
    schedules : tuple of Schedule
        Of the mechanisms to draw.
    curves : tuple of Curve
        Of the same, over many sizes.
    """

    comparison: Comparison
    schedules: tuple[Schedule, ...]
    curves: tuple[Curve, ...]


def study_mechanisms(
    model: Model,
    sms: int,
    compared: Sequence[Mechanism],
    drawn: Sequence[Mechanism],
    *,
    costs: Mapping[str, Mapping[str, Quantity]] | None = None,
    facts: ProgramFacts | None = None,
) -> MechanismStudy:
    """Compare mechanisms on one GPU size, and prepare some of them for drawing.

    Parameters
    ----------
    model : Model
    sms : int
    compared : sequence of Mechanism
        All that get a row.
    drawn : sequence of Mechanism
        Those that get a schedule and a curve; one that the program lacks something for gets none.
    costs : mapping, optional
        Mechanism to the costs that are not the defaults.
    facts : ProgramFacts, optional
    """
    costs = costs or {}
    graph, durations, occupancy = model.graph, model.durations, model.occupancy

    def compare(sizes: Sequence[int], mechanisms: Sequence[Mechanism]) -> Comparison:
        return compare_mechanisms(
            graph,
            sizes,
            mechanisms,
            durations=durations,
            occupancy=occupancy,
            launch=model.launch,
            costs={m.name: costs[m.name] for m in mechanisms if m.name in costs},
            facts=facts,
        )

    program = program_of(graph, sms, durations, occupancy, launch=model.launch, facts=facts)
    schedules = []
    for mechanism in drawn:
        charges = charges_of(mechanism, costs, durations, occupancy, model.launch)
        try:
            schedules.append(run_mechanism(mechanism, program, charges)[0])
        except (NotApplicableError, DeadlockError):
            continue
    swept = compare(sweep_sizes(sms), drawn) if drawn else None
    curves = []
    for schedule in schedules if swept else ():
        outcomes = swept.outcomes if swept else ()
        points = [o for o in outcomes if o.mechanism == schedule.name]
        curves.append(
            Curve(
                schedule.name,
                tuple(int(o.sms) for o in points),
                tuple(o.gain for o in points),
                is_bound=False,
            )
        )
    return MechanismStudy(compare([sms], compared), tuple(schedules), tuple(curves))
