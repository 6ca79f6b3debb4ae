"""When each kernel runs: as the program is launched, and with the change proposed, on one axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from depgraph.reports.plots.style import COLOURS, HATCHED, LABEL_WIDTH, Plot, new_figure, plain_text
from depgraph.reports.tables.table import kernel_name, shorten
from depgraph.schedule.policy import Schedule, slots_on_sm
from depgraph.system.text import counted, show_number, show_percent, show_time, size_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from depgraph.analysis.study import Study

_NAMED = 5  # functions with a colour of their own
_OTHERS = "#b4bcc4"
_LANE, _LEAST, _MOST = 0.1, 0.16, 1.5  # inches: a lane, and the least and most of a schedule
_OUTLINED = 100  # of more kernels outlines would hide the bars
_ONE_BY_ONE = 3000  # more bars are drawn as pixels, in an SVG too
_LONGER = 1.5  # a measured time of more than so many schedules leaves the picture


def tells(study: Study) -> bool:
    """Whether kernels differ, or schedules: one function in one lane is a full rectangle."""
    functions = {kernel_name(k.name) for k in study.kernels}
    return len(functions) > 1 or len(study.side_by_side.schedules) > 1


def plot(study: Study) -> Plot:
    """Draw a bar a kernel, in lanes of those that run at a time, below the time measured."""
    from matplotlib.patches import Patch

    rows = study.side_by_side.schedules
    kernels = [_of_kernels(study, schedule) for schedule in rows]
    lanes = [slots_on_sm(each) for each in kernels]
    inches = [min(_MOST, max(_LEAST, _LANE * (lane.max(initial=0) + 1))) for lane in lanes]
    run = study.conclusion.launched.run
    if run is not None:
        inches.insert(0, _LEAST)
    colours = _colours(study)
    figure = new_figure(0.75 + 0.2 * len(inches) + 0.06 * len(colours) + sum(inches))
    charts = figure.subplots(len(inches), 1, sharex=True, squeeze=False, height_ratios=inches)[:, 0]
    longest = max(schedule.makespan for schedule in rows) or 1.0
    end = longest if run is None or run.wall > _LONGER * longest else max(longest, run.wall)
    if run is not None:
        charts[0].barh(0, run.wall, height=1, **HATCHED)
        _title(charts[0], _measured(study) + " →" * (run.wall > end))
    names = [kernel_name(k.name) for k in study.kernels]
    for axes, plan, lane in zip(charts[-len(rows) :], kernels, lanes, strict=True):
        _draw(axes, plan, lane, [colours.get(name, _OTHERS) for name in names])
        _title(axes, f"{plan.name}: {_time(study, plan.makespan)}")
    for axes in charts:
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
    charts[0].set_xlim(0, end)
    charts[-1].set_xlabel(f"time ({study.unit})")
    for axes in charts[:-1]:
        axes.tick_params(axis="x", bottom=False)
    legend = [
        Patch(color=colour, linewidth=0, label=plain_text(label))
        for label, colour in _legend(colours, len(set(names) - set(colours)))
    ]
    figure.legend(
        handles=legend, loc="outside lower center", ncols=2, handlelength=1.2, columnspacing=1
    )
    result = "; ".join(f"{s.name}: {_time(study, s.makespan)}" for s in rows)
    return Plot(
        "schedules",
        "Kernels over time",
        f"{result[0].upper()}{result[1:]}.",
        f"Each bar is a kernel on {size_text(study.sms)}, from the start of its first block to "
        "the end of its last. Kernels below one another run at the same time."
        + (" Times are predicted." if study.unit != "instructions" else "")
        + (" Hatched: measured; an arrow goes on beyond the picture." if run else ""),
        figure,
    )


def _of_kernels(study: Study, schedule: Schedule) -> Schedule:
    """Return when each kernel runs, as if it were a block; all lie on one SM."""
    is_kernel = study.graph.kernel >= 0
    start, end = (each[is_kernel] for each in schedule.of_operations(study.graph.first_block))
    one_sm = np.zeros(len(start), np.int32)
    return Schedule(schedule.name, start, end, one_sm, least=schedule.makespan)


def _draw(axes: Axes, plan: Schedule, lane: NDArray[np.int32], colours: Sequence[str]) -> None:
    from matplotlib.collections import PolyCollection

    start, end, top, bottom = plan.start, plan.end, lane - 0.45, lane + 0.45
    corners = np.array([[start, top], [end, top], [end, bottom], [start, bottom]])
    bars = PolyCollection(
        list(np.moveaxis(corners, 2, 0)), facecolors=colours, edgecolors="white",
        linewidths=0.3 if len(lane) <= _OUTLINED else 0, rasterized=len(lane) > _ONE_BY_ONE,
    )  # fmt: skip
    axes.add_collection(bars)
    axes.set_ylim(lane.max(initial=0) + 0.5, -0.5)


def _colours(study: Study) -> Mapping[str, str]:
    names = {k.kernel: kernel_name(k.name) for k in study.kernels}
    times: dict[str, float] = {}
    for load in study.loads:
        times[names[load.kernel]] = times.get(names[load.kernel], 0.0) + load.time
    longest = sorted(times, key=lambda name: (-times[name], name))[:_NAMED]
    return dict(zip(longest, COLOURS[1:], strict=False))


def _legend(colours: Mapping[str, str], others: int) -> list[tuple[str, str]]:
    """Return labels, no two alike, with their colours."""
    labels: dict[str, str] = {}
    for i, (name, colour) in enumerate(colours.items(), start=1):
        label = shorten(name, LABEL_WIDTH)
        labels[f"{shorten(name, LABEL_WIDTH - 4)} ({i})" if label in labels else label] = colour
    if others:
        labels[counted(others, "other")] = _OTHERS
    return list(labels.items())


def _title(axes: Axes, text: str) -> None:
    axes.set_title(plain_text(text), loc="left", pad=2, x=0)


def _measured(study: Study) -> str:
    launched = study.conclusion.launched
    run = launched.run
    wall = 0.0 if run is None else run.wall
    where = "" if run is None or run.sms in (None, study.sms) else f" on {size_text(run.sms)}"
    idle = show_percent(launched.idle_share)
    return f"now{where}: {_time(study, wall)}, no kernel runs for {idle} of it"


def _time(study: Study, value: float) -> str:
    return show_time(value) if study.unit == "us" else f"{show_number(value)} {study.unit}"
