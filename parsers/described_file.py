"""The file of a described program: what its tables share, its links and its collectives.

``docs/mechanisms.md`` documents the keys.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from depgraph.extraction.workload import WorkloadKernel
from depgraph.graph.program import ENGINES, Collective, Link
from depgraph.system.described import (
    REQUIRED,
    DescribedFile,
    Field,
    Reader,
    any_text,
    anything,
    one_of,
    real,
    show_value,
    whole,
)
from depgraph.system.text import (
    FASTEST_MEMORY,
    LARGEST_ID,
    LARGEST_PARAMETER,
    LONGEST_TIME,
    MOST_BLOCKS_PER_SM,
    SLOWEST_MEMORY,
    convert_time,
    in_short,
)

_Named = TypeVar("_Named")

MOST_BLOCKS = 1 << 21
MOST_THREADS = 1024
_DIMENSIONS = 3
_NAMES_SHOWN = 20
_NAMES_WIDTH = 300


def dimensions(value: object) -> tuple[int, int, int]:
    """Take a size in one to three dimensions."""
    if type(value) is int and 0 < value <= MOST_BLOCKS:
        return value, 1, 1
    sizes = value if isinstance(value, list) else []
    if not 1 <= len(sizes) <= _DIMENSIONS or not all(
        type(n) is int and 0 < n <= MOST_BLOCKS for n in sizes
    ):
        raise ValueError(f"1 to 3 whole numbers from 1 to {MOST_BLOCKS}")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


NAME = Field("name", any_text, "what messages and other tables call it; its kind and number")
BLOCK = Field("block", dimensions, "block size", "threads", (128, 1, 1))
OF_AN_SM = (
    Field("registers", whole(1, 255), "32-bit registers", "of a thread"),
    Field("shared_bytes", whole(0, 1 << 20), "shared memory of a block", "bytes"),
    Field("occupancy", whole(1, MOST_BLOCKS_PER_SM), "most that an SM holds", "blocks"),
)
STREAM = Field("stream", whole(0, LARGEST_ID), "CUDA stream", default=0)
TIME = real(0, LONGEST_TIME)


class DescribedProgram(DescribedFile):
    """Reads the file of a described program."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._blocks = 0

    def table(self, kind: str, i: int, content: object, known: Sequence[Field]) -> dict[str, Any]:
        """Return what a table says; its name is its number where it does not say."""
        values = super().table(kind, i, content, known)
        if values.get("name", "") is None:
            values["name"] = f"{kind} {i}" if kind else self.path.stem
        return values

    def columns(
        self, kind: str, tables: Mapping[int, Any], known: Sequence[Field]
    ) -> dict[str, list[Any]]:
        """Return what tables of a kind, given by place, say: a list for each key."""
        columns = _taken(list(tables.values()), known)
        if columns is None:  # the first table that is wrong is refused
            rows = [self.table(kind, i, content, known) for i, content in tables.items()]
            columns = {field.key: [row[field.key] for row in rows] for field in known}
        if "name" in columns:
            named = zip(tables, columns["name"], strict=True)
            columns["name"] = [f"{kind} {i}" if name is None else name for i, name in named]
        return columns

    def tables(self, kind: str) -> list[Any]:
        """Return the tables of a kind."""
        tables = self.content.get(kind, [])
        if not isinstance(tables, list):
            self.fail("", 0, kind, f"{kind} {show_value(tables)}", f"write [[{kind}]] tables")
        return tables

    def count_blocks(self, i: int, key: str, blocks: int) -> None:
        """Refuse more blocks than a program may have."""
        self._blocks += blocks
        if self._blocks > MOST_BLOCKS:
            found = f"{show_value(self._blocks)} blocks"
            self.fail("kernel", i, key, found, f"at most {MOST_BLOCKS} in all kernels together")

    def check_threads(self, i: int, block: tuple[int, int, int]) -> None:
        """Refuse blocks of more threads than a GPU launches."""
        if prod(block) > MOST_THREADS:
            found = f"{show_value(prod(block))} threads in a block"
            self.fail("kernel", i, "block", found, f"at most {MOST_THREADS}")

    def column(
        self, kind: str, i: int, key: str, given: object, n: int, reader: Reader
    ) -> NDArray[Any]:
        """Return n values of a key, one for all or a list; a fault names the first that is none."""
        each, all_of_them = ("launch", "launches") if kind == "launch" else ("block", "blocks")
        values = given if isinstance(given, list) else [given]
        read = []
        for place, value in enumerate(values):
            try:
                read.append(reader(value))
            except ValueError as error:
                where = f"{each} {place}: " if values is given else ""
                self.wrong(kind, i, key, value, f"{error}, or a list of them", where)
        if values is not given:
            return np.full(n, read[0])
        if len(read) != n:
            found = f"{len(read)} values of {key} for {n} {all_of_them}"
            self.fail(kind, i, key, found, f"give one for each {each}, or one for all")
        return np.array(read, None if read else np.int64)  # none are no numbers otherwise

    def named(
        self, kind: str, i: int, key: str, table: dict[str, Any], known: Mapping[str, _Named]
    ) -> _Named:
        """Return what a key of a table names."""
        name = table.get(key)
        if not isinstance(name, str) or name not in known:
            found = f"{key} = {show_value(name)}" if key in table else f"no {key!r}"
            names = in_short(", ".join(list(known)[:_NAMES_SHOWN]), _NAMES_WIDTH)
            hint = f"give one of {names}" if known else f"describe it: [[{key}]]"
            self.fail(kind, i, key, found, hint)
        return known[name]


