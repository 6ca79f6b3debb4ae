"""Described programs: a TOML file of kernels and of the dependences between their blocks.

``docs/mechanisms.md`` documents the keys.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from depgraph.errors import ModelError, TraceError
from depgraph.extraction.pipeline import describe_source
from depgraph.extraction.workload import (
    PATTERNS,
    WorkloadDependence,
    WorkloadKernel,
    check_dependence,
    workload_extraction,
)
from depgraph.graph.launches import JOINS, MOST_CHILD_BLOCKS, DeviceLaunches
from depgraph.system.limits import LARGEST_ID, LONGEST_TIME, MOST_BLOCKS_PER_SM
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
    from numpy.typing import NDArray

    from depgraph.graph.program import Extraction

_UNITS = ("us", "ns", "ms", "s", "cycles")
_KINDS = ("RAW", "WAR", "WAW")
_TOP_KEYS = ("name", "unit", "kernel", "dependence", "launch")
_KERNEL_KEYS = (
    "name", "grid", "block", "duration", "occupancy", "registers", "shared_bytes", "stream",
    "cuttable",
)  # fmt: skip
_DEPENDENCE_KEYS = ("from", "to", "pattern", "edges", "kind", "tiles", "radius")
_LAUNCH_KEYS = (
    "parent", "block", "at", "warp", "lanes", "child_grid", "child_duration", "inline", "join",
    "stream", "items",
)  # fmt: skip
_DEFAULT_THREADS = 128
_MOST_BLOCKS = 1 << 21
_MOST_KERNELS = 1 << 16
_MOST_THREADS = 1024
_MOST_REGISTERS = 255
_MOST_SHARED_BYTES = 1 << 20
_MOST_LAUNCHES = 1 << 18
_LANES_OF_A_WARP = 32
_ENDS = 2
_DIMENSIONS = 3
_NAMES_SHOWN = 20
_NAMES_WIDTH = 300


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


class _Checked:
    """One file, and what its values must be; faults name the line of the key they are about."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.text = read_toml_text(path)
            self.content = parse_toml(self.text)
        except OSError as error:
            raise TraceError(path, error.strerror or "cannot be read") from None
        except TomlError as error:
            raise TraceError(path, error.found, line=error.line) from None

    def _column(
        self, i: int, key: str, given: object, n: int, limits: tuple[int, float, type]
    ) -> NDArray[Any]:
        """Return the values of a key of a launch; a fault names the first that is none."""
        least, most, kind = limits
        values: list[Any] = given if isinstance(given, list) else [given]
        is_given = key in self.content["launch"][i]
        for place, value in enumerate(values):
            of_kind = type(value) is int if kind is int else _is_number(value)
            if is_given and not (of_kind and least <= value <= most):
                which = f"launch {place}: " if isinstance(given, list) else ""
                what = f"whole number from {least} to {most}"
                if kind is float:
                    what = f"number from {least} to {most:g}"
                expected = f"give a {what}, or a list of them"
                self._fail("launch", i, key, f"{which}{key} {show_value(value)}", expected)
        if len(values) not in {1, n} or (isinstance(given, list) and len(values) != n):
            found = f"{len(values)} values of {key} for {n} launches"
            self._fail("launch", i, key, found, "give one for each launch, or one for all")
        return np.broadcast_to(np.array(values, np.int64 if kind is int else np.float64), n).copy()

    def _named_kernel(
        self, kind: str, i: int, key: str, table: dict[str, Any], place_of: dict[str, int]
    ) -> int:
        """Return the place of the kernel that a key names."""
        name = table.get(key)
        if not isinstance(name, str) or name not in place_of:
            found = f"{key} = {show_value(name)}" if key in table else f"no {key!r}"
            known = in_short(", ".join(list(place_of)[:_NAMES_SHOWN]), _NAMES_WIDTH)
            self._fail(kind, i, key, found, f"give one of {known}")
        return place_of[name]

    def _dimensions(self, table: str, i: int, key: str, value: object) -> tuple[int, int, int]:
        sizes = value if isinstance(value, list) else [value]
        if not 1 <= len(sizes) <= _DIMENSIONS or not all(
            type(n) is int and 0 < n <= _MOST_BLOCKS for n in sizes
        ):
            expected = f"give 1 to 3 whole numbers from 1 to {_MOST_BLOCKS}"
            self._fail(table, i, key, f"{key} {show_value(value)}", expected)
        x, y, z = (*sizes, 1, 1)[:3]
        return x, y, z

    def _whole(self, table: str, i: int, key: str, value: object, least: int, most: int) -> Any:
        if value is None:
            return None
        if type(value) is not int or not least <= value <= most:
            expected = f"give a whole number from {least} to {most}"
            self._fail(table, i, key, f"{key} {show_value(value)}", expected)
        return value

    def _known_keys(self, table: str, i: int, content: object, known: tuple[str, ...]) -> None:
        if not isinstance(content, dict):
            self._fail(table, i, "", f"{table} is not a table", f"write [[{table}]]")
        try:
            check_keys(self.text, content, known, table, i)
        except TomlError as error:
            raise TraceError(self.path, error.found, error.hint, line=error.line) from None

    def _fail(self, table: str, i: int, key: str, found: str, hint: str) -> NoReturn:
        line = line_of_key(self.text, key, table, i)
        raise TraceError(self.path, found, hint, line=line if table else line or 1)


