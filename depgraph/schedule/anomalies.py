"""Where more room, or fewer rules, make a schedule longer: the anomalies of list schedules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ANOMALY = "an anomaly of list schedules"
_CLOSE = 1e-9


@dataclass(frozen=True, slots=True)
class Swept:
    """One point of a sweep.

    Attributes
    ----------
    label : str
        Of the row.
    freedom : (str, float) or None
        Which sweep of a parameter it belongs to, and a number that grows as the rules loosen.
    slower_because : str
        Why it may be slower than a point of the sweep with less freedom.
    """

    label: str
    freedom: tuple[str, float] | None
    sms: float
    makespan: float
    slower_because: str = ANOMALY


def anomaly_notes(points: Sequence[Swept], unit: str) -> list[tuple[str, ...]]:
    """Say of each point of a sweep which one with less room is faster.

    Parameters
    ----------
    unit : str
        Of the makespans.

    Returns
    -------
    list of tuple of str
        A sentence for each point that is slower on more SMs, or with a larger parameter.

    Notes
    -----
    Graham, "Bounds on multiprocessing timing anomalies", SIAM Journal on Applied Mathematics
    17(2), 1969: a schedule that takes what is ready may become longer with more machines, shorter
    jobs or fewer constraints.
    """
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
