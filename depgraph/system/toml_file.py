"""TOML from outside: read within limits, refused in one line."""

from __future__ import annotations

import json
import re
import tomllib
from typing import TYPE_CHECKING, Any

from depgraph.system.text import clean_text, in_short

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

MOST_BYTES = 16 << 20
_MOST_KEY_PARTS = 64
_SYNTAX = re.compile(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", re.DOTALL)
# The reader of the standard library takes quadratic time for the parts of a key.
_LONG_KEY = re.compile(rf"(?<![\w\"'-])(?:[\w\"'-]++[ \t]*+\.[ \t]*+){{{_MOST_KEY_PARTS}}}")
_LONG_NUMBER = re.compile(r"(?<![0-9_])[0-9_]{4000,}+")
_SHOWN = 40
_LONGEST_KEY = 100
_LONGEST_HINT = 400


class TomlError(Exception):
    """A text is no TOML, or has more than is taken; lines count from 1."""

    def __init__(self, found: str, line: int | None = None, hint: str = "") -> None:
        super().__init__(found)
        self.found = found
        self.line = line
        self.hint = hint


def read_toml_text(path: Path) -> str:
    """Return the text of a file that is not too long."""
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise TomlError(f"has more than {MOST_BYTES >> 20} MiB, the most that is read of TOML")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TomlError("is not UTF-8 text", 1 + data.count(b"\n", 0, error.start)) from None


def toml_text(text: str) -> str:
    """Return a text as a TOML string; what controls a terminal goes."""
    return json.dumps(clean_text(text), ensure_ascii=False)


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a text."""
    for pattern, found in (
        (_LONG_KEY, f"a key of more than {_MOST_KEY_PARTS} parts"),
        (_LONG_NUMBER, "a number of more than 4000 digits"),
    ):
        if match := pattern.search(text):
            raise TomlError(found, 1 + text.count("\n", 0, match.start()))
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise TomlError("is nested too deep") from None
    except tomllib.TOMLDecodeError as error:
        match = _SYNTAX.fullmatch(str(error))
        if match is None:
            raise TomlError(str(error)) from None
        raise TomlError(match[1], int(match[2] or text.count("\n") + 1)) from None
    except ValueError as error:  # a date that is none, for one
        raise TomlError(str(error)) from None


def show_value(value: object) -> str:
    """Return a value of a TOML file for a message, cut to a few words, however large it is."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >> 128:
        return "a number of many digits"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list) and any(isinstance(item, list | dict) for item in value):
        return f"a list of {len(value)} lists or tables" if value else "[]"
    if isinstance(value, list):
        text = "[" + ", ".join(show_value(item) for item in value[:_SHOWN]) + "]"
    else:
        text = repr(value[: 2 * _SHOWN] if isinstance(value, str) else value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def check_keys(
    text: str, content: dict[str, Any], known: Collection[str], table: str = "", index: int = 0
) -> None:
    """Refuse keys of the index-th table of a kind that nothing reads; hint at what is closest."""
    from difflib import get_close_matches

    for key in content:
        if key not in known:
            close = get_close_matches(key[:_LONGEST_KEY], known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known keys: {', '.join(known)}"
            line = line_of_key(text, key, table, index)
            raise TomlError(f"unknown key {show_value(key)}", line, in_short(hint, _LONGEST_HINT))


def line_of_key(text: str, key: str, table: str = "", index: int = 0) -> int | None:
    """Return the 1-based line of a key in the index-th table of an array, else of its header.

    The key "" stands for the header, the table "" for the top of the file, which has none.
    """
    header = re.compile(rf"\s*\[\[\s*{re.escape(table)}\s*\]\]")
    header_line = None
    seen = -1
    inside = not table
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*\[", line):
            if inside:
                break
            if table and header.match(line):
                seen += 1
                inside = seen == index
                if inside:
                    header_line = number
        elif inside and key and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
            return number
    return header_line
