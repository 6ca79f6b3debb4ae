"""Which blocks of one kernel wait for which blocks of another."""

import numpy as np

from depgraph.analysis.study import Study
from depgraph.graph.dependences import KIND_NAMES, PairSummary
from depgraph.graph.queries import clearest_pair, pair_matrix
from depgraph.reports.plots.style import Plot, kernel_label, new_figure, no_data
from depgraph.system.text import counted

_PIXELS = 256
_NAME_WIDTH = 34


def tells(study: Study) -> bool:
    """Whether the clearest pair has a pattern: not all to all, which is a full rectangle."""
    chosen = clearest_pair(study.pairs)
    blocks = {k.kernel: k.blocks for k in study.kernels}
    found = (p for p in study.pairs if (p.source, p.target) == chosen)
    return any(p.edges < blocks[p.source] * blocks[p.target] for p in found)


def plot(study: Study, pair: tuple[int, int] | None = None) -> Plot:
    """Draw the matrix of block pairs of two kernels, source and target; default what shows most."""
    from matplotlib.ticker import FixedLocator, MaxNLocator

    chosen = pair or clearest_pair(study.pairs)
    figure = new_figure(2.9)
    name, title = "pair-blocks", "Dependences between blocks"
    if chosen is None:
        return Plot(
            name, title, "No kernel depends on another.", "There is no pair to show.",
            no_data(figure, "no kernel depends on another"),
        )  # fmt: skip
    source, target = chosen
    matrix = pair_matrix(study.graph, source, target, _PIXELS)
    axes = figure.subplots()
    image = axes.imshow(
        np.ma.masked_equal(matrix.density, 0), cmap="cividis_r", aspect="auto",
        vmin=0, vmax=float(matrix.density.max()) or 1.0,
        extent=(-0.5, matrix.source_blocks - 0.5, matrix.target_blocks - 0.5, -0.5),
        interpolation="nearest",
    )  # fmt: skip
    axes.set_facecolor("white")
    axes.spines[["top", "right"]].set_visible(True)
    for axis, blocks in ((axes.xaxis, matrix.source_blocks), (axes.yaxis, matrix.target_blocks)):
        axis.set_major_locator(MaxNLocator(integer=True) if blocks > 1 else FixedLocator([0]))
    axes.set_xlabel(f"block of {kernel_label(source, study.kernels, _NAME_WIDTH)}")
    axes.set_ylabel(f"block of {kernel_label(target, study.kernels, _NAME_WIDTH)}")
    if matrix.is_binned:
        bar = figure.colorbar(image, ax=axes, shrink=0.8)
        bar.set_label("share of block pairs that are edges")
    summary = next((p for p in study.pairs if (p.source, p.target) == chosen), None)
    pattern = "no edges" if summary is None else (
        f"{counted(summary.edges, 'edge')}, {summary.pattern.value}, {_kinds(summary)}"
    )  # fmt: skip
    return Plot(
        name,
        title,
        f"Kernel {target} (rows) waits for kernel {source} (columns): {pattern}.",
        "A coloured cell: the block of the row waits for that of the column"
        + (f"; each cell stands for many block pairs, at most {_PIXELS} a side, and is the darker "
           "the more of them are edges." if matrix.is_binned else ".")
        + " A line or staircase can be overlapped block by block, a filled rectangle cannot.",
        figure,
    )  # fmt: skip


def _kinds(pair: PairSummary) -> str:
    counts = {kind: getattr(pair, kind.lower()) for kind in KIND_NAMES}
    return " and ".join(kind for kind, count in counts.items() if count) or "possible only"
