"""Options that make a command fail: --fail-under and --fail-over."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from depgraph.cli.options.values import OptionType
from depgraph.system.limits import number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from depgraph.reports.ci import Threshold

Function = TypeVar("Function", bound="Callable[..., Any]")

EXIT_THRESHOLD = 3
_LARGEST_LIMIT = 1e300
METRICS = (
    "bound", "gain", "utilization", "unseen", "edges", "serial", "launched_serial", "critical_path",
)  # fmt: skip


class MetricLimit(OptionType):
    """A metric and a limit: ``bound=1.5``."""

    name = "METRIC=VALUE"

    def read(self, text: str) -> tuple[str, float]:
        """Return the metric and the limit."""
        metric, equals, value = text.partition("=")
        if not equals or metric.strip() not in METRICS:
            raise ValueError(f"is no limit: give METRIC=VALUE, METRIC one of {', '.join(METRICS)}")
        limit = number(value, -_LARGEST_LIMIT, _LARGEST_LIMIT)
        if limit is None:
            raise ValueError("is no limit: its value is no number")
        return metric.strip(), limit


def threshold_options(function: Function) -> Function:
    """Add --fail-under and --fail-over."""
    for option in (
        click.option(
            "--fail-over", type=MetricLimit(), multiple=True,
            help="Exit with 3 if the metric is above the value.",
        ),
        click.option(
            "--fail-under", type=MetricLimit(), multiple=True,
            help="Exit with 3 if the metric is below the value: "
            f"{', '.join(METRICS)}. May be repeated.",
        ),
    ):  # fmt: skip
        function = option(function)
    return function


def thresholds_from(
    under: Sequence[tuple[str, float]], over: Sequence[tuple[str, float]]
) -> list[Threshold]:
    """Return the thresholds that the options set."""
    from depgraph.reports.ci import Threshold

    return [Threshold(metric, limit, is_least=True) for metric, limit in under] + [
        Threshold(metric, limit, is_least=False) for metric, limit in over
    ]


def fail_threshold(lines: Sequence[str]) -> NoReturn:
    """Say which thresholds were missed, on stderr, also if the user asked for silence; exit."""
    for line in lines:
        click.echo(f"depgraph: {line}", err=True)
    sys.exit(EXIT_THRESHOLD)
