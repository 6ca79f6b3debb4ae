"""Options that make a command fail: --fail-above and --fail-below."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from depgraph.analysis.metrics import METRICS
from depgraph.cli.options.shared import Function, together
from depgraph.cli.options.values import Value
from depgraph.system.text import read_number

if TYPE_CHECKING:
    from depgraph.reports.ci import Threshold

EXIT_THRESHOLD = 3
_LARGEST_LIMIT = 1e300
_FORMER_NAMES = {"bound": "upper_bound", "gain": "speedup", "unseen": "untraced"}


class Metric(click.Choice):  # type: ignore[type-arg, unused-ignore]
    """A metric, by its name or a former one."""

    def __init__(self) -> None:
        super().__init__(METRICS)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name of the metric."""
        return super().convert(_FORMER_NAMES.get(value, value), param, ctx)


class RenamedOption(click.Option):
    """An option that is taken by a former name too, which help does not show."""

    def __init__(self, *names: Any, former: str, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self._former = former

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Let the parser know both names."""
        shown = self.opts
        self.opts = [*shown, self._former]
        super().add_to_parser(parser, ctx)
        self.opts = shown


def _read_limit(text: str) -> tuple[str, float]:
    """Read ``upper_bound=1.5``: the metric and the limit."""
    name, equals, value = text.partition("=")
    metric = _FORMER_NAMES.get(name.strip(), name.strip())
    if not equals or metric not in METRICS:
        raise ValueError(f"is not a limit: give METRIC=VALUE, METRIC: {', '.join(METRICS)}")
    limit = read_number(value, -_LARGEST_LIMIT, _LARGEST_LIMIT)
    if limit is None:
        raise ValueError("is not a limit: the value is not a number")
    return metric, limit


def metric_option(help_text: str, default: str | None = None) -> Callable[[Function], Function]:
    """Add --metric."""
    return click.option(
        "--metric", type=Metric(), default=default, show_default=default is not None,
        help=help_text,
    )  # fmt: skip


SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"


def _check_summary(_: click.Context, __: click.Parameter, value: bool) -> bool:
    if value and not os.environ.get(SUMMARY_VARIABLE):
        raise click.UsageError(f"--github: ${SUMMARY_VARIABLE} is not set")
    return value


github_option = click.option(
    "--github", is_flag=True, callback=_check_summary,
    help=f"Append the report to ${SUMMARY_VARIABLE}.",
)  # fmt: skip


def append_summary(write: Callable[[int], str]) -> None:
    """Append to the step summary what a function writes in so many bytes."""
    from depgraph.reports.ci import SUMMARY_BYTES

    file = Path(os.environ[SUMMARY_VARIABLE])
    used = file.stat().st_size if file.exists() else 0
    text = write(max(0, SUMMARY_BYTES - used))
    with file.open("a", encoding="utf-8") as summary:
        summary.write(text)


_LIMIT = Value("METRIC=VALUE", _read_limit)
threshold_options = together(
    click.option(
        "--fail-below", cls=RenamedOption, former="--fail-under",
        type=_LIMIT, multiple=True,
        help="Exit with 3 if the metric is below the value. METRIC is one of "
        f"{', '.join(METRICS)}. May be repeated.",
    ),
    click.option(
        "--fail-above", cls=RenamedOption, former="--fail-over",
        type=_LIMIT, multiple=True,
        help="Exit with 3 if the metric is above the value.",
    ),
)  # fmt: skip


def thresholds_of(options: Mapping[str, Any]) -> list[Threshold]:
    """Return the thresholds that the options set."""
    from depgraph.reports.ci import Threshold

    return [
        Threshold(metric, limit, is_least=name == "fail_below")
        for name in ("fail_below", "fail_above")
        for metric, limit in options[name]
    ]


def fail_threshold(lines: Sequence[str], code: int = EXIT_THRESHOLD) -> None:
    """Say which thresholds were missed, on stderr, also if the user asked for silence; exit."""
    for line in lines:
        click.echo(f"depgraph: {line}", err=True)
    if lines:
        sys.exit(code)
