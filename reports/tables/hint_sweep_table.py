"""What a kilobyte of filter buys, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depgraph.reports.tables.table import (
    Column,
    Report,
    Table,
    show_factor,
    show_number,
    sms_column,
)

if TYPE_CHECKING:
    from depgraph.analysis.hint_sweep import HintSweep


def hint_sweep_report(sweep: HintSweep) -> Report:
    """Describe a sweep: three sentences, speedups by size, what else there is, all points."""
    points = Table.of(
        "points",
        "Each program on each number of SMs",
        [
            Column("program", "program", is_text=True),
            sms_column(),
            Column("mechanism", "mechanism", is_text=True),
            Column("kib", "KiB", show=show_number),
            Column("speedup", "speedup", show=show_factor),
            Column("lookups", "look-ups", show=show_number),
            Column("false_waits", "false waits", show=show_number),
            Column("missed", "missed", show=show_number),
        ],
        sweep.points,
    )
    return Report(
        "sweep_hints",
        {"worth_it": sweep.worth_it and sweep.worth_it.name, "sentences": sweep.sentences},
        headline=sweep.sentences,
        brief=sweep.sentences,
        tables=[
            *(t.at_first(len(t.rows)) for t in (by_size_table(sweep), knee_table(sweep))),
            points,
        ],
        notes=[
            (
                "speedups over serialized launches, geometric means over programs and numbers of "
                "SMs; dataflow-bloom: two filters for each block of the program; what others take "
                "to find dependences is not known"
            ),
            *(f"{name} is left out: {reason}" for name, reason in sweep.left_out.items()),
        ],
        csv_table=points,
    )


def by_size_table(sweep: HintSweep) -> Table:
    """Build a row for each size of filter, and a speedup for each grain."""
    sizes = dict.fromkeys(kib for curve in sweep.curves for kib in curve.kib)
    columns = [
        Column("kib", "KiB", show=lambda kib: "no filter" if kib is None else f"{kib:.3g}"),
        *(Column(curve.name, curve.name, show=show_factor) for curve in sweep.curves),
    ]
    found = [dict(zip(curve.kib, curve.speedup, strict=True)) for curve in sweep.curves]
    rows = [(kib, *(by_size.get(kib) for by_size in found)) for kib in sizes]
    return Table("by_size", "Speedup by kilobytes of filter, by grain of hints", columns, rows)


def knee_table(sweep: HintSweep) -> Table:
    """Build a row for each grain and each other mechanism."""
    columns = [
        Column("name", "dependences by", is_text=True),
        Column("most", "speedup", show=show_factor),
        Column("knee", "from KiB on", show=lambda kib: "-" if kib is None else f"{kib:.3g}"),
    ]
    rows = [
        *((f"hints: {curve.name}", curve.most, curve.knee) for curve in sweep.curves),
        *((curve.name, curve.most, None) for curve in sweep.others),
    ]
    return Table("knees", "What hints and other mechanisms reach", columns, rows)
