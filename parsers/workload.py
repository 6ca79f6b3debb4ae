"""Described programs: a TOML file of kernels and of the dependences between their blocks.

``docs/mechanisms.md`` documents the keys.
"""

from math import prod
from pathlib import Path
from typing import Any, NoReturn

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
from depgraph.graph.program import JOINS, MOST_CHILD_BLOCKS, DeviceLaunches, Extraction, Link
from depgraph.parsers import described_file
from depgraph.parsers.described_file import TIME
from depgraph.system.arrays import rows_of
from depgraph.system.described import (
    REQUIRED,
    Field,
    anything,
    flag,
    one_of,
    real,
    show_value,
    whole,
)
from depgraph.system.text import LARGEST_ID
from depgraph.trace.records import PROGRAMMATIC

_MOST_KERNELS = 1 << 18
_ENDS = 2
TOP = (
    described_file.NAME,
    Field("unit", one_of(("us", "ns", "ms", "s", "cycles")), "of durations", default="us"),
    *(Field(kind, anything, "tables") for kind in ("kernel", "dependence", "launch", "link")),
)


def _edges(value: object) -> list[tuple[int, int]]:
    if not isinstance(value, list) or not all(
        isinstance(e, list) and len(e) == _ENDS and all(type(n) is int for n in e) for e in value
    ):
        raise ValueError("pairs of block numbers: [[0, 0], [0, 1]]")
    return [(e[0], e[1]) for e in value]


def _pattern(value: object) -> str:
    if not isinstance(value, str) or value not in PATTERNS:
        raise ValueError(f"one of {', '.join(PATTERNS)}, or edges = [[0, 0], ...]")
    return value


def _times(value: object) -> float | list[Any]:
    if isinstance(value, list):
        return value  # looked at when it is known how many there must be
    try:
        return TIME(value)  # type: ignore[no-any-return]
    except ValueError as error:
        raise ValueError(f"{error}, or a list of them") from None


KERNEL = (
    described_file.NAME,
    Field("grid", described_file.dimensions, "grid size", "blocks", REQUIRED),
    described_file.BLOCK,
    Field("duration", _times, "of a block, or a list, one for each", default=REQUIRED),
    *described_file.OF_AN_SM,
    described_file.STREAM,
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
    Field("tiles", whole(1, described_file.MOST_BLOCKS), "a step, where strided", "columns", 2),
    Field("radius", whole(0, described_file.MOST_BLOCKS), "of a stencil", "blocks", 1),
)


def is_workload(path: str | Path) -> bool:
    """Tell by the name whether a file describes a program instead of tracing it."""
    return Path(path).suffix == ".toml"


def read_workload(path: str | Path) -> Extraction:
    """Read a described program; a `TraceError` names the line of what makes no sense."""
    return _WorkloadReader(Path(path)).extraction()


class _WorkloadReader(described_file.DescribedProgram):
    def extraction(self) -> Extraction:
        values = self.table("", 0, self.content, TOP)
        tables = self.content.get("kernel")
        if not isinstance(tables, list) or not tables:
            self.fail("", 0, "kernel", "no kernels", "give [[kernel]] tables")
        if len(tables) > _MOST_KERNELS:
            self.fail("", 0, "kernel", f"{len(tables)} kernels", f"at most {_MOST_KERNELS}")
        links = described_file.read_links(self)
        kernels, places_of = self._kernels(tables, links, values["unit"])
        dependences = self._dependences(kernels, places_of)
        place_of = {name: places[0] for name, places in places_of.items()}
        launches = read_launches(self, kernels, place_of)
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
        computing = {
            i: table
            for i, table in enumerate(tables)
            if not isinstance(table, dict) or table.get("kind", "kernel") == "kernel"
        }
        of_table = dict(zip(computing, self._computing(computing), strict=True))
        kernels: list[WorkloadKernel] = []
        places_of: dict[str, range] = {}
        taken: set[str] = set()
        for i, table in enumerate(tables):
            if i in of_table:
                parts = [of_table[i]]
                name = parts[0].name
            else:
                parts = described_file.read_collective(self, i, table, links, unit)
                name = table.get("name", f"kernel {i}")
            for given in (name, *(part.name for part in parts)) if len(parts) > 1 else (name,):
                if given in taken:
                    found = f"a second kernel called {show_value(given)}"
                    self.fail("kernel", i, "name", found, "name it apart")
                taken.add(given)
            places_of[name] = range(len(kernels), len(kernels) + len(parts))
            kernels += parts
        return kernels, places_of

    def _computing(self, tables: dict[int, Any]) -> list[WorkloadKernel]:
        columns = self.columns("kernel", tables, KERNEL)
        blocks = list(map(prod, columns["grid"]))
        durations = zip(tables, columns["duration"], blocks, strict=True)
        for i, block, n in zip(tables, columns["block"], blocks, strict=True):
            self.check_threads(i, block)
            self.count_blocks(i, "grid", n)
        columns["duration"] = [
            self.column("kernel", i, "duration", given, n, TIME) if type(given) is list else given
            for i, given, n in durations
        ]
        return rows_of(WorkloadKernel, columns)

    def _dependences(
        self, kernels: list[WorkloadKernel], places_of: dict[str, range]
    ) -> list[tuple[int, WorkloadDependence]]:
        """Return the dependences of each table: one for each part of a collective in several."""
        tables = self.tables("dependence")
        columns = self.columns("dependence", dict(enumerate(tables)), DEPENDENCE)
        names = columns.pop("from"), columns.pop("to")
        found: list[tuple[int, WorkloadDependence]] = []
        for i, (table, before, after, *values) in enumerate(
            zip(tables, *names, *columns.values(), strict=True)
        ):
            sources, targets = (
                self.named("dependence", i, key, table, places_of) for key in ("from", "to")
            )
            if sources[0] >= targets[0]:
                late = f"{show_value(after)} is not launched after {show_value(before)}"
                self.fail("dependence", i, "to", late, "a kernel depends on earlier ones")
            if ("edges" in table) == ("pattern" in table):
                self.fail("dependence", i, "", "a dependence needs a pattern or edges", "give one")
            if table.get("pattern") == "groups":
                talking = [kernels[p[0]].collective is not None for p in (sources, targets)]
                if talking[0] == talking[1]:
                    reason = "groups are of a kernel and a collective"
                    self.fail("dependence", i, "pattern", 'pattern "groups"', reason)
            found += [(i, WorkloadDependence(s, t, *values)) for s in sources for t in targets]
        return found

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


