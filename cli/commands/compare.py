"""``depgraph compare``: what changed between two stores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from depgraph.cli.options.model import memory_option, model_options, timed_scenario_from
from depgraph.cli.options.shared import Command, deps_option, print_report
from depgraph.cli.options.thresholds import Metric, fail_threshold
from depgraph.cli.options.values import ROWS, SMS, Percent

if TYPE_CHECKING:
    from depgraph.analysis.compare_stores import Side, StoreDiff


@click.command("compare", cls=Command)
@click.argument("base", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option("--sms", type=SMS, metavar="N", help="SM count [default: the GPU model's].")
@click.option(
    "--fail-on-increase", "up", type=Metric(), multiple=True,
    help="Exit with 3 if the metric is higher in NEW. May be repeated.",
)  # fmt: skip
@click.option(
    "--fail-on-decrease", "down", type=Metric(), multiple=True,
    help="Exit with 3 if the metric is lower in NEW. May be repeated.",
)  # fmt: skip
@click.option(
    "--tolerance", type=Percent(), default=0.0, show_default=True, metavar="PERCENT",
    help="Change in percent that is still accepted.",
)  # fmt: skip
@click.option(
    "--format", "form", type=click.Choice(["table", "json", "csv", "markdown", "total"]),
    default="table", show_default=True, help="How to write the result; total is one number.",
)  # fmt: skip
@click.option(
    "--metric", type=Metric(), default="upper_bound", show_default=True,
    help="Metric of NEW that --format total prints.",
)  # fmt: skip
@click.option(
    "--top", type=ROWS, default=20, show_default=True, metavar="N",
    help="Rows of each table in Markdown and on a terminal.",
)  # fmt: skip
@click.option(
    "--new-timing", type=click.Path(path_type=Path), metavar="FILE",
    help="Measured times of NEW; --timing is then those of BASE.",
)  # fmt: skip
@deps_option
@model_options
@memory_option
def command(
    *,
    base: Path,
    new: Path,
    sms: int | None,
    up: tuple[str, ...],
    down: tuple[str, ...],
    tolerance: float,
    form: str,
    metric: str,
    top: int,
    new_timing: Path | None,
    kinds: frozenset[str] | None,
    **model: Any,
) -> None:
    """Say what changed between two stores: kernels, dependences, bound, utilization.

    Kernels are aligned in launch order by name, grid and block, then by function.
    """
    from depgraph.analysis.compare_stores import compare
    from depgraph.reports.tables.diff_tables import diff_report

    if (model["timing"] is None) != (new_timing is None):
        message = "--timing and --new-timing: give both or neither, so that units are equal"
        raise click.UsageError(message)
    before = _side(base, sms, kinds, model)
    size = int(before.scenario.sms)
    after = _side(new, size, kinds, {**model, "timing": new_timing})
    diff = compare(before, after)
    if form == "total":
        click.echo(f"{diff.metrics[metric][1]:.4g}")
    else:
        shown = top if form in {"table", "markdown"} else None
        print_report(diff_report(diff, sms=size, unit=before.scenario.unit, top=shown), form)
    failures = _failures(diff, up, down, tolerance / 100)
    if failures:
        fail_threshold(failures)


def _side(path: Path, sms: int | None, kinds: frozenset[str] | None, model: dict[str, Any]) -> Side:
    from depgraph.analysis.compare_stores import side_of
    from depgraph.store.store import Store

    scenario = timed_scenario_from(Store(path), kinds, **model)
    return side_of(scenario.on(sms or scenario.resources.gpu.sms))


def _failures(
    diff: StoreDiff, up: tuple[str, ...], down: tuple[str, ...], tolerance: float
) -> list[str]:
    """Return one line for each metric that went the wrong way: metric, expected, got."""
    lines = []
    for metrics, sign, word in ((up, 1, "most"), (down, -1, "least")):
        for metric in metrics:
            base, new = diff.metrics[metric]
            limit = base * (1 + sign * tolerance)
            # What was computed in another order may differ in the last digits.
            if sign * (new - limit) > 1e-9 * abs(base):
                lines.append(f"{metric}: expected at {word} {limit:.4g}, got {new:.4g}")
    return lines
