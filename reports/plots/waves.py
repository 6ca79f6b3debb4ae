"""Full waves and tail waves of each kernel, and what the tail leaves idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depgraph.reports.plots.style import (
    DARK,
    KERNELS_SHOWN,
    MIDDLE,
    Plot,
    kernel_label,
    label_rows,
    new_figure,
    no_data,
)
from depgraph.reports.tables.table import show_number
from depgraph.system.text import counted, size_text

if TYPE_CHECKING:
    from depgraph.analysis.study import Study

_LINEAR_WAVES = 12


def plot(study: Study) -> Plot:
    """Draw blocks against slots for the kernels that take longest."""
    from matplotlib.ticker import FuncFormatter

    longest = sorted(study.loads, key=lambda load: (-load.time, load.kernel))[:KERNELS_SHOWN]
    loads = sorted(longest, key=lambda load: load.kernel)
    figure = new_figure(0.75 + 0.125 * max(4, len(loads)))
    if loads:
        axes, tails = figure.subplots(1, 2, sharey=True, width_ratios=(3, 1.2))
        rows = range(len(loads))
        full = [load.full_waves for load in loads]
        tail = [load.tail_blocks / load.slots for load in loads]
        idle = [1 - t if t else 0.0 for t in tail]
        axes.barh(rows, full, color=DARK, height=0.72, label="full waves")
        axes.barh(rows, tail, left=full, color=MIDDLE, hatch="/////", edgecolor="white",
                  linewidth=0, height=0.72, label="tail wave")  # fmt: skip
        axes.barh(rows, idle, left=[f + t for f, t in zip(full, tail, strict=True)],
                  color="white", edgecolor="grey", linewidth=0.5, height=0.72,
                  label="slots the tail leaves idle")  # fmt: skip
        if max(full) > _LINEAR_WAVES:
            axes.set_xscale("symlog", linthresh=2, linscale=1)
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_xlim(left=0)
        axes.set_xlabel("waves (blocks / slots)")
        label_rows(axes, [kernel_label(load.kernel, study.kernels) for load in loads])
        shares = [100 * load.tail_utilization for load in loads]
        tails.hlines(rows, 0, shares, color="grey", linewidth=0.6)
        tails.plot(shares, rows, "o", color="black", markersize=2.5)
        tails.set_xlim(0, 108)
        tails.set_xticks([0, 50, 100])
        tails.set_xlabel("last wave (%)")
        figure.legend(loc="outside upper center", ncols=3, handlelength=1.5, columnspacing=0.9)
    else:
        no_data(figure, "no kernels")
    hidden = len(study.loads) - len(loads)
    small = sum(load.full_waves == 0 for load in study.loads)
    return Plot(
        "waves",
        "Waves",
        f"{counted(small, 'kernel')} of {len(study.loads)} "
        f"{'does' if small == 1 else 'do'} not fill {size_text(study.sms)} once.",
        f"How often each kernel fills the slots (SMs times occupancy) of {size_text(study.sms)}. "
        "Dark: waves that fill every slot. Hatched: the last wave. White: slots that it leaves "
        "idle, unless another kernel may start. Right: the share of slots that the last wave "
        "fills; far below 100 %, overlap could fill the rest."
        + (f" Drawn: the {KERNELS_SHOWN} longest kernels, {show_number(hidden)} more are not."
           if hidden else ""),
        figure,
    )  # fmt: skip
