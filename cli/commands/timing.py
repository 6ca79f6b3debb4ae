"""``depgraph timing``: how well a profile fits a trace."""

from pathlib import Path
from typing import Any

import click

from depgraph.cli.options import model, shared, values


@click.command("timing", cls=shared.Command)
@click.argument("file", type=values.PATH)
@shared.store_argument
@model.profile_options
@shared.format_option
def command(file: Path, store: Path, **options: Any) -> None:
    """Show which measured kernel of FILE is which kernel of STORE.

    FILE is a PyTorch profiler trace, an nsys, ncu or nvprof export, a simulator's log, or a table
    of your own; which one is told by its contents. What --timing FILE would take of it is shown:
    kernels that match, those that were guessed because the name or the grid differs, those that are
    estimated because they have no measurement, memsets and copies, and what only the profile has.
    Exit code 1 if --timing FILE would be refused.
    """
    from dataclasses import replace

    from depgraph.errors import ProfileError
    from depgraph.reports.tables.match_table import fit_report
    from depgraph.scenario.of_store import Request, fitted_times
    from depgraph.scenario.scenario import Scenario
    from depgraph.store.store import Store
    from depgraph.timing.program_times import Estimates

    opened = Store(store)
    request = Request(read_profile=model.read_times, where=model.where_from(options))
    fit = fitted_times(opened, file, request, model.warn)
    estimated = Estimates()
    refused = None
    if fit.has_times:
        request = replace(request, times=fit, allow_mismatch=True)
        try:
            scenario = Scenario.of_store(opened, request, tell=lambda _: None)
            estimated = scenario.timing.estimated
        except ProfileError as error:
            refused = error
    shared.print_report(fit_report(fit, estimated))
    if refused is not None:
        raise refused
    fit.check(allow_mismatch=options["allow_mismatch"])
    if fit.warning:
        model.warn(fit.warning)
