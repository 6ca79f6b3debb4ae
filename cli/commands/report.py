"""``depgraph report``: plots, a page, a timeline and a CI summary."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from depgraph.cli.options import model, shared, thresholds, values
from depgraph.cli.progress import step_progress
from depgraph.errors import ModelError
from depgraph.system.text import clean_text, size_text

if TYPE_CHECKING:
    from depgraph.analysis.study import Study
    from depgraph.analysis.suite import ProgramResult
    from depgraph.cli.suite import SuiteRequest, Task
    from depgraph.reports.tables.table import Report

DEFAULT_FOLDER = "depgraph.report"


@click.command("report", cls=shared.Command)
@shared.stores_argument
@click.option("--sms", type=values.SMS, metavar="N", help="SM count [default: the GPU's].")
@click.option(
    "-o", "--output", type=values.PATH, metavar="DIR",
    help=f"Folder to write [default: {DEFAULT_FOLDER}, nothing with --format].",
)  # fmt: skip
@click.option(
    "--format", "form", type=click.Choice(shared.FORMATS), expose_value=False, callback=shared.note,
    help="Print the report in this form as well, and write a folder only with -o.",
)  # fmt: skip
@shared.top_option
@thresholds.github_option
@thresholds.metric_option("Print this number alone, as for a badge, and write no folder.")
@thresholds.threshold_options
@click.option("--png", is_flag=True, help="Write plots as PNG, too.")
@click.option(
    "--pair", type=values.PAIR, help="Kernels whose block-to-block dependences are drawn."
)
@click.option(
    "--flows", type=click.Choice(["path", "all", "none"]), default="path", show_default=True,
    help="Arrows in the timeline for Perfetto: of the critical path, or all up to 100000.",
)  # fmt: skip
@click.option(
    "--coarse", type=values.PATH, metavar="STORE",
    help="The same trace extracted with --granularity 32 or 128: shows what false sharing costs.",
)  # fmt: skip
@model.mechanism_options
@model.hypothetical_option
@click.option("--open", "show", is_flag=True, help="Open the page in a browser.")
@shared.group_option("name")
@model.model_options
@model.contention_option
@model.memory_option
@model.wall_option
@shared.suite_options
@shared.force_option
def command(*, stores: tuple[Path, ...], output: Path | None, **options: Any) -> int | None:
    """Write plots, an HTML page, a timeline and a summary for one GPU size.

    DIR gets index.html, plots/*.svg, report.md, report.json and timeline.json.gz (for
    ui.perfetto.dev). The page needs no other file and no network.

    The tables have a row for every mechanism; those named with --mechanism are plotted as well.

    Of several stores, a folder of stores, or a suite file (TOML) DIR gets an index.html with one
    table and a bar chart, the same as suite.csv, suite.json, suite.md and plots/, and a report of
    each program in a folder of its own. A program that fails is a row that says why; the exit
    code is 1 then.
    """
    from depgraph.cli.suite import suite_of
    from depgraph.system.output import stable_path

    metric, github, top = options["metric"], options["github"], options["top"]
    form = shared.chosen_form()
    if output is None and form is None and metric is None:
        output = Path(DEFAULT_FOLDER)
    output = None if output is None else stable_path(output)
    suite = suite_of(stores, jobs=options["jobs"], scheduler=options["scheduler"])
    if metric is not None and (form is not None or output is not None or github):
        message = "--metric prints one number: it goes with none of --format, -o, --github"
        raise click.UsageError(message)
    _check_output(output, options, is_suite=suite is not None)
    if suite is not None:
        return _report_suite(suite, output, options)
    if metric is not None:
        _print_metric(stores[0], metric, options)
        return None
    found, report, missed = _answer(stores[0], options)
    _print(report, top)
    if github:
        _append(report, f"{clean_text(found.title)} on {size_text(found.sms)}", top)
    if output is not None:
        _write(found, report, output, options)
        _wrote_page(output, show=options["show"])
    thresholds.fail_threshold(missed)
    return None


def _append(report: Report, what: str, top: int) -> None:
    from depgraph.reports.ci import step_summary

    title = f"depgraph: {what}"
    thresholds.append_summary(lambda room: step_summary(report, title, top=top, most_bytes=room))


def _print_metric(path: Path, metric: str, options: Mapping[str, Any]) -> None:
    from depgraph.analysis.compare_stores import metrics_on
    from depgraph.reports.ci import missed_thresholds, one_number

    metrics = metrics_on(model.sized_scenario_of(path, options))
    click.echo(one_number(metrics[metric]))
    thresholds.fail_threshold(missed_thresholds(thresholds.thresholds_of(options), metrics))


def suite_results(task: Task, options: Mapping[str, Any]) -> tuple[list[ProgramResult], list[str]]:
    """Return what a suite shows of one program and the thresholds it missed; write its report."""
    from depgraph.analysis.suite import result_of_study

    found, report, missed = _answer(options["stores"][0], options)
    if task.output:
        with _one_at_a_time:
            _write(found, report, Path(task.output), {**options, "force": False})
    return [result_of_study(task.program.name, task.program.store, found)], missed


# Settings of plots are those of a process, and a worker of a cluster may have several threads.
_one_at_a_time = threading.Lock()


def _answer(path: Path, options: Mapping[str, Any]) -> tuple[Study, Report, list[str]]:
    """Work out what one store answers, and which thresholds it misses."""
    from depgraph.reports.ci import missed_thresholds
    from depgraph.reports.page.study_report import study_report
    from depgraph.reports.tables.suite_table import threshold_lines

    found = _study(path, options)
    report, limits = study_report(found), thresholds.thresholds_of(options)
    missed = missed_thresholds(limits, found.metrics)
    if limits:
        report = replace(
            report,
            headline=[*threshold_lines(missed), *report.headline],
            facts={**report.facts, "thresholds_missed": len(missed)},
        )
    return found, report, missed


def _write(study: Study, report: Report, folder: Path, options: Mapping[str, Any]) -> None:
    from depgraph.reports.page.folder import write_report
    from depgraph.system.workers import available_jobs

    chosen = {name: options[name] for name in ("top", "pair", "flows", "png", "force")}
    left_out = write_report(
        study, folder, report, place_checked=True, jobs=available_jobs(), **chosen
    )
    if left_out:
        shared.say(f"arrows left out of the timeline: {left_out} (it holds 100000)")


def _report_suite(request: SuiteRequest, output: Path | None, options: Mapping[str, Any]) -> int:
    from depgraph.cli.suite import run_suite
    from depgraph.mechanisms import find_mechanisms
    from depgraph.reports.page.folder import report_folders, suite_folder, write_suite
    from depgraph.reports.tables.suite_table import suite_report
    from depgraph.system.text import counted

    top, names = options["top"], [program.name for program in request.programs]
    drawn = [mechanism.label for mechanism in find_mechanisms(options["mechanisms"])]
    in_folder = nullcontext() if output is None else suite_folder(output, force=options["force"])
    with in_folder as folder:
        places = report_folders(names)
        done = run_suite(request, [str(folder / p) for p in places.values()] if folder else [])
        report = suite_report(
            done.suite, missed=done.missed if thresholds.thresholds_of(options) else None
        )
        if folder is not None:
            write_suite(
                done.suite, report, places, folder, top=top, drawn=drawn, png=options["png"]
            )
    _print(report, top)
    if options["github"]:
        _append(report, counted(len(names), "program"), top)
    if output is not None:
        _wrote_page(output, show=options["show"])
    code = done.exit_code()
    thresholds.fail_threshold(done.missed, code or thresholds.EXIT_THRESHOLD)
    return code


def _check_output(output: Path | None, options: Mapping[str, Any], *, is_suite: bool) -> None:
    from depgraph.reports.page.folder import not_a_report, not_a_suite
    from depgraph.system.output import refuse_existing

    if output is not None:
        not_ours = not_a_suite if is_suite else not_a_report
        refuse_existing(output, force=options["force"], not_ours=not_ours)
    elif options["show"]:
        raise click.UsageError("--open: there is no page without -o DIR")


def _print(report: Report, top: int) -> None:
    if shared.chosen_form() is None:
        report = replace(report, tables=(), notes=(), sections=())
        shared.print_report(report, details=False)
    else:
        shared.print_report(report.cut(top))


def _study(store: Path, options: Mapping[str, Any]) -> Study:
    from depgraph.analysis.study import study
    from depgraph.mechanisms import find_mechanisms

    hypothetical, coarse = options["hypothetical"], options["coarse"]
    scenario = model.sized_scenario_of(store, options)
    drawn = find_mechanisms(options["mechanisms"], hypothetical=hypothetical)
    names = {m.name for m in drawn}
    others = find_mechanisms(["all"], hypothetical=hypothetical)
    coarser = None
    if coarse is not None:
        coarser = model.scenario_of(coarse, options).graph
        if coarser.first_block.tolist() != scenario.graph.first_block.tolist():
            raise ModelError(f"{coarse}: holds other kernels or blocks; extract the same trace")
    with step_progress(quiet=shared.is_quiet()) as steps:
        return study(
            scenario,
            mechanisms=[m for m in others if m.name not in names],
            drawn=drawn,
            costs=model.parse_costs(options["costs"]),
            coarse=coarser,
            invocation=model.invocation_of(store),
            group_by=options["group_by"],
            steps=steps,
        )


def _wrote_page(folder: Path, *, show: bool) -> None:
    from depgraph.reports.page.folder import PAGE

    page = folder / PAGE
    shared.wrote(page)
    if show:
        import webbrowser

        if not webbrowser.open(page.resolve().as_uri()):
            shared.say(f"found no browser to open {page}")
