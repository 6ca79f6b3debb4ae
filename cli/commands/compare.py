"""``depgraph compare``: what changed between two stores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from depgraph.cli.options import model, shared, thresholds, values

if TYPE_CHECKING:
    from depgraph.analysis.compare_stores import StoreDiff


@click.command("compare", cls=shared.Command)
@click.argument("base", type=values.PATH)
@click.argument("new", type=values.PATH)
@click.option("--sms", type=values.SMS, metavar="N", help="SM count [default: the GPU model's].")
@click.option(
    "--fail-on-increase", "up", type=thresholds.Metric(), multiple=True,
    help="Exit with 3 if the metric is higher in NEW. May be repeated.",
)  # fmt: skip
@click.option(
    "--fail-on-decrease", "down", type=thresholds.Metric(), multiple=True,
    help="Exit with 3 if the metric is lower in NEW. May be repeated.",
)  # fmt: skip
@click.option(
    "--tolerance", type=values.PERCENT, default=0.0, show_default=True, metavar="PERCENT",
    help="Change in percent that is still accepted.",
)  # fmt: skip
@click.option(
    "--format", "form", type=click.Choice([*shared.FORMATS, "total"]),
    default="table", show_default=True, expose_value=False, callback=shared.note,
    help="How to write the result; total is one number.",
)  # fmt: skip
@thresholds.metric_option("Metric of NEW that --format total prints.", default="upper_bound")
@thresholds.github_option
@shared.top_option
@click.option(
    "--new-timing", type=values.PATH, metavar="FILE",
    help="Measured times of NEW; --timing is then those of BASE.",
)  # fmt: skip
@click.option(
    "--repeat", type=values.PATH, metavar="STORE",
    help="Another recording of BASE: changes no larger than between the two are noise.",
)  # fmt: skip
@click.option(
    "--repeat-timing", type=values.PATH, metavar="FILE",
    help="With --timing: measured times of the other recording, or without --repeat other "
    "measured times of BASE.",
)  # fmt: skip
@model.model_options
@model.memory_option
def command(
    *,
    base: Path,
    new: Path,
    up: tuple[str, ...],
    down: tuple[str, ...],
    tolerance: float,
    metric: str,
    github: bool,
    top: int,
    new_timing: Path | None,
    repeat: Path | None,
    repeat_timing: Path | None,
    **options: Any,
) -> None:
    """Say what changed between two stores: kernels, dependences, bound, utilization.

    Kernels are aligned in launch order by name, grid and block, then by function. Both sides must
    be on one GPU, of one size, with times in one unit.
    """
    from depgraph.analysis.answer import conclude
    from depgraph.analysis.compare_stores import compare
    from depgraph.reports.ci import folded_summary, one_number
    from depgraph.reports.tables.diff_tables import diff_report, what_it_means
    from depgraph.system.text import clean_text, size_text

    if (options["timing"] is None) != (new_timing is None):
        message = "--timing and --new-timing: give both or neither, so that units are equal"
        raise click.UsageError(message)
    if repeat_timing is None and repeat is not None and options["timing"] is not None:
        message = "--repeat with --timing needs --repeat-timing: times of the other recording"
        raise click.UsageError(message)
    if repeat_timing is not None and options["timing"] is None:
        raise click.UsageError("--repeat-timing needs --timing and --new-timing")
    before = model.sized_scenario_of(base, options)
    options["sms"] = before.sms
    after = model.sized_scenario_of(new, {**options, "timing": new_timing})
    again = None
    if repeat is not None or repeat_timing is not None:
        again = model.sized_scenario_of(repeat or base, {**options, "timing": repeat_timing})
    diff = compare(before, after, again)
    if shared.chosen_form() == "total":
        click.echo(one_number(diff.metrics[metric][1]))
    else:
        shared.print_report(diff_report(diff, top=top))
    missed = _missed(diff, up, down, tolerance / 100)
    if github:
        lead = [f"threshold missed: {line}" for line in missed]
        lead += [*what_it_means(diff), *conclude(after).sentences]
        names = f"{clean_text(new.name)} compared with {clean_text(base.name)}"
        title = f"depgraph: {names} on {size_text(after.sms)}"
        thresholds.append_summary(
            lambda room: folded_summary(diff_report(diff), title, lead, top=top, most_bytes=room)
        )
    thresholds.fail_threshold(missed)


def _missed(
    diff: StoreDiff, up: tuple[str, ...], down: tuple[str, ...], tolerance: float
) -> list[str]:
    """Return one line for each metric that went the wrong way."""
    from depgraph.reports.ci import Threshold, missed_thresholds

    limits = []
    for metrics, sign in ((up, 1), (down, -1)):
        for metric in metrics:
            base, _ = diff.metrics[metric]
            # What was computed in another order may differ in the last digits.
            accepted = max(abs(base) * tolerance, diff.noise.get(metric, 0.0))
            limit = base + sign * (accepted + abs(base) * 1e-9)
            limits.append(Threshold(metric, limit, is_least=sign < 0))
    return missed_thresholds(limits, {name: new for name, (_, new) in diff.metrics.items()})
