"""A study as sentences, tables and plain facts: what the page, Markdown and JSON have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from depgraph.analysis.compare_stores import metrics_of
from depgraph.analysis.kernel_groups import NAME, group_names
from depgraph.analysis.verdict_rules import BUFFERS
from depgraph.reports.tables.bound_table import bound_report, launch_table, show_kinds
from depgraph.reports.tables.buffer_table import buffer_tables, renaming_advice
from depgraph.reports.tables.group_tables import site_cells, site_columns
from depgraph.reports.tables.pair_table import pair_table
from depgraph.reports.tables.table import (
    Column,
    Report,
    Table,
    kernel_name,
    show_factor,
    show_number,
    show_percent,
)
from depgraph.reports.tables.untraced import untraced_notes
from depgraph.reports.tables.verdict_lines import with_verdict
from depgraph.system.text import size_text

if TYPE_CHECKING:
    from depgraph.analysis.study import Study


def metrics(study: Study) -> dict[str, float]:
    """Return the numbers that a CI can set thresholds on."""
    return metrics_of(study.bound, study.kernels, study.pairs)


def study_report(study: Study, *, top: int | None = None) -> Report:
    """Describe a study.

    Parameters
    ----------
    study : Study
    top : int, optional
        Rows of each table at most; default all.
    """
    untraced = untraced_notes(study.kernels, study.pairs, study.metadata)
    sentences = bound_report(study.table).headline
    tables = [
        schedule_table(study),
        *mechanism_tables(study),
        *launch_table(study.table),
        cost_table(study),
        *(buffer_tables(study.renaming, study.kernels) if study.renaming else []),
        function_table(study),
        kernel_table(study),
        path_table(study),
        pair_table(study.pairs, study.kernels),
    ]
    report = Report(
        "report",
        {
            "sms": study.sms,
            "unit": study.unit,
            "durations": study.scenario.timing.source,
            "gpu": study.scenario.resources.gpu.name,
            **metrics(study),
            "lower_bound": study.bound.lower_bound,
            "work": study.bound.work,
            "limited_by": study.bound.limited_by,
            "upper_bound_raw_only": study.renamed.upper_bound,
            "bend_sms": study.bend,
            "kernels_in_trace": len(study.kernels),
            "blocks": study.graph.n_blocks,
        },
        headline=[*sentences, bend_sentence(study)],
        tables=tables if top is None else [_cut(table, top) for table in tables],
        notes=[*study.table.assumptions, *mechanism_notes(study)],
        sections=[*buffer_advice(study), ("What the trace does not show", untraced)],
        extra={
            "curves": [
                {
                    "name": c.name,
                    "is_bound": c.is_bound,
                    "sms": list(c.sms),
                    "speedup": list(c.speedup),
                }
                for c in study.curves
            ],
            "untraced_notes": untraced,
        },
    )
    return with_verdict(report, study.findings, study.verdict)


def buffer_advice(study: Study) -> list[tuple[str, list[str]]]:
    """Say how to keep buffers apart, where the verdict names them."""
    if study.renaming is None or BUFFERS not in study.verdict.rules:
        return []
    advice = renaming_advice(study.renaming, {k.kernel: k.name for k in study.kernels})
    return [(f"Keeping buffers apart {title[0].lower()}{title[1:]}", a) for title, a in advice]


def bend_sentence(study: Study) -> str:
    """Say up to which size of GPU more SMs help."""
    return (
        f"the speedup is limited by work below {study.bend:.3g} SMs, by the critical path above: "
        "more SMs help only serialized launches"
    )


def _cut(table: Table, top: int) -> Table:
    return replace(
        table, rows=table.rows[:top], omitted=table.omitted + max(0, len(table.rows) - top)
    )


def schedule_table(study: Study) -> Table:
    """Build the table of what each schedule reaches, best first after serial."""
    rows: list[tuple[Any, ...]] = []
    for bound in study.table.bounds:
        first, *others = bound.schedules
        rows += [
            (bound.dependences, row.mechanism, row.makespan, row.speedup, bound.upper_bound,
             row.share_of_bound, row.utilization)
            for row in (first, *sorted(others, key=lambda row: row.makespan))
        ]  # fmt: skip
    return Table(
        "schedules",
        f"Block-level dataflow on {size_text(study.sms)}",
        [
            Column("dependences", "deps", is_text=True, show=show_kinds),
            Column("schedule", "schedule", is_text=True),
            Column("makespan", "makespan", study.unit, show_number),
            Column("speedup", "speedup", show=show_factor),
            Column("upper_bound", "upper bound", show=show_factor),
            Column("share_of_bound", "share of bound", show=_percent_or_dash),
            Column("utilization", "utilization", show=show_percent),
        ],
        rows,
    )


def mechanism_tables(study: Study) -> list[Table]:
    """Build the table of synchronisation mechanisms, if they were compared, best first."""
    if study.comparison is None:
        return []
    launched = not study.comparison.launch.is_off
    # What cuts blocks up has durations of its own: it is not compared with the others.
    outcomes = sorted(
        study.comparison.outcomes, key=lambda o: (o.against == "work", o.makespan, o.mechanism)
    )
    return [
        Table(
            "mechanisms",
            f"Synchronisation mechanisms on {size_text(study.sms)}, best first",
            [
                Column("mechanism", "mechanism", is_text=True),
                Column("availability", "availability", is_text=True),
                Column("makespan", "makespan", study.unit, _show_makespan),
                Column("speedup", "speedup", show=_show_speedup),
                *[Column("overlap_speedup", "by overlap", show=_show_speedup)] * launched,
                Column("upper_bound", "upper bound", show=show_factor),
                Column("share_of_bound", "of bound", show=_percent_or_dash),
                Column("utilization", "busy", show=_whole_percent_or_dash),
                Column("held", "held", show=_whole_percent_or_dash),
                Column("against", "compared with", is_text=True),
            ],
            [
                (o.mechanism, o.availability, None if o.deadlock else o.makespan,
                 None if o.deadlock else o.speedup,
                 *[None if o.deadlock else o.overlap_speedup] * launched,
                 o.upper_bound, o.share_of_bound, o.utilization or None,
                 o.held or None, o.against)
                for o in outcomes
            ],
        )
    ]  # fmt: skip


def _show_makespan(value: float | None) -> str:
    return "deadlock" if value is None else show_number(value)


def _show_speedup(value: float | None) -> str:
    return "-" if value is None else show_factor(value)


def mechanism_notes(study: Study) -> list[str]:
    """Say what mechanisms assumed, and which have no row."""
    if study.comparison is None:
        return []
    said: dict[str, list[str]] = {}
    for outcome in study.comparison.outcomes:
        for note in outcome.assumptions:
            said.setdefault(note, []).append(outcome.mechanism)
    return [f"{', '.join(names)}: {note}" for note, names in said.items()] + [
        f"{name} is left out: {reason}" for name, reason in study.comparison.left_out.items()
    ]


def cost_table(study: Study) -> Table:
    """Build the table of what each kind of dependence costs."""
    return Table(
        "kinds",
        "What each kind of dependence costs",
        [
            Column("dependences", "only these count", is_text=True),
            Column("edges_by_kind", "edges", show=show_number),
            Column("critical_path", "critical path", study.unit, show_number),
            Column("upper_bound", "upper bound", show=show_factor),
        ],
        [(c.name, c.edges, c.critical_path, c.upper_bound) for c in study.costs],
    )


def kernel_table(study: Study) -> Table:
    """Build the table of kernels, those that take longest first."""
    on_path = {step.kernel: step.duration for step in study.path}
    slack = {s.kernel: s.slack for s in study.slacks}
    row_of = {k.kernel: k for k in study.kernels}
    length = study.bound.critical_path or 1.0
    rows = [
        (
            load.kernel, row_of[load.kernel].name, load.blocks, load.slots,
            load.blocks / load.slots, load.tail_utilization, load.time, load.utilization,
            on_path.get(load.kernel, 0.0) / length, slack.get(load.kernel, 0.0),
            *site_cells(study.scenario.sites, load.kernel),
        )
        for load in sorted(study.loads, key=lambda load: (-load.time, load.kernel))
    ]  # fmt: skip
    return Table(
        "kernels",
        "Kernels, longest first",
        [
            Column("kernel", "kernel"),
            Column("name", "name", is_text=True, show=kernel_name),
            Column("blocks", "blocks", show=show_number),
            Column("slots", "slots", show=show_number),
            Column("waves", "waves", show=show_number),
            Column("tail_utilization", "last wave", show=_whole_percent),
            Column("time", "time", study.unit, show_number),
            Column("utilization", "utilization", show=_whole_percent),
            Column("path_share", "of path", show=_whole_percent),
            Column("slack", "slack", study.unit, show_number),
            *site_columns(study.scenario.sites),
        ],
        rows,
    )


def function_table(study: Study) -> Table:
    """Build the table of functions, or of what else kernels are grouped by: one row each."""
    by = study.group_by
    key = "function" if by == NAME else by
    names = group_names(study.scenario, by)
    on_path = {step.kernel: step.duration for step in study.path}
    totals: dict[str, list[float]] = {}
    for load in study.loads:
        total = totals.setdefault(names[load.kernel], [0, 0.0, 0.0, 0.0])
        total[0] += 1
        total[1] += load.time
        total[2] += load.time * load.utilization
        total[3] += on_path.get(load.kernel, 0.0)
    serial = sum(load.time for load in study.loads) or 1.0
    length = study.bound.critical_path or 1.0
    return Table(
        "functions",
        "Functions" if by == NAME else f"Kernels by {by}",
        [
            Column(key, key, is_text=True),
            Column("kernels", "kernels", show=show_number),
            Column("time", "time", study.unit, show_number),
            Column("share", "of serial time", show=show_percent),
            Column("utilization", "utilization", show=show_percent),
            Column("path_share", "of critical path", show=show_percent),
        ],
        [
            (name, int(n), time, time / serial, used / time if time else 0.0, path / length)
            for name, (n, time, used, path) in sorted(
                totals.items(), key=lambda item: (-item[1][1], item[0])
            )
        ],
    )


def path_table(study: Study) -> Table:
    """Build the table of blocks on the critical path, first to last."""
    names = {k.kernel: k.name for k in study.kernels}
    return Table(
        "path",
        "Critical path, block by block",
        [
            Column("kernel", "kernel"),
            Column("name", "name", is_text=True, show=kernel_name),
            Column("block", "block", show=show_number),
            Column("start", "start", study.unit, show_number),
            Column("duration", "duration", study.unit, show_number),
            Column("kinds", "waits by", is_text=True),
        ],
        [
            (s.kernel, names.get(s.kernel, "host copy"), s.block, s.start, s.duration,
             ", ".join(s.kinds) or "-")
            for s in study.path
        ],
    )  # fmt: skip


def _percent_or_dash(value: float | None) -> str:
    return "-" if value is None else show_percent(value)


def _whole_percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def _whole_percent_or_dash(value: float | None) -> str:
    return "-" if value is None else _whole_percent(value)
