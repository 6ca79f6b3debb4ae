"""The HTML page: one file that answers, and lets its reader look for more, without a network."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depgraph.reports.page.study_report import bend_sentence, buffer_advice
from depgraph.reports.page.timeline import NAME_WIDTH as TIMELINE_NAME
from depgraph.reports.page.timeline import timeline_data
from depgraph.reports.tables.answer_report import launched_lines, profiled_lines
from depgraph.reports.tables.table import Column, Report, Table, plain, shorten
from depgraph.system.text import (
    clean_text,
    show_bytes,
    show_factor,
    show_number,
    show_percent,
    show_time,
    size_text,
)

if TYPE_CHECKING:
    import jinja2
    from markupsafe import Markup

    from depgraph.analysis.study import Study
    from depgraph.reports.plots.style import Plot

MOST_ROWS = 2000
_NAME_WIDTH = 36
_TITLE_WIDTH = 2000
_WORTH_SAYING = 1.01
_SCRIPTS = ("tables.js", "timeline.js")


def write_page(
    study: Study, report: Report, plots: Sequence[Plot], plot_folder: Path, file: Path
) -> None:
    """Write the page of a study; its plots stand in `plot_folder` as SVG."""
    environment = templates()
    scripts = [source_of(environment, name) for name in _SCRIPTS]
    data, cuts = timeline_data(study)
    of_mechanisms = [] if study.comparison is None else study.comparison.notes
    pictures = {
        plot.name: {
            "title": plot.title,
            "result": clean_text(plot.result),
            "caption": plot.caption,
            "source": picture_of(plot, plot_folder),
        }
        for plot in plots
    }
    text = environment.get_template("page.html.j2").render(
        title=clean_text(study.title),
        size=size_text(study.sms),
        unit=study.unit,
        verdict=study.verdict.sentences,
        launched=[*profiled_lines(study.conclusion.launched), *launched_lines(study.conclusion)],
        steps=study.verdict.steps,
        advice=buffer_advice(study),
        tiles=_tiles(study),
        sentences=_sentences(study),
        pictures=pictures,
        tables={table.key: _rows_for_page(table) for table in report.tables},
        cuts=cuts,
        assumptions=[note for note in report.notes if note not in of_mechanisms],
        of_mechanisms=of_mechanisms,
        untraced=report.extra["untraced_notes"],
        skipped=list(study.metadata.get("skipped", {}).items()),
        provenance=_provenance(study),
        show_number=show_number,
        data=json.dumps(data, ensure_ascii=False, separators=(",", ":")),
        safe_json=_safe_json,
        style=source_of(environment, "page.css"),
        scripts=[_markup(script) for script in scripts],
        # Only these scripts may run: a name that slipped through as markup still could not.
        script_hashes=" ".join(f"'sha256-{_hash(script)}'" for script in scripts),
    )
    file.write_text(text, encoding="utf-8")


def templates() -> jinja2.Environment:
    """Return what fills the templates of pages: names of a trace are no markup there."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader("depgraph.reports.page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: clean_text(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def picture_of(plot: Plot, folder: Path) -> str:
    """Return the SVG of a plot as text that a page holds."""
    content = base64.b64encode((folder / f"{plot.name}.svg").read_bytes()).decode("ascii")
    return f"data:image/svg+xml;base64,{content}"


def source_of(environment: jinja2.Environment, name: str) -> str:
    """Return the text of a template, style or script."""
    if environment.loader is None:
        raise LookupError(name)
    return environment.loader.get_source(environment, name)[0]


def _markup(text: str) -> Markup:
    from markupsafe import Markup

    return Markup(text)  # noqa: S704  our own script


def _safe_json(text: str) -> Markup:
    """Return JSON that no HTML parser can see the end of a script or a comment in."""
    for character, escape in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):
        text = text.replace(character, escape)
    return _markup(text)


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


