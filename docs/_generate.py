"""Write what is made by the program: a page a command, the columns of a store, README's picture.

``python docs/_generate.py`` writes them; tests compare them with what it would write.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import click

import depgraph as package
from depgraph.cli.app import COMMANDS, depgraph
from depgraph.cli.commands.reproduce import packaged
from depgraph.parsers import open_trace
from depgraph.reports.plots import schedules
from depgraph.reports.plots.style import house_style, save
from depgraph.reports.tables.render import render
from depgraph.reports.tables.reproduced_table import reproduction_report
from depgraph.reproduce.papers import EXPERIMENTS, reproduce
from depgraph.samples import KERNEL_TIMES, sample_path
from depgraph.store.schema import SCHEMA_VERSION, STORED_TABLES, TABLES

DOCS = Path(__file__).resolve().parent
PICTURE = DOCS / "kernels-over-time.svg"
REPRODUCED = DOCS / "reproduced.md"
WIDTH = 92


def command_page(name: str) -> str:
    """Return the page of a command: its help text, as the program prints it."""
    context = click.Context(
        depgraph, info_name="depgraph", terminal_width=WIDTH, **depgraph.context_settings
    )
    command = depgraph.get_command(context, name)
    if command is None:
        raise LookupError(name)
    own = click.Context(
        command,
        info_name=name,
        parent=context,
        terminal_width=WIDTH,
        **command.context_settings,
    )
    return f"# depgraph {name}\n\n{COMMANDS[name]}\n\n```text\n{command.get_help(own)}\n```\n"


def columns_page() -> str:
    """Return the reference of all tables and columns."""
    about = (
        "A [store](store.md) is a folder of Parquet files, one a table. This is schema version "
        f"{SCHEMA_VERSION}, which the metadata of every file states, with the sources, the options "
        "and what was skipped. `depgraph export` writes tables as CSV and JSON as well; the table "
        "`edges` exists only there."
    )
    lines = ["# Columns of a store", "", about]
    for table, columns in TABLES.items():
        stored = f"`{table}.parquet`" if table in STORED_TABLES else "by `depgraph export`"
        lines += ["", f"## {table}", "", f"In {stored}." if table in STORED_TABLES else
                  f"Written {stored} --what {table}.", "",
                  "| column | type | unit | meaning |", "|---|---|---|---|"]  # fmt: skip
        for column in columns:
            meaning = column.meaning.replace("|", "\\|").replace("<", "&lt;")
            note = "; may be null" if column.nullable else ""
            type_ = column.type.replace("<", "&lt;")
            lines.append(f"| `{column.name}` | {type_} | {column.unit} | {meaning}{note} |")
    return "\n".join(lines) + "\n"


def picture() -> tuple[str, str]:
    """Return the SVG that ``depgraph report --sms 80`` draws of the packaged trace and its times.

    With what it says: other versions of matplotlib draw other bytes.
    """
    with TemporaryDirectory() as folder:
        store = package.extract(open_trace(sample_path()), f"{folder}/sample.out")
        opened = package.open(store.path, timing=sample_path(KERNEL_TIMES))
        with house_style():
            plot = schedules.plot(opened.report(80).study)
            save(plot, Path(folder))
        return (Path(folder) / f"{plot.name}.svg").read_text(encoding="utf-8"), plot.result


def reproduced(name: str) -> str:
    """Return the section of the page of reproduced papers that a name has."""
    return f"## {name}\n\n{render(reproduction_report(reproduce(name, packaged())), 'markdown')}"


def reproduced_page() -> str:
    """Return the page of all that can be reproduced."""
    about = (
        "What papers published beside what depgraph computes from packaged programs: the output of "
        "`depgraph reproduce NAME --format markdown` for each name. The papers' figures, with the "
        "place in each, are in `samples/papers/published.toml`; shapes and times that authors "
        "published, stores, and block times lie beside it and in `samples/simulator`."
    )
    return "\n".join(["# Reproduced", "", about, "", *map(reproduced, EXPERIMENTS)])


def pages() -> dict[Path, str]:
    """Return every generated page."""
    found = {DOCS / "commands" / f"{name}.md": command_page(name) for name in COMMANDS}
    found[DOCS / "columns.md"] = columns_page()
    return found


if __name__ == "__main__":
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    REPRODUCED.write_text(reproduced_page(), encoding="utf-8")
    PICTURE.write_text(picture()[0], encoding="utf-8")
