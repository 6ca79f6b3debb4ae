"""The folder that ``depgraph report`` writes: page, plots, Markdown, JSON, timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depgraph.reports.export.perfetto import write_perfetto
from depgraph.reports.page.page import write_page
from depgraph.reports.page.study_report import study_report
from depgraph.reports.plots import write_plots
from depgraph.reports.tables.render import escaped, render
from depgraph.system.output import new_folder, stranger_in
from depgraph.system.text import clean_text

if TYPE_CHECKING:
    from pathlib import Path

    from depgraph.analysis.study import Study
    from depgraph.reports.export.perfetto import Flows
    from depgraph.reports.plots.style import Plot
    from depgraph.reports.tables.table import Report

PAGE, PLOTS, MARKDOWN, JSON, TIMELINE = (
    "index.html", "plots", "report.md", "report.json", "timeline.json.gz",
)  # fmt: skip


def not_a_report(path: Path) -> str:
    """Say what keeps a folder from being a report of ours, "" if nothing does."""
    if not all((path / name).is_file() for name in (PAGE, JSON, TIMELINE)):
        return "was not written by depgraph"
    ours = {PAGE, PLOTS, MARKDOWN, JSON, TIMELINE}
    return stranger_in(path, lambda entry: entry.name in ours)


def _picture(plot: Plot) -> str:
    """Show a plot in Markdown."""
    result = escaped(clean_text(plot.result))
    image = f"![{result}]({PLOTS}/{plot.name}.png)"
    return f"\n### {plot.title}\n\n{image}\n\n{result} {plot.caption}\n"


def write_report(
    study: Study,
    path: Path,
    report: Report | None = None,
    *,
    top: int | None = None,
    pair: tuple[int, int] | None = None,
    flows: Flows = "path",
    force: bool = False,
    place_checked: bool = False,
    jobs: int = 1,
) -> int:
    """Write a report folder; return how many arrows the timeline had no room for.

    Parameters
    ----------
    study : Study
    path : Path
    report : Report, optional
        What page, Markdown and JSON say; default what `study_report` returns.
    top : int, optional
        Rows of each table in the Markdown; default all.
    pair : (int, int), optional
        Source and target kernel whose blocks are drawn against one another.
    flows : {"path", "all", "none"}
    force : bool
        Replace an earlier report.
    place_checked : bool
        As `depgraph.system.output.new_folder` takes it.
    jobs : int
        Processes that draw plots side by side.

    Raises
    ------
    OutputExistsError, OutputError
        If the folder cannot be made.
    ModelError
        If there is no such pair of kernels.
    """
    report = report or study_report(study)
    with new_folder(
        path, force=force, not_ours=not_a_report, place_checked=place_checked
    ) as folder:
        plot_folder = folder / PLOTS
        plot_folder.mkdir()
        plots = write_plots(study, plot_folder, pair, jobs=jobs)
        write_page(study, report, plots, plot_folder, folder / PAGE)
        left_out = write_perfetto(study, folder / TIMELINE, flows=flows)
        pictures = "".join(map(_picture, plots))
        (folder / MARKDOWN).write_text(
            render(report.cut(top), "markdown") + pictures, encoding="utf-8"
        )
        (folder / JSON).write_text(render(report, "json"), encoding="utf-8")
    return left_out