def _tiles(study: Study) -> list[tuple[str, str, str]]:
    """Return what stands first in large letters: times, or ratios where there are none."""
    numbers, times = study.metrics, study.conclusion.times
    size = size_text(study.sms)
    if times is not None:
        least = f"no schedule of the same blocks on {size} takes less"
        tiles = [(show_time(times.as_graph.us), f"as a {times.graph}", "predicted")]
        if times.now_us is not None:
            where = size if times.now_sms is None else size_text(times.now_sms)
            tiles.insert(
                0, (show_time(times.now_us), "now", f"wall time of the profile, on {where}")
            )
        if times.changed is not None:
            tiles.append(
                (show_time(times.changed.us), "with a change", f"predicted {times.change}")
            )
        return [*tiles, (show_time(times.least_us), "at least", least)]
    beside, limit = study.side_by_side, f"on the speedup over serialized launches on {size}"
    renamed = "upper bound if every buffer were renamed"
    used = f"share of {size} that serialized launches keep busy"
    reached = show_factor(numbers["speedup"]), "reached", "speedup of the best dataflow schedule"
    if beside.gain is not None and beside.changed is not None:
        reached = show_factor(beside.gain), "with a change", f"predicted {beside.changed.name}"
    return [
        reached,
        (show_factor(numbers["upper_bound"]), "upper bound", limit),
        (show_factor(study.renamed.upper_bound), "RAW only", renamed),
        (show_percent(numbers["utilization"]), "slot utilization", used),
    ]


def _sentences(study: Study) -> list[str]:
    bound, renamed = study.bound, study.renamed
    serial, least = show_number(bound.serial), show_number(bound.lower_bound)
    idle, size = show_percent(1 - bound.schedules[0].utilization), size_text(study.sms)
    text = (
        (
            f"One kernel after another, it takes {serial} {study.unit}, and {idle} of {size} idle "
            "on average."
        ),
        (
            f"No schedule with these dependences takes less than {least} {study.unit}: the "
            f"{bound.limited_by} limits."
        ),
        bend_sentence(study),
        (
            f"With every buffer separate (RAW only) the upper bound is "
            f"{show_factor(renamed.upper_bound)} instead of {show_factor(bound.upper_bound)}."
        ),
    )
    return list(text if renamed.upper_bound > _WORTH_SAYING * bound.upper_bound else text[:-1])


def _provenance(study: Study) -> list[tuple[str, str]]:
    metadata = study.metadata
    rows = [
        ("kernels", show_number(len(study.kernels))),
        ("blocks", show_number(study.graph.n_blocks)),
        ("edges", show_number(sum(p.edges for p in study.pairs))),
    ]
    for source in metadata.get("sources", []):
        rows.append(("trace", f"{source['path']} ({show_bytes(source['size'])})"))
        if source.get("sha256"):
            rows.append(("sha256", source["sha256"]))
    rows += [
        (key.replace("_", " "), str(metadata[key]))
        for key in ("format", "tool_version")
        if key in metadata
    ]
    rows += [
        (f"option {name}", ", ".join(value) if isinstance(value, list) else str(value))
        for name, value in metadata.get("options", {}).items()
        if value not in (None, False)
    ]
    return [(name, clean_text(value)) for name, value in rows]


def _rows_for_page(table: Table) -> dict[str, Any]:
    rows = table.rows[:MOST_ROWS]
    shown = _in_timeline(table)
    return {
        "key": table.key,
        "title": table.title,
        "columns": [
            {"head": column.head, "unit": column.unit, "is_text": column.is_text}
            for column in table.columns
        ],
        "rows": [
            [
                _cell(column, value, shown(row) if i == 0 else "")
                for i, (column, value) in enumerate(zip(table.columns, row, strict=True))
            ]
            for row in rows
        ],
        "omitted": table.omitted + len(table.rows) - len(rows),
    }


def _in_timeline(table: Table) -> Callable[[Sequence[Any]], str]:
    """Return what says which block or kernel of the timeline a row is about, "" for none."""
    keys = [column.key for column in table.columns]
    if table.key == "functions" and keys[0] == "function":
        return lambda row: f"function:{shorten(clean_text(row[0]), TIMELINE_NAME)}"
    if table.key == "path":
        kernel, block = keys.index("kernel"), keys.index("block")
        return lambda row: f"{row[kernel]}:{row[block]}" if row[kernel] >= 0 else ""
    if table.key in {"kernels", "pairs"}:
        return lambda row: str(row[0]) if row[0] >= 0 else ""
    return lambda _: ""


def _cell(column: Column, value: object, in_timeline: str) -> dict[str, Any]:
    shown = clean_text(column.show(value)) if column.is_text else column.show(value)
    text = shorten(shown, _NAME_WIDTH)
    full = clean_text(value) if column.is_text and isinstance(value, str) else ""
    return {
        "text": text,
        "title": shorten(full, _TITLE_WIDTH) if full != text else "",
        "show": in_timeline,
        "sort": "" if column.is_text or value is None else plain(value),
    }
