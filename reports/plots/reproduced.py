"""Published figures and ours: each of ours as a share of the paper's."""

from depgraph.reports.plots import style
from depgraph.reports.tables.reproduced_table import is_same
from depgraph.reports.tables.table import shorten
from depgraph.reproduce.figures import Reproduction

NAME = "reproduced"
_LABEL_WIDTH = 52
_LINES_INCHES = 0.16
_PAGE_INCHES = 6.5
_FAR = 4.0


def plot(reproduction: Reproduction) -> style.Plot:
    """Draw a row for each figure; those that are the same stand on the line at 1."""
    drawn = [figure for figure in reproduction.figures if figure.paper]
    figure = style.new_figure(0.8 + _LINES_INCHES * len(drawn))
    figure.set_figwidth(_PAGE_INCHES)
    title = f"{reproduction.name}: ours over the paper's"
    if not drawn:
        return style.Plot(
            NAME, title, "No figure above 0 is published.", "", style.no_data(figure, "none")
        )
    axes = figure.subplots()
    shares = [row.ours / row.paper for row in drawn]
    axes.axvline(1, color="grey", linewidth=0.6)
    axes.hlines(range(len(drawn)), [1] * len(drawn), shares, colors=style.COLOURS[1], linewidth=1.1)
    axes.plot(shares, range(len(drawn)), style.MARKERS[0], color=style.COLOURS[1])
    style.label_rows(axes, [shorten(style.plain_text(row.what), _LABEL_WIDTH) for row in drawn])
    if max(shares) > _FAR:
        axes.set_xscale("log")
    axes.set_xlabel("ours / the paper's")
    axes.set_title(style.plain_text(title))
    same = sum(is_same(row) for row in drawn)
    return style.Plot(
        NAME, title, f"{same} of {len(drawn)} figures are the same.",
        "Each line reaches from the published figure (1) to ours.", figure,
    )  # fmt: skip
