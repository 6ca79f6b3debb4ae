"""Speedup by kilobytes of filter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depgraph.reports.plots.style import COLOURS, LINES, MARKERS, Plot, new_figure

if TYPE_CHECKING:
    from depgraph.analysis.hint_sweep import HintSweep


def plot(sweep: HintSweep) -> Plot:
    """Draw a curve for each grain of hints, and a line across for each other mechanism."""
    from matplotlib.ticker import FuncFormatter

    figure = new_figure(2.7)
    axes = figure.subplots()
    for i, curve in enumerate(sweep.curves):
        sized = [(k, s) for k, s in zip(curve.kib, curve.speedup, strict=True) if k is not None]
        axes.plot(
            *zip(*sized, strict=True), label=f"hints: {curve.name}", color=COLOURS[i],
            linestyle=LINES[i], marker=MARKERS[i],
        )  # fmt: skip
    for i, other in enumerate(sweep.others, start=len(sweep.curves)):
        style = i % len(COLOURS)
        axes.axhline(
            other.most, label=other.name.partition(" ")[0], color=COLOURS[style],
            linestyle=LINES[style], linewidth=0.7,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.set_xlabel("KiB of all filters (logarithmic)")
    axes.set_ylabel("speedup over serialized launches")
    figure.legend(loc="outside lower center", ncols=2, handlelength=3.2, columnspacing=1)
    return Plot(
        "hints",
        "Speedup by kilobytes of filter",
        " ".join(sweep.sentences),
        "Geometric means over programs and numbers of SMs.",
        figure,
    )
