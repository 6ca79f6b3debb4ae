"""The launches from the device of described programs.

``docs/mechanisms.md`` documents the keys.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from depgraph.graph.launches import JOINS, MOST_CHILD_BLOCKS, DeviceLaunches
from depgraph.parsers.described_file import TIME, DescribedProgram
from depgraph.system.described import REQUIRED, Field, anything, one_of, real, whole
from depgraph.system.limits import LARGEST_ID
from depgraph.system.toml_file import show_value

if TYPE_CHECKING:
    from depgraph.extraction.workload import WorkloadKernel

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
    file: DescribedProgram, kernels: list[WorkloadKernel], place_of: dict[str, int]
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
    file: DescribedProgram,
    i: int,
    content: object,
    kernels: list[WorkloadKernel],
    place_of: dict[str, int],
) -> tuple[int, DeviceLaunches]:
    """Read the launches of one table: each key a number for all, or a list, one for each."""
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
