"""Described programs: a TOML file of kernels and of the dependences between their blocks.

``docs/mechanisms.md`` documents the keys.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from depgraph.errors import ModelError, TraceError
from depgraph.pipeline import describe_source
from depgraph.workload import (
    PATTERNS,
    WorkloadDependence,
    WorkloadKernel,
    workload_extraction,
    workload_graph,
)

if TYPE_CHECKING:
    from depgraph.extraction import Extraction

_UNITS = ("us", "ns", "ms", "s", "cycles")
_KINDS = ("RAW", "WAR", "WAW")
_TOP_KEYS = {"name", "unit", "kernel", "dependence"}
_KERNEL_KEYS = {
    "name", "grid", "block", "duration", "occupancy", "registers", "shared_bytes", "stream",
    "cuttable",
}  # fmt: skip
_DEPENDENCE_KEYS = {"from", "to", "pattern", "edges", "kind", "tiles", "radius"}
_DEFAULT_THREADS = 128
_MOST_BLOCKS = 1 << 24
_ENDS = 2
_DIMENSIONS = 3
_SHOWN = 40
_SYNTAX = re.compile(r"(.*) \(at line (\d+), column \d+\)")


def is_workload(path: str | Path) -> bool:
    """Tell by the name whether a file describes a program instead of tracing it."""
    return Path(path).suffix == ".toml"


def read_workload(path: str | Path) -> Extraction:
    """Read a described program.

    Raises
    ------
    TraceError
        If the file cannot be read, or says something that makes no sense; it names the line.
    """
    return _Reader(Path(path)).extraction()


class _Reader:
    """Reads one file; faults name the line of the key they are about."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "is no UTF-8 text"
            raise TraceError(path, reason or "cannot be read") from None
        try:
            self.content = tomllib.loads(self.text)
        except tomllib.TOMLDecodeError as error:
            match = _SYNTAX.fullmatch(str(error))
            line = int(match[2]) if match else None
            raise TraceError(path, match[1] if match else str(error), line=line) from None

    def extraction(self) -> Extraction:
        """Return what the file describes."""
        self._known_keys("", 0, self.content, _TOP_KEYS)
        unit = self.content.get("unit", "us")
        if unit not in _UNITS:
            self._fail("", 0, "unit", f"unit {unit!r}", f"give one of {', '.join(_UNITS)}")
        tables = self.content.get("kernel")
        if not isinstance(tables, list) or not tables:
            self._fail("", 0, "kernel", "no kernels", "give [[kernel]] tables")
        kernels = [self._kernel(i, table) for i, table in enumerate(tables)]
        names = [kernel.name for kernel in kernels]
        for i, name in enumerate(names):
            if name in names[:i]:
                self._fail("kernel", i, "name", f"a second kernel called {name!r}", "name it apart")
        dependences = [
            self._dependence(i, table, names)
            for i, table in enumerate(self.content.get("dependence", []))
        ]
        self._check_patterns(kernels, dependences)
        return workload_extraction(
            kernels,
            dependences,
            unit=unit,
            metadata={
                "sources": [describe_source(self.path)],
                "lines": self.text.count("\n"),
                "input_bytes": len(self.text.encode()),
                "workload": self.content.get("name", self.path.stem),
            },
        )

    def _kernel(self, i: int, table: dict[str, Any]) -> WorkloadKernel:
        self._known_keys("kernel", i, table, _KERNEL_KEYS)
        name = table.get("name", f"kernel {i}")
        if not isinstance(name, str):
            self._fail("kernel", i, "name", f"name {name!r}", "give text")
        if "grid" not in table or "duration" not in table:
            key = "duration" if "grid" in table else "grid"
            self._fail("kernel", i, "", f"kernel {name!r} has no {key}", f"give {key}")
        grid = self._dimensions("kernel", i, "grid", table["grid"])
        block = self._dimensions("kernel", i, "block", table.get("block", _DEFAULT_THREADS))
        blocks = grid[0] * grid[1] * grid[2]
        if blocks > _MOST_BLOCKS:
            self._fail("kernel", i, "grid", f"{blocks} blocks", f"at most {_MOST_BLOCKS}")
        given = table["duration"]
        times = given if isinstance(given, list) else [given] * blocks
        if len(times) != blocks or not all(_is_number(t) and t >= 0 for t in times):
            expected = f"give a number, or a list of {blocks}, one for each block"
            self._fail("kernel", i, "duration", f"duration {_short(given)}", expected)
        numbers = {
            key: self._whole("kernel", i, key, table.get(key), least)
            for key, least in (
                ("occupancy", 1), ("registers", 1), ("shared_bytes", 0), ("stream", 0),
            )
        }  # fmt: skip
        stream = numbers.pop("stream") or 0
        cuttable = table.get("cuttable")
        if cuttable is not None and not isinstance(cuttable, bool):
            found = f"cuttable {_short(cuttable)}"
            self._fail("kernel", i, "cuttable", found, "give true or false")
        return WorkloadKernel(
            name=name, grid=grid, block=block, durations=np.array(times, np.float64),
            stream=stream, cuttable=cuttable, **numbers,
        )  # fmt: skip

    def _dependence(self, i: int, table: dict[str, Any], names: list[str]) -> WorkloadDependence:
        self._known_keys("dependence", i, table, _DEPENDENCE_KEYS)
        ends = []
        for key in ("from", "to"):
            if table.get(key) not in names:
                found = f"{key} = {table.get(key)!r}" if key in table else f"no {key!r}"
                self._fail("dependence", i, key, found, f"give one of {', '.join(names)}")
            ends.append(names.index(table[key]))
        if ends[0] >= ends[1]:
            found = f"{table['to']!r} is not launched after {table['from']!r}"
            self._fail("dependence", i, "to", found, "a kernel depends on earlier ones")
        if ("edges" in table) == ("pattern" in table):
            self._fail("dependence", i, "", "a dependence needs a pattern or edges", "give one")
        pattern = table.get("pattern", "edges")
        if "pattern" in table and pattern not in PATTERNS:
            expected = f"give one of {', '.join(PATTERNS)}, or edges = [[0, 0], ...]"
            self._fail("dependence", i, "pattern", f"pattern {pattern!r}", expected)
        kind = table.get("kind", "RAW")
        if kind not in _KINDS:
            self._fail(
                "dependence", i, "kind", f"kind {kind!r}", f"give one of {', '.join(_KINDS)}"
            )
        edges = table.get("edges", [])
        if not isinstance(edges, list) or not all(
            isinstance(e, list) and len(e) == _ENDS and all(type(n) is int for n in e)
            for e in edges
        ):
            expected = "give pairs of block numbers: [[0, 0], [0, 1]]"
            self._fail("dependence", i, "edges", f"edges {_short(edges)}", expected)
        return WorkloadDependence(
            source=ends[0],
            target=ends[1],
            pattern=pattern,
            kind=kind,
            tiles=self._whole("dependence", i, "tiles", table.get("tiles"), 1) or 2,
            radius=self._whole("dependence", i, "radius", table.get("radius"), 0) or 1,
            edges=[(e[0], e[1]) for e in edges],
        )

    def _check_patterns(
        self, kernels: list[WorkloadKernel], dependences: list[WorkloadDependence]
    ) -> None:
        """Fail with the line of the dependence whose pattern does not fit its grids."""
        try:
            workload_graph(kernels, dependences)
        except ModelError:
            for i, dependence in enumerate(dependences):
                try:
                    workload_graph(kernels, [dependence])
                except ModelError as error:
                    self._fail("dependence", i, (dependence.pattern == "edges" and "edges")
                               or "pattern", str(error), "")  # fmt: skip
            raise

    def _dimensions(self, table: str, i: int, key: str, value: object) -> tuple[int, int, int]:
        sizes = value if isinstance(value, list) else [value]
        if not 1 <= len(sizes) <= _DIMENSIONS or not all(type(n) is int and n > 0 for n in sizes):
            self._fail(table, i, key, f"{key} {_short(value)}", "give 1 to 3 whole numbers from 1")
        x, y, z = (*sizes, 1, 1)[:3]
        return x, y, z

    def _whole(self, table: str, i: int, key: str, value: object, least: int) -> int | None:
        if value is None:
            return None
        if type(value) is not int or value < least:
            expected = f"give a whole number from {least}"
            self._fail(table, i, key, f"{key} {_short(value)}", expected)
        return value

    def _known_keys(self, table: str, i: int, content: object, known: set[str]) -> None:
        if not isinstance(content, dict):
            self._fail(table, i, "", f"{table} is no table", f"write [[{table}]]")
        for key in content:
            if key not in known:
                expected = f"known keys: {', '.join(sorted(known))}"
                self._fail(table, i, key, f"unknown key {key!r}", expected)

    def _fail(self, table: str, i: int, key: str, found: str, hint: str) -> NoReturn:
        raise TraceError(self.path, found, hint, line=line_of(self.text, table, i, key))


def line_of(text: str, table: str, index: int, key: str) -> int | None:
    """Return the 1-based line of a key in the index-th table of a kind, else of its header.

    Parameters
    ----------
    text : str
        TOML.
    table : str
        Name of an array of tables; "" for the top of the file.
    index : int
    key : str
        "" for the header.
    """
    header = re.compile(rf"\s*\[\[\s*{re.escape(table)}\s*\]\]")
    seen, header_line = (0, 1) if not table else (-1, None)
    inside = not table
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*\[", line):
            if inside and header_line and not (table and header.match(line) and seen < index):
                break
            if table and header.match(line):
                seen += 1
                inside = seen == index
                if inside:
                    header_line = number
        elif inside and key and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
            return number
    return header_line


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
