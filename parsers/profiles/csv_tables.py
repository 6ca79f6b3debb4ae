"""Lines of a profiler's output as headers and rows of a table."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import cached_property

_HEADING = re.compile(r"(?P<name>.*?)\s*\((?P<unit>[^()]*)\)")


@dataclass(frozen=True)
class Header:
    """The columns of a table by name, less the unit that follows some in parentheses."""

    names: tuple[str, ...]
    units: tuple[str, ...]
    delimiter: str

    @cached_property
    def position(self) -> dict[str, int]:
        """Where each column stands; the first of several with one name."""
        return {name: at for at, name in reversed(list(enumerate(self.names)))}

    def __contains__(self, name: str) -> bool:
        return name in self.position

    def cell(self, cells: list[str], name: str) -> str:
        """Return the cell of a row in a column, nothing where table or row do not have it."""
        at = self.position.get(name)
        return "" if at is None or at >= len(cells) else cells[at].strip()

    def unit(self, name: str) -> str:
        """Return the unit in the heading of a column, or nothing."""
        at = self.position.get(name)
        return "" if at is None else self.units[at]


def header_of(line: str) -> Header:
    """Read a line as the header of a table with commas or tabs between its columns."""
    delimiter = "\t" if "\t" in line and "," not in line else ","
    names, units = [], []
    for cell in cells_of(line, delimiter):
        heading = _HEADING.fullmatch(cell.strip())
        names.append(heading["name"] if heading else cell.strip())
        units.append(heading["unit"] if heading else "")
    return Header(tuple(names), tuple(units), delimiter)


def cells_of(line: str, delimiter: str = ",") -> list[str]:
    """Split one line; an unbalanced quote does not reach beyond it."""
    try:
        return next(csv.reader([line.rstrip("\n")], delimiter=delimiter), [])
    except csv.Error:
        return []
