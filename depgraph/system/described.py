"""What people describe in TOML and JSON: keys that are declared, values that are checked.

Libraries that do this (pydantic, msgspec, cattrs) were not taken: they see a file when it has been
parsed, so that they cannot name the line of a key, nor say in a user's words what to give instead.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import (
    Annotated,
    Any,
    NamedTuple,
    NoReturn,
    TypeAlias,
    get_args,
    get_origin,
    get_type_hints,
)

from depgraph.errors import DepgraphError, InputError, ModelError, TraceError
from depgraph.system.text import MOST_ROWS, clean_text, in_short, shown_in_short

Reader: TypeAlias = Callable[[object], Any]
"""Returns a value as the program takes it; the text of a `ValueError` completes "give ..."."""

MOST_BYTES = 64 << 20
_MOST_KEY_PARTS = 64
_SYNTAX = re.compile(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", re.DOTALL)
# The reader of the standard library takes quadratic time for the parts of a key.
_LONG_KEY = re.compile(rf"(?<![\w\"'-])(?:[\w\"'-]++[ \t]*+\.[ \t]*+){{{_MOST_KEY_PARTS}}}")
_LONG_NUMBER = re.compile(r"(?<![0-9_])[0-9_]{4000,}+")
_WHOLE = r"-?(?:0|[1-9]\d{0,14})"
# Possessive, as what could be given back of each number of a list takes a hundred bytes.
_LIST = rf"\[{_WHOLE}(?:,\ ?{_WHOLE})*+\]"
# A line of what programs write: the head of a table, or a key with a text, numbers, a flag; else
# whatever stands there.
_LINE = re.compile(
    rf"""^(?:\[\[([\w-]+)\]\]|([\w-]+)\ *=\ *(?:"([^"\\\x00-\x1f\x7f]*)"|({_WHOLE})|"""
    rf"""({_WHOLE}\.\d{{1,15}}|true|false|{_LIST}|\[{_LIST}(?:,\ ?{_LIST})*+\]))|(.+))$""",
    re.ASCII | re.MULTILINE,
)
_AT_ONCE = 1 << 20  # characters
_BLANKS = r"[^\S\n]*"  # only a newline ends a line of TOML
_SHOWN = 40
_LONGEST_KEY = 100
_LONGEST_HINT = 400


class TomlError(Exception):
    """A text is no TOML, or has more than is taken; lines count from 1."""

    def __init__(self, found: str, line: int | None = None) -> None:
        super().__init__(found)
        self.found = found
        self.line = line


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
    plain = _plain_tables(text)
    if plain is not None:
        return plain
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


def _plain_tables(text: str) -> dict[str, Any] | None:
    """Return the tables of a text of plain lines, in a fifth of the time; None of any other."""
    content: dict[str, Any] = {}
    table = content
    kinds: dict[str, list[dict[str, Any]]] = {}
    for kind, key, string, whole, other, unknown in _lines(text):
        if unknown or key in table:
            return None
        if kind:
            if kind not in kinds:
                if kind in content:
                    return None
                content[kind] = kinds[kind] = []
            table = {}
            kinds[kind].append(table)
        elif whole:
            table[key] = int(whole)
        else:
            table[key] = json.loads(other) if other else string
    return content


def _lines(text: str) -> Iterator[tuple[str, ...]]:
    """Yield what `_LINE` finds in each line that is not empty."""
    begin = 0
    while begin < len(text):
        end = text.find("\n", begin + _AT_ONCE) + 1 or len(text)
        yield from _LINE.findall(text, begin, end)
        begin = end


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


def line_of_key(text: str, key: str, table: str = "", index: int = 0) -> int | None:
    """Return the 1-based line of a key in the index-th table of an array, else of its header.

    The key "" stands for the header, the table "" for the top of the file, which has none.
    """
    of_key = rf"|[\"']?{re.escape(key)}[\"']?{_BLANKS}=" if key else ""
    begins = re.compile(
        rf"^{_BLANKS}(?:(\[)(\[{_BLANKS}{re.escape(table)}{_BLANKS}\]\])?{of_key})", re.MULTILINE
    )
    place = None
    seen = -1
    inside = not table
    for match in begins.finditer(text):
        if match[1] is None:
            if inside:
                place = match.start()
                break
        elif inside:
            break
        elif match[2]:
            seen += 1
            inside = seen == index
            place = match.start() if inside else None
    return None if place is None else 1 + text.count("\n", 0, place)


