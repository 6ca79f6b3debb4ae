"""Described programs: a TOML file of kernels and of the dependences between their blocks.

``docs/mechanisms.md`` documents the keys.
"""

from __future__ import annotations

from dataclasses import replace
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
from depgraph.parsers.described_file import MOST_BLOCKS, DescribedFile, is_number
from depgraph.parsers.described_launches import read_launches
from depgraph.parsers.described_links import (
    MOST_REGISTERS,
    MOST_SHARED_BYTES,
    MOST_THREADS,
    read_collective,
    read_links,
)
from depgraph.system.limits import LARGEST_ID, LONGEST_TIME, MOST_BLOCKS_PER_SM
from depgraph.system.toml_file import (
    show_value,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from depgraph.graph.communication import Link
    from depgraph.graph.program import Extraction

_UNITS = ("us", "ns", "ms", "s", "cycles")
_KINDS = ("RAW", "WAR", "WAW")
_TOP_KEYS = ("name", "unit", "kernel", "dependence", "launch", "link")
_KERNEL_KEYS = (
    "name", "grid", "block", "duration", "occupancy", "registers", "shared_bytes", "stream",
    "cuttable", "kind",
)  # fmt: skip
_DEPENDENCE_KEYS = ("from", "to", "pattern", "edges", "kind", "tiles", "radius")
_DEFAULT_THREADS = 128
_MOST_KERNELS = 1 << 16
_ENDS = 2
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
    return WorkloadReader(Path(path)).extraction()


class WorkloadReader(DescribedFile):
    """Reads one file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._blocks = 0

    def extraction(self) -> Extraction:
        """Return what the file describes."""
        self.known_keys("", 0, self.content, _TOP_KEYS)
        unit = self.content.get("unit", "us")
        if unit not in _UNITS:
            self.fail("", 0, "unit", f"unit {show_value(unit)}", f"give one of {', '.join(_UNITS)}")
        title = self.content.get("name", self.path.stem)
        if not isinstance(title, str):
            self.fail("", 0, "name", f"name {show_value(title)}", "give text")
        tables = self.content.get("kernel")
        if not isinstance(tables, list) or not tables:
            self.fail("", 0, "kernel", "no kernels", "give [[kernel]] tables")
        if len(tables) > _MOST_KERNELS:
            self.fail("", 0, "kernel", f"{len(tables)} kernels", f"at most {_MOST_KERNELS}")
        links = read_links(self, self.content.get("link", []))
        kernels, places_of = self._kernels(tables, links, unit)
        tables = self.content.get("dependence", [])
        if not isinstance(tables, list):
            found = f"dependence {show_value(tables)}"
            self.fail("", 0, "dependence", found, "write [[dependence]] tables")
        place_of = {name: places[0] for name, places in places_of.items()}
        dependences = [
            (i, between)
            for i, table in enumerate(tables)
            for between in self._dependences(i, table, kernels, places_of)
        ]
        launches = read_launches(self, kernels, place_of)
        metadata = {
            "sources": [describe_source(self.path)],
            "lines": self.text.count("\n"),
            "input_bytes": len(self.text.encode()),
            "workload": title,
        }
        try:
            return workload_extraction(
                kernels,
                [between for _, between in dependences],
                launches,
                unit=unit,
                metadata=metadata,
                links=list(links.values()),
            )
        except ModelError as error:
            self._blame(error, kernels, dependences)

    def _kernels(
        self, tables: list[Any], links: dict[str, Link], unit: str
    ) -> tuple[list[WorkloadKernel], dict[str, range]]:
        """Return the kernels, and where those of each table stand among them."""
        kernels: list[WorkloadKernel] = []
        places_of: dict[str, range] = {}
        taken: set[str] = set()
        for i, table in enumerate(tables):
            if isinstance(table, dict) and table.get("kind", "kernel") != "kernel":
                parts = read_collective(self, i, table, links, unit)
            else:
                parts = [self._kernel(i, table)]
            name = self.name("kernel", i, table)
            for given in {name, *(part.name for part in parts)}:
                if given in taken:
                    found = f"a second kernel called {show_value(given)}"
                    self.fail("kernel", i, "name", found, "name it apart")
                taken.add(given)
            places_of[name] = range(len(kernels), len(kernels) + len(parts))
            kernels += parts
        return kernels, places_of

    def _kernel(self, i: int, table: dict[str, Any]) -> WorkloadKernel:
        self.known_keys("kernel", i, table, _KERNEL_KEYS)
        name = self.name("kernel", i, table)
        if "grid" not in table or "duration" not in table:
            key = "duration" if "grid" in table else "grid"
            self.fail("kernel", i, "", f"kernel {show_value(name)} has no {key}", f"give {key}")
        grid = self.dimensions("kernel", i, "grid", table["grid"])
        block = self.dimensions("kernel", i, "block", table.get("block", _DEFAULT_THREADS))
        threads = block[0] * block[1] * block[2]
        if threads > MOST_THREADS:
            found = f"{show_value(threads)} threads in a block"
            self.fail("kernel", i, "block", found, f"at most {MOST_THREADS}")
        blocks = grid[0] * grid[1] * grid[2]
        self.count_blocks(i, "grid", blocks)
        durations = self._durations(i, table["duration"], blocks)
        numbers = {
            key: self.whole("kernel", i, key, table.get(key), least, most)
            for key, least, most in (
                ("occupancy", 1, MOST_BLOCKS_PER_SM), ("registers", 1, MOST_REGISTERS),
                ("shared_bytes", 0, MOST_SHARED_BYTES), ("stream", 0, LARGEST_ID),
            )
        }  # fmt: skip
        stream = numbers.pop("stream") or 0
        cuttable = table.get("cuttable")
        if cuttable is not None and not isinstance(cuttable, bool):
            found = f"cuttable {show_value(cuttable)}"
            self.fail("kernel", i, "cuttable", found, "give true or false")
        return WorkloadKernel(
            name=name, grid=grid, block=block, durations=durations, stream=stream,
            cuttable=cuttable, **numbers,
        )  # fmt: skip

    def count_blocks(self, i: int, key: str, blocks: int) -> None:
        """Refuse more blocks than a program may have."""
        self._blocks += blocks
        if self._blocks > MOST_BLOCKS:
            found = f"{show_value(self._blocks)} blocks"
            self.fail("kernel", i, key, found, f"at most {MOST_BLOCKS} in all kernels together")

    def _durations(self, i: int, given: object, blocks: int) -> NDArray[np.float64]:
        """Return the duration of each block; a fault names the first that is none."""
        times: list[Any] = given if isinstance(given, list) else [given]
        for place, time in enumerate(times):
            if not is_number(time) or not 0 <= time <= LONGEST_TIME:
                of_block = f"block {place}: " if isinstance(given, list) else ""
                expected = f"give a number from 0 to {LONGEST_TIME:g}, or a list of {blocks}"
                found = f"{of_block}duration {show_value(time)}"
                self.fail("kernel", i, "duration", found, expected)
        if not isinstance(given, list):
            return np.full(blocks, float(times[0]))
        if len(times) != blocks:
            found = f"{len(times)} durations for {blocks} blocks"
            self.fail("kernel", i, "duration", found, "give one for each block, or one for all")
        return np.array(times, np.float64)

    def _dependences(
        self,
        i: int,
        table: dict[str, Any],
        kernels: list[WorkloadKernel],
        places_of: dict[str, range],
    ) -> list[WorkloadDependence]:
        """Return a dependence, one for each part of a collective that moves in several."""
        place_of = {name: places[0] for name, places in places_of.items()}
        found = self._dependence(i, table, place_of)
        sources, targets = (places_of[table[key]] for key in ("from", "to"))
        if found.pattern == "groups":
            talking = [kernels[p].collective is not None for p in (sources[0], targets[0])]
            if talking[0] == talking[1]:
                reason = "groups are of a kernel and a collective"
                self.fail("dependence", i, "pattern", 'pattern "groups"', reason)
        return [
            replace(found, source=source, target=target) for source in sources for target in targets
        ]

    def _dependence(
        self, i: int, table: dict[str, Any], place_of: dict[str, int]
    ) -> WorkloadDependence:
        self.known_keys("dependence", i, table, _DEPENDENCE_KEYS)
        ends = [self.named_kernel("dependence", i, key, table, place_of) for key in ("from", "to")]
        if ends[0] >= ends[1]:
            found = f"{show_value(table['to'])} is not launched after {show_value(table['from'])}"
            self.fail("dependence", i, "to", found, "a kernel depends on earlier ones")
        if ("edges" in table) == ("pattern" in table):
            self.fail("dependence", i, "", "a dependence needs a pattern or edges", "give one")
        pattern = table.get("pattern", "edges")
        if "pattern" in table and pattern not in PATTERNS:
            expected = f"give one of {', '.join(PATTERNS)}, or edges = [[0, 0], ...]"
            self.fail("dependence", i, "pattern", f"pattern {show_value(pattern)}", expected)
        kind = table.get("kind", "RAW")
        if kind not in _KINDS:
            self.fail(
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
            self.fail("dependence", i, "edges", f"edges {show_value(edges)}", expected)
        return WorkloadDependence(
            source=ends[0],
            target=ends[1],
            pattern=pattern,
            kind=kind,
            tiles=self.whole("dependence", i, "tiles", table.get("tiles", 2), 1, MOST_BLOCKS),
            radius=self.whole("dependence", i, "radius", table.get("radius", 1), 0, MOST_BLOCKS),
            edges=[(e[0], e[1]) for e in edges],
        )

    def _blame(
        self,
        error: ModelError,
        kernels: list[WorkloadKernel],
        dependences: list[tuple[int, WorkloadDependence]],
    ) -> NoReturn:
        """Fail with the line of the dependence whose pattern does not fit its grids."""
        for i, dependence in dependences:
            try:
                check_dependence(kernels, dependence)
            except ModelError as reason:
                key = "edges" if dependence.pattern == "edges" else "pattern"
                self.fail("dependence", i, key, str(reason), "")
        raise TraceError(self.path, str(error), "describe less") from None