_MOST_LAUNCHES = 1 << 18
_LANES_OF_A_WARP = 32
# All keys but the first two may hold a list, one for each launch.
LAUNCH = (
    Field("parent", anything, "kernel whose block launches"),
    Field("join", one_of(JOINS), "who waits for whom", default=JOINS[0]),
    Field("block", anything, "number of the block in its grid", default=REQUIRED),
    Field("child_grid", whole(1, MOST_CHILD_BLOCKS), "blocks of all lanes", default=REQUIRED),
    Field("child_duration", TIME, "of each child block", default=REQUIRED),
    Field("inline", TIME, "what the block takes longer if it does the work", default=REQUIRED),
    Field("at", real(0, 1), "share of the block's own work that comes before", default=0.0),
    Field("warp", anything, "of the block; -1: launches come one after another", default=-1),
    Field("lanes", whole(1, _LANES_OF_A_WARP), "of the warp that launch", default=1),
    Field("stream", whole(0, LARGEST_ID), "whose children run in order; -1: none", default=-1),
    Field("items", whole(0, LARGEST_ID), "for cdp(T); -1: child_grid times threads", default=-1),
)


def read_launches(
    file: described_file.DescribedProgram, kernels: list[WorkloadKernel], place_of: dict[str, int]
) -> list[tuple[int, DeviceLaunches]]:
    """Return the launches of each table, with the place of the kernel whose blocks make them."""
    tables = file.tables("launch")
    if tables and any(kernel.collective is not None for kernel in kernels):
        found = "launches from the device in a program with collectives"
        file.fail("launch", 0, "", found, "describe them in programs of their own")
    launches: list[tuple[int, DeviceLaunches]] = []
    count = blocks = 0
    for i, table in enumerate(tables):
        place, of_parent = _launch(file, i, table, kernels, place_of)
        launches.append((place, of_parent))
        count += len(of_parent)
        blocks += int(of_parent.child_grid.sum())
        if count > _MOST_LAUNCHES or blocks > MOST_CHILD_BLOCKS:
            found = f"{count} launches of {blocks} child blocks"
            most = f"at most {_MOST_LAUNCHES} launches of {MOST_CHILD_BLOCKS} blocks in all"
            file.fail("launch", i, "child_grid", found, most)
    return launches


def _launch(
    file: described_file.DescribedProgram,
    i: int,
    content: object,
    kernels: list[WorkloadKernel],
    place_of: dict[str, int],
) -> tuple[int, DeviceLaunches]:
    named = content.get("parent") if isinstance(content, dict) else None
    table = file.check_keys("launch", i, content, LAUNCH, f"a launch of {show_value(named)}")
    place = file.named("launch", i, "parent", table, place_of)
    parent = kernels[place]
    threads = prod(parent.block)
    of_parent = {
        "block": whole(0, parent.blocks - 1),
        "warp": whole(0, -(-threads // _LANES_OF_A_WARP) - 1),
    }
    n = max((len(v) for v in table.values() if isinstance(v, list)), default=1)
    columns = {}
    for field in LAUNCH[2:]:
        columns[field.key] = np.full(n, field.default)
        if field.key in table:
            reader = of_parent.get(field.key, field.read)
            columns[field.key] = file.column("launch", i, field.key, table[field.key], n, reader)
    if "items" not in table:
        columns["items"] = columns["child_grid"] * threads
    join = file.value("launch", i, "join", table.get("join", JOINS[0]), one_of(JOINS))
    return place, DeviceLaunches(**columns, join=np.full(n, JOINS.index(join), np.uint8))