_LONGEST_TEXT = 1000
_LONGEST_FOUND = 200
REQUIRED = object()


def whole(least: int, most: int) -> Reader:
    """Take a whole number; a truth value is none."""

    def read(value: object) -> int:
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"a whole number from {least} to {most}")
        return value

    return read


def real(least: float, most: float, expected: str = "") -> Reader:
    """Take a number, whole or not; a truth value is none."""

    def read(value: object) -> float:
        if type(value) not in (int, float) or not least <= value <= most:  # type: ignore[operator]
            raise ValueError(expected or f"a number from {least:g} to {most:g}")
        return float(value)  # type: ignore[arg-type]

    return read


def text(value: object, expected: str = "text", longest: int = MOST_ROWS) -> str:
    """Take a text that is not blank."""
    if not isinstance(value, str) or not value.strip() or len(value) > longest:
        raise ValueError(expected)
    return value


def short_text(value: object) -> str:
    """Take a text that is neither blank nor longer than a line or two."""
    return text(value, longest=_LONGEST_TEXT)


def anything(value: object) -> Any:
    """Take what is looked at later, beside what other keys say."""
    return value


def _all_of(kind: type, expected: str) -> Reader:
    """Take every value of a type."""

    def read(value: object) -> Any:
        if not isinstance(value, kind):
            raise ValueError(expected)  # noqa: TRY004 - what else a reader raises
        return value

    return read


any_text = _all_of(str, "text")
"""Take a text, the empty one too."""
flag = _all_of(bool, "true or false")
_object = _all_of(dict, "an object")


def one_of(choices: Collection[str]) -> Reader:
    """Take one of some words."""

    def read(value: object) -> str:
        if not isinstance(value, str) or value not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return value

    return read


