"""``depgraph sweep-hints``: what a kilobyte of filter over software hints buys."""

from pathlib import Path
from typing import Any

import click

from depgraph.cli.options import model, shared, values
from depgraph.cli.progress import step_progress

_MOST_WINDOW, _MOST_HASHES = 1024, 64


@click.command("sweep-hints", cls=shared.Command)
@shared.stores_argument
@click.option(
    "--sms", type=values.SM_COUNTS, default="8,16,32,64,132", show_default=True,
    help="SM counts to take the mean over.",
)  # fmt: skip
@click.option(
    "--filter", "sort", type=click.Choice(("ring", "counting")), default="ring", show_default=True,
    help="A filter for each unfinished kernel, or one of counters for all.",
)  # fmt: skip
@click.option("--window", type=click.IntRange(1, _MOST_WINDOW), default=32, show_default=True,
              metavar="N", help="Kernels that are admitted and unfinished at a time.")  # fmt: skip
@click.option("--hashes", type=click.IntRange(1, _MOST_HASHES), default=4, show_default=True,
              metavar="N", help="Hashes of a filter.")  # fmt: skip
@model.model_options
@model.memory_option
@shared.details_option
@shared.format_option
def command(
    *,
    stores: tuple[Path, ...],
    sms: tuple[float, ...],
    sort: str,
    window: int,
    hashes: int,
    **options: Any,
) -> None:
    """Say what a kilobyte of filter over software hints buys, and which hints are worth it.

    For each STORE and number of SMs it runs dataflow-hints (depgraph mechanisms) at each grain of
    hints with filters of 4 to 65536 bits, and beside it dataflow with exact edges,
    dataflow-learned, dataflow-bloom, blockmaestro and acs-hw. Speedups are over serialized
    launches, in the geometric mean. JSON and CSV have every point.
    """
    from depgraph.analysis.hint_sweep import sweep_hints
    from depgraph.cli.suite import scenarios_of
    from depgraph.reports.tables.hint_sweep_table import hint_sweep_report

    with step_progress(quiet=shared.is_quiet()) as steps:
        programs = scenarios_of(stores, options, contention="none")
        found = sweep_hints(programs, sms, sort=sort, window=window, hashes=hashes, steps=steps)
    shared.print_report(hint_sweep_report(found))