def _taken(tables: Sequence[Any], known: Sequence[Field]) -> dict[str, list[Any]] | None:
    """Return what is taken of tables, a list for each key; None if any of them is refused."""
    if not all(isinstance(table, dict) for table in tables):
        return None
    given = set().union(*tables)
    columns: dict[str, list[Any]] = {}
    try:
        for key, read, default in ((field.key, field.read, field.default) for field in known):
            columns[key] = [default] * len(tables)
            if key in given:
                columns[key] = [read(t[key]) if key in t else default for t in tables]
            if default is REQUIRED and REQUIRED in columns[key]:
                return None
    except ValueError:
        return None
    return columns if given <= columns.keys() else None


_MOST_GROUPS = 1 << 12
_RATE = real(SLOWEST_MEMORY, FASTEST_MEMORY)
_SLOWED = real(0, 100)


def _spans(value: object) -> list[tuple[float, float]]:
    sizes: list[Any] = value if isinstance(value, list) else []
    if type(value) is int:
        sizes = [1] * min(value, _MOST_GROUPS + 1)
    if not 0 < len(sizes) <= _MOST_GROUPS or not all(
        type(size) is int and 0 < size <= LARGEST_PARAMETER for size in sizes
    ):
        raise ValueError(f"a number from 1 to {_MOST_GROUPS}, or a list of whole sizes")
    ends = np.concatenate([[0], np.cumsum(sizes)]) / sum(sizes)
    return [(float(a), float(b)) for a, b in pairwise(ends)]


LINK = (
    NAME,
    Field("bandwidth", _RATE, "by kernels", "GB/s", REQUIRED),
    Field("alpha", TIME, "before the first byte", "as durations", 0.0),
    Field("dma_bandwidth", _RATE, "by copy engines, by default the same", "GB/s"),
    Field("dma_alpha", TIME, "before the first byte, by default the same", "as durations"),
    Field("engines", whole(1, 1024), "copies at a time", default=1),
    Field("computation_slowed", _SLOWED, "while the link is used", "share", 0.0),
    Field("communication_slowed", _SLOWED, "while kernels compute", "share", 0.0),
)
_OF_SMS = (
    Field("sms", whole(1, 1 << 14), "SMs that it takes", default=1),
    BLOCK._replace(default=(512, 1, 1)),
    *OF_AN_SM,
)
COLLECTIVE = (
    NAME,
    Field("kind", anything, '"collective"'),
    Field("engine", one_of(ENGINES), "what moves the data", default="sm"),
    Field("bytes", whole(1, LARGEST_ID), "what is moved", "bytes"),
    Field("duration", TIME, "instead of bytes"),
    Field("link", anything, "name of what it crosses"),
    Field("groups", _spans, "parts that it moves in", default=[(0.0, 1.0)]),
    STREAM._replace(default=1),
    *_OF_SMS,
)


