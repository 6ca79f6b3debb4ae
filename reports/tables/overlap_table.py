"""Computation beside communication, as a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from depgraph.reports.tables.columns import common
from depgraph.reports.tables.table import (
    Column,
    Report,
    Table,
    row_of,
    show_count,
    show_factor,
    show_number,
    show_percent,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from depgraph.analysis.communication_overlap import Iteration, Overlapped

_UNIT = "us"
_ROWS = 40
_COLUMNS = (
    Column("computation", "computation", _UNIT, show_number),
    Column("communication", "communication", _UNIT, show_number),
    Column("serial", "serial", _UNIT, show_number),
    Column("ideal", "ideal", _UNIT, show_number),
    Column("time", "time", _UNIT, show_number),
)


def overlap_report(found: Overlapped, rows: int | None = _ROWS) -> Report:
    """Describe what overlapped: each rank, each iteration, each kernel that communicates."""
    iterations = _table("iterations", "Iterations", found.iterations)
    kept = iterations.rows if rows is None else iterations.rows[:rows]
    shown = Table(
        iterations.key, iterations.title, iterations.columns, kept,
        len(iterations.rows) - len(kept), f"--rows {len(iterations.rows)}",
    )  # fmt: skip
    kernels = Table.of(
        "communication_kernels",
        "Kernels and copies that communicate",
        [
            *common("rank", "name", "count", "time", unit=_UNIT),
            Column("blocks", "blocks", show=_or_unknown(show_count)),
        ],
        found.kernels,
    )
    tables = [shown, kernels]
    if len(found.iterations) > len(found.ranks):
        tables.insert(0, _table("ranks", "Ranks: the iteration of median time", found.ranks))
    return Report(
        "overlap",
        {
            "unit": _UNIT,
            "sms": found.sms,
            "n_ranks": len(found.ranks),
            "n_iterations": len(found.iterations),
        },
        headline=[_sentence(rank, found.sms) for rank in found.ranks],
        tables=tables,
        csv_table=iterations,
        notes=found.notes,
        notes_title="Assumptions",
    )


def _sentence(each: Iteration, sms: int | None) -> str:
    said = f"{each.rank}, {each.name}: {show_number(each.time)} us"
    if each.speedup is not None:
        said += f", {show_factor(each.speedup)} over one after the other"
    if each.share is not None and each.ideal_speedup is not None:
        said += f", {show_percent(each.share)} of the ideal {show_factor(each.ideal_speedup)}"
    exposed = f"{show_number(each.exposed)} us of communication beside no computation"
    taken = ""
    if each.sms is not None:
        of_all = "" if sms is None else f" of {sms}"
        taken = f"; collectives take {show_number(each.sms)}{of_all} SMs"
    return f"{said}; {exposed}{taken}"


def _table(key: str, title: str, rows: Sequence[Iteration]) -> Table:
    percent, factor = _or_unknown(show_percent), _or_unknown(show_factor)
    columns = [
        *common("rank"),
        Column("name", "iteration", is_text=True),
        *_COLUMNS,
        Column("speedup", "speedup", show=factor),
        Column("share", "of ideal", show=percent),
        Column("exposed", "exposed", _UNIT, show_number),
        Column("idle", "idle", _UNIT, show_number),
        Column("sms", "SMs taken", show=_or_unknown(show_number)),
    ]
    return Table(key, title, columns, [row_of(columns, row) for row in rows])


def _or_unknown(show: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: "-" if value is None else show(value)
