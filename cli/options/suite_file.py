"""Which programs a suite has: stores, folders of stores, and suite files that name them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from depgraph.cli.options.model import ModelOptions
from depgraph.cli.options.shared import DEFAULT_STORE
from depgraph.errors import SuiteError
from depgraph.system.text import as_file_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

SUFFIX = ".toml"
PROGRAM_OPTIONS = frozenset({"sms", "kinds", *ModelOptions.__annotations__})
"""Parameters that say which program on which GPU is meant: a suite file may state them."""
_INSTEAD = {"gpu": "gpu_file", "gpu_file": "gpu"}
_ABOUT = ("name", "store", "trace")
_STORE_SUFFIX = ".out"


@dataclass(frozen=True, slots=True)
class Program:
    """A program of a suite."""

    name: str
    store: str
    traces: tuple[str, ...] = ()  # what the store is extracted from where there is none yet
    # parameters that the suite file states, each with the words of a command line
    options: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def words(self, given: Iterable[tuple[str, tuple[str, ...]]] = ()) -> list[str]:
        """Return the options and the store as words of a command line."""
        given = list(given)
        replaced = {_INSTEAD[name] for name, _ in given if name in _INSTEAD}
        kept = [words for name, words in self.options if name not in replaced]
        return [*(w for words in (*kept, *(x for _, x in given)) for w in words), "--", self.store]


def programs_of(command: click.Command, paths: Sequence[Path]) -> list[Program] | None:
    """Return the programs that arguments name; None if they name one store."""
    found: list[Program] = []
    is_suite = len(paths) > 1
    for path in paths:
        inside = [] if path.suffix == SUFFIX else list(_stores_in(path))
        if path.suffix == SUFFIX and not path.is_dir():
            found += _SuiteFile(path, command).programs()
        else:
            found += [Program("", str(store)) for store in inside or [path]]
        is_suite |= path.suffix == SUFFIX or bool(inside)
    return _named(found) if is_suite else None


def _stores_in(folder: Path) -> Iterator[Path]:
    """Yield the stores in a folder that is none itself, broken ones too."""
    from depgraph.store.files import is_store

    if not folder.is_dir() or is_store(folder):
        return
    for entry in sorted(folder.iterdir()):
        for store in (entry, entry / DEFAULT_STORE):
            if store.is_dir() and (is_store(store) or any(store.glob("*.parquet"))):
                yield store
                break


def _named(programs: Sequence[Program]) -> list[Program]:
    """Give each program a name of its own."""
    named = {}
    short = [program.name or _short_name(program.store) for program in programs]
    for program, name in zip(programs, short, strict=True):
        own = name if short.count(name) == 1 or program.name else program.store
        if own in named:
            message = f"program {own!r} is there twice: give each a name of its own in a suite file"
            raise click.UsageError(message)
        named[own] = Program(own, program.store, program.traces, program.options)
    return list(named.values())


def _short_name(store: str) -> str:
    path = Path(store)
    if path.name == DEFAULT_STORE and path.parent.name:
        return path.parent.name
    return path.name.removesuffix(_STORE_SUFFIX) or store


class _SuiteFile:
    """Reads a suite file; faults name the line of the key they are about."""

    def __init__(self, path: Path, command: click.Command) -> None:
        from depgraph.system.toml_file import TomlError, parse_toml, read_toml_text

        self._path, self._command = path, command
        self._options = {
            option.opts[0].removeprefix("--"): option
            for option in command.params
            if option.name in PROGRAM_OPTIONS and isinstance(option, click.Option)
        }
        try:
            self._text = read_toml_text(path)
            self._content = parse_toml(self._text)
        except OSError as error:
            raise SuiteError(path, error.strerror or "cannot be read") from None
        except TomlError as error:
            raise SuiteError(path, error.found, line=error.line) from None

    def programs(self) -> list[Program]:
        """Return the programs that the file names."""
        if "kernel" in self._content:
            hint = "make a store of it first with: depgraph extract"
            raise SuiteError(self._path, "describes one program, not a suite", hint)
        self._check_keys("", 0, self._content, ("program",))
        tables = self._content.get("program")
        if not isinstance(tables, list) or not tables:
            self._fail("", 0, "program", "no programs", "give [[program]] tables")
        shared = self._stated("", 0, self._content)
        return [self._program(i, table, shared) for i, table in enumerate(tables)]

    def _program(
        self, index: int, table: Any, shared: Mapping[str, tuple[str, ...]]
    ) -> Program:  # fmt: skip
        if not isinstance(table, dict):
            self._fail("program", index, "", "not a table", "write [[program]]")
        self._check_keys("program", index, table, _ABOUT)
        name, store = (self._text_of(index, table, key) for key in ("name", "store"))
        traces = table.get("trace", [])
        traces = [traces] if isinstance(traces, str) else traces
        if not isinstance(traces, list) or not all(isinstance(t, str) and t for t in traces):
            self._fail("program", index, "trace", "trace is no text", "give a file name")
        if not store and not traces:
            self._fail("program", index, "", "a program without store or trace", "give one of them")
        if not store:
            stem = name or Path(traces[0]).name.split(".")[0]
            store = as_file_name(stem) + _STORE_SUFFIX
        own = self._stated("program", index, table)
        replaced = {_INSTEAD[name] for name in own if name in _INSTEAD}
        options = {k: w for k, w in shared.items() if k not in own and k not in replaced} | own
        program = Program(
            name or (Path(store).name.removesuffix(_STORE_SUFFIX) if traces else ""),
            self._beside(store),
            tuple(map(self._beside, traces)),
            tuple(options.items()),
        )
        self._check_values(index, program)
        return program

    def _stated(self, table: str, index: int, content: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options that a table states, by parameter, as words."""
        stated = {}
        for key, value in content.items():
            option = self._options.get(key)
            if option is None or value is False:
                continue
            values = value if isinstance(value, list) and option.multiple else [value]
            is_fit = isinstance(value, bool) == bool(option.is_flag)
            if not is_fit or not all(isinstance(each, str | int | float) for each in values):
                expected = "true or false" if option.is_flag else "text or a number"
                self._fail(table, index, key, f"{key} is of no use", f"give {expected}")
            texts = [
                self._beside(text) if is_path(option, text) else text for text in map(str, values)
            ]
            words = [f"--{key}"] if option.is_flag else [f"--{key}={text}" for text in texts]
            stated[option.name or key] = tuple(words)
        return stated

    def _check_values(self, index: int, program: Program) -> None:
        """Let the command read the options of a program, so that a wrong one is found at once."""
        try:
            self._command.make_context(self._command.name, program.words()).close()
        except click.UsageError as error:
            self._fail("program", index, "", error.format_message().rstrip("."), "")

    def _text_of(self, index: int, table: Mapping[str, Any], key: str) -> str:
        value = table.get(key, "")
        if not isinstance(value, str) or (key in table and not value):
            self._fail("program", index, key, f"{key} is no text", "give text")
        return str(value)

    def _check_keys(
        self, table: str, index: int, content: dict[str, Any], others: Sequence[str]
    ) -> None:
        from depgraph.system.toml_file import TomlError, check_keys

        try:
            check_keys(self._text, content, (*others, *self._options), table, index)
        except TomlError as error:
            raise SuiteError(self._path, error.found, error.hint, line=error.line) from None

    def _fail(self, table: str, index: int, key: str, found: str, hint: str) -> NoReturn:
        from depgraph.system.toml_file import line_of_key

        raise SuiteError(self._path, found, hint, line=line_of_key(self._text, key, table, index))

    def _beside(self, name: str) -> str:
        """Return a path that stands in the file as seen from the current folder."""
        return os.path.normpath(self._path.parent / name)


def is_path(option: click.Parameter, value: str) -> bool:
    """Tell whether the value of an option names a file."""
    return isinstance(option.type, click.Path) or (option.name == "gpu" and value.endswith(SUFFIX))
