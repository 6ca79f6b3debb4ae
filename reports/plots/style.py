"""How every plot looks: a column's width, colours that survive greyscale, bytes that repeat."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depgraph.reports.tables.table import kernel_name, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from depgraph.graph.program import Kernel

COLUMN_INCHES = 3.3
LABEL_WIDTH = 21
_PNG_DPI, _SVG_DPI = 300, 72
_PNG_LEVEL = 3  # of compression: takes two thirds of the time of the usual 6, for 7 % more bytes
_MOST_OF_USUAL = 4

# Okabe and Ito, "Color Universal Design" (2008); each comes with a hatch, a marker and a line of
# its own, so that none is told from another by colour alone.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
# Dots and circles are left out: in an SVG each is a path of its own.
HATCHES = ("", "////", "\\\\\\\\", "xxxx", "----", "||||", "++++")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES: tuple[Any, ...] = (
    "-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)),
)  # fmt: skip
DARK, MIDDLE, LIGHT = "#1b3a57", "#6f9fc8", "#dfe7ee"
HATCHED: dict[str, Any] = {
    "facecolor": LIGHT, "hatch": "////", "edgecolor": "white", "linewidth": 0,
}  # fmt: skip

_PARAMETERS: dict[str, Any] = {
    "axes.labelsize": 7,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 7,
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.03,
    "font.family": "DejaVu Sans",
    "font.size": 7,
    "hatch.linewidth": 0.5,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "lines.linewidth": 1.1,
    "lines.markersize": 3,
    "svg.fonttype": "path",
    "svg.hashsalt": "depgraph",
    "xtick.labelsize": 6.5,
    "xtick.major.size": 2.5,
    "xtick.major.width": 0.6,
    "xtick.minor.size": 1.5,
    "ytick.labelsize": 6.5,
    "ytick.major.size": 2.5,
    "ytick.major.width": 0.6,
}


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture and what to say below it."""

    name: str  # file name without suffix
    title: str
    result: str  # what it shows, in a sentence for those who cannot see it
    caption: str  # how to read it, and what was left out
    figure: Figure | None  # None if another process has drawn it


@contextmanager
def house_style() -> Iterator[None]:
    """Draw and save in the style of the house, whatever the user's own settings are."""
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        for name, value in _PARAMETERS.items():
            mpl.rcParams[name] = value  # type: ignore[index]
        yield


def new_figure(height: float) -> Figure:
    """Return an empty figure as wide as a paper's column, `height` inches high."""
    from matplotlib.figure import Figure

    return Figure(figsize=(COLUMN_INCHES, height), layout="constrained")


def save(plot: Plot, folder: Path, *, png: bool = True) -> None:
    """Write a plot as NAME.svg and NAME.png, with nothing in them that changes between runs."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    about = {"Title": plot.title, "Description": f"{plot.result} {plot.caption}"}
    figure, file = plot.figure, folder / plot.name
    if figure is None:
        raise ValueError(plot.name)
    with warnings.catch_warnings():
        # A name from a trace may hold any character: the font draws a box for those it lacks.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        # `savefig` lays a figure out twice for each file, which takes longer than drawing it.
        figure.set_dpi(_PNG_DPI)
        layout = figure.get_layout_engine()
        if layout is not None and figure.get_axes():
            layout.execute(figure)
        figure.set_layout_engine("none")
        if png:
            canvas: Any = FigureCanvasAgg(figure)
            canvas.print_png(
                file.with_suffix(".png"),
                metadata={**about, "Software": None},
                pil_kwargs={"compress_level": _PNG_LEVEL},
            )
        figure.set_dpi(_SVG_DPI)
        canvas = FigureCanvasSVG(figure)
        canvas.print_svg(
            file.with_suffix(".svg"), metadata={**about, "Date": None, "Creator": None}
        )


def longest_drawn(values: Iterable[float]) -> float:
    """Return how long a bar may be drawn, so that one that is far longer leaves room for others."""
    # Nothing is cut below four times the length that three quarters of the bars do not pass.
    lengths = sorted(value for value in values if value > 0)
    if not lengths:
        return 0.0
    usual = lengths[3 * (len(lengths) - 1) // 4]
    return min(lengths[-1], _MOST_OF_USUAL * usual)


def kernel_label(kernel: int, kernels: Sequence[Kernel], width: int = LABEL_WIDTH) -> str:
    """Return a kernel's number and shortened name."""
    names = {k.kernel: k.name for k in kernels}
    name = shorten(kernel_name(names[kernel]), width - len(str(kernel)) - 1)
    return plain_text(f"{kernel} {name}")


def plain_text(text: str) -> str:
    """Return a text as pictures take it: dollars would start a formula."""
    return text.replace("$", r"\$")


def label_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Name the rows of a chart from the top down."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)


def no_data(figure: Figure, message: str) -> Figure:
    """Say on a figure why it is empty."""
    figure.text(0.5, 0.5, message, ha="center", va="center")
    return figure
