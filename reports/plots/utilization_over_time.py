"""Slot utilization over time, one row per schedule, same axes."""

import numpy as np
from numpy.typing import NDArray

from depgraph.analysis.study import Study
from depgraph.reports.plots.style import DARK, HATCHED, MIDDLE, Plot, new_figure
from depgraph.reports.tables.table import shorten
from depgraph.schedule.policy import Schedule, running_part, utilization_over_time
from depgraph.system.text import counted, show_number, show_percent, size_text

_BINS = 400
_ROWS = 6
_OWN = 2  # serial and the best dataflow, which every study has
_NAME_WIDTH = 26


def tells(study: Study) -> bool:
    """Whether there are schedules that were asked for."""
    return len(study.schedules) > _OWN


def plot(study: Study) -> Plot:
    """Draw the utilization of each schedule over the time of the longest one."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    drawn = sorted(study.schedules[_OWN:], key=lambda s: s.makespan)
    shown = [*study.schedules[:_OWN], *drawn][:_ROWS]
    longest = max(s.makespan for s in shown)
    edges = np.linspace(0.0, longest or 1.0, _BINS + 1)
    held = [_percent(study, s, edges) for s in shown]
    busy = [_percent(study, running_part(s, study.durations), edges) for s in shown]
    top = min(104.0, 1.15 * max(1.0, *(float(row.max()) for row in held)))
    waits = any(s.waiting > 0 for s in shown)
    figure = new_figure(0.45 + 0.72 * len(shown))
    charts = figure.subplots(len(shown), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, schedule, slots, row in zip(charts, shown, held, busy, strict=True):
        axes.axvspan(schedule.makespan, edges[-1], **HATCHED)
        if schedule.waiting > 0:
            waiting = {**HATCHED, "facecolor": MIDDLE, "hatch": "\\\\\\\\"}
            axes.stairs(slots, edges, fill=True, **waiting)
        axes.stairs(row, edges, fill=True, color=DARK)
        axes.axvline(schedule.makespan, color="black", linestyle="--", linewidth=0.8)
        mean = show_percent(study.utilization(schedule))
        axes.set_title(
            f"{shorten(schedule.name, _NAME_WIDTH)}: ends at {show_number(schedule.makespan)}, "
            f"mean {mean}",
            loc="left", pad=2, x=-0.02,
        )  # fmt: skip
        axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        axes.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    charts[0].set_xlim(0, edges[-1])
    charts[0].set_ylim(0, top)
    charts[-1].set_xlabel(f"time ({study.unit})")
    figure.supylabel(f"slot utilization of {size_text(study.sms)}", fontsize=7)
    left_out = len(study.schedules) - len(shown)
    return Plot(
        "utilization-over-time",
        "Slot utilization over time",
        "; ".join(
            f"{s.name} ends at {show_number(s.makespan)} {study.unit}, "
            f"{show_percent(study.utilization(s))} on average"
            for s in shown
        ).capitalize()
        + ".",
        f"Share of {size_text(study.sms)} that blocks at work hold, averaged over {_BINS} equal "
        "intervals; one row per schedule, all on the same axes. "
        + ("Light and hatched: slots held by blocks that wait in them. " if waits else "")
        + "White, left of the dashed end: idle. Hatched, right of it: time saved compared with the "
        "longest schedule."
        + (f" Not drawn: {counted(left_out, 'more schedule')}." if left_out else ""),
        figure,
    )


def _percent(study: Study, schedule: Schedule, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = 100 * utilization_over_time(
        schedule.unfolded(study.launches), study.shares, study.sms, edges
    )
    return shares
