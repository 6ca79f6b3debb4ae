"""The links and collectives of described programs.

``docs/mechanisms.md`` documents the keys.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.extraction.workload import WorkloadKernel
from depgraph.graph.communication import ENGINES, Collective, Link
from depgraph.system.limits import (
    FASTEST_MEMORY,
    LARGEST_ID,
    LARGEST_PARAMETER,
    LONGEST_TIME,
    MOST_BLOCKS_PER_SM,
    SLOWEST_MEMORY,
)
from depgraph.system.text import in_short
from depgraph.system.time_units import convert_time
from depgraph.system.toml_file import show_value

if TYPE_CHECKING:
    from depgraph.parsers.workload import WorkloadReader

_LINK_KEYS = (
    "name", "bandwidth", "alpha", "dma_bandwidth", "dma_alpha", "engines", "computation_slowed",
    "communication_slowed",
)  # fmt: skip
_COLLECTIVE_KEYS = (
    "name", "kind", "engine", "sms", "bytes", "duration", "link", "groups", "stream", "block",
    "registers", "shared_bytes", "occupancy",
)  # fmt: skip
_OF_SMS = ("sms", "block", "registers", "shared_bytes", "occupancy")
MOST_THREADS = 1024
MOST_REGISTERS = 255
MOST_SHARED_BYTES = 1 << 20
_MOST_ENGINES = 1024
_MOST_SLOWED = 100.0
_MOST_GROUPS = 1 << 12
_MOST_SMS = 1 << 14
_STREAM = 1
_THREADS = 512


def read_links(reader: WorkloadReader, tables: object) -> dict[str, Link]:
    """Return the links of a file by name.

    Raises
    ------
    TraceError
        If one makes no sense; it names the line.
    """
    if not isinstance(tables, list):
        reader.fail("", 0, "link", f"link {show_value(tables)}", "write [[link]] tables")
    links: dict[str, Link] = {}
    for i, table in enumerate(tables):
        reader.known_keys("link", i, table, _LINK_KEYS)
        name = reader.name("link", i, table)
        if name in links:
            found = f"a second link called {show_value(name)}"
            reader.fail("link", i, "name", found, "name it apart")
        if "bandwidth" not in table:
            found = f"link {show_value(name)} has no bandwidth"
            reader.fail("link", i, "", found, "give GB/s")

        def number(
            key: str, default: float, least: float, most: float, i: int = i, table: Any = table
        ) -> float:
            value = table.get(key, default)
            if type(value) not in (int, float) or not least <= value <= most:
                expected = f"give a number from {least:g} to {most:g}"
                reader.fail("link", i, key, f"{key} {show_value(value)}", expected)
            return float(value)

        bandwidth = number("bandwidth", 0, SLOWEST_MEMORY, FASTEST_MEMORY)
        alpha = number("alpha", 0, 0, LONGEST_TIME)
        links[name] = Link(
            name=name,
            bandwidth=bandwidth,
            alpha=alpha,
            dma_bandwidth=number("dma_bandwidth", bandwidth, SLOWEST_MEMORY, FASTEST_MEMORY),
            dma_alpha=number("dma_alpha", alpha, 0, LONGEST_TIME),
            engines=reader.whole("link", i, "engines", table.get("engines", 1), 1, _MOST_ENGINES),
            computation_slowed=number("computation_slowed", 0, 0, _MOST_SLOWED),
            communication_slowed=number("communication_slowed", 0, 0, _MOST_SLOWED),
        )
    return links


def read_collective(
    reader: WorkloadReader, i: int, table: dict[str, Any], links: dict[str, Link], unit: str
) -> list[WorkloadKernel]:
    """Return the kernels of a collective, one for each part that it moves in.

    Raises
    ------
    TraceError
        If it makes no sense; it names the line.
    """

    def fail(key: str, found: str, hint: str) -> None:
        reader.fail("kernel", i, key, found, hint)

    def whole(key: str, default: int | None, least: int, most: int) -> Any:
        return reader.whole("kernel", i, key, table.get(key, default), least, most)

    kind = table["kind"]
    if kind != "collective":
        fail("kind", f"kind {show_value(kind)}", 'give "kernel" or "collective"')
    reader.known_keys("kernel", i, table, _COLLECTIVE_KEYS)
    name = reader.name("kernel", i, table)
    engine, crossed = _how(reader, i, table, links)
    sms = whole("sms", 1, 1, _MOST_SMS)
    spans = _spans(reader, i, table.get("groups", 1))
    reader.count_blocks(i, "sms" if "sms" in table else "groups", sms * len(spans))
    parts = [
        (span, _time(reader, i, table, crossed, engine, span[1] - span[0], unit)) for span in spans
    ]
    block = reader.dimensions("kernel", i, "block", table.get("block", _THREADS))
    threads = block[0] * block[1] * block[2]
    if threads > MOST_THREADS:
        fail("block", f"{threads} threads in a block", f"at most {MOST_THREADS}")
    by_resources = "registers" in table or "shared_bytes" in table
    kernel = WorkloadKernel(
        name=name,
        grid=(sms, 1, 1),
        block=block if engine == "sm" else (1, 1, 1),
        durations=np.full(sms, parts[0][1]),
        occupancy=whole("occupancy", None if by_resources else 1, 1, MOST_BLOCKS_PER_SM)
        if engine == "sm"
        else None,
        registers=whole("registers", None, 1, MOST_REGISTERS) if engine == "sm" else 0,
        shared_bytes=whole("shared_bytes", None, 0, MOST_SHARED_BYTES) if engine == "sm" else 0,
        stream=whole("stream", _STREAM, 0, LARGEST_ID),
        cuttable=False,
    )
    return [
        replace(
            kernel,
            name=name if len(parts) == 1 else f"{name}[{number}]",
            durations=np.full(sms, time),
            collective=Collective(engine=engine, link=crossed.name, sms=sms, time=time),
            span=span,
        )
        for number, (span, time) in enumerate(parts)
    ]


def _spans(reader: WorkloadReader, i: int, given: object) -> list[tuple[float, float]]:
    """Return which part of the whole each group moves: equal parts, or such as are given."""
    sizes = (
        given
        if isinstance(given, list)
        else [1] * min(given, _MOST_GROUPS + 1)
        if type(given) is int
        else []
    )
    if not 0 < len(sizes) <= _MOST_GROUPS or not all(
        type(size) is int and 0 < size <= LARGEST_PARAMETER for size in sizes
    ):
        expected = f"give a number from 1 to {_MOST_GROUPS}, or a list of whole sizes"
        reader.fail("kernel", i, "groups", f"groups {show_value(given)}", expected)
    ends = np.concatenate([[0], np.cumsum(sizes)]) / sum(sizes)
    return [(float(a), float(b)) for a, b in pairwise(ends)]


def _how(
    reader: WorkloadReader, i: int, table: dict[str, Any], links: dict[str, Link]
) -> tuple[Any, Link]:
    """Return what moves the data of a collective, and over which link."""

    def fail(key: str, found: str, hint: str) -> None:
        reader.fail("kernel", i, key, found, hint)

    name = reader.name("kernel", i, table)
    engine = table.get("engine", "sm")
    if engine not in ENGINES:
        fail("engine", f"engine {show_value(engine)}", f"give one of {', '.join(ENGINES)}")
    link = table.get("link")
    if not isinstance(link, str) or link not in links:
        found = f"link = {show_value(link)}" if "link" in table else "no 'link'"
        known = in_short(", ".join(links), 300)
        fail("link", found, f"give one of {known}" if links else "describe it: [[link]]")
    if ("bytes" in table) == ("duration" in table):
        fail("", f"collective {show_value(name)} needs bytes or a duration", "give one")
    if engine == "sm" and "sms" not in table:
        fail("", f"collective {show_value(name)} has no sms", "give how many SMs it takes")
    if engine == "dma":
        for key in _OF_SMS:
            if key in table:
                fail(key, f"{key} of a collective by dma", "a copy engine takes nothing of an SM")
    return engine, links[str(link)]


def _time(
    reader: WorkloadReader,
    i: int,
    table: dict[str, Any],
    link: Link,
    engine: Any,
    share: float,
    unit: str,
) -> float:
    """Return what a part takes: of what is stated, or its bytes over the bandwidth and alpha."""
    if "duration" in table:
        value = table["duration"]
        if type(value) not in (int, float) or not 0 <= value <= LONGEST_TIME:
            expected = f"give a number from 0 to {LONGEST_TIME:g}"
            reader.fail("kernel", i, "duration", f"duration {show_value(value)}", expected)
        return float(value) * share
    size = reader.whole("kernel", i, "bytes", table["bytes"], 1, LARGEST_ID)
    nanoseconds = size * share / link.bandwidth_of(engine)
    moving = convert_time(nanoseconds, "ns", unit, None)
    if moving is None:
        reader.fail("kernel", i, "bytes", f"bytes over GB/s are no {unit}", "give a duration")
    return float(moving) + link.alpha_of(engine)
