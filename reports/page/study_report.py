"""A study as sentences, tables and plain facts: what the page, Markdown and JSON have in common."""

import math
from operator import attrgetter

from depgraph.analysis.kernel_groups import NAME
from depgraph.analysis.study import Study
from depgraph.graph.dependences import uncertainty
from depgraph.reports.tables import bound_table
from depgraph.reports.tables.answer_report import with_verdict
from depgraph.reports.tables.buffer_table import buffer_tables, renaming_advice
from depgraph.reports.tables.mechanism_tables import (
    child_kernel_table,
    prediction_table,
    ranked_table,
)
from depgraph.reports.tables.show_tables import pair_table, path_columns, site_columns
from depgraph.reports.tables.table import (
    Column,
    Report,
    Table,
    common,
    facts_of,
    row_of,
    show_whole_percent,
    table_rows,
)
from depgraph.reports.tables.trace_reports import untraced_notes
from depgraph.system.text import size_text
from depgraph.timing.matched_profile import AluUse


def study_report(study: Study) -> Report:
    """Describe a study: the bounds in sentences, and a table for each question."""
    uncertain = uncertainty(study.kernels, study.pairs)
    untraced = untraced_notes(study.kernels, uncertain, study.metadata)
    comparison = study.comparison
    bounds = bound_table.bound_report(study.table)
    report = Report(
        "report",
        {
            **facts_of(study, "sms", "unit"),
            **facts_of(study.basis, "durations", "gpu"),
            **study.metrics,
            **facts_of(study.bound, "lower_bound", "work", "limited_by"),
            "upper_bound_raw_only": study.renamed.upper_bound,
            "bend_sms": study.bend,
            "kernels_in_trace": len(study.kernels),
            "blocks": study.graph.n_blocks,
        },
        headline=[*bounds.headline, bend_sentence(study)],
        brief=[*bounds.brief, bend_sentence(study)],
        tables=[
            _schedule_table(study),
            *([] if comparison is None else [ranked_table(comparison)]),
            *([] if comparison is None else child_kernel_table(comparison)),
            *bound_table.launch_table(study.table),
            _cost_table(study),
            *(buffer_tables(study.renaming, study.kernels, study.graph) if study.renaming else []),
            _function_table(study),
            _kernel_table(study),
            _path_table(study),
            pair_table(study.pairs, study.kernels, study.graph.copies),
        ],
        notes=[
            bound_table.durations_line(study.basis),
            *study.table.assumptions,
            *([] if comparison is None else comparison.notes),
        ],
        sections=[*buffer_advice(study), ("What the trace does not show", untraced)],
        extra={
            "curves": [
                {**facts_of(c, "name", "is_bound"), "sms": list(c.sms), "speedup": list(c.speedup)}
                for c in study.curves
            ],
            "untraced_notes": untraced,
            **{
                t.key: table_rows(t)
                for t in ([] if comparison is None else prediction_table(comparison))
            },
        },
    )
    return with_verdict(report, study.basis, study.conclusion)


def buffer_advice(study: Study) -> list[tuple[str, list[str]]]:
    """Say how to keep buffers apart, where the verdict names them."""
    if study.renaming is None or not study.verdict.names_buffers:
        return []
    advice = renaming_advice(study.renaming, {k.kernel: k.name for k in study.kernels})
    return [(f"Keeping buffers apart {title[0].lower()}{title[1:]}", a) for title, a in advice]


def bend_sentence(study: Study) -> str:
    """Say up to which size of GPU more SMs help."""
    if study.bend <= 1:
        return "Dependences set the time, on however many SMs."
    return f"From {size_text(math.floor(study.bend) + 1)} on, dependences set the time."


def _schedule_table(study: Study) -> Table:
    columns = common(
        "makespan", "speedup", "upper_bound", "share_of_bound", "utilization", unit=study.unit
    )
    makespan = attrgetter("makespan")
    rows = [
        (bound.dependences, outcome.mechanism, *row_of(columns, outcome))
        for bound in study.table.bounds
        for outcome in (bound.schedules[0], *sorted(bound.schedules[1:], key=makespan))
    ]
    return Table(
        "schedules",
        f"Block-level dataflow on {size_text(study.sms)}",
        [
            Column("dependences", "deps", is_text=True, show=bound_table.kinds_shown(study.basis)),
            Column.text("schedule", "schedule"),
            *columns,
        ],
        rows,
    )


def _cost_table(study: Study) -> Table:
    columns = [
        Column.text("dependences", "only these count", lambda c: c.name),
        Column.number("edges_by_kind", "edges", get=lambda c: c.edges),
        *common("critical_path", "upper_bound", unit=study.unit),
    ]
    return Table.of("kinds", "What each kind of dependence costs", columns, study.costs)


def _kernel_table(study: Study) -> Table:
    slack = {s.kernel: s.slack for s in study.slacks}
    names = {k.kernel: k.name for k in study.kernels}
    on_path = study.time_on_path
    length = study.bound.critical_path or 1.0
    columns = [
        *common("kernel", "name", "blocks", name=lambda k: names[k.kernel]),
        Column.number("slots", "slots"),
        Column.number("waves", "waves"),
        Column("tail_utilization", "last wave", show=show_whole_percent),
        *common("time", unit=study.unit),
        Column("utilization", "utilization", show=show_whole_percent),
        *_alu_column(study.alu),
        Column(
            "path_share",
            "of path",
            show=show_whole_percent,
            get=lambda k: on_path.get(k.kernel, 0.0) / length,
        ),
        Column.number("slack", "slack", study.unit, lambda k: slack.get(k.kernel, 0.0)),
        *site_columns(study.sites),
    ]
    longest = sorted(study.loads, key=lambda load: (-load.time, load.kernel))
    return Table.of("kernels", "Kernels, longest first", columns, longest)


def _alu_column(alu: AluUse | None) -> list[Column]:
    """Return the column of how busy a kernel's arithmetic was, where a profile counted it."""
    if alu is None:
        return []
    show = show_whole_percent
    return [Column("alu_utilization", "ALU", show=show, get=lambda k: alu.of_kernel.get(k.kernel))]


def _function_table(study: Study) -> Table:
    """Build the table of functions, or of what else kernels are grouped by: one row each."""
    by = study.group_by
    key = "function" if by == NAME else by
    serial = sum(function.time for function in study.functions) or 1.0
    length = study.bound.critical_path or 1.0
    columns = [
        Column.text(key, key, lambda f: f.name),
        *common("kernels", "time", unit=study.unit),
        Column.percent("share", "of serial time", lambda f: f.time / serial),
        *common("utilization"),
        Column.percent("path_share", "of critical path", lambda f: f.on_path / length),
    ]  # fmt: skip
    title = "Functions" if by == NAME else f"Kernels by {by}"
    return Table.of("functions", title, columns, study.functions)


def _path_table(study: Study) -> Table:
    names = {**{k.kernel: k.name for k in study.kernels}, **study.graph.copies}
    columns = path_columns(study.unit, names.__getitem__)
    return Table.of("path", "Critical path, block by block", columns, study.path)
