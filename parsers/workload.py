"""Described programs: a TOML file of kernels and of the dependences between their blocks.

``docs/mechanisms.md`` documents the keys.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from depgraph.errors import ModelError, TraceError
from depgraph.extraction.pipeline import describe_source
from depgraph.extraction.workload import (
    PATTERNS,
    WorkloadDependence,
    WorkloadKernel,
    check_dependence,
    workload_extraction,
)
from depgraph.parsers.described_file import (
    BLOCK,
    MOST_BLOCKS,
    NAME,
    OF_AN_SM,
    STREAM,
    TIME,
    DescribedProgram,
    dimensions,
)
from depgraph.parsers.described_launches import read_launches
from depgraph.parsers.described_links import read_collective, read_links
from depgraph.system.described import REQUIRED, Field, anything, flag, one_of, whole
from depgraph.system.toml_file import show_value
from depgraph.trace.records import PROGRAMMATIC

if TYPE_CHECKING:
    from depgraph.graph.communication import Link
    from depgraph.graph.program import Extraction

_MOST_KERNELS = 1 << 16
_ENDS = 2
TOP = (
    NAME,
    Field("unit", one_of(("us", "ns", "ms", "s", "cycles")), "of durations", default="us"),
    *(Field(kind, anything, "tables") for kind in ("kernel", "dependence", "launch", "link")),
)


def _edges(value: object) -> list[tuple[int, int]]:
    """Take pairs of block numbers."""
    if not isinstance(value, list) or not all(
        isinstance(e, list) and len(e) == _ENDS and all(type(n) is int for n in e) for e in value
    ):
        raise ValueError("pairs of block numbers: [[0, 0], [0, 1]]")
    return [(e[0], e[1]) for e in value]


def _pattern(value: object) -> str:
    if not isinstance(value, str) or value not in PATTERNS:
        raise ValueError(f"one of {', '.join(PATTERNS)}, or edges = [[0, 0], ...]")
    return value


KERNEL = (
    NAME,
    Field("grid", dimensions, "grid size", "blocks", REQUIRED),
    BLOCK,
    Field("duration", anything, "of a block, or a list, one for each", default=REQUIRED),
    *OF_AN_SM,
    STREAM,
    Field("cuttable", flag, "whether Stream-K may cut its blocks; by default by the name"),
    Field("programmatic", one_of(PROGRAMMATIC), "what its code has for programmatic launches"),
    Field("kind", anything, '"kernel", or of a table that is read elsewhere'),
)
DEPENDENCE = (
    Field("from", anything, "kernel waited for"),
    Field("to", anything, "kernel that waits"),
    Field("pattern", _pattern, "which blocks wait for which", default="edges"),
    Field("edges", _edges, "instead of a pattern", default=[]),
    Field("kind", one_of(("RAW", "WAR", "WAW")), "of dependence", default="RAW"),
    Field("tiles", whole(1, MOST_BLOCKS), "a step, where strided", "columns", 2),
    Field("radius", whole(0, MOST_BLOCKS), "of a stencil", "blocks", 1),
)


def is_workload(path: str | Path) -> bool:
    """Tell by the name whether a file describes a program instead of tracing it."""
    return Path(path).suffix == ".toml"


def read_workload(path: str | Path) -> Extraction:
    """Read a described program; a `TraceError` names the line of what makes no sense."""
    return _WorkloadReader(Path(path)).extraction()


class _WorkloadReader(DescribedProgram):
    """Reads one file."""

    def extraction(self) -> Extraction:
        """Return what the file describes."""
        values = self.table("", 0, self.content, TOP)
        tables = self.content.get("kernel")
        if not isinstance(tables, list) or not tables:
            self.fail("", 0, "kernel", "no kernels", "give [[kernel]] tables")
        if len(tables) > _MOST_KERNELS:
            self.fail("", 0, "kernel", f"{len(tables)} kernels", f"at most {_MOST_KERNELS}")
        links = read_links(self)
        kernels, places_of = self._kernels(tables, links, values["unit"])
        dependences = [
            (i, between)
            for i, table in enumerate(self.tables("dependence"))
            for between in self._dependences(i, table, kernels, places_of)
        ]
        launches = read_launches(self, kernels, _first_of(places_of))
        metadata = {
            "sources": [describe_source(self.path)],
            "lines": self.text.count("\n"),
            "input_bytes": len(self.text.encode()),
            "workload": values["name"],
        }
        try:
            return workload_extraction(
                kernels,
                [between for _, between in dependences],
                launches,
                unit=values["unit"],
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
            name = table.get("name", f"kernel {i}")
            for given in {name, *(part.name for part in parts)}:
                if given in taken:
                    found = f"a second kernel called {show_value(given)}"
                    self.fail("kernel", i, "name", found, "name it apart")
                taken.add(given)
            places_of[name] = range(len(kernels), len(kernels) + len(parts))
            kernels += parts
        return kernels, places_of

    def _kernel(self, i: int, table: dict[str, Any]) -> WorkloadKernel:
        values = self.table("kernel", i, table, KERNEL)
        del values["kind"]
        self.check_threads(i, values["block"])
        blocks = prod(values["grid"])
        self.count_blocks(i, "grid", blocks)
        durations = self.column("kernel", i, "duration", values.pop("duration"), blocks, TIME)
        return WorkloadKernel(durations=durations, **values)

    def _dependences(
        self, i: int, table: Any, kernels: list[WorkloadKernel], places_of: dict[str, range]
    ) -> list[WorkloadDependence]:
        """Return a dependence, one for each part of a collective that moves in several."""
        found = self._dependence(i, table, _first_of(places_of))
        sources, targets = (places_of[table[key]] for key in ("from", "to"))
        if found.pattern == "groups":
            talking = [kernels[p].collective is not None for p in (sources[0], targets[0])]
            if talking[0] == talking[1]:
                reason = "groups are of a kernel and a collective"
                self.fail("dependence", i, "pattern", 'pattern "groups"', reason)
        return [
            replace(found, source=source, target=target) for source in sources for target in targets
        ]

    def _dependence(self, i: int, table: Any, place_of: dict[str, int]) -> WorkloadDependence:
        values = self.table("dependence", i, table, DEPENDENCE)
        names = values.pop("from"), values.pop("to")
        source, target = (
            self.named("dependence", i, key, table, place_of) for key in ("from", "to")
        )
        if source >= target:
            found = f"{show_value(names[1])} is not launched after {show_value(names[0])}"
            self.fail("dependence", i, "to", found, "a kernel depends on earlier ones")
        if ("edges" in table) == ("pattern" in table):
            self.fail("dependence", i, "", "a dependence needs a pattern or edges", "give one")
        return WorkloadDependence(source=source, target=target, **values)

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


def _first_of(places_of: dict[str, range]) -> dict[str, int]:
    return {name: places[0] for name, places in places_of.items()}
