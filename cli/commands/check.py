"""``depgraph check``: what is in a trace, and what is wrong with it."""

from __future__ import annotations

import click

from depgraph.cli.options.shared import Command, format_option, is_quiet, print_report
from depgraph.cli.options.values import JOBS


@click.command("check", cls=Command)
@click.argument("trace", nargs=-1, required=True)
@click.option("--strict", is_flag=True, help="Treat warnings as errors.")
@click.option("-j", "--jobs", type=JOBS, help="Threads [default: all processors].")
@click.option(
    "--allow-outside", is_flag=True,
    help="Read kernel files that a kernelslist names outside its own folder.",
)  # fmt: skip
@click.option(
    "--allow-empty", is_flag=True,
    help="Accept a trace without any access to global memory.",
)  # fmt: skip
@click.option(
    "--races", is_flag=True,
    help="Look in the store of a recording for conflicting accesses that nothing orders.",
)  # fmt: skip
@format_option
def command(
    trace: tuple[str, ...],
    strict: bool,
    jobs: int | None,
    allow_outside: bool,
    allow_empty: bool,
    races: bool,
    form: str,
) -> None:
    """Read a trace, say what is in it and what is wrong with it, write nothing.

    Exit code 1 if a graph made from it could not be trusted, 0 otherwise; with --strict, 1 for
    every warning as well.

    With --races TRACE is the store of a recording: pairs of kernels, copies and memsets that touch
    the same bytes, one of them writing, and that no stream, event, wait of the host, legacy default
    stream or edge of a CUDA graph orders. Exit code 1 if there are any; with --strict, 1 for pairs
    that cannot be judged as well.
    """
    if races:
        _check_races(trace, strict=strict, form=form, given={
            "--jobs": jobs is not None, "--allow-outside": allow_outside,
            "--allow-empty": allow_empty,
        })  # fmt: skip
        return
    from depgraph.cli.progress import input_progress
    from depgraph.extraction.check import check_trace
    from depgraph.parsers import open_trace
    from depgraph.reports.tables.check_report import check_report
    from depgraph.system.workers import Threads

    opened = open_trace(trace, allow_outside=allow_outside)
    with input_progress(opened.input_bytes, quiet=is_quiet()) as on_progress:
        checkup = check_trace(
            opened, workers=Threads(jobs), allow_empty=allow_empty, on_progress=on_progress
        )
    is_bad = bool(checkup.errors or (strict and checkup.warnings))
    verdict = "not to be trusted" if is_bad else "usable" if checkup.warnings else "good"
    shown = None if form in {"json", "csv"} else 40
    print_report(check_report(checkup, verdict=verdict, shown=shown), form)
    click.get_current_context().exit(int(is_bad))


def _check_races(
    stores: tuple[str, ...], *, strict: bool, form: str, given: dict[str, bool]
) -> None:
    from depgraph.analysis.races import find_races
    from depgraph.reports.tables.race_report import race_report
    from depgraph.store.store import Store

    if len(stores) > 1:
        message = "--races needs one store"
        raise click.UsageError(message)
    if others := [name for name, is_given in given.items() if is_given]:
        message = f"{others[0]} reads a trace, and --races needs a store"
        raise click.UsageError(message)
    store = Store(stores[0])
    found = find_races(store)
    shown = None if form in {"json", "csv"} else 40
    print_report(race_report(store, found, shown=shown), form)
    is_bad = bool(found.races or (strict and (found.possible or found.unjudged)))
    click.get_current_context().exit(int(is_bad))
