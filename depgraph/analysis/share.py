"""Two programs on one GPU: what sharing it takes, and what it costs each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from depgraph.analysis.compare_mechanisms import run_mechanism
from depgraph.mechanisms.costs import charges_of
from depgraph.mechanisms.dataflow import Dataflow
from depgraph.mechanisms.predicted_time import predicted_schedule, predicted_time
from depgraph.mechanisms.serial import Serial, serial
from depgraph.mechanisms.shared_gpu import BLOCKS, find_sharing
from depgraph.scenario.joined import joined
from depgraph.system.ratios import ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from depgraph.mechanisms.base import Mechanism
    from depgraph.scenario.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Side:
    """One of two programs, alone and beside the other."""

    alone: float
    shared: float

    @property
    def slowdown(self) -> float:
        """How many times as long it takes beside the other."""
        return ratio(self.shared, self.alone)


@dataclass(frozen=True, slots=True)
class Times:
    """What one way to share a GPU takes."""

    makespan: float
    in_turn: float  # one program after the other, the kernels of each one after another
    first: Side
    second: Side

    @property
    def speedup(self) -> float:
        """Over one program after the other."""
        return ratio(self.in_turn, self.makespan)


@dataclass(frozen=True, slots=True)
class Shared:
    """One way to share a GPU of one size."""

    sms: float
    how: str
    times: Times  # for fixed durations, in their unit
    predicted_us: Times | None  # with contention and what launches cost; None where not predicted


@dataclass(frozen=True, slots=True)
class Sharing:
    """Two programs on one GPU, in several ways."""

    names: tuple[str, str]
    unit: str
    rows: tuple[Shared, ...]
    assumptions: tuple[str, ...]


def share_gpu(
    first: tuple[str, Scenario], second: tuple[str, Scenario], sms: Sequence[float], how: str
) -> Sharing:
    """Run two programs side by side.

    Parameters
    ----------
    first, second : (str, Scenario)
        With their names.
    sms : sequence of float
        SM counts.
    how : str
        As `find_sharing` reads it.

    Raises
    ------
    ModelError
        If the programs cannot share a GPU, or not so.
    """
    one, other = first[1], second[1]
    both = joined(one, other)
    rows = []
    for size in sms:
        programs = one.on(size), other.on(size), both.on(size)
        for way in find_sharing(how, one.graph.n_operations):
            alone = Dataflow() if way.how == BLOCKS else Serial()
            rows.append(
                Shared(size, way.label, _fixed(way, alone, *programs),
                       _predicted(way, alone, *programs))
            )  # fmt: skip
    return Sharing((first[0], second[0]), one.unit, tuple(rows), both.assumptions)


def _fixed(
    way: Mechanism, alone: Mechanism, one: Scenario, other: Scenario, both: Scenario
) -> Times:
    own = [run_mechanism(alone, p, charges_of(alone, {}, p))[0].makespan for p in (one, other)]
    schedule, _ = run_mechanism(way, both, charges_of(way, {}, both))
    ends = schedule.end[: one.graph.n_blocks], schedule.end[one.graph.n_blocks :]
    return Times(
        schedule.makespan,
        serial(one).makespan + serial(other).makespan,
        *(Side(a, float(e.max(initial=0.0))) for a, e in zip(own, ends, strict=True)),
    )


def _predicted(
    way: Mechanism, alone: Mechanism, one: Scenario, other: Scenario, both: Scenario
) -> Times | None:
    us = both.microseconds(1.0)
    if us is None or not both.is_timed:
        return None
    time = predicted_time(way, both).time
    ends = predicted_schedule(way, both, time).end * us
    sides = ends[: one.graph.n_blocks], ends[one.graph.n_blocks :]
    own = [predicted_time(alone, program).time * us for program in (one, other)]
    in_turn = sum(predicted_time(Serial(), program).time * us for program in (one, other))
    return Times(
        time * us,
        in_turn,
        *(Side(a, float(e.max(initial=0.0))) for a, e in zip(own, sides, strict=True)),
    )
