"""Where the time of the critical path goes, and how much slack the other kernels have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depgraph.reports.plots.style import (
    DARK,
    KERNELS_SHOWN,
    LABEL_WIDTH,
    MIDDLE,
    Plot,
    kernel_label,
    label_rows,
    longest_drawn,
    new_figure,
    no_data,
)
from depgraph.reports.tables.table import kernel_names, shorten, show_number, show_percent
from depgraph.system.text import counted

if TYPE_CHECKING:
    from depgraph.analysis.study import Study


def plot(study: Study) -> Plot:
    """Draw, kernel by kernel, time on the critical path or slack against it."""
    on_path = {step.kernel: step.duration for step in study.path}
    # Kernels that take most of the path come first, then those that are nearest to being on it.
    ranked = sorted(
        study.slacks, key=lambda s: (-on_path.get(s.kernel, 0.0), s.slack, s.kernel)
    )[:KERNELS_SHOWN]  # fmt: skip
    shown = sorted(ranked, key=lambda s: s.kernel)
    length = study.bound.critical_path
    figure = new_figure(0.75 + 0.125 * max(4, len(shown)))
    if shown:
        axes = figure.subplots()
        rows = range(len(shown))
        axes.barh(rows, [on_path.get(s.kernel, 0.0) for s in shown], color=DARK, height=0.72,
                  label="on the critical path")  # fmt: skip
        slack = [0.0 if s.kernel in on_path else s.slack for s in shown]
        most = longest_drawn([*slack, *on_path.values()])
        axes.barh(rows, [min(most, value) for value in slack], color=MIDDLE, hatch="/////",
                  edgecolor="white", linewidth=0, height=0.72,
                  label="slack of a kernel off it")  # fmt: skip
        for row, s in enumerate(shown):
            if s.kernel not in on_path and s.slack == 0:
                axes.plot(0, row, "o", color="black", markerfacecolor="white", markersize=3,
                          clip_on=False, zorder=5)  # fmt: skip
            elif slack[row] > most:
                axes.annotate(
                    f"{show_number(slack[row])} →", (most, row), xytext=(-2, 0), ha="right",
                    textcoords="offset points", va="center", fontsize=6,
                    bbox={"facecolor": "white", "linewidth": 0, "pad": 0.6},
                )  # fmt: skip
            elif s.kernel in on_path and length:
                axes.annotate(
                    show_percent(on_path[s.kernel] / length), (on_path[s.kernel], row),
                    xytext=(2, 0), textcoords="offset points", va="center", fontsize=6,
                )  # fmt: skip
        axes.set_xlim(0, 1.12 * max(most, *on_path.values(), 1e-12))
        axes.set_xlabel(f"time ({study.unit})")
        label_rows(axes, [kernel_label(s.kernel, study.kernels) for s in shown])
        figure.legend(loc="outside upper center", ncols=2, handlelength=1.5, columnspacing=1)
    else:
        no_data(figure, "no kernels")
    hidden = len(study.slacks) - len(shown)
    return Plot(
        "critical-path",
        "Critical path by kernel",
        _result(study),
        f"The critical path takes {show_number(length)} {study.unit} through "
        f"{counted(len(study.path), 'block')}, no two of one kernel. Dark: time of the kernel's "
        "block on it, and its share. Hatched: slack, by how much a kernel off the path can be late "
        "before the path grows; a circle marks a kernel without slack, on a path just as long; an "
        "arrow, slack beyond the picture."
        + (f" Not drawn: {counted(hidden, 'kernel')} with less time or more slack."
           if hidden else ""),
        figure,
    )  # fmt: skip


def _result(study: Study) -> str:
    """Say which kernel takes most of the path."""
    times, length = study.time_on_path, study.bound.critical_path
    if not times or not length:
        return "No block takes any time."
    kernel = max(times, key=lambda k: (times[k], -k))
    name = shorten(kernel_names(study.kernels, study.graph.copies)(kernel), LABEL_WIDTH)
    return (
        f"Kernel {kernel}, {name}, takes most of the critical path: "
        f"{show_percent(times[kernel] / length)}."
    )
