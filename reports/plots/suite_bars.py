"""Speedups of many programs as bars, with the upper bound of each and geometric means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from depgraph.analysis.suite import RAW_ONLY, UPPER_BOUND, Broken, Suite
from depgraph.reports.plots.style import (
    COLOURS,
    COLUMN_INCHES,
    HATCHES,
    LABEL_WIDTH,
    LINES,
    Plot,
    new_figure,
    no_data,
)
from depgraph.reports.tables.table import shorten
from depgraph.system.text import clean_text, show_factor

if TYPE_CHECKING:
    from matplotlib.axes import Axes


NAME = "speedups"
MOST_BARS = 6
_PROGRAMS_IN_A_COLUMN = 9
_PAGE_INCHES = 7.0
_GROUP_WIDTH = 0.8
_LINEAR_UP_TO = 4.0
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
_MEAN = "geomean"


def default_policies(suite: Suite) -> list[str]:
    """Return, for each thing it may take to use a policy today, the best bounded one on average."""
    best: dict[str, tuple[int, float, str]] = {}
    for mean in suite.means:
        availability = suite.policies.get(mean.column, "")
        if mean.column not in suite.bounded or mean.is_predicted or "limit" in availability:
            continue
        rank = mean.programs, mean.mean, mean.column
        best[availability] = max(best.get(availability, rank), rank, key=lambda r: r[:2])
    return [name for name in suite.policies if name in {rank[2] for rank in best.values()}]


def plot(suite: Suite, policies: Sequence[str] = ()) -> Plot:
    """Draw a group of bars a program: policies, and above them the upper bounds."""
    drawn = [p for p in policies if p in suite.policies] or default_policies(suite)
    drawn = drawn[:MOST_BARS]
    means = {m.column: m.mean for m in suite.means if not m.is_predicted}
    groups = [(clean_text(r.program), r) for r in suite.results]
    wide = len(groups) > _PROGRAMS_IN_A_COLUMN
    figure = new_figure(2.1 + 0.14 * len(drawn))
    figure.set_figwidth(_PAGE_INCHES if wide else COLUMN_INCHES)
    title = "Speedup of each program"
    if not suite.programs:
        return Plot(NAME, title, "No program could be read.", "", no_data(figure, "no program"))
    axes = figure.subplots()
    places = [*range(len(groups)), len(groups) + 0.4]
    labels = [name for name, _ in groups] + [_MEAN]
    values = [
        {c: None if isinstance(r, Broken) else r.value(c) for c in (*drawn, UPPER_BOUND, RAW_ONLY)}
        for _, r in groups
    ] + [{c: means.get(c) for c in (*drawn, UPPER_BOUND, RAW_ONLY)}]
    width = _GROUP_WIDTH / max(1, len(drawn))
    for i, policy in enumerate(drawn):
        at = [
            (x - _GROUP_WIDTH / 2 + (i + 0.5) * width, v)
            for x, found in zip(places, values, strict=True)
            if (v := found[policy]) is not None and v > 0
        ]
        axes.bar(
            [x for x, _ in at], [v - 1 for _, v in at], width, bottom=1, label=policy,
            facecolor=COLOURS[1 + i], hatch=HATCHES[i], edgecolor="white", linewidth=0,
        )  # fmt: skip
    for column, line, name in (
        (UPPER_BOUND, LINES[0], "upper bound"), (RAW_ONLY, LINES[3], "upper bound, RAW only"),
    ):  # fmt: skip
        at = [(x, v) for x, f in zip(places, values, strict=True) if (v := f[column]) is not None]
        axes.hlines(
            [v for _, v in at], [x - _GROUP_WIDTH / 2 for x, _ in at],
            [x + _GROUP_WIDTH / 2 for x, _ in at], colors=COLOURS[0], linestyles=line,
            linewidth=1.1, label=name,
        )  # fmt: skip
    for x, (_, result) in zip(places, groups, strict=False):
        if isinstance(result, Broken):
            axes.annotate("failed", (x, 1), xytext=(0, 3), textcoords="offset points",
                          rotation=90, ha="center", va="bottom", fontsize=6)  # fmt: skip
    axes.axhline(1, color="grey", linewidth=0.6, zorder=0)
    axes.axvline(len(groups) - 0.3, color="grey", linewidth=0.6, linestyle=":", zorder=0)
    shown = [shorten(label, LABEL_WIDTH).replace("$", r"\$") for label in labels]
    is_long = max(map(len, shown)) * len(shown) > (110 if wide else 45)
    turned: dict[str, Any] = {"rotation": 45, "ha": "right"} if is_long else {}
    axes.set_xticks(places, shown, **turned)
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.6, places[-1] + 0.6)
    _scale(axes, [v for found in values for v in found.values() if v])
    axes.set_ylabel("speedup over\nserialized launches")
    columns = 4 if wide else 2
    figure.legend(loc="outside upper center", ncols=columns, handlelength=2, columnspacing=1)
    bound = means.get(UPPER_BOUND)
    return Plot(
        NAME,
        title,
        "" if bound is None else f"The upper bound is {show_factor(bound)} in the geometric mean.",
        "Bars: what each policy reaches, from serialized launches (1x) up. Lines: the upper bound, "
        "and dotted the one as if every buffer were renamed. Right: geometric means.",
        figure,
    )


def _scale(axes: Axes, values: Sequence[float]) -> None:
    """Scale speedups: linear where that shows all of them, else logarithmic."""
    from matplotlib.ticker import FixedLocator, NullLocator

    low, high = min([1.0, *values]), max([1.05, *values])
    if high > _LINEAR_UP_TO * max(1.0, sorted(values)[len(values) // 2]):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(FixedLocator([t for t in _TICKS if low / 2 < t < 2 * high]))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_ylim(low / 1.1, high * 1.15)
    else:
        room = 0.06 * (high - min(low, 1))
        axes.set_ylim(low - room, high + room)
    axes.yaxis.set_major_formatter("{x:g}x")
