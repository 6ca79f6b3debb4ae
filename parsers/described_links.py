"""The links and collectives of described programs.

``docs/mechanisms.md`` documents the keys.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from depgraph.extraction.workload import WorkloadKernel
from depgraph.graph.communication import ENGINES, Collective, Link
from depgraph.parsers.described_file import BLOCK, NAME, OF_AN_SM, STREAM, TIME, DescribedProgram
from depgraph.system.described import REQUIRED, Field, anything, one_of, real, whole
from depgraph.system.limits import (
    FASTEST_MEMORY,
    LARGEST_ID,
    LARGEST_PARAMETER,
    SLOWEST_MEMORY,
)
from depgraph.system.time_units import convert_time
from depgraph.system.toml_file import show_value

_MOST_GROUPS = 1 << 12
_RATE = real(SLOWEST_MEMORY, FASTEST_MEMORY)
_SLOWED = real(0, 100)


def _spans(value: object) -> list[tuple[float, float]]:
    """Take which part of the whole each group moves: equal parts, or such as are given."""
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
    replace(BLOCK, default=(512, 1, 1)),
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
    replace(STREAM, default=1),
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
            durations=np.full(sms, time),
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
