"""What runs side by side, as reports: two programs on one GPU, computation beside communication."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from depgraph.mechanisms.shared_gpu import BLOCKS
from depgraph.reports.tables.table import Column, Report, Table, common, facts_of, show_count
from depgraph.system.text import show_factor, show_number, show_percent, size_text

if TYPE_CHECKING:
    from depgraph.analysis.communication_overlap import Iteration, Overlapped
    from depgraph.analysis.share import Shared, Sharing


def share_report(sharing: Sharing) -> Report:
    """Describe what two programs side by side take, and how much longer each of them."""
    fixed = _share_table(sharing, "share", "Fixed durations", sharing.unit, sharing.rows)
    rows = [replace(row, times=row.predicted_us) for row in sharing.rows if row.predicted_us]
    title = f"Predicted, with {'contention and ' * sharing.has_contention}launches"
    predicted = _share_table(sharing, "predicted_share", title, "us", rows)
    return Report(
        "share",
        {"programs": list(sharing.names), **facts_of(sharing, "unit", "gpu", "dependences")},
        headline=_headline(sharing),
        brief=_headline(sharing),
        tables=[table.at_first(len(table.rows)) for table in (fixed, predicted) if table.rows],
        notes=[
            (
                "in turn: all kernels of the first program, then all of the second; takes: time "
                "beside the other program over time alone, launched in the same way (streams, "
                "partition: one kernel after another on all SMs; blocks: dataflow)"
            ),
            f"dependences: {sharing.dependences}",
            *sharing.assumptions,
        ],
        csv_table=fixed,
    )


def _headline(sharing: Sharing) -> list[str]:
    return [_answer(sharing, list(r)) for _, r in groupby(sharing.rows, attrgetter("sms"))]


def _answer(sharing: Sharing, rows: Sequence[Shared]) -> str:
    """Say what the best way of today takes, and by blocks what hardware of tomorrow would."""
    best = min((row for row in rows if row.how != BLOCKS), key=_makespan, default=rows[0])
    times, unit = best.predicted_us or best.times, "us" if best.predicted_us else sharing.unit
    sides = zip(sharing.names, (times.first, times.second), strict=True)
    takes = " and ".join(f"{name} {show_factor(side.slowdown)}" for name, side in sides)
    text = (
        f"{size_text(best.sms)}: {show_number(times.in_turn)} {unit} in turn; "
        f"{'predicted ' * (best.predicted_us is not None)}{show_number(times.makespan)} {unit} by "
        f"{best.how}, {show_factor(times.speedup)} faster: {takes} as long as alone"
    )
    further = [row for row in rows if row.how == BLOCKS and row is not best]
    for row in further:
        text += f"; {show_number(_makespan(row))} {unit} by blocks, which needs hardware"
    return f"{text}."


def _makespan(row: Shared) -> float:
    return (row.predicted_us or row.times).makespan


def _share_table(
    sharing: Sharing, key: str, title: str, unit: str, rows: Sequence[Shared]
) -> Table:
    first, second = sharing.names
    columns = [
        *common("sms"),
        Column.text("how", "share", wraps=True),
        Column.number("in_turn", "in turn", unit, attrgetter("times.in_turn")),
        *common("makespan", unit=unit, makespan=attrgetter("times.makespan")),
        *common("speedup", speedup=attrgetter("times.speedup")),
        Column.factor("first_slowdown", "1st takes", attrgetter("times.first.slowdown")),
        Column.factor("second_slowdown", "2nd takes", attrgetter("times.second.slowdown")),
        Column.number("first", f"end of {first}", unit, attrgetter("times.first.shared")),
        Column.number("second", f"end of {second}", unit, attrgetter("times.second.shared")),
    ]
    return Table.of(key, title, columns, rows)


_UNIT = "us"
_ROWS = 40
_RANKS_IN_WORDS = 4
_MOSTLY_IDLE = 0.5


def overlap_report(overlap: Overlapped, rows: int) -> Report:
    """Describe what overlapped: each rank, each iteration, each kernel that communicates."""
    iterations = _iteration_table("iterations", "Iterations", overlap.iterations)
    shown = iterations.cut(rows)._replace(more=f"--rows {len(iterations.rows)}")
    columns = [
        *common("rank", "name", "count", "time", unit=_UNIT),
        Column("blocks", "blocks", show=show_count),
    ]
    title = "Kernels and copies that communicate"
    kernels = Table.of("communication_kernels", title, columns, overlap.kernels)
    tables = [shown.at_first(_ROWS), kernels]
    if len(overlap.iterations) > len(overlap.ranks):
        ranks = _iteration_table("ranks", "Ranks: the iteration of median time", overlap.ranks)
        tables.insert(0, ranks.at_first(_ROWS))
    return Report(
        "overlap",
        {
            "unit": _UNIT,
            "sms": overlap.sms,
            "n_ranks": len(overlap.ranks),
            "n_iterations": len(overlap.iterations),
        },
        headline=[*_answers(overlap), *_mostly_idle(overlap)],
        tables=tables,
        csv_table=iterations,
        notes=overlap.notes,
        notes_title="Assumptions",
    )


def _answers(overlap: Overlapped) -> list[str]:
    """Say it of each rank; of many the slowest ones alone, the table has the others."""
    ranks = overlap.ranks
    if len(ranks) > _RANKS_IN_WORDS:
        slowest = sorted(ranks, key=lambda rank: -(rank.time + rank.idle))[:_RANKS_IN_WORDS]
        ranks = tuple(rank for rank in overlap.ranks if rank in slowest)
    return [_sentence(rank, overlap.sms) for rank in ranks]


def _mostly_idle(overlap: Overlapped) -> list[str]:
    idle = [each.idle / (each.time + each.idle) for each in overlap.ranks if each.time > 0]
    if not idle or max(idle) < _MOSTLY_IDLE:
        return []
    share = show_percent(max(idle))
    return [f"the GPU is idle for up to {share} of a step: depgraph bound PROFILE says why"]


def _sentence(each: Iteration, sms: int | None) -> str:
    time = f"{show_number(each.time)} us"
    whole = each.time + each.idle
    if each.idle > _MOSTLY_IDLE * whole:
        idle = f"nothing runs for {show_percent(each.idle / whole)} of {show_number(whole)} us"
        time = f"{idle}; {time} of work"
    text = f"{each.rank}, {each.name}: {time}"
    if not each.communication:
        return f"{text}; nothing communicates, so that nothing could overlap"
    if each.speedup is not None:
        text += f", {show_factor(each.speedup)} faster than one after the other"
    if each.share is not None and each.ideal_speedup is not None:
        text += f", {show_percent(each.share)} of the ideal {show_factor(each.ideal_speedup)}"
    exposed = f"{show_number(each.exposed)} us of communication have no computation beside them"
    taken = ""
    if each.sms is not None:
        of_all = "" if sms is None else f" of {sms}"
        taken = f"; collectives take {show_number(each.sms)}{of_all} SMs"
    return f"{text}; {exposed}{taken}"


def _iteration_table(key: str, title: str, rows: Sequence[Iteration]) -> Table:
    columns = [
        *common("rank"),
        Column.text("name", "iteration"),
        Column.number("computation", "computation", _UNIT),
        Column.number("communication", "communication", _UNIT),
        *common("serial", unit=_UNIT),
        Column.number("ideal", "ideal", _UNIT),
        *common("time", "speedup", unit=_UNIT),
        Column.percent("share", "of ideal"),
        Column.number("exposed", "exposed", _UNIT),
        Column.number("idle", "idle", _UNIT),
        Column.number("sms", "SMs taken"),
    ]
    return Table.of(key, title, columns, rows)
