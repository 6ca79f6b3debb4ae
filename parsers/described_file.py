"""A TOML file that describes something in tables, and what can be wrong with a key of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from depgraph.errors import TraceError
from depgraph.system.text import in_short
from depgraph.system.toml_file import (
    TomlError,
    check_keys,
    line_of_key,
    parse_toml,
    read_toml_text,
    show_value,
)

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

MOST_BLOCKS = 1 << 21
_DIMENSIONS = 3
_NAMES_SHOWN = 20
_NAMES_WIDTH = 300


class DescribedFile:
    """Reads one file; faults name the line of the key they are about."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.text = read_toml_text(path)
            self.content = parse_toml(self.text)
        except OSError as error:
            raise TraceError(path, error.strerror or "cannot be read") from None
        except TomlError as error:
            raise TraceError(path, error.found, line=error.line) from None

    def name(self, kind: str, i: int, table: object) -> str:
        """Return what a table is called, by its number where it does not say."""
        name = table.get("name", f"{kind} {i}") if isinstance(table, dict) else ""
        if not isinstance(name, str):
            self.fail(kind, i, "name", f"name {show_value(name)}", "give text")
        return name

    def dimensions(self, table: str, i: int, key: str, value: object) -> tuple[int, int, int]:
        """Read a size in one to three dimensions."""
        sizes = value if isinstance(value, list) else [value]
        if not 1 <= len(sizes) <= _DIMENSIONS or not all(
            type(n) is int and 0 < n <= MOST_BLOCKS for n in sizes
        ):
            expected = f"give 1 to 3 whole numbers from 1 to {MOST_BLOCKS}"
            self.fail(table, i, key, f"{key} {show_value(value)}", expected)
        x, y, z = (*sizes, 1, 1)[:3]
        return x, y, z

    def whole(self, table: str, i: int, key: str, value: object, least: int, most: int) -> Any:
        """Read a whole number; None stays None."""
        if value is None:
            return None
        if type(value) is not int or not least <= value <= most:
            expected = f"give a whole number from {least} to {most}"
            self.fail(table, i, key, f"{key} {show_value(value)}", expected)
        return value

    def known_keys(self, table: str, i: int, content: object, known: tuple[str, ...]) -> None:
        """Refuse what is no table, or has keys of another one."""
        if not isinstance(content, dict):
            self.fail(table, i, "", f"{table} is not a table", f"write [[{table}]]")
        try:
            check_keys(self.text, content, known, table, i)
        except TomlError as error:
            raise TraceError(self.path, error.found, error.hint, line=error.line) from None

    def fail(self, table: str, i: int, key: str, found: str, hint: str) -> NoReturn:
        """Refuse the file for a key of the i-th table of a sort."""
        line = line_of_key(self.text, key, table, i)
        raise TraceError(self.path, found, hint, line=line if table else line or 1)

    def column(
        self, i: int, key: str, given: object, n: int, limits: tuple[int, float, type]
    ) -> NDArray[Any]:
        """Return the values of a key of a launch; a fault names the first that is none."""
        least, most, kind = limits
        values: list[Any] = given if isinstance(given, list) else [given]
        is_given = key in self.content["launch"][i]
        for place, value in enumerate(values):
            of_kind = type(value) is int if kind is int else is_number(value)
            if is_given and not (of_kind and least <= value <= most):
                which = f"launch {place}: " if isinstance(given, list) else ""
                what = f"whole number from {least} to {most}"
                if kind is float:
                    what = f"number from {least} to {most:g}"
                expected = f"give a {what}, or a list of them"
                self.fail("launch", i, key, f"{which}{key} {show_value(value)}", expected)
        if len(values) not in {1, n} or (isinstance(given, list) and len(values) != n):
            found = f"{len(values)} values of {key} for {n} launches"
            self.fail("launch", i, key, found, "give one for each launch, or one for all")
        return np.broadcast_to(np.array(values, np.int64 if kind is int else np.float64), n).copy()

    def named_kernel(
        self, kind: str, i: int, key: str, table: dict[str, Any], place_of: dict[str, int]
    ) -> int:
        """Return the place of the kernel that a key names."""
        name = table.get(key)
        if not isinstance(name, str) or name not in place_of:
            found = f"{key} = {show_value(name)}" if key in table else f"no {key!r}"
            known = in_short(", ".join(list(place_of)[:_NAMES_SHOWN]), _NAMES_WIDTH)
            self.fail(kind, i, key, found, f"give one of {known}")
        return place_of[name]


def is_number(value: object) -> bool:
    """Tell numbers from truth values and text."""
    return type(value) in (int, float)
