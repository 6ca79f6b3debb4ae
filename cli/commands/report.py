"""``depgraph report``: plots, a page, a timeline and a CI summary."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from depgraph.cli.options.mechanisms import mechanism_options, parse_costs
from depgraph.cli.options.model import (
    asked_from,
    contention_option,
    memory_option,
    model_options,
    scenario_from,
    timed_scenario_from,
)
from depgraph.cli.options.shared import (
    Command,
    deps_option,
    force_option,
    group_option,
    is_quiet,
    print_report,
    say,
    store_argument,
    wrote,
)
from depgraph.cli.options.thresholds import (
    append_summary,
    fail_threshold,
    github_option,
    metric_option,
    threshold_options,
    thresholds_from,
)
from depgraph.cli.options.values import ROWS, SMS, Pair
from depgraph.cli.progress import step_progress
from depgraph.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from depgraph.analysis.study import Study
    from depgraph.graph.block_graph import BlockGraph
    from depgraph.reports.ci import Threshold
    from depgraph.reports.export.perfetto import Flows
    from depgraph.reports.tables.table import Report

DEFAULT_FOLDER = "depgraph.report"


@click.command("report", cls=Command)
@store_argument
@click.option("--sms", type=SMS, required=True, metavar="N", help="SM count.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="DIR",
    help=f"Folder to write [default: {DEFAULT_FOLDER}, nothing with --format].",
)  # fmt: skip
@click.option(
    "--format", "form", type=click.Choice(["table", "markdown", "json", "csv"]),
    help="Print the report in this form as well, and write a folder only with -o.",
)  # fmt: skip
@click.option(
    "--top", type=ROWS, default=20, show_default=True, metavar="N",
    help="Rows of each table in Markdown and on a terminal.",
)  # fmt: skip
@github_option
@metric_option("Print this number alone, as for a badge, and write no folder.")
@threshold_options
@click.option("--pair", type=Pair(), help="Kernels whose block-to-block dependences are drawn.")
@click.option(
    "--flows", type=click.Choice(["path", "all", "none"]), default="path", show_default=True,
    help="Arrows in the timeline for Perfetto: of the critical path, or all up to 100 000.",
)  # fmt: skip
@click.option(
    "--coarse", type=click.Path(path_type=Path), metavar="STORE",
    help="The same trace extracted with --granularity 32 or 128: shows what false sharing costs.",
)  # fmt: skip
@mechanism_options
@click.option("--open", "show", is_flag=True, help="Open the page in a browser.")
@group_option
@deps_option
@model_options
@contention_option
@memory_option
@force_option
def command(
    *,
    store: Path,
    sms: int,
    output: Path | None,
    form: str | None,
    top: int,
    github: bool,
    metric: str | None,
    fail_below: tuple[tuple[str, float], ...],
    fail_above: tuple[tuple[str, float], ...],
    pair: tuple[int, int] | None,
    flows: Flows,
    coarse: Path | None,
    mechanisms: tuple[str, ...],
    costs: tuple[str, ...],
    show: bool,
    kinds: frozenset[str] | None,
    group_by: str,
    force: bool,
    **model: Any,
) -> None:
    """Write plots, an HTML page, a timeline and a summary for one GPU size.

    DIR gets index.html, plots/*.png and *.svg, report.md, report.json and timeline.json.gz (for
    ui.perfetto.dev). The page needs no other file and no network.

    The tables have a row for every mechanism; those named with --mechanism are plotted as well.
    """
    from depgraph.reports.ci import missed_thresholds, one_number, step_summary
    from depgraph.reports.page.study_report import study_report
    from depgraph.system.text import clean_text, size_text

    if output is None and form is None and metric is None:
        output = Path(DEFAULT_FOLDER)
    if output is not None:
        from depgraph.system.output import stable_path

        output = stable_path(output)
    _check_output(output, show=show, force=force)
    thresholds = thresholds_from(fail_below, fail_above)
    if metric is not None:
        if form is not None or output is not None or github:
            message = "--metric prints one number: it goes with none of --format, -o, --github"
            raise click.UsageError(message)
        metrics = _metrics(store, sms, kinds, model)
        click.echo(one_number(metrics[metric]))
        fail_threshold(missed_thresholds(thresholds, metrics))
        return
    found = _study(store, sms, kinds, coarse, mechanisms, costs, group_by, model)
    missed = missed_thresholds(thresholds, found.metrics)
    report = _with_thresholds(study_report(found), thresholds, missed)
    _print(report, form, top)
    if github:
        title = f"depgraph: {clean_text(found.title)} on {size_text(found.sms)}"
        append_summary(lambda room: step_summary(report, title, top=top, most_bytes=room))
    if output is not None:
        from depgraph.reports.page.folder import write_report
        from depgraph.system.workers import available_jobs

        left_out = write_report(
            found, output, report, top=top, pair=pair, flows=flows, force=force,
            place_checked=True, jobs=available_jobs(),
        )  # fmt: skip
        if left_out:
            say(f"arrows left out of the timeline: {left_out} (it holds 100 000)")
        _wrote_page(output, show=show)
    fail_threshold(missed)


def _metrics(
    store: Path, sms: int, kinds: frozenset[str] | None, model: dict[str, Any]
) -> dict[str, float]:
    from depgraph.analysis.compare_stores import metrics_on
    from depgraph.store.store import Store

    return metrics_on(timed_scenario_from(Store(store), kinds, **model).on(sms))


def _check_output(output: Path | None, *, show: bool, force: bool) -> None:
    from depgraph.reports.page.folder import not_a_report
    from depgraph.system.output import refuse_existing

    if output is not None:
        refuse_existing(output, force=force, not_ours=not_a_report)
    elif show:
        message = "--open: there is no page without -o DIR"
        raise click.UsageError(message)


def _print(report: Report, form: str | None, top: int) -> None:
    if form is None:
        print_report(replace(report, tables=(), notes=(), sections=()), "table")
    else:
        print_report(report.cut(top if form in {"table", "markdown"} else None), form)


def _study(
    store: Path,
    sms: int,
    kinds: frozenset[str] | None,
    coarse: Path | None,
    mechanisms: tuple[str, ...],
    costs: tuple[str, ...],
    group_by: str,
    model: dict[str, Any],
) -> Study:
    from depgraph.analysis.study import study
    from depgraph.mechanisms import find_mechanisms
    from depgraph.store.store import Store

    scenario = timed_scenario_from(Store(store), kinds, **model).on(sms)
    drawn = find_mechanisms(mechanisms)
    names = {m.name for m in drawn}
    coarser = None
    if coarse is not None:
        coarser = scenario_from(Store(coarse), kinds, **model).graph
        coarser = _same_blocks(coarser, scenario.graph, coarse)
    with step_progress(quiet=is_quiet()) as steps:
        return study(
            scenario,
            mechanisms=[m for m in find_mechanisms(["all"]) if m.name not in names],
            drawn=drawn,
            costs=parse_costs(costs),
            coarse=coarser,
            asked=asked_from(store),
            group_by=group_by,
            steps=steps,
        )


def _same_blocks(coarse: BlockGraph, graph: BlockGraph, path: Path) -> BlockGraph:
    if coarse.first_block.tolist() != graph.first_block.tolist():
        raise ModelError(f"{path}: holds other kernels or blocks; extract the same trace")
    return coarse


def _with_thresholds(
    report: Report, thresholds: Sequence[Threshold], missed: Sequence[str]
) -> Report:
    if not thresholds:
        return report
    said = [f"threshold missed: {line}" for line in missed] or ["all thresholds are met"]
    return replace(
        report,
        headline=[*said, *report.headline],
        facts={**report.facts, "thresholds_missed": len(missed)},
    )


def _wrote_page(folder: Path, *, show: bool) -> None:
    from depgraph.reports.page.folder import PAGE

    page = folder / PAGE
    wrote(page)
    if show:
        import webbrowser

        if not webbrowser.open(page.resolve().as_uri()):
            say(f"found no browser to open {page}")
