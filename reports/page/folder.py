"""The folders that ``depgraph report`` writes: of one program, and of many with an index page."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from depgraph.analysis.study import Study
from depgraph.analysis.suite import Suite
from depgraph.reports.export.perfetto import Flows, write_perfetto
from depgraph.reports.page.page import picture_of, source_of, templates, write_page
from depgraph.reports.page.study_report import study_report
from depgraph.reports.plots import suite_bars, write_plots
from depgraph.reports.plots.style import Plot, house_style, save
from depgraph.reports.tables.render import escaped, render
from depgraph.reports.tables.suite_table import broken_line
from depgraph.reports.tables.table import Report, Table
from depgraph.system.interrupts import remove_tree
from depgraph.system.output import foreign_file_in, new_folder
from depgraph.system.text import as_file_name, clean_text, counted

PAGE, PLOTS, MARKDOWN, JSON, TIMELINE = (
    "index.html", "plots", "report.md", "report.json", "timeline.json.gz",
)  # fmt: skip


def not_a_report(path: Path) -> str:
    """Say what keeps a folder from being a report of ours, "" if nothing does."""
    if not all((path / name).is_file() for name in (PAGE, JSON, TIMELINE)):
        return "was not written by depgraph"
    ours = {PAGE, PLOTS, MARKDOWN, JSON, TIMELINE}
    return foreign_file_in(path, lambda entry: entry.name in ours)


def _picture(plot: Plot) -> str:
    result = escaped(clean_text(plot.result))
    image = f"![{result}]({PLOTS}/{plot.name}.svg)"
    return f"\n### {plot.title}\n\n{image}\n\n{result} {plot.caption}\n"


def write_report(
    study: Study,
    path: Path,
    report: Report | None = None,
    *,
    top: int | None = None,
    pair: tuple[int, int] | None = None,
    flows: Flows = "path",
    png: bool = False,
    force: bool = False,
    place_checked: bool = False,
    jobs: int = 1,
) -> int:
    """Write a report folder; return how many arrows the timeline had no room for."""
    report = report or study_report(study)
    with new_folder(
        path, force=force, not_ours=not_a_report, place_checked=place_checked
    ) as folder:
        plot_folder = folder / PLOTS
        plot_folder.mkdir()
        plots = write_plots(study, plot_folder, pair, png=png, jobs=jobs)
        write_page(study, report, plots, plot_folder, folder / PAGE)
        left_out = write_perfetto(study, folder / TIMELINE, flows=flows)
        pictures = "".join(map(_picture, plots))
        (folder / MARKDOWN).write_text(
            render(report.cut(top), "markdown") + pictures, encoding="utf-8"
        )
        (folder / JSON).write_text(render(report, "json"), encoding="utf-8")
    return left_out


PROGRAMS, SUITE_MARKDOWN, SUITE_JSON, SUITE_CSV = (
    "programs", "suite.md", "suite.json", "suite.csv",
)  # fmt: skip
_TEMPLATE = "suite.html.j2"


def not_a_suite(path: Path) -> str:
    """Say what keeps a folder from being a report of ours, of one or many; "" if nothing."""
    if not not_a_report(path):
        return ""
    if not all((path / name).is_file() for name in (PAGE, SUITE_JSON)):
        return "was not written by depgraph"
    ours = {PAGE, PLOTS, PROGRAMS, SUITE_MARKDOWN, SUITE_JSON, SUITE_CSV}
    if stranger := foreign_file_in(path, lambda entry: entry.name in ours):
        return stranger
    return foreign_file_in(path / PROGRAMS, lambda entry: not not_a_report(entry))


def report_folders(names: Sequence[str]) -> dict[str, str]:
    """Return where in the folder the report of each program goes, by program."""
    places: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        plain = as_file_name(name)
        number = 1
        own = plain
        while own.casefold() in taken:
            number += 1
            own = f"{plain}-{number}"
        taken.add(own.casefold())
        places[name] = f"{PROGRAMS}/{own}"
    return places


@contextmanager
def suite_folder(path: Path, *, force: bool) -> Iterator[Path]:
    """Yield a folder for the reports of all programs, and put it in the place of `path`."""
    with new_folder(path, force=force, not_ours=not_a_suite, place_checked=True) as folder:
        (folder / PLOTS).mkdir()
        (folder / PROGRAMS).mkdir()
        yield folder


def write_suite(
    suite: Suite,
    report: Report,
    places: Mapping[str, str],
    folder: Path,
    *,
    top: int | None = None,
    drawn: Sequence[str] = (),
    png: bool = False,
) -> None:
    """Write what is about all programs, beside the reports of each."""
    whole = {folder / places[result.program] for result in suite.programs}
    for entry in list((folder / PROGRAMS).iterdir()):
        if entry not in whole:  # of a process that was ended
            remove_tree(entry)
    with house_style():
        plot = suite_bars.plot(suite, drawn)
        save(plot, folder / PLOTS, png=png)
        about = {"Title": plot.title, "CreationDate": None, "Creator": None, "Producer": None}
        if plot.figure is not None:
            plot.figure.savefig(folder / PLOTS / f"{plot.name}.pdf", metadata=about)
    caption = f"{plot.result} {plot.caption}"
    picture = f"\n### {plot.title}\n\n![{plot.title}]({PLOTS}/{plot.name}.svg)\n\n{caption}\n"
    text = render(report.cut(top), "markdown") + picture
    (folder / SUITE_MARKDOWN).write_text(text, encoding="utf-8")
    (folder / SUITE_JSON).write_text(render(report, "json"), encoding="utf-8")
    (folder / SUITE_CSV).write_text(render(report, "csv"), encoding="utf-8")
    page = _page(suite, report, plot, places, folder / PLOTS)
    (folder / PAGE).write_text(page, encoding="utf-8")


def _page(
    suite: Suite, report: Report, plot: Plot, places: Mapping[str, str], plot_folder: Path
) -> str:
    environment = templates()
    broken = set(map(broken_line, suite.broken))
    return environment.get_template(_TEMPLATE).render(
        title=counted(len({r.program for r in suite.results}), "program"),
        sentences=[line for line in report.headline if line not in broken],
        broken=[(b.program, b.reason) for b in suite.broken],
        tables=[_shown(table) for table in report.tables],
        links={result.program: f"{places[result.program]}/{PAGE}" for result in suite.programs},
        verdicts=[(r.program, r.verdict) for r in suite.programs if r.verdict],
        plot=plot,
        picture=picture_of(plot, plot_folder),
        pdf=f"{PLOTS}/{plot.name}.pdf",
        notes=report.notes,
        files=(SUITE_MARKDOWN, SUITE_CSV, SUITE_JSON),
        style=source_of(environment, "page.css"),
    )


def _shown(table: Table) -> dict[str, object]:
    return {
        "key": table.key,
        "title": table.title,
        "columns": table.columns,
        "rows": [[c.show(v) for c, v in zip(table.columns, r, strict=True)] for r in table.rows],
    }