class _Reader(_Checked):
    """Reads one file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._blocks = 0

    def extraction(self) -> Extraction:
        """Return what the file describes."""
        self._known_keys("", 0, self.content, _TOP_KEYS)
        unit = self.content.get("unit", "us")
        if unit not in _UNITS:
            self._fail(
                "", 0, "unit", f"unit {show_value(unit)}", f"give one of {', '.join(_UNITS)}"
            )
        title = self.content.get("name", self.path.stem)
        if not isinstance(title, str):
            self._fail("", 0, "name", f"name {show_value(title)}", "give text")
        tables = self.content.get("kernel")
        if not isinstance(tables, list) or not tables:
            self._fail("", 0, "kernel", "no kernels", "give [[kernel]] tables")
        if len(tables) > _MOST_KERNELS:
            self._fail("", 0, "kernel", f"{len(tables)} kernels", f"at most {_MOST_KERNELS}")
        kernels = []
        place_of: dict[str, int] = {}
        for i, table in enumerate(tables):
            kernels.append(self._kernel(i, table))
            name = kernels[i].name
            if place_of.setdefault(name, i) != i:
                found = f"a second kernel called {show_value(name)}"
                self._fail("kernel", i, "name", found, "name it apart")
        tables = self.content.get("dependence", [])
        if not isinstance(tables, list):
            found = f"dependence {show_value(tables)}"
            self._fail("", 0, "dependence", found, "write [[dependence]] tables")
        dependences = [self._dependence(i, table, place_of) for i, table in enumerate(tables)]
        launches = self._launches(kernels, place_of)
        metadata = {
            "sources": [describe_source(self.path)],
            "lines": self.text.count("\n"),
            "input_bytes": len(self.text.encode()),
            "workload": title,
        }
        try:
            return workload_extraction(kernels, dependences, launches, unit=unit, metadata=metadata)
        except ModelError as error:
            self._blame(error, kernels, dependences)

    def _kernel(self, i: int, table: dict[str, Any]) -> WorkloadKernel:
        self._known_keys("kernel", i, table, _KERNEL_KEYS)
        name = table.get("name", f"kernel {i}")
        if not isinstance(name, str):
            self._fail("kernel", i, "name", f"name {show_value(name)}", "give text")
        if "grid" not in table or "duration" not in table:
            key = "duration" if "grid" in table else "grid"
            self._fail("kernel", i, "", f"kernel {show_value(name)} has no {key}", f"give {key}")
        grid = self._dimensions("kernel", i, "grid", table["grid"])
        block = self._dimensions("kernel", i, "block", table.get("block", _DEFAULT_THREADS))
        threads = block[0] * block[1] * block[2]
        if threads > _MOST_THREADS:
            found = f"{show_value(threads)} threads in a block"
            self._fail("kernel", i, "block", found, f"at most {_MOST_THREADS}")
        blocks = grid[0] * grid[1] * grid[2]
        self._blocks += blocks
        if self._blocks > _MOST_BLOCKS:
            found = f"{show_value(self._blocks)} blocks"
            self._fail(
                "kernel", i, "grid", found, f"at most {_MOST_BLOCKS} in all kernels together"
            )
        durations = self._durations(i, table["duration"], blocks)
        numbers = {
            key: self._whole("kernel", i, key, table.get(key), least, most)
            for key, least, most in (
                ("occupancy", 1, MOST_BLOCKS_PER_SM), ("registers", 1, _MOST_REGISTERS),
                ("shared_bytes", 0, _MOST_SHARED_BYTES), ("stream", 0, LARGEST_ID),
            )
        }  # fmt: skip
        stream = numbers.pop("stream") or 0
        cuttable = table.get("cuttable")
        if cuttable is not None and not isinstance(cuttable, bool):
            found = f"cuttable {show_value(cuttable)}"
            self._fail("kernel", i, "cuttable", found, "give true or false")
        return WorkloadKernel(
            name=name, grid=grid, block=block, durations=durations, stream=stream,
            cuttable=cuttable, **numbers,
        )  # fmt: skip

    def _durations(self, i: int, given: object, blocks: int) -> NDArray[np.float64]:
        """Return the duration of each block; a fault names the first that is none."""
        times: list[Any] = given if isinstance(given, list) else [given]
        for place, time in enumerate(times):
            if not _is_number(time) or not 0 <= time <= LONGEST_TIME:
                of_block = f"block {place}: " if isinstance(given, list) else ""
                expected = f"give a number from 0 to {LONGEST_TIME:g}, or a list of {blocks}"
                found = f"{of_block}duration {show_value(time)}"
                self._fail("kernel", i, "duration", found, expected)
        if not isinstance(given, list):
            return np.full(blocks, float(times[0]))
        if len(times) != blocks:
            found = f"{len(times)} durations for {blocks} blocks"
            self._fail("kernel", i, "duration", found, "give one for each block, or one for all")
        return np.array(times, np.float64)

    def _dependence(
        self, i: int, table: dict[str, Any], place_of: dict[str, int]
    ) -> WorkloadDependence:
        self._known_keys("dependence", i, table, _DEPENDENCE_KEYS)
        ends = [self._named_kernel("dependence", i, key, table, place_of) for key in ("from", "to")]
        if ends[0] >= ends[1]:
            found = f"{show_value(table['to'])} is not launched after {show_value(table['from'])}"
            self._fail("dependence", i, "to", found, "a kernel depends on earlier ones")
        if ("edges" in table) == ("pattern" in table):
            self._fail("dependence", i, "", "a dependence needs a pattern or edges", "give one")
        pattern = table.get("pattern", "edges")
        if "pattern" in table and pattern not in PATTERNS:
            expected = f"give one of {', '.join(PATTERNS)}, or edges = [[0, 0], ...]"
            self._fail("dependence", i, "pattern", f"pattern {show_value(pattern)}", expected)
        kind = table.get("kind", "RAW")
        if kind not in _KINDS:
            self._fail(
                "dependence",
                i,
                "kind",
                f"kind {show_value(kind)}",
                f"give one of {', '.join(_KINDS)}",
            )
        edges = table.get("edges", [])
        if not isinstance(edges, list) or not all(
            isinstance(e, list) and len(e) == _ENDS and all(type(n) is int for n in e)
            for e in edges
        ):
            expected = "give pairs of block numbers: [[0, 0], [0, 1]]"
            self._fail("dependence", i, "edges", f"edges {show_value(edges)}", expected)
        return WorkloadDependence(
            source=ends[0],
            target=ends[1],
            pattern=pattern,
            kind=kind,
            tiles=self._whole("dependence", i, "tiles", table.get("tiles", 2), 1, _MOST_BLOCKS),
            radius=self._whole("dependence", i, "radius", table.get("radius", 1), 0, _MOST_BLOCKS),
            edges=[(e[0], e[1]) for e in edges],
        )

    def _launches(
        self, kernels: list[WorkloadKernel], place_of: dict[str, int]
    ) -> list[tuple[int, DeviceLaunches]]:
        tables = self.content.get("launch", [])
        if not isinstance(tables, list):
            found = f"launch {show_value(tables)}"
            self._fail("", 0, "launch", found, "write [[launch]] tables")
        launches: list[tuple[int, DeviceLaunches]] = []
        count = blocks = 0
        for i, table in enumerate(tables):
            self._known_keys("launch", i, table, _LAUNCH_KEYS)
            place = self._named_kernel("launch", i, "parent", table, place_of)
            launches.append((place, self._launch(i, table, kernels[place])))
            count += len(launches[i][1])
            blocks += int(launches[i][1].child_grid.sum())
            if count > _MOST_LAUNCHES or blocks > MOST_CHILD_BLOCKS:
                found = f"{count} launches of {blocks} child blocks"
                most = f"at most {_MOST_LAUNCHES} launches of {MOST_CHILD_BLOCKS} blocks in all"
                self._fail("launch", i, "child_grid", found, most)
        return launches

    def _launch(self, i: int, table: dict[str, Any], parent: WorkloadKernel) -> DeviceLaunches:
        """Read the launches of one table: each key a number for all, or a list, one for each."""
        for key in ("block", "child_grid", "child_duration", "inline"):
            if key not in table:
                found = f"a launch of {show_value(parent.name)} has no {key}"
                self._fail("launch", i, "", found, f"give {key}")
        n = max((len(v) for v in table.values() if isinstance(v, list)), default=1)
        threads = parent.block[0] * parent.block[1] * parent.block[2]
        warps = -(-threads // _LANES_OF_A_WARP)
        times = (0, LONGEST_TIME, float)
        columns = {
            key: self._column(i, key, table.get(key, usual), n, limits)
            for key, usual, limits in (
                ("block", 0, (0, parent.blocks - 1, int)), ("at", 0, (0, 1, float)),
                ("warp", -1, (0, warps - 1, int)), ("lanes", 1, (1, _LANES_OF_A_WARP, int)),
                ("child_grid", 1, (1, MOST_CHILD_BLOCKS, int)), ("child_duration", 0, times),
                ("inline", 0, times), ("stream", -1, (0, LARGEST_ID, int)),
                ("items", -1, (0, LARGEST_ID, int)),
            )
        }  # fmt: skip
        if "items" not in table:
            columns["items"] = columns["child_grid"] * threads
        join = table.get("join", JOINS[0])
        if join not in JOINS:
            expected = f"give one of {', '.join(JOINS)}"
            self._fail("launch", i, "join", f"join {show_value(join)}", expected)
        return DeviceLaunches(**columns, join=np.full(n, JOINS.index(join), np.uint8))

    def _blame(
        self,
        error: ModelError,
        kernels: list[WorkloadKernel],
        dependences: list[WorkloadDependence],
    ) -> NoReturn:
        """Fail with the line of the dependence whose pattern does not fit its grids."""
        for i, dependence in enumerate(dependences):
            try:
                check_dependence(kernels, dependence)
            except ModelError as reason:
                key = "edges" if dependence.pattern == "edges" else "pattern"
                self._fail("dependence", i, key, str(reason), "")
        raise TraceError(self.path, str(error), "describe less") from None


def _is_number(value: object) -> bool:
    return type(value) in (int, float)
