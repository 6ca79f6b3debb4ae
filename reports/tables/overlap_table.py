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
_RANKS_IN_WORDS = 4
_MOSTLY_IDLE = 0.5
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
    tables = [shown.at_first(_ROWS), kernels]
    if len(found.iterations) > len(found.ranks):
        ranks = _table("ranks", "Ranks: the iteration of median time", found.ranks)
        tables.insert(0, ranks.at_first(_ROWS))
    return Report(
        "overlap",
        {
            "unit": _UNIT,
            "sms": found.sms,
            "n_ranks": len(found.ranks),
            "n_iterations": len(found.iterations),
        },
        headline=[*_answers(found), *_mostly_idle(found)],
        tables=tables,
        csv_table=iterations,
        notes=found.notes,
        notes_title="Assumptions",
    )


def _answers(found: Overlapped) -> list[str]:
    """Say it of each rank; of many the slowest ones alone, the table has the others."""
    ranks = found.ranks
    if len(ranks) > _RANKS_IN_WORDS:
        slowest = sorted(ranks, key=lambda rank: -(rank.time + rank.idle))[:_RANKS_IN_WORDS]
        ranks = tuple(rank for rank in found.ranks if rank in slowest)
    return [_sentence(rank, found.sms) for rank in ranks]


def _mostly_idle(found: Overlapped) -> list[str]:
    idle = [each.idle / (each.time + each.idle) for each in found.ranks if each.time > 0]
    if not idle or max(idle) < _MOSTLY_IDLE:
        return []
    share = show_percent(max(idle))
    return [f"the GPU is idle for up to {share} of a step: depgraph bound PROFILE says why"]


def _sentence(each: Iteration, sms: int | None) -> str:
    said = f"{each.rank}, {each.name}: {show_number(each.time)} us"
    if each.idle > _MOSTLY_IDLE * (each.time + each.idle):
        idle = show_percent(each.idle / (each.time + each.idle))
        said = (
            f"{each.rank}, {each.name}: nothing runs for {idle} of "
            f"{show_number(each.time + each.idle)} us; {show_number(each.time)} us of work"
        )
    if each.speedup is not None:
        said += f", {show_factor(each.speedup)} faster than one after the other"
    if each.share is not None and each.ideal_speedup is not None:
        said += f", {show_percent(each.share)} of the ideal {show_factor(each.ideal_speedup)}"
    exposed = f"no computation hides {show_number(each.exposed)} us of communication"
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
