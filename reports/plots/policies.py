"""What each synchronisation policy reaches on one GPU size, grouped by what it takes to use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depgraph.mechanisms import Availability
from depgraph.reports.plots.style import (
    COLOURS,
    Plot,
    label_rows,
    longest_drawn,
    new_figure,
    no_data,
)
from depgraph.reports.tables.table import shorten, show_factor
from depgraph.system.text import size_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matplotlib.axes import Axes

    from depgraph.analysis.outcome import Outcome
    from depgraph.analysis.study import Study

GROUPS = {
    Availability.SHIPS.value: "ships today",
    Availability.CODE.value: "code change",
    Availability.HARDWARE.value: "new hardware",
}
_STYLES = {"ships today": (3, ""), "code change": (1, "////"), "new hardware": (5, "xxxx")}
_LABEL_WIDTH = 26
# Gains that are drawn in full, and that the picture has room for at least.
_ROOM, _LEAST_ROOM = 2.0, 0.25
_TITLE, _NAME = "What each policy reaches", "policies"


def plot(study: Study) -> Plot:
    """Draw one bar per policy, beside the upper bound on the speedup."""
    rows = _rows(study)
    if not rows:
        figure = no_data(new_figure(1.0), "no policies were compared")
        how = "A study compares the policies that it is told to list; the report lists all of them."
        return Plot(_NAME, _TITLE, "No policies were compared.", how, figure)
    with_predictions = study.basis.has_contention and not study.basis.launches_cost
    groups = {group for group, *_ in rows}
    figure = new_figure(0.9 + 0.135 * (len(rows) + len(groups)) + 0.12 * with_predictions)
    axes = figure.subplots()
    speedups = [s for _, _, o in rows for s in _speedups(o, predictions=with_predictions)]
    bounds = {"upper bound": study.bound.upper_bound}
    limits = () if study.comparison is None else study.comparison.limits
    for predicted in [limit.contended_upper_bound for limit in limits if with_predictions]:
        if predicted is not None:
            bounds["bound of predictions"] = predicted
    gains = [value - 1 for value in (*speedups, *bounds.values())]
    room = min(max(_ROOM, longest_drawn(gains)), max(_LEAST_ROOM, *gains))
    axes.set_xlim(min([1.0, *speedups]) - 0.04 * room, 1 + 1.04 * room)
    labels: list[str] = []
    for i, (group, name, outcome) in enumerate(rows):
        if not i or rows[i - 1][0] != group:
            axes.annotate(
                group, (0, len(labels)), xycoords=("axes fraction", "data"), xytext=(-3, 0),
                textcoords="offset points", ha="right", va="center", weight="bold", fontsize=6.5,
            )  # fmt: skip
            labels.append("")
        drawn = _speedups(outcome, predictions=with_predictions)
        _draw_policy(axes, len(labels), group, drawn, 1 + room)
        labels.append(shorten(name, _LABEL_WIDTH).replace("$", r"\$"))
    axes.axvline(1, color="grey", linewidth=0.6)
    for (name, value), line in zip(bounds.items(), ("-", "--"), strict=False):
        label = f"{name} {show_factor(value)}"
        if value - 1 <= room:
            axes.axvline(value, color="black", linewidth=1.1, linestyle=line, label=label)
        else:
            axes.plot([], [], color="black", linewidth=1.1, linestyle=line, label=f"{label} →")
    if with_predictions:
        axes.plot([], [], "D", color="black", markerfacecolor="white",
                  label="predicted with contention")  # fmt: skip
    label_rows(axes, labels)
    axes.set_xlabel(f"speedup on {size_text(study.sms)} (x)")
    figure.legend(loc="outside lower center", ncols=2, handlelength=1.8, columnspacing=1)
    return Plot(
        _NAME,
        _TITLE,
        _result(rows, study),
        "Bars begin at 1x, serialized launches, and hold for fixed durations without launch costs, "
        "as the upper bound does. "
        + ("Diamonds, and the second number: predicted where blocks that share an SM slow each "
           "other; their bound is the dashed line. " if with_predictions else "")
        + "Of a policy with a parameter the best is drawn. * cuts blocks up or assumes steps, and "
        "has a bound of its own. An arrow: beyond the picture.",
        figure,
    )  # fmt: skip


def _rows(study: Study) -> list[tuple[str, str, Outcome]]:
    """Return group, label and outcome of each policy, the best of each group first."""
    if study.comparison is None:
        return []
    families: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in study.comparison.outcomes:
        group = GROUPS.get(outcome.availability)
        if group is not None and outcome.mechanism != "serial":
            family = outcome.mechanism.split("(")[0].strip()
            families.setdefault((group, family), []).append(outcome)
    rows = []
    for (group, family), outcomes in families.items():
        best = max(outcomes, key=lambda o: o.overlap_speedup)
        name = best.mechanism if len(outcomes) == 1 else f"{family}, best of {len(outcomes)}"
        rows.append((group, name + "*" * (best.against != "block"), best))
    order = list(GROUPS.values())
    return sorted(rows, key=lambda row: (order.index(row[0]), -row[2].overlap_speedup, row[1]))


def _speedups(outcome: Outcome, *, predictions: bool) -> list[float]:
    """Return what is drawn of a policy: nothing of one that never ends."""
    if outcome.deadlock:
        return []
    reached = [outcome.overlap_speedup]
    if predictions and outcome.predicted_speedup is not None:
        reached.append(outcome.predicted_speedup)
    return reached


def _draw_policy(axes: Axes, row: int, group: str, speedups: list[float], end: float) -> None:
    colour, hatch = _STYLES[group]
    for i, speedup in enumerate(speedups):
        if i:
            axes.plot(min(end, speedup), row, "D", color="black", markerfacecolor="white",
                      markersize=3, clip_on=False, zorder=5)  # fmt: skip
        else:
            axes.barh(row, min(end, speedup) - 1, left=1, height=0.7, facecolor=COLOURS[colour],
                      hatch=hatch, edgecolor="white", linewidth=0)  # fmt: skip
    shown = [show_factor(speedup) + " →" * (speedup > end) for speedup in speedups]
    axes.annotate(", ".join(shown) or "deadlock", (1, row), xycoords=("axes fraction", "data"),
                  xytext=(4, 0), textcoords="offset points", va="center", fontsize=6)  # fmt: skip


def _result(rows: Iterable[tuple[str, str, Outcome]], study: Study) -> str:
    """Name the best policy of each group."""
    best: dict[str, str] = {}
    for group, name, outcome in rows:
        if outcome.against == "block" and not outcome.deadlock:
            best.setdefault(group, f"{group}: {name} {show_factor(outcome.overlap_speedup)}")
    reached = "; ".join(best.values()) or "none"
    bound = show_factor(study.bound.upper_bound)
    return f"Upper bound on {size_text(study.sms)}: {bound}. Best policies: {reached}."
