"""``depgraph timing``: how well a profile fits a trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from depgraph.cli.options.model import profile_options, warn_of_mismatch, where_from
from depgraph.cli.options.shared import Command, format_option, print_report, store_argument

if TYPE_CHECKING:
    from depgraph.cli.options.model import ProfileOptions


@click.command("timing", cls=Command)
@click.argument("file", type=click.Path(path_type=Path))
@store_argument
@profile_options
@format_option
def command(
    file: Path,
    store: Path,
    form: str,
    **options: Unpack[ProfileOptions],
) -> None:
    """Show which measured kernel of FILE is which kernel of STORE.

    FILE is a PyTorch profiler trace, an nsys, ncu or nvprof export, a simulator's log, or a table
    of your own; which one is told by its contents. What --timing FILE would take of it is shown:
    kernels that match, those that were guessed because the name or the grid differs, and those
    that only one side has. Exit code 1 if --timing FILE would be refused.
    """
    from depgraph.parsers.profiles import read_profile
    from depgraph.reports.tables.match_table import fit_report
    from depgraph.store.store import Store
    from depgraph.timing.fit import fit_profile

    where = where_from(options)
    fit = fit_profile(read_profile(file), Store(store).kernels, where)
    print_report(fit_report(fit), form)
    fit.check(allow_mismatch=options["allow_mismatch"])
    warn_of_mismatch(fit)
