"""What a CI reads: a step summary of limited size, and thresholds with one line each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from depgraph.reports.tables.render import render

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from depgraph.reports.tables.table import Report

# GitHub refuses step summaries above 1 MiB: "Adding a job summary", GitHub Actions documentation.
SUMMARY_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Threshold:
    """A limit on a metric.

    Attributes
    ----------
    metric : str
    limit : float
    is_least : bool
        Whether the metric may not be below the limit, rather than above it.
    """

    metric: str
    limit: float
    is_least: bool

    def is_met(self, value: float) -> bool:
        """Tell whether a value of the metric keeps to the limit."""
        return value >= self.limit if self.is_least else value <= self.limit


def missed_thresholds(thresholds: Sequence[Threshold], metrics: Mapping[str, float]) -> list[str]:
    """Return one line for each threshold that is missed: metric, expected, got."""
    return [
        f"{t.metric}: expected {'at least' if t.is_least else 'at most'} {t.limit:g}, "
        f"got {metrics[t.metric]:.4g}"
        for t in thresholds
        if not t.is_met(metrics[t.metric])
    ]


def step_summary(report: Report, title: str, *, top: int, most_bytes: int = SUMMARY_BYTES) -> str:
    """Write a report as Markdown in limited space: with fewer rows where it is too long.

    Parameters
    ----------
    report : Report
    title : str
    top : int
        Rows to begin with.
    most_bytes : int
    """
    while True:
        text = f"## {title}\n\n{render(report.cut(top), 'markdown')}"
        if len(text.encode()) <= most_bytes or not top:
            return _cut(text, most_bytes)
        top //= 2


def _cut(text: str, most_bytes: int) -> str:
    encoded = text.encode()
    if len(encoded) <= most_bytes:
        return text
    note = "\n\n(cut)\n"
    return encoded[: max(0, most_bytes - len(note))].decode(errors="ignore") + note
