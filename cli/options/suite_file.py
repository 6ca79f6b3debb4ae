"""Which programs a suite has: stores, folders of stores, and suite files that name them."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from depgraph.cli.options.model import OF_SCENARIO
from depgraph.cli.options.shared import DEFAULT_STORE
from depgraph.errors import SuiteError
from depgraph.system.described import DescribedFile, Field, anything, items, text
from depgraph.system.text import as_file_name

SUFFIX = ".toml"
PROGRAM_OPTIONS = OF_SCENARIO | {"sms"}
"""Parameters that say which program on which GPU is meant: a suite file may state them."""
_INSTEAD = {"gpu": "gpu_file", "gpu_file": "gpu"}
_STORE_SUFFIX = ".out"


class Program(NamedTuple):
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
    from depgraph.store.tables import is_store

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


def _file_names(value: object) -> tuple[str, ...]:
    return tuple(items(text, "a file name")([value] if isinstance(value, str) else value))


_PROGRAMS = Field("program", anything, "tables")
_ABOUT = (
    Field("name", text, "what tables call it", default=""),
    Field("store", text, "folder", default=""),
    Field("trace", _file_names, "what the store is made of where there is none", default=()),
)


class _SuiteFile(DescribedFile):
    _TOP_LINE = None

    def __init__(self, path: Path, command: click.Command) -> None:
        super().__init__(path)
        self._command = command
        self._options = {
            option.opts[0].removeprefix("--"): option
            for option in command.params
            if option.name in PROGRAM_OPTIONS and isinstance(option, click.Option)
        }
        self._stating = [Field(key, anything, "") for key in self._options]

    def error(self, found: str, hint: str, line: int | None) -> SuiteError:
        return SuiteError(self.path, found, hint, line=line)

    def programs(self) -> list[Program]:
        if "kernel" in self.content:
            hint = "make a store of it first with: depgraph extract"
            raise self.error("describes one program, not a suite", hint, None)
        self.check_keys("", 0, self.content, [_PROGRAMS, *self._stating])
        tables = self.content.get("program")
        if not isinstance(tables, list) or not tables:
            self.fail("", 0, "program", "no programs", "give [[program]] tables")
        shared = self._stated("", 0, self.content)
        return [self._program(i, table, shared) for i, table in enumerate(tables)]

    def _program(self, i: int, table: Any, shared: Mapping[str, tuple[str, ...]]) -> Program:
        values = self.table("program", i, table, [*_ABOUT, *self._stating])
        name, store, traces = (values[field.key] for field in _ABOUT)
        if not store and not traces:
            self.fail("program", i, "", "a program without store or trace", "give one of them")
        if not store:
            stem = name or Path(traces[0]).name.split(".")[0]
            store = as_file_name(stem) + _STORE_SUFFIX
        own = self._stated("program", i, table)
        replaced = {_INSTEAD[name] for name in own if name in _INSTEAD}
        options = {k: w for k, w in shared.items() if k not in own and k not in replaced} | own
        program = Program(
            name or (Path(store).name.removesuffix(_STORE_SUFFIX) if traces else ""),
            self._beside(store),
            tuple(map(self._beside, traces)),
            tuple(options.items()),
        )
        self._check_values(i, program)
        return program

    def _stated(self, kind: str, i: int, content: Mapping[str, Any]) -> dict[str, Any]:
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
                self.fail(kind, i, key, f"{key} is of no use", f"give {expected}")
            given = [self._beside(v) if is_path(option, v) else v for v in map(str, values)]
            words = [f"--{key}"] if option.is_flag else [f"--{key}={each}" for each in given]
            stated[option.name or key] = tuple(words)
        return stated

    def _check_values(self, i: int, program: Program) -> None:
        """Let the command read the options of a program, so that a wrong one is found at once."""
        try:
            self._command.make_context(self._command.name, program.words()).close()
        except click.UsageError as error:
            self.fail("program", i, "", error.format_message().rstrip("."), "")

    def _beside(self, name: str) -> str:
        """Return a path that stands in the file as seen from the current folder."""
        return os.path.normpath(self.path.parent / name)


def is_path(option: click.Parameter, value: str) -> bool:
    """Tell whether the value of an option names a file."""
    return isinstance(option.type, click.Path) or (option.name == "gpu" and value.endswith(SUFFIX))
