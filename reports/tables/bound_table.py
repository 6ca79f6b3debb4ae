"""The bounds on the speedup and the schedules that come close, as tables and sentences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from depgraph.analysis.bound import MANY_SIZES
from depgraph.reports.tables.table import (
    Column,
    Report,
    Table,
    show_count,
    show_factor,
    show_number,
    show_percent,
    table_rows,
)
from depgraph.system.text import size_text

if TYPE_CHECKING:
    from depgraph.analysis.bound import BoundTable
    from depgraph.analysis.outcome import Bound


_ALL = "RAW,WAR,WAW"
_KINDS_IN_WORDS = {_ALL: "all dependences", "RAW": "RAW only (buffers renamed)"}


def show_kinds(kinds: str) -> str:
    """Name kinds of dependence in a table."""
    return "all" if kinds == _ALL else kinds


def bound_report(table: BoundTable) -> Report:
    """Describe bounds: the answer in a sentence, the bounds, what schedules reach, assumptions.

    Of more than `MANY_SIZES` sizes a terminal and Markdown get only the curve, one line per size.
    """
    unit = table.unit
    launches = launch_table(table)
    with_memory = any(b.memory for b in table.bounds)
    bounds = Table(
        "bounds",
        "Bounds",
        [
            Column("sms", "SMs", show=show_count),
            Column("dependences", "deps", is_text=True, show=show_kinds),
            Column("serial", "serial", unit, show_number),
            Column("critical_path", "critical path", unit, show_number),
            Column("work", "work", unit, show_number),
            *[Column("memory", "memory", unit, show_number)] * with_memory,
            Column("lower_bound", "lower bound", unit, show_number),
            Column("upper_bound", "upper bound", show=show_factor),
        ],
        [
            (_whole(b.sms), b.dependences, b.serial, b.critical_path, b.work,
             *[b.memory] * with_memory, b.lower_bound, b.upper_bound)
            for b in table.bounds
        ],
    )  # fmt: skip
    schedule_columns = [
        Column("sms", "SMs", show=show_count),
        Column("dependences", "deps", is_text=True, show=show_kinds),
        Column("schedule", "schedule", is_text=True),
        Column("makespan", "makespan", unit, show_number),
        Column("speedup", "speedup", show=show_factor),
        Column("share_of_bound", "share of bound", show=_show_share),
        Column("utilization", "utilization", show=show_percent),
    ]
    schedules = Table(
        "schedules",
        "Schedules",
        schedule_columns,
        [
            (_whole(b.sms), b.dependences, a.mechanism, a.makespan, a.speedup, a.share_of_bound,
             a.utilization)
            for b in table.bounds
            for a in b.schedules
        ]
        + _measured_rows(table),
    )  # fmt: skip
    flat = Table(
        "bound",
        "",
        [*bounds.columns, Column("limited_by", "limited by"), *schedule_columns[2:],
         Column("unit", "unit")],
        [
            (_whole(b.sms), b.dependences, b.serial, b.critical_path, b.work,
             *[b.memory] * with_memory, b.lower_bound, b.upper_bound, b.limited_by,
             a.mechanism, a.makespan, a.speedup, a.share_of_bound, a.utilization, unit)
            for b in table.bounds
            for a in b.schedules
        ],
    )  # fmt: skip
    curve = _curve(table) if len({b.sms for b in table.bounds}) > MANY_SIZES else None
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
            *(_curve_answers(table) if curve else _answers(table)),
            *_launch_answers(table),
            (
                f"durations: {table.durations} ({unit}); "
                f"occupancy: {resident} blocks per SM by the limits of {table.gpu}"
            ),
        ],
        tables=[curve] if curve else [bounds, schedules, *launches],
        notes=table.assumptions,
        csv_table=flat,
        extra={t.key: table_rows(t) for t in (bounds, schedules, *launches)} if curve else {},
    )


def launch_table(table: BoundTable) -> list[Table]:
    """Lay out what launches cost on each size, if they cost anything."""
    rows = {
        b.sms: (_whole(b.sms), b.launches.serial, b.launches.cuda_graph, b.serial)
        for b in table.bounds
        if b.launches is not None
    }
    if not rows:
        return []
    columns = [
        Column("sms", "SMs", show=show_count),
        Column("serial", "serial, one launch at a time", table.unit, show_number),
        Column("cuda_graph", "as a CUDA graph", table.unit, show_number),
        Column("without", "serial without launch costs", table.unit, show_number),
    ]
    return [Table("launches", "What launches cost", columns, list(rows.values()))]


def _launch_answers(table: BoundTable) -> list[str]:
    """Say what launches cost on the first size."""
    first = table.bounds[0] if table.bounds else None
    if first is None or first.launches is None:
        return []
    costs = first.launches
    text = (
        f"launch costs, not part of the bound: on {_sms(first)} serial takes "
        f"{show_number(costs.serial)} {table.unit} with them, {show_number(costs.cuda_graph)} as a "
        f"CUDA graph ({show_factor(costs.cuda_graph_speedup)}), {show_number(first.serial)} without"
    )
    return [text]


def _measured_rows(table: BoundTable) -> list[tuple[Any, ...]]:
    """Return the row of the run that was profiled, beside those of schedules."""
    m = table.measured
    if m is None:
        return []
    return [(m.sms, "as profiled", "measured", m.wall, m.speedup, None, m.utilization)]


def _curve(table: BoundTable) -> Table:
    """Lay out the speedup by number of SMs, one line per size."""
    kinds = list(dict.fromkeys(b.dependences for b in table.bounds))
    columns = [
        Column("sms", "SMs", show=show_count),
        Column("serial", "serial", table.unit, show_number),
    ]
    for kind in kinds:
        label = show_kinds(kind)
        columns += [
            Column(f"upper_bound {kind}", f"{label}: bound", show=show_factor),
            Column(f"speedup {kind}", "dataflow", show=show_factor),
            Column(f"limited_by {kind}", "limited by", is_text=True),
        ]
    rows = []
    for at in range(0, len(table.bounds), len(kinds)):
        bounds = table.bounds[at : at + len(kinds)]
        cells = [(b.upper_bound, b.schedules[-1].speedup, b.limited_by) for b in bounds]
        rows.append((_whole(bounds[0].sms), bounds[0].serial, *(c for row in cells for c in row)))
    return Table("curve", "Speedup by number of SMs", columns, rows)


def _curve_answers(table: BoundTable) -> list[str]:
    """Say where each curve begins and ends, and from which size on more SMs do not help."""
    sentences = []
    for kind in dict.fromkeys(b.dependences for b in table.bounds):
        curve = [b for b in table.bounds if b.dependences == kind]
        words = _KINDS_IN_WORDS.get(kind, kind)
        ends = " to ".join(
            f"{show_factor(b.upper_bound)} ({_sms(b)})" for b in (curve[0], curve[-1])
        )
        bend = next((b for b in curve if b.limited_by == "critical path"), None)
        limit = (
            "limited by work throughout"
            if bend is None
            else f"limited by the critical path from {_sms(bend)} on"
        )
        sentences.append(f"{words}: upper bound on speedup {ends}; {limit}")
    return sentences


def _sms(b: Bound) -> str:
    return size_text(b.sms)


def _whole(sms: float) -> float:
    return sms if math.isinf(sms) else int(sms)


def _answers(table: BoundTable) -> list[str]:
    return [
        f"{_sms(b)}, {_KINDS_IN_WORDS.get(b.dependences, b.dependences)}: upper bound on speedup "
        f"{show_factor(b.upper_bound)} (limited by {b.limited_by}); "
        f"{show_factor(b.reached.speedup)} reached by {b.reached.mechanism}"
        for b in table.bounds
    ]


def _show_share(value: float | None) -> str:
    return "-" if value is None else show_percent(value)
