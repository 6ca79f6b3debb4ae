"""Tables of pages: set in Markdown, put between the marks of a page, and the picture beside it."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from depgraph.reports.plots.style import Plot

_SIDES = {"l": "---|", "r": "---:|"}


def table(heads: Sequence[str | None], sides: str, rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown; `sides` has an l or r for each column, None is no cell."""
    lines = (
        "|" + "".join(f" {each} |" if each is not None else " |" for each in cells)
        for cells in (heads, *rows)
    )
    return "\n".join([next(lines), f"|{''.join(map(_SIDES.__getitem__, sides))}", *lines])


def replace_tables(page: str, tables: str, name: str = "tables") -> str:
    """Return a page with other tables between its marks of a name; refuse one without these."""
    first, last = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    before, begin, rest = page.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        message = f"the page lacks the lines {first.strip()} and {last}"
        raise ValueError(message)
    return f"{before}{begin}\n{tables}\n{end}{after}"


def write_tables(page: Path, tables: Mapping[str, str], *, is_check: bool = False) -> None:
    """Write tables between the marks of their names; or only exit with 1 if they are others."""
    text = old = page.read_text(encoding="utf-8")
    for name, each in tables.items():
        text = replace_tables(text, each, name)
    if is_check:
        sys.exit(text != old)
    page.write_text(text, encoding="utf-8")


def print_or_write(
    description: str | None, tables: Callable[[], str], name: str = "tables"
) -> Path | None:
    """Print tables, or write them into the page that the command line names; return that page."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="page to put the tables in")
    page: Path | None = parser.parse_args().write
    if page is None:
        print(tables())
    else:
        write_tables(page, {name: tables()})
    return page


def keep_page(
    description: str | None, page: Path, tables: Mapping[str, str], draw: Callable[[], Plot]
) -> None:
    """Write tables and picture of a page; with --check exit with 1 if its tables are others."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="write nothing")
    write_tables(page, tables, is_check=parser.parse_args().check)
    draw_beside(page, draw)


def draw_beside(page: Path, draw: Callable[[], Plot]) -> None:
    """Save a picture as an SVG beside a page, under its name."""
    from depgraph.reports.plots.style import house_style, save

    with house_style(), tempfile.TemporaryDirectory() as folder:
        plot = draw()
        save(plot, Path(folder))
        page.with_suffix(".svg").write_bytes((Path(folder) / f"{plot.name}.svg").read_bytes())
