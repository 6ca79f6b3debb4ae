"""How much of the time is spent at which utilization: ten levels, grouped low, medium, high.

Of arithmetic, where a simulator or ncu counted what was issued; else of slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from depgraph.reports.plots.style import COLOURS, Plot, new_figure
from depgraph.system.text import counted, size_text

if TYPE_CHECKING:
    from depgraph.analysis.study import Study

LEVELS = 10
GROUPS = (("low", 0, 3), ("medium", 3, 7), ("high", 7, 10))


def plot(study: Study) -> Plot:
    """Draw the share of serial time and of kernels at each of ten levels of utilization."""
    alu = study.alu
    counted_of = {} if alu is None else alu.of_kernel
    loads = [load for load in study.loads if alu is None or load.kernel in counted_of]
    used = [counted_of.get(load.kernel, load.utilization) for load in loads]
    level = np.array([min(LEVELS - 1, int(LEVELS * share)) for share in used], np.int64)
    time = np.bincount(level, weights=[load.time for load in loads], minlength=LEVELS)
    count = np.bincount(level, minlength=LEVELS)
    time_share = 100 * time / (time.sum() or 1.0)
    kernel_share = 100 * count / max(1, len(loads))
    figure = new_figure(2.2)
    axes = figure.subplots()
    for i, (name, first, last) in enumerate(GROUPS):
        places = np.arange(first, last)
        style = (2, 5, 1)[i]
        axes.bar(places + 0.5, time_share[first:last], width=0.8, color=COLOURS[style],
                 hatch=("", "////", "xxxx")[i], edgecolor="white", linewidth=0,
                 label=f"{name}: {time_share[first:last].sum():.0f} % of the time")  # fmt: skip
        if first:
            axes.axvline(first, color="grey", linewidth=0.6, linestyle=":")
    axes.plot(np.arange(LEVELS) + 0.5, kernel_share, linestyle="none", marker="D", color="black",
              markerfacecolor="white", markersize=3.5, label="share of the kernels",
              clip_on=False, zorder=4)  # fmt: skip
    axes.set_xlim(0, LEVELS)
    axes.set_ylim(0, 1.12 * max(float(time_share.max()), float(kernel_share.max()), 1.0))
    axes.set_xticks(range(LEVELS + 1), [str(10 * i) for i in range(LEVELS + 1)])
    what = "ALU utilization, as counted" if alu else "slot utilization of a kernel that runs alone"
    axes.set_xlabel(f"{what} (%)")
    figure.legend(loc="outside upper center", ncols=2, handlelength=1.5, columnspacing=1)
    low, size = f"{time_share[: GROUPS[0][2]].sum():.0f} %", size_text(study.sms)
    finding = f"{low} of serial time is spent in kernels that hold less than 30 % of the slots of "
    finding += f"{size}."
    described = f"Kernels by the slot utilization that each reaches alone on {size}."
    if alu:
        finding = f"{low} of serial time is spent in kernels that use less than 30 % of the ALUs."
        left_out = f"{len(study.loads) - len(loads)} of {counted(len(study.loads), 'kernel')}"
        described = (
            f"Kernels by their ALU utilization ({alu.counter}, of the profile); not "
            f"counted, and left out: {left_out}."
        )
    return Plot(
        "utilization-levels",
        "Utilization of the kernels",
        finding,
        f"{described} Bar: share of serial time spent in kernels at that level; diamond: share of "
        "kernels. Low is below 30 %, high from 70 %. Time on the left is time in which most of the "
        "GPU idles.",
        figure,
    )