def read_links(file: DescribedProgram) -> dict[str, Link]:
    """Return the links of a file by name."""
    links: dict[str, Link] = {}
    for i, table in enumerate(file.tables("link")):
        values = file.table("link", i, table, LINK)
        if values["name"] in links:
            found = f"a second link called {show_value(values['name'])}"
            file.fail("link", i, "name", found, "name it apart")
        for key in ("bandwidth", "alpha"):
            if values[f"dma_{key}"] is None:
                values[f"dma_{key}"] = values[key]
        links[values["name"]] = Link(**values)
    return links


def read_collective(
    file: DescribedProgram, i: int, table: dict[str, Any], links: dict[str, Link], unit: str
) -> list[WorkloadKernel]:
    """Return the kernels of a collective, one for each part that it moves in."""
    if table["kind"] != "collective":
        file.wrong("kernel", i, "kind", table["kind"], '"kernel" or "collective"')
    values = file.table("kernel", i, table, COLLECTIVE)
    name, engine, sms = values["name"], values["engine"], values["sms"]
    link = file.named("kernel", i, "link", table, links)
    _check_together(file, i, name, table, engine)
    spans = values["groups"]
    file.count_blocks(i, "sms" if "sms" in table else "groups", sms * len(spans))
    file.check_threads(i, values["block"])
    times = [_time(file, i, values, link, end - begin, unit) for begin, end in spans]
    taken: dict[str, Any] = {"block": (1, 1, 1), "registers": 0, "shared_bytes": 0}
    taken["occupancy"] = None
    if engine == "sm":
        taken = {key: values[key] for key in taken}
        if not {"occupancy", "registers", "shared_bytes"} & table.keys():
            taken["occupancy"] = 1
    return [
        WorkloadKernel(
            name=name if len(spans) == 1 else f"{name}[{number}]",
            grid=(sms, 1, 1),
            duration=time,
            stream=values["stream"],
            cuttable=False,
            collective=Collective(engine=engine, link=link.name, sms=sms, time=time),
            span=span,
            **taken,
        )
        for number, (span, time) in enumerate(zip(spans, times, strict=True))
    ]


def _check_together(
    file: DescribedProgram, i: int, name: str, table: dict[str, Any], engine: str
) -> None:
    """Refuse what lacks a time or SMs, and a copy engine that takes something of an SM."""
    called = f"collective {show_value(name)}"
    if ("bytes" in table) == ("duration" in table):
        file.fail("kernel", i, "", f"{called} needs bytes or a duration", "give one")
    if engine == "sm" and "sms" not in table:
        file.fail("kernel", i, "", f"{called} has no sms", "give how many SMs it takes")
    for field in _OF_SMS:
        if engine == "dma" and field.key in table:
            found = f"{field.key} of a collective by dma"
            file.fail("kernel", i, field.key, found, "a copy engine takes nothing of an SM")


def _time(
    file: DescribedProgram, i: int, values: dict[str, Any], link: Link, share: float, unit: str
) -> float:
    """Return what a part takes: of what is stated, or its bytes over the bandwidth and alpha."""
    if values["duration"] is not None:
        return float(values["duration"] * share)
    nanoseconds = values["bytes"] * share / link.bandwidth_of(values["engine"])
    moving = convert_time(nanoseconds, "ns", unit, None)
    if moving is None:
        file.fail("kernel", i, "bytes", f"bytes over GB/s are no {unit}", "give a duration")
    return float(moving) + link.alpha_of(values["engine"])
