"""Mechanisms for a study: what all of them reach, and schedules and curves of those to draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from depgraph.analysis.compare_mechanisms import compare_mechanisms, run_without_launches
from depgraph.analysis.study import Curve, sweep_sizes
from depgraph.errors import DeadlockError, NotApplicableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from depgraph.analysis.compare_mechanisms import Comparison
    from depgraph.mechanisms import Mechanism, Quantity
    from depgraph.scenario.scenario import Scenario
    from depgraph.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class MechanismStudy:
    """What mechanisms reach.

    Attributes
    ----------
    comparison : Comparison
        On the size of the study alone.
    schedules : tuple of Schedule
        Of the mechanisms to draw, without launch costs.
    curves : tuple of Curve
        Of the same, over many sizes.
    """

    comparison: Comparison
    schedules: tuple[Schedule, ...]
    curves: tuple[Curve, ...]


def study_mechanisms(
    scenario: Scenario,
    compared: Sequence[Mechanism],
    drawn: Sequence[Mechanism],
    *,
    costs: Mapping[str, Mapping[str, Quantity]] | None = None,
) -> MechanismStudy:
    """Compare mechanisms on one GPU size, and prepare some of them for drawing.

    Parameters
    ----------
    scenario : Scenario
        On that size.
    compared : sequence of Mechanism
        All that get a row.
    drawn : sequence of Mechanism
        Those that get a schedule and a curve; one that the program lacks something for gets none.
    costs : mapping, optional
        Mechanism to the costs that are not the defaults.
    """
    costs = costs or {}

    def compare(sizes: Sequence[float], mechanisms: Sequence[Mechanism]) -> Comparison:
        changed = {m.name: costs[m.name] for m in mechanisms if m.name in costs}
        return compare_mechanisms(scenario, sizes, mechanisms, costs=changed)

    schedules = []
    for mechanism in drawn:
        try:
            schedules.append(run_without_launches(mechanism, costs, scenario)[0])
        except (NotApplicableError, DeadlockError):
            continue
    swept = compare(sweep_sizes(int(scenario.sms)), drawn) if drawn else None
    curves = []
    for schedule in schedules if swept else ():
        outcomes = swept.outcomes if swept else ()
        points = [o for o in outcomes if o.mechanism == schedule.name]
        curves.append(
            Curve(
                schedule.name,
                tuple(int(o.sms) for o in points),
                tuple(o.overlap_speedup for o in points),
                is_bound=False,
            )
        )
    return MechanismStudy(compare([scenario.sms], compared), tuple(schedules), tuple(curves))
