"""The bounds on the speedup and the schedules that come close, as tables and sentences."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from depgraph.analysis.bound import Basis, Bound, BoundTable
from depgraph.reports.tables.table import (
    Column,
    Report,
    Table,
    common,
    row_of,
    show_count,
    table_rows,
    whole_sms,
)
from depgraph.system.text import TIMES, ratio, show_factor, show_number, size_text

_WORTH_SAYING = 1.005
_SIZES_IN_WORDS = 3


def kinds_shown(basis: Basis) -> Callable[[str], str]:
    """Return what names kinds of dependence in a table: "all" where nothing is left out."""
    return lambda kinds: "all" if kinds == basis.known_kinds else kinds


def _in_words(basis: Basis, kinds: str) -> str:
    words = {basis.known_kinds: "all dependences", "RAW": "RAW only (buffers renamed)"}
    return words.get(kinds, kinds)


def bound_report(table: BoundTable) -> Report:
    """Describe bounds: answer, bounds, schedules, assumptions; of many sizes only their curve."""
    basis, unit = table.basis, table.unit
    launches = launch_table(table)
    of_bound = [
        *common("sms"),
        Column("dependences", "deps", is_text=True, show=kinds_shown(basis)),
    ]
    bound_columns = [
        *of_bound,
        *common("serial", "critical_path", "work", unit=unit),
        *common("memory", unit=unit) * any(b.memory for b in table.bounds),
        *common("lower_bound", "upper_bound", unit=unit),
    ]
    reached = [
        Column.text("schedule", "schedule", lambda a: a.mechanism, wraps=True),
        *common("makespan", "speedup", "share_of_bound", "utilization", unit=unit),
    ]
    bounds = Table.of("bounds", "Bounds", bound_columns, table.bounds)
    pairs = [(b, a) for b in table.bounds for a in b.schedules]
    schedules = Table(
        "schedules",
        "Schedules",
        [*of_bound, *reached],
        [*((*row_of(of_bound, b), *row_of(reached, a)) for b, a in pairs), *_measured_rows(basis)],
    )
    limited = [*bound_columns, Column("limited_by", "limited by")]
    flat = Table(
        "bound",
        "",
        [*limited, *reached, Column("unit", "unit")],
        [(*row_of(limited, b), *row_of(reached, a), unit) for b, a in pairs],
    )
    curve = _curve(table) if table.is_curve else None
    low, high = basis.occupancy
    many = len({b.sms for b in table.bounds}) > _SIZES_IN_WORDS
    shown = len(bounds.rows) if many else 0
    return Report(
        "bound",
        {
            "unit": unit,
            "durations": basis.durations,
            "gpu": basis.gpu,
            "occupancy_least": low,
            "occupancy_most": high,
        },
        headline=[*(_curve_answers(table) if curve else _answers(table)), *_launch_answers(table)],
        brief=() if curve else _in_short(table),
        tables=[curve.at_first(len(curve.rows))]
        if curve
        else [bounds.at_first(shown), schedules, *launches],
        notes=[durations_line(basis), *table.assumptions, *basis.uncertain],
        csv_table=flat,
        extra={t.key: table_rows(t) for t in (bounds, schedules, *launches)} if curve else {},
    )


def launch_table(table: BoundTable) -> list[Table]:
    """Lay out what launches cost on each size, if they cost anything."""
    launched = {b.sms: b for b in table.bounds if b.launches is not None}
    serial, graph = attrgetter("launches.serial"), attrgetter("launches.cuda_graph")
    columns = [
        *common("sms"),
        Column.number("serial", "serial, one launch at a time", table.unit, serial),
        Column.number("cuda_graph", "as a CUDA graph", table.unit, graph),
        Column.number("without", "serial without launch costs", table.unit, attrgetter("serial")),
    ]
    return Table.if_any("launches", "What launches cost", columns, launched.values())


def _launch_answers(table: BoundTable) -> list[str]:
    first = table.bounds[0] if table.bounds else None
    if first is None or first.launches is None:
        return []
    costs = first.launches
    text = (
        f"launch costs, not part of the bound: on {_sms(first)} serial takes "
        f"{show_number(costs.serial)} {table.unit} with them, {show_number(costs.cuda_graph)} as a "
        f"CUDA graph ({show_factor(ratio(costs.serial, costs.cuda_graph))}), "
        f"{show_number(first.serial)} without"
    )
    return [text]


def _measured_rows(basis: Basis) -> list[tuple[Any, ...]]:
    m = basis.measured
    if m is None:
        return []
    faster = m.speedup if m.speedup >= 1 else None  # slower than its kernels alone: no speedup
    return [(m.sms, "as profiled", "measured", m.wall, faster, None, m.utilization)]


def _curve(table: BoundTable) -> Table:
    kinds = list(dict.fromkeys(b.dependences for b in table.bounds))
    columns = [Column("sms", "SMs", show=show_count), *common("serial", unit=table.unit)]
    for kind in kinds:
        label = kinds_shown(table.basis)(kind)
        columns += [
            Column.factor(f"upper_bound {kind}", f"{label}: bound"),
            Column.factor(f"speedup {kind}", "dataflow"),
            Column.text(f"limited_by {kind}", "limited by"),
        ]
    rows = []
    for at in range(0, len(table.bounds), len(kinds)):
        bounds = table.bounds[at : at + len(kinds)]
        cells = [(b.upper_bound, b.schedules[-1].speedup, b.limited_by) for b in bounds]
        rows.append(
            (whole_sms(bounds[0].sms), bounds[0].serial, *(c for row in cells for c in row))
        )
    return Table("curve", "Speedup by number of SMs", columns, rows)


def _curve_answers(table: BoundTable) -> list[str]:
    """Say where each curve begins and ends, and from which size on more SMs do not help."""
    sentences = []
    for kind in dict.fromkeys(b.dependences for b in table.bounds):
        curve = [b for b in table.bounds if b.dependences == kind]
        words = _in_words(table.basis, kind)
        ends = " to ".join(
            f"{show_factor(b.upper_bound)} ({_sms(b)})" for b in (curve[0], curve[-1])
        )
        bend = next((b for b in curve if b.limited_by == "critical path"), None)
        limit = "limited by work throughout"
        if bend is not None:
            limit = f"limited by the critical path from {_sms(bend)} on"
        sentences.append(f"{words}: upper bound on speedup {ends}; {limit}")
    return sentences


def _sms(b: Bound) -> str:
    return size_text(b.sms)


def durations_line(basis: Basis) -> str:
    """Say where durations come from, and how many blocks SMs hold."""
    low, high = basis.occupancy
    resident = str(low) if low == high else f"{low} to {high}"
    return (
        f"durations: {basis.durations} ({basis.unit}); occupancy: {resident} blocks per SM by the "
        f"limits of {basis.gpu}"
    )


def _in_short(table: BoundTable) -> list[str]:
    """Say of each size the bound with all dependences, and what renaming would make of it."""
    sentences = []
    sizes = dict.fromkeys(b.sms for b in table.bounds)
    if len(sizes) > _SIZES_IN_WORDS or (len(sizes) == 1 and table.basis.unit not in TIMES):
        return []  # the table says it, or the first line
    for sms in sizes:
        every, *fewer = [b for b in table.bounds if b.sms == sms]
        text = f"{_sms(every)}: upper bound {show_factor(every.upper_bound)} ({every.limited_by})"
        if fewer and fewer[-1].upper_bound > every.upper_bound * _WORTH_SAYING:
            text += f"; {show_factor(fewer[-1].upper_bound)} with every buffer separate (RAW only)"
        sentences.append(f"{text}.")
    return sentences


def _answers(table: BoundTable) -> list[str]:
    return [
        f"{_sms(b)}, {_in_words(table.basis, b.dependences)}: upper bound on speedup "
        f"{show_factor(b.upper_bound)} (limited by {b.limited_by}); "
        f"{show_factor(b.reached.speedup)} reached by {b.reached.mechanism}"
        for b in table.bounds
    ]