def items(reader: Reader, expected: str, least: int = 0, most: int = MOST_ROWS) -> Reader:
    """Take a list, and what another reader takes of it."""

    def read(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise ValueError(expected)
        return tuple(reader(item) for item in value)

    return read


def optional(reader: Reader) -> Reader:
    """Take None as well."""
    return lambda value: None if value is None else reader(value)


def values_of(reader: Reader) -> Reader:
    """Take an object of whatever keys, and what another reader takes of each value."""
    return lambda value: {key: reader(each) for key, each in _object(value).items()}


def record(*known: Field) -> Reader:
    """Take an object with the keys that it must have, whatever else is there."""

    def read(value: object) -> dict[str, Any]:
        given, taken = _object(value), {}
        for field in known:
            if field.key in given:
                taken[field.key] = field.read(given[field.key])
            elif field.default is REQUIRED:
                raise ValueError(f"an object with {field.key}")
        return taken

    return read


class Field(NamedTuple):
    """A key of a table, and what the table says where it does not have it."""

    key: str
    read: Reader
    meaning: str
    unit: str = ""
    default: Any = None


def fault_of_json(content: Mapping[str, Any], known: Iterable[Field]) -> str:
    """Say what of JSON that depgraph writes it never wrote: "lacks 'kinds'"; "" for nothing."""
    for field in known:
        if field.key in content:
            try:
                field.read(content[field.key])
            except ValueError:
                return f"says {shown_in_short(content[field.key])} for {field.key!r}"
        elif field.default is REQUIRED:
            return f"lacks {field.key!r}"
    return ""


def fields_of(kind: type) -> tuple[Field, ...]:
    """Return the keys that a class declares: its annotations with a reader each."""
    return tuple(
        Field(key, each.__metadata__[0], "")
        for key, hint in get_type_hints(kind, include_extras=True).items()
        for each in (hint, *get_args(hint))  # of what may be None as well
        if get_origin(each) is Annotated
    )


class DescribedFile:
    """Reads one TOML file; faults name the line of the key that they are about.

    A table is named by its kind, the name of an array of tables, and its place in that; "" is the
    file itself, and "" for a key the header of the table.
    """

    _BEFORE_SYNTAX = ""  # stands before what is no TOML
    _TOP_LINE: int | None = 1  # of a key that the file does not have

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.text = read_toml_text(path)
            self.content = parse_toml(self.text)
        except OSError as error:
            raise self.error(error.strerror or "cannot be read", "", None) from None
        except TomlError as error:
            found = f"{self._BEFORE_SYNTAX}{in_short(error.found, _LONGEST_FOUND)}"
            raise self.error(found, "", error.line) from None

    def error(self, found: str, hint: str, line: int | None) -> DepgraphError:
        """Return what a fault is raised as."""
        return TraceError(self.path, found, hint, line=line)

    def fail(self, kind: str, i: int, key: str, found: str, hint: str) -> NoReturn:
        """Refuse the file for a key of the i-th table of a kind."""
        line = line_of_key(self.text, key, kind, i)
        raise self.error(found, hint, line if kind else line or self._TOP_LINE)

    def wrong(
        self, kind: str, i: int, key: str, value: object, expected: str, where: str = ""
    ) -> NoReturn:
        """Refuse the value of a key."""
        self.fail(kind, i, key, f"{where}{key} {show_value(value)}", f"give {expected}")

    def value(self, kind: str, i: int, key: str, value: object, reader: Reader) -> Any:
        """Return what a reader takes of the value of a key."""
        try:
            return reader(value)
        except ValueError as error:
            self.wrong(kind, i, key, value, str(error))

    def check_keys(
        self, kind: str, i: int, content: object, known: Sequence[Field], called: str = ""
    ) -> Any:
        """Return a table that has all keys that it must have, and no others."""
        if not isinstance(content, dict):
            self.fail(kind, i, "", f"{kind} is not a table", f"write [[{kind}]]")
        keys = [field.key for field in known]
        if (unknown := next((key for key in content if key not in keys), None)) is not None:
            from difflib import get_close_matches

            close = get_close_matches(unknown[:_LONGEST_KEY], keys, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known keys: {', '.join(keys)}"
            line = line_of_key(self.text, unknown, kind, i)
            found = f"unknown key {show_value(unknown)}"
            raise self.error(found, in_short(hint, _LONGEST_HINT), line)
        for field in known:
            if field.default is REQUIRED and field.key not in content:
                called = called or f"{kind} {show_value(content.get('name', f'{kind} {i}'))}"
                hint = f"give {field.key}" + (f" ({field.unit})" if field.unit else "")
                self.fail(kind, i, "", f"{called} has no {field.key}", hint)
        return content

    def given(self, kind: str, i: int, content: object, known: Sequence[Field]) -> dict[str, Any]:
        """Return what a table says, by key."""
        table = self.check_keys(kind, i, content, known)
        return {
            field.key: self.value(kind, i, field.key, table[field.key], field.read)
            for field in known
            if field.key in table
        }

    def table(self, kind: str, i: int, content: object, known: Sequence[Field]) -> dict[str, Any]:
        """Return what a table says, by key, and the defaults of what it does not say."""
        defaults = {field.key: field.default for field in known}
        return defaults | self.given(kind, i, content, known)


class ModelFile(DescribedFile):
    """Reads the file of a GPU or of a policy: one table."""

    _BEFORE_SYNTAX = "not TOML: "
    _TOP_LINE = None

    def error(self, found: str, hint: str, line: int | None) -> DepgraphError:
        """Return what a fault is raised as."""
        return ModelError(str(InputError(self.path, found, hint, line=line)))

    def wrong(
        self, kind: str, i: int, key: str, value: object, expected: str, where: str = ""
    ) -> NoReturn:
        """Refuse the value of a key."""
        self.fail(kind, i, key, f"{where}{key} = {show_value(value)}: expected {expected}", "")
