"""Speedup by number of SMs, and where the curve bends."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from depgraph.reports.plots.style import COLOURS, LINES, MARKERS, Plot, new_figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from depgraph.analysis.study import Curve, Study

_SAME = 0.003


def plot(study: Study) -> Plot:
    """Draw each curve of speedups against the number of SMs."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    drawn, hidden = _distinct(study.curves)
    figure = new_figure(2.3 + 0.11 * len(drawn))
    axes = figure.subplots()
    for i, curve in enumerate(drawn):
        style = i % len(COLOURS)
        axes.plot(
            curve.sms, curve.speedup, label=curve.name, color=COLOURS[style],
            linestyle=LINES[style], marker=MARKERS[style], zorder=3 if curve.is_bound else 4,
            markerfacecolor=COLOURS[style] if curve.is_bound else "white", markeredgewidth=0.8,
            linewidth=1.3 if curve.is_bound else 0.9,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.axhline(1, color="grey", linewidth=0.6)
    values = [1.0, *(value for curve in drawn for value in curve.speedup)]
    low, high = min(values), max(values)
    axes.set_ylim(low - max(0.02, 0.08 * (high - low)), high + max(0.1, 0.22 * (high - low)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
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
    return Plot(
        "speedup-by-sms",
        "Speedup by number of SMs",
        "Upper bounds (filled marks) and what schedules reach (hollow marks). Left of the bend, at "
        f"{study.bend:.3g} SMs, work limits the speedup, right of it the critical path. Bumps come "
        "from partly filled tail waves."
        + "".join(f" {name} coincides with {other}." for name, other in hidden),
        figure,
    )


def _distinct(curves: Sequence[Curve]) -> tuple[list[Curve], list[tuple[str, str]]]:
    """Return the curves that differ, and which others coincide with which of them."""
    drawn: list[Curve] = []
    hidden = []
    for curve in curves:
        same = next(
            (
                other
                for other in drawn
                if other.sms == curve.sms
                and other.is_bound == curve.is_bound
                and all(
                    math.isclose(a, b, rel_tol=_SAME)
                    for a, b in zip(other.speedup, curve.speedup, strict=True)
                )
            ),
            None,
        )
        if same is None:
            drawn.append(curve)
        else:
            hidden.append((curve.name[0].upper() + curve.name[1:], same.name))
    return drawn, hidden
