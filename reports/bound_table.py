"""The table that answers how much overlap could gain."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from depgraph.reports.tables import (
    Column,
    Report,
    Table,
    show_count,
    show_factor,
    show_number,
    show_percent,
)

if TYPE_CHECKING:
    from depgraph.bounds import Bound, BoundTable


_ALL = "RAW,WAR,WAW"
_KINDS_IN_WORDS = {_ALL: "all dependences", "RAW": "RAW dependences alone"}


def _show_kinds(kinds: str) -> str:
    return "all" if kinds == _ALL else kinds


def bound_report(table: BoundTable) -> Report:
    """Describe bounds: the answer in a sentence, the bounds, what schedules reach, assumptions."""
    unit = table.unit
    bounds = Table(
        "bounds",
        "Bounds",
        [
            Column("sms", "SMs", show=show_count),
            Column("dependences", "deps", is_text=True, show=_show_kinds),
            Column("serial", "serial", unit, show_number),
            Column("critical_path", "critical path", unit, show_number),
            Column("work", "work", unit, show_number),
            Column("lower_bound", "lower bound", unit, show_number),
            Column("bound_on_gain", "gain at most", show=show_factor),
        ],
        [
            (_whole(b.sms), b.dependences, b.serial, b.critical_path, b.work, b.lower_bound, b.gain)
            for b in table.bounds
        ],
    )
    schedule_columns = [
        Column("sms", "SMs", show=show_count),
        Column("dependences", "deps", is_text=True, show=_show_kinds),
        Column("schedule", "schedule", is_text=True),
        Column("makespan", "makespan", unit, show_number),
        Column("gain", "gain", show=show_factor),
        Column("share_of_bound", "share of bound", show=_show_share),
        Column("utilization", "utilization", show=show_percent),
    ]
    schedules = Table(
        "schedules",
        "Schedules",
        schedule_columns,
        [
            (_whole(b.sms), b.dependences, a.schedule, a.makespan, a.gain, _share_of_bound(a.gain, b),
             a.utilization)
            for b in table.bounds
            for a in b.schedules
        ],
    )  # fmt: skip
    flat = Table(
        "bound",
        "",
        [*bounds.columns, Column("limited_by", "limited by"), *schedule_columns[2:],
         Column("unit", "unit")],
        [
            (_whole(b.sms), b.dependences, b.serial, b.critical_path, b.work, b.lower_bound, b.gain,
             b.limited_by, a.schedule, a.makespan, a.gain, _share_of_bound(a.gain, b),
             a.utilization, unit)
            for b in table.bounds
            for a in b.schedules
        ],
    )  # fmt: skip
    low, high = table.occupancy
    resident = str(low) if low == high else f"{low} to {high}"
    return Report(
        "bound",
        {
            "unit": unit,
            "durations": table.durations,
            "gpu": table.gpu,
            "occupancy_least": low,
            "occupancy_most": high,
        },
        headline=[
            *_answers(table),
            f"durations: {table.durations} ({unit}); "
            f"occupancy: {resident} blocks per SM by the limits of {table.gpu}",
        ],
        tables=[bounds, schedules],
        notes=table.assumptions,
        csv_table=flat,
    )


def _whole(sms: float) -> float:
    return sms if math.isinf(sms) else int(sms)


def _answers(table: BoundTable) -> list[str]:
    sentences = []
    for b in table.bounds:
        size = "unlimited SMs" if math.isinf(b.sms) else f"{b.sms:.0f} SMs"
        best = max((a for a in b.schedules if a.schedule != "serial"), key=lambda a: a.gain)
        sentences.append(
            f"{size}, {_KINDS_IN_WORDS.get(b.dependences, b.dependences)}: at most {show_factor(b.gain)} (limited by {b.limited_by}); "
            f"{show_factor(best.gain)} reached by {best.schedule}"
        )
    return sentences


def _share_of_bound(gain: float, bound: Bound) -> float | None:
    """Return which part of the gain that is possible a schedule gets; None if there is none."""
    return (gain - 1) / (bound.gain - 1) if bound.gain > 1 else None


def _show_share(value: float | None) -> str:
    return "-" if value is None else show_percent(value)
