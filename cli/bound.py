"""``depgraph bound``: store to bound on the gain."""

from __future__ import annotations

from pathlib import Path

import click

from depgraph.cli.model import model_options, model_from
from depgraph.cli.options import (
    Command,
    SmCounts,
    deps_option,
    format_option,
    print_report,
    store_argument,
)


@click.command("bound", cls=Command)
@store_argument
@click.option(
    "--sms", type=SmCounts(), required=True,
    help="SM counts: 80, 8,16,80, 8:132, 8:132:4 or inf.",
)  # fmt: skip
@deps_option
@model_options
@format_option
def command(
    store: Path, sms: tuple[float, ...], kinds: frozenset[str] | None, form: str, **model: object
) -> None:
    """Bound the gain of overlapping independent blocks on a GPU.

    Prints serial time, critical path, work, the lower bound that follows, and what block-level
    dataflow schedules reach, with all dependences and with RAW alone (as if every buffer were
    renamed).
    """
    from depgraph.bounds import bound
    from depgraph.reports.bound_table import bound_report
    from depgraph.store import Store

    graph = Store(store).graph(kinds)
    chosen = model_from(graph, **model)
    table = bound(
        graph,
        sms,
        durations=chosen.durations,
        occupancy=chosen.occupancy,
        launch_gap=chosen.launch_gap,
    )
    print_report(bound_report(table), form)
