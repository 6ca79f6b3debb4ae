"""Where the time of the critical path goes, by function."""

from depgraph.analysis.kernel_groups import NAME
from depgraph.analysis.study import Study
from depgraph.reports.plots.style import DARK, Plot, label_rows, new_figure, no_data, plain_text
from depgraph.reports.tables.table import shorten
from depgraph.system.text import counted, share_of, show_number, show_percent

_SHOWN = 10
_NAME_WIDTH = 30


def tells(study: Study) -> bool:
    """Whether more than one function has a part in it."""
    return sum(function.on_path > 0 for function in study.functions) > 1


def plot(study: Study) -> Plot:
    """Draw the time of each function, or of what else kernels are grouped by, on the path."""
    length, what = study.bound.critical_path, "function" if study.group_by == NAME else "group"
    on_path = sorted(
        (f for f in study.functions if f.on_path > 0), key=lambda f: (-f.on_path, f.name)
    )
    shown = [(shorten(f.name, _NAME_WIDTH), f.on_path) for f in on_path[:_SHOWN]]
    rest = on_path[_SHOWN:]
    if rest:
        shown.append((counted(len(rest), "other"), sum(f.on_path for f in rest)))
    figure = new_figure(0.45 + 0.14 * max(2, len(shown)))
    if shown:
        axes = figure.subplots()
        rows, times = range(len(shown)), [time for _, time in shown]
        axes.barh(rows, times, color=DARK, height=0.72)
        for row, time in enumerate(times):
            axes.annotate(show_percent(share_of(time, length)), (time, row), xytext=(2, 0),
                          textcoords="offset points", va="center", fontsize=6)  # fmt: skip
        axes.set_xlim(0, 1.18 * max(times))
        axes.set_xlabel(f"time ({study.unit})")
        label_rows(axes, [plain_text(name) for name, _ in shown])
    else:
        no_data(figure, "no block takes any time")
    return Plot(
        "critical-path",
        f"Critical path by {what}",
        f"{shown[0][0]} takes {show_percent(share_of(shown[0][1], length))} of the critical path."
        if shown else "No block takes any time.",
        f"It takes {show_number(length)} {study.unit} through {counted(len(study.path), 'block')}, "
        "each of another kernel. Only faster kernels on it shorten it; the table of kernels has "
        "the slack of the others.",
        figure,
    )  # fmt: skip
