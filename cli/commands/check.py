"""``depgraph check``: what is in a trace, and what is wrong with it."""

from typing import Any

import click

from depgraph.cli.options import model, shared

_OF_TRACES = {"jobs", "allow_outside", "allow_empty"}


@click.command("check", cls=shared.Command)
@click.argument("trace", nargs=-1, required=True)
@click.option("--strict", is_flag=True, help="Treat warnings as errors.")
@shared.jobs_option
@shared.outside_option
@shared.empty_option
@click.option(
    "--races", is_flag=True,
    help="Look in the store of a recording for conflicting accesses that nothing orders.",
)  # fmt: skip
@shared.details_option
@shared.format_option
def command(trace: tuple[str, ...], strict: bool, **options: Any) -> None:
    """Read a trace, say what is in it and what is wrong with it, write nothing.

    Exit code 1 if a graph made from it could not be trusted, 0 otherwise; with --strict, 1 for
    every warning as well.

    With --races TRACE is the store of a recording: pairs of kernels, copies and memsets that touch
    the same bytes, one of them writing, and that no stream, event, wait of the host, legacy default
    stream or edge of a CUDA graph orders. Exit code 1 if there are any; with --strict, 1 for pairs
    that cannot be judged as well.
    """
    if options["races"]:
        model.refuse_given(_OF_TRACES, "reads a trace, and --races needs a store")
        _check_races(trace, strict=strict)
        return
    from depgraph.cli.progress import input_progress
    from depgraph.extraction.check import check_trace
    from depgraph.parsers import open_trace
    from depgraph.parsers.workload import is_workload
    from depgraph.reports.tables.trace_reports import check_report
    from depgraph.system.workers import Threads

    if described := next(filter(is_workload, trace), None):
        raise click.UsageError(f"{described} describes a program: extract says what is wrong in it")
    opened = open_trace(trace, allow_outside=options["allow_outside"])
    with input_progress(opened.input_bytes, quiet=shared.is_quiet()) as on_progress:
        checkup = check_trace(
            opened,
            workers=Threads(options["jobs"]),
            allow_empty=options["allow_empty"],
            on_progress=on_progress,
        )
    is_bad = bool(checkup.errors or (strict and checkup.warnings))
    verdict = "not to be trusted" if is_bad else "usable" if checkup.warnings else "good"
    shared.print_report(check_report(checkup, verdict=verdict))
    click.get_current_context().exit(int(is_bad))


def _check_races(stores: tuple[str, ...], *, strict: bool) -> None:
    from depgraph.analysis.races import find_races
    from depgraph.reports.tables.trace_reports import race_report
    from depgraph.store.store import Store

    if len(stores) > 1:
        raise click.UsageError("--races needs one store")
    store = Store(stores[0])
    found = find_races(store)
    shared.print_report(race_report(store, found))
    is_bad = bool(found.races or (strict and (found.possible or found.unjudged)))
    click.get_current_context().exit(int(is_bad))
