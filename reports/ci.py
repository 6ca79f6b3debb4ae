"""What a CI reads: a step summary of limited size, and thresholds with one line each."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from depgraph.reports.tables.render import render
from depgraph.reports.tables.table import Report

# GitHub refuses step summaries above 1 MiB: "Adding a job summary", GitHub Actions documentation.
SUMMARY_BYTES = 1_000_000
_WHOLE = 1000
_FOLD = "\n<details>\n<summary>{}</summary>\n\n", "\n</details>\n"


@dataclass(frozen=True, slots=True)
class Threshold:
    """A limit on a metric."""

    metric: str
    limit: float
    is_least: bool  # whether the metric may not be below the limit, rather than above it

    def is_met(self, value: float) -> bool:
        """Tell whether a value of the metric keeps to the limit."""
        return value >= self.limit if self.is_least else value <= self.limit


def one_number(value: float) -> str:
    """Show a metric alone, as a badge does: four digits, and those before the point."""
    return f"{value:.4g}" if abs(value) < _WHOLE or not math.isfinite(value) else f"{value:.0f}"


def missed_thresholds(thresholds: Sequence[Threshold], metrics: Mapping[str, float]) -> list[str]:
    """Return one line for each threshold that is missed: metric, expected, got."""
    return [
        f"{t.metric}: expected {'at least' if t.is_least else 'at most'} {t.limit:g}, "
        f"got {one_number(metrics[t.metric])}"
        for t in thresholds
        if not t.is_met(metrics[t.metric])
    ]


def step_summary(report: Report, title: str, *, top: int, most_bytes: int = SUMMARY_BYTES) -> str:
    """Write a report as Markdown in limited space: with fewer rows where it is too long."""
    while True:
        text = f"## {title}\n\n{render(report.cut(top), 'markdown')}"
        if len(text.encode()) <= most_bytes or not top:
            return _cut(text, most_bytes)
        top //= 2


def folded_summary(
    report: Report,
    title: str,
    lead: Sequence[str] = (),
    *,
    top: int,
    most_bytes: int = SUMMARY_BYTES,
) -> str:
    """Write a report for a pull request: the first table, and the rest to be unfolded."""
    tables, shown = report.tables[:1], set(lead)
    first = Report(report.name, {}, headline=lead, tables=tables)
    head = f"## {title}\n\n{render(first, 'markdown')}"
    hidden = " and ".join(table.title.lower() for table in report.tables[1:])
    fold, end = _FOLD[0].format(hidden.capitalize()), _FOLD[1]
    room = most_bytes - len((head + fold + end).encode())
    if room < 0:
        return _cut(head, most_bytes)
    headline = [sentence for sentence in report.headline if sentence not in shown]
    rest = replace(report, headline=headline, tables=report.tables[1:])
    while True:
        text = render(rest.cut(top), "markdown")
        if len(text.encode()) <= room or not top:
            return f"{head}{fold}{_cut(text, room)}{end}"
        top //= 2


def _cut(text: str, most_bytes: int) -> str:
    encoded = text.encode()
    if len(encoded) <= most_bytes:
        return text
    note = "\n\n(cut)\n"
    return encoded[: max(0, most_bytes - len(note))].decode(errors="ignore") + note
