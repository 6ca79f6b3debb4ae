"""Speedup by number of SMs, and where the curve bends."""

import math
from collections.abc import Sequence
from functools import partial

from depgraph.analysis.study import Curve, Study
from depgraph.mechanisms import Against, Availability
from depgraph.reports.plots.style import COLOURS, LINES, MARKERS, Plot, longest_drawn, new_figure
from depgraph.reports.tables.table import shorten
from depgraph.system.text import counted, show_factor, size_text

MOST_CURVES = 5
_LABEL_WIDTH = 24  # two of them are a picture wide
_SAME = 0.003
_ANYTHING = 1.02  # a smaller speedup is none


def tells(study: Study) -> bool:
    """Whether a bound is above serialized launches on any size."""
    return any(speedup >= _ANYTHING for curve in study.curves for speedup in curve.speedup)


def plot(study: Study) -> Plot:
    """Draw each curve of speedups against the number of SMs."""
    from matplotlib.ticker import LogLocator, NullFormatter

    curves, hidden = _distinct(study.curves)
    drawn = _most_telling(curves, study)
    left_out = len(curves) - len(drawn)
    figure = new_figure(2.3 + 0.11 * len(drawn))
    axes = figure.subplots()
    for i, curve in enumerate(drawn):
        style = i % len(COLOURS)
        axes.plot(
            curve.sms, curve.speedup, label=shorten(curve.name, _LABEL_WIDTH), color=COLOURS[style],
            linestyle=LINES[style], marker=MARKERS[style], zorder=3 if curve.is_bound else 4,
            markerfacecolor=COLOURS[style] if curve.is_bound else "white", markeredgewidth=0.8,
            linewidth=1.3 if curve.is_bound else 0.9,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.axhline(1, color="grey", linewidth=0.6)
    values = [1.0, *(value for curve in drawn for value in curve.speedup)]
    # What has a bound of its own may be far above: the picture is not stretched by it.
    bounded = [v for c in drawn if c.name.startswith("upper bound") for v in c.speedup]
    low = min(values)
    high = max(1 + longest_drawn(value - 1 for value in values), *bounded, 1.0)
    axes.set_ylim(low - max(0.02, 0.08 * (high - low)), high + max(0.1, 0.22 * (high - low)))
    axes.yaxis.set_major_formatter("{x:g}x")
    for sms, text, line, level in (
        (study.bend, "bend", ":", 0.99),
        (study.sms, f"{study.sms} SMs", "-", 0.91),
    ):
        if axes.get_xlim()[0] <= sms <= axes.get_xlim()[1]:
            axes.axvline(sms, color="grey", linewidth=0.7, linestyle=line, zorder=1)
            axes.annotate(
                text, (sms, level), xycoords=("data", "axes fraction"), xytext=(2, 0),
                textcoords="offset points", va="top", fontsize=6.5, color="#404040",
            )  # fmt: skip
    axes.set_xlabel("SMs (logarithmic)")
    axes.set_ylabel("speedup over serialized launches")
    figure.legend(loc="outside lower center", ncols=2, handlelength=3.2, columnspacing=1)
    shown = {curve.name for curve in drawn}
    return Plot(
        "speedup-by-sms",
        "Speedup by number of SMs",
        _result(study),
        f"Filled marks: upper bounds. Hollow: what schedules reach. {_limits(study)} Bumps come "
        "from partly filled tail waves."
        + "".join(f" {name} coincides with {other}." for name, other in hidden if other in shown)
        + (" A line that leaves the picture goes on above it." if max(values) > high else "")
        + (f" Not drawn: {counted(left_out, 'curve')}, which report.json has." if left_out else ""),
        figure,
    )


def _limits(study: Study) -> str:
    if study.bend <= 1:
        return "The critical path limits at every size."
    return f"Work limits up to the bend, at {study.bend:.3g} SMs, the critical path beyond."


def _result(study: Study) -> str:
    bound = study.bound
    return (
        f"On {size_text(study.sms)} the upper bound is {show_factor(bound.upper_bound)} and "
        f"the best schedule reaches {show_factor(bound.reached.speedup)}; with RAW only the upper "
        f"bound is {show_factor(study.renamed.upper_bound)}."
    )


def _most_telling(curves: Sequence[Curve], study: Study) -> list[Curve]:
    """Return the curves that are drawn: what holds for all, then the best policies of each need."""
    if len(curves) <= MOST_CURVES:
        return list(curves)
    outcomes = () if study.comparison is None else study.comparison.outcomes
    # What cuts blocks up or assumes steps is not bounded by the bound that is drawn.
    bounded = [o for o in outcomes if o.against == Against.BLOCK.value and o.mechanism != "serial"]
    limit = Availability.LIMIT.value
    availability = {o.mechanism: o.availability for o in bounded if o.availability != limit}
    order = [each.value for each in Availability]
    ranks: dict[str, int] = {}

    def at_size(curve: Curve) -> float:
        return curve.speedup[curve.sms.index(study.sms)]

    policies = [c for c in curves if c.name in availability]
    for curve in sorted(policies, key=at_size, reverse=True):
        group = availability[curve.name]
        better = sum(availability[name] == group for name in ranks)
        ranks[curve.name] = 10 * better + order.index(group)
    general = ("upper bound", "best dataflow", "upper bound, RAW only")
    for rank, name in enumerate(general):
        ranks[name] = rank - len(general)
    last = len(order) * 1000
    kept = sorted(curves, key=lambda curve: ranks.get(curve.name, last))[:MOST_CURVES]
    return [curve for curve in curves if curve in kept]


def _distinct(curves: Sequence[Curve]) -> tuple[list[Curve], list[tuple[str, str]]]:
    """Return the curves that differ, and which others coincide with which of them."""
    drawn: list[Curve] = []
    hidden = []
    # Of a bound and the one for blocks that wait inside the first is what all reports speak of.
    for curve in sorted(curves, key=lambda c: c.name.startswith("intra-block")):
        same = next((other for other in drawn if _coincide(other, curve)), None)
        if same is None:
            drawn.append(curve)
        else:
            hidden.append((curve.name[0].upper() + curve.name[1:], same.name))
    return drawn, hidden


def _coincide(one: Curve, other: Curve) -> bool:
    if (one.sms, one.is_bound) != (other.sms, other.is_bound):
        return False
    return all(map(partial(math.isclose, rel_tol=_SAME), one.speedup, other.speedup))
