"""``depgraph timing``: how well a profile fits a trace."""

from __future__ import annotations

from pathlib import Path

import click

from depgraph.cli.model import profile_options, where_from
from depgraph.cli.options import Command, format_option, print_report, store_argument


@click.command("timing", cls=Command)
@click.argument("file", type=click.Path(path_type=Path))
@store_argument
@profile_options
@format_option
def command(
    file: Path,
    store: Path,
    device: int | None,
    process: int | None,
    context: int | None,
    stream: int | None,
    iteration: str,
    form: str,
) -> None:
    """Show which measured kernel of FILE is which kernel of STORE.

    FILE is a PyTorch profiler trace, an nsys, ncu or nvprof export, a simulator's log, or a table
    of your own; which one is told by its contents. What --timing FILE would take of it is shown:
    kernels that match, those that were guessed because the name or the grid differs, and those
    that only one side has.
    """
    from dataclasses import asdict

    from depgraph.matching import match_profile
    from depgraph.parsers.profiles import read_profile
    from depgraph.profile import BlockProfile
    from depgraph.reports.match_table import block_profile_report, match_report
    from depgraph.store import Store

    where = where_from(device, process, context, stream, iteration)
    kernels = Store(store).kernels
    profile = read_profile(file)
    if isinstance(profile, BlockProfile):
        print_report(block_profile_report(profile, kernels), form)
    else:
        print_report(match_report(match_profile(profile, kernels, **asdict(where))), form)
