"""True and false dependences: how many there are, and how much they limit the speedup."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depgraph.reports.plots.style import COLOURS, HATCHES, Plot, label_rows, new_figure, no_data
from depgraph.reports.tables.table import show_factor, show_number
from depgraph.system.text import size_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from depgraph.analysis.study import KindCost, Study


def plot(study: Study) -> Plot:
    """Draw edges and upper bound on the speedup for each choice of dependences that count."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    costs = study.costs
    figure = new_figure(0.75 + 0.24 * max(2, len(costs)))
    if costs:
        left, right = figure.subplots(1, 2, sharey=True)
        label_rows(left, [cost.name for cost in costs])
        for axes, values, show in (
            (left, [cost.edges for cost in costs], show_number),
            (right, [cost.upper_bound for cost in costs], show_factor),
        ):
            for row, value in enumerate(values):
                axes.barh(
                    row, value, height=0.66, facecolor=COLOURS[(1, 2, 3, 0, 4, 5)[row]],
                    hatch=HATCHES[row], edgecolor="white", linewidth=0,
                )  # fmt: skip
                axes.annotate(show(value), (value, row), xytext=(2, 0), va="center",
                              textcoords="offset points", fontsize=6.5)  # fmt: skip
            axes.set_xlim(0, 1.5 * max([*values, 1]))
            axes.xaxis.set_major_locator(MaxNLocator(3))
        left.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
        right.axvline(1, color="grey", linewidth=0.6, zorder=0)
        left.set_xlabel("edges between blocks")
        right.set_xlabel("upper bound (x)")
    else:
        no_data(figure, "extracted without RAW dependences")
    granularity = study.metadata.get("options", {}).get("granularity", 1)
    shared = (
        "A last bar adds the edges of coarser tracking (false sharing)."
        if any(cost.name == "with false sharing" for cost in costs)
        else "No false sharing: every byte is tracked by itself."
        if granularity == 1
        else f"Accesses were rounded out to {granularity} bytes, so false sharing is in all bars."
    )
    return Plot(
        "true-and-false",
        "True and false dependences",
        _result(costs),
        "RAW dependences carry data. WAR and WAW come from using a buffer again, REUSE from an "
        "allocator that gives out freed memory; renaming would remove them. Left: number of edges "
        "when only these kinds count (an edge counts once for "
        f"each kind). Right: upper bound on the speedup on {size_text(study.sms)}; the shorter the "
        f"bar, the more these dependences cost. {shared}",
        figure,
    )


def _result(costs: Sequence[KindCost]) -> str:
    """Say what each choice of dependences leaves of the bound."""
    if not costs:
        return "The store has no RAW dependences."
    shown = [f"{show_factor(cost.upper_bound)} with {cost.name}" for cost in costs]
    return f"Upper bound on the speedup: {', '.join(shown)}."


def _short(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
