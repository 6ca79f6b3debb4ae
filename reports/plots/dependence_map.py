"""Which kernel depends on which, in what pattern and how densely."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from depgraph.graph.dependences import PairSummary, Pattern
from depgraph.reports.plots.style import MARKERS, Plot, new_figure
from depgraph.system.text import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from depgraph.analysis.study import Study

# From the loosest pattern, which leaves most room for overlap, to the tightest: drawn ever darker.
PATTERNS = {
    Pattern.ONE_TO_ONE: "#f2b701",
    Pattern.ONE_TO_N: "#e08214",
    Pattern.N_TO_ONE: "#4dac9c",
    Pattern.GROUPED: "#3a86c8",
    Pattern.OVERLAPPED: "#7b3294",
    Pattern.ALL_TO_ALL: "#000000",
}
_CELLS = 120
_LEAST_AREA = 0.12


def tells(study: Study) -> bool:
    """Whether there are several pairs to see."""
    return sum(p.source >= 0 and p.edges > 0 for p in study.pairs) > 1


def plot(study: Study) -> Plot:
    """Draw one mark per pair of kernels, or one cell many pairs where there are many kernels."""
    from matplotlib.ticker import MaxNLocator

    pairs = [p for p in study.pairs if min(p.source, p.target) >= 0 and p.edges]
    n = len(study.kernels)
    figure = new_figure(3.35)
    axes = figure.subplots()
    binned = n > _CELLS
    if binned:
        _draw_cells(axes, pairs, n)
    else:
        _draw_marks(axes, pairs, study, 2.4 * 72 / max(1, n))
        if pairs:
            figure.legend(loc="outside lower center", ncols=3, handletextpad=0.2, columnspacing=1)
    edge = n - 0.5
    axes.plot([-0.5, edge], [-0.5, edge], color="grey", linewidth=0.5, zorder=0)
    axes.set_xlim(-0.5, edge)
    axes.set_ylim(edge, -0.5)
    axes.set_aspect("equal")
    axes.set_xlabel("kernel waited for")
    axes.set_ylabel("kernel that waits")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    if not pairs:
        axes.text(0.5, 0.5, "no kernel depends on another", transform=axes.transAxes,
                  ha="center", va="center")  # fmt: skip
    copies = sum(p.source < 0 for p in study.pairs)
    return Plot(
        "dependence-map",
        "Dependences between kernels",
        _result(pairs),
        "A mark: the kernel of the row waits for that of the column. "
        + (
            f"{n} kernels are binned; the darker a cell, the more of its pairs depend."
            if binned
            else "From one-to-one (loose, light) to all-to-all (tight, black); the larger a mark, "
            "the larger the share of block pairs that are edges."
        )
        + " A kernel without marks near the diagonal could start early."
        + (f" Not drawn: {counted(copies, 'pair')} with copies and memsets." if copies else ""),
        figure,
    )


def _result(pairs: Sequence[PairSummary]) -> str:
    if not pairs:
        return "No kernel depends on another."
    patterns = Counter(p.pattern.value for p in pairs).most_common()
    shown = ", ".join(f"{count} {pattern}" for pattern, count in patterns)
    raw = sum(p.raw > 0 for p in pairs)
    return f"{counted(len(pairs), 'dependent pair')} of kernels, {raw} by RAW: {shown}."


def _draw_marks(axes: Axes, pairs: Sequence[PairSummary], study: Study, cell: float) -> None:
    blocks = {k.kernel: k.blocks for k in study.kernels}
    markers = dict(zip(PATTERNS, MARKERS, strict=False))
    for pattern, colour in PATTERNS.items():
        some = [p for p in pairs if p.pattern is pattern]
        if not some:
            continue
        density = np.array([p.edges / (blocks[p.source] * blocks[p.target]) for p in some])
        size = min(0.85 * cell, 9.0) ** 2
        axes.scatter(
            [p.source for p in some], [p.target for p in some],
            s=size * (_LEAST_AREA + (1 - _LEAST_AREA) * density), color=colour,
            marker=markers[pattern], linewidths=0,
        )  # fmt: skip
        axes.scatter([], [], s=16, color=colour, marker=markers[pattern], linewidths=0,
                     label=f"{pattern.value} ({len(some)})")  # fmt: skip


def _draw_cells(axes: Axes, pairs: Sequence[PairSummary], n: int) -> None:
    count = np.zeros((_CELLS, _CELLS))
    for p in pairs:
        count[p.target * _CELLS // n, p.source * _CELLS // n] += 1
    cell = (n / _CELLS) ** 2
    image = axes.imshow(
        np.ma.masked_equal(count / cell, 0), cmap="cividis_r", vmin=0, vmax=1, aspect="equal",
        extent=(-0.5, n - 0.5, n - 0.5, -0.5), interpolation="nearest",
    )  # fmt: skip
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.8)
    bar.set_label("share of pairs that depend")
