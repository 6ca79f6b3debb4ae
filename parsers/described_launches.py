"""The launches from the device of described programs.

``docs/mechanisms.md`` documents the keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.graph.launches import JOINS, MOST_CHILD_BLOCKS, DeviceLaunches
from depgraph.system.limits import LARGEST_ID, LONGEST_TIME
from depgraph.system.toml_file import show_value

if TYPE_CHECKING:
    from depgraph.extraction.workload import WorkloadKernel
    from depgraph.parsers.workload import WorkloadReader

_LAUNCH_KEYS = (
    "parent", "block", "at", "warp", "lanes", "child_grid", "child_duration", "inline", "join",
    "stream", "items",
)  # fmt: skip
_MOST_LAUNCHES = 1 << 18
_LANES_OF_A_WARP = 32


def read_launches(
    reader: WorkloadReader, kernels: list[WorkloadKernel], place_of: dict[str, int]
) -> list[tuple[int, DeviceLaunches]]:
    """Return the launches of each table, with the place of the kernel whose blocks make them.

    Raises
    ------
    TraceError
        If one makes no sense; it names the line.
    """
    tables = reader.content.get("launch", [])
    if not isinstance(tables, list):
        found = f"launch {show_value(tables)}"
        reader.fail("", 0, "launch", found, "write [[launch]] tables")
    if tables and any(kernel.collective is not None for kernel in kernels):
        found = "launches from the device in a program with collectives"
        reader.fail("launch", 0, "", found, "describe them in programs of their own")
    launches: list[tuple[int, DeviceLaunches]] = []
    count = blocks = 0
    for i, table in enumerate(tables):
        reader.known_keys("launch", i, table, _LAUNCH_KEYS)
        place = reader.named_kernel("launch", i, "parent", table, place_of)
        launches.append((place, _launch(reader, i, table, kernels[place])))
        count += len(launches[i][1])
        blocks += int(launches[i][1].child_grid.sum())
        if count > _MOST_LAUNCHES or blocks > MOST_CHILD_BLOCKS:
            found = f"{count} launches of {blocks} child blocks"
            most = f"at most {_MOST_LAUNCHES} launches of {MOST_CHILD_BLOCKS} blocks in all"
            reader.fail("launch", i, "child_grid", found, most)
    return launches


def _launch(
    reader: WorkloadReader, i: int, table: dict[str, Any], parent: WorkloadKernel
) -> DeviceLaunches:
    """Read the launches of one table: each key a number for all, or a list, one for each."""
    for key in ("block", "child_grid", "child_duration", "inline"):
        if key not in table:
            found = f"a launch of {show_value(parent.name)} has no {key}"
            reader.fail("launch", i, "", found, f"give {key}")
    n = max((len(v) for v in table.values() if isinstance(v, list)), default=1)
    threads = parent.block[0] * parent.block[1] * parent.block[2]
    warps = -(-threads // _LANES_OF_A_WARP)
    times = (0, LONGEST_TIME, float)
    columns = {
        key: reader.column(i, key, table.get(key, usual), n, limits)
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
        reader.fail("launch", i, "join", f"join {show_value(join)}", expected)
    return DeviceLaunches(**columns, join=np.full(n, JOINS.index(join), np.uint8))
