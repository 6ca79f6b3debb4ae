"""A TOML file that describes something in tables, and what can be wrong with a key of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from depgraph.errors import TraceError
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

MOST_BLOCKS = 1 << 21
_DIMENSIONS = 3


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
