"""Programs described instead of traced: kernels with durations, dependences by pattern."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.errors import ModelError
from depgraph.footprint.footprints import stack_footprints
from depgraph.graph.builder import GraphBuilder
from depgraph.graph.communication import Communication
from depgraph.graph.launches import DeviceLaunches
from depgraph.graph.program import BlockCounts, Extraction, Kernel, launch_resources
from depgraph.trace.records import KernelLaunch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import ArrayLike, NDArray

    from depgraph.graph.block_graph import BlockGraph
    from depgraph.graph.communication import Collective, Link
    from depgraph.trace.records import Dim3

    Add = Callable[..., None]

PATTERNS = ("all", "one-to-one", "row", "tile", "strided", "split-k", "stencil", "groups")
FORMAT = "workload"
MOST_JOINS = 1 << 18  # sets of blocks that wait for sets: each is a Python object on the way
MOST_SOURCES = 1 << 24  # blocks waited for, over all joins


@dataclass(frozen=True, slots=True)
class WorkloadKernel:
    """A kernel that someone described.

    Attributes
    ----------
    grid, block : (int, int, int)
        Blocks, and threads of a block.
    durations : float64[blocks]
    occupancy : int or None
        Resident blocks per SM; None to work it out from the resources.
    cuttable : bool or None
        Whether blocks may be cut along k, as Stream-K does; None to tell by the name.
    collective : Collective or None
        None for computation.
    span : (float, float)
        Which part of a whole collective it moves: from 0 to 1.
    """

    name: str
    grid: Dim3
    block: Dim3
    durations: NDArray[np.float64]
    occupancy: int | None = None
    registers: int | None = None
    shared_bytes: int | None = None
    stream: int = 0
    cuttable: bool | None = None
    collective: Collective | None = None
    span: tuple[float, float] = (0.0, 1.0)

    @property
    def blocks(self) -> int:
        """Number of blocks in the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]


@dataclass(frozen=True, slots=True)
class WorkloadDependence:
    """How the blocks of a kernel depend on those of an earlier one.

    Attributes
    ----------
    source, target : int
        Places in the list of kernels.
    pattern : str
        One of `PATTERNS`, or "edges".
    kind : {"RAW", "WAR", "WAW"}
    tiles : int
        For "strided": blocks of a row that one step needs.
    radius : int
        For "stencil": how far neighbours go in each dimension.
    edges : int[n, 2]
        For "edges": block of the source, block of the target.
    """

    source: int
    target: int
    pattern: str
    kind: str = "RAW"
    tiles: int = 2
    radius: int = 1
    edges: Sequence[tuple[int, int]] = ()


def workload_graph(
    kernels: Sequence[WorkloadKernel], dependences: Sequence[WorkloadDependence]
) -> BlockGraph:
    """Build the block graph of a described program.

    Raises
    ------
    ModelError
        If a pattern does not fit the grids it joins.
    """
    builder = GraphBuilder(range(len(kernels)), [k.blocks for k in kernels], positions=True)
    first = np.concatenate([[0], np.cumsum([k.blocks for k in kernels])])
    total = (0, 0)
    for dependence in dependences:
        source, target = kernels[dependence.source], kernels[dependence.target]
        lows = first[dependence.source], first[dependence.target]

        def add(
            sources: ArrayLike,
            targets: ArrayLike,
            needed_at: float = 0.0,
            *,
            lows: tuple[np.int64, np.int64] = lows,
            kind: str = dependence.kind,
        ) -> None:
            builder.add(
                kind,
                lows[0] + np.asarray(sources),
                lows[1] + np.asarray(targets),
                needed_at=needed_at,
            )

        joins, sources = _size(source, target, dependence)
        total = total[0] + joins, total[1] + sources
        if total[0] > MOST_JOINS or total[1] > MOST_SOURCES:
            raise ModelError(
                f"{dependence.pattern}: {source.name} and {target.name} need {joins} joins of "
                f"{sources} blocks; a program may have {MOST_JOINS} of {MOST_SOURCES} in all"
            )
        _PATTERN_RULES[dependence.pattern](source, target, dependence, add)
    graph = builder.build()
    return replace(
        graph,
        duration=np.concatenate([np.empty(0), *(k.durations for k in kernels)]),
        occupancy=np.array([k.occupancy or 0 for k in kernels], np.int64),
    )


def check_dependence(kernels: Sequence[WorkloadKernel], dependence: WorkloadDependence) -> None:
    """Raise the `ModelError` that `workload_graph` does, if this dependence is the reason."""
    pair = [kernels[dependence.source], kernels[dependence.target]]
    workload_graph(pair, [replace(dependence, source=0, target=1)])


def _size(
    source: WorkloadKernel, target: WorkloadKernel, dependence: WorkloadDependence
) -> tuple[int, int]:
    """Return about how many joins a dependence needs, and how many blocks stand in them."""
    rows = source.grid[1] * source.grid[2]
    if dependence.pattern == "edges":
        return len({after for _, after in dependence.edges}), len(dependence.edges)
    if dependence.pattern == "one-to-one":
        return source.blocks, source.blocks
    if dependence.pattern == "stencil":
        reach = 2 * dependence.radius + 1
        near = min(reach, source.grid[0]) * min(reach, source.grid[1]) * min(reach, source.grid[2])
        return source.blocks, source.blocks * near
    if dependence.pattern in ("all", "groups"):
        return 1, source.blocks + target.blocks
    tiles = {"row": source.grid[0], "tile": 1}.get(dependence.pattern, dependence.tiles)
    steps = max(1, source.grid[0] // tiles)
    return rows * steps, source.blocks + steps * target.blocks


def _all(
    source: WorkloadKernel, target: WorkloadKernel, dependence: WorkloadDependence, add: Add
) -> None:
    del dependence
    add(np.arange(source.blocks), np.arange(target.blocks))


def _one_to_one(
    source: WorkloadKernel, target: WorkloadKernel, dependence: WorkloadDependence, add: Add
) -> None:
    del dependence
    if source.blocks != target.blocks:
        raise ModelError(
            f"one-to-one: {source.name} has {source.blocks} blocks, {target.name} {target.blocks}"
        )
    for block in range(source.blocks):
        add([block], [block])


def _steps(
    source: WorkloadKernel, target: WorkloadKernel, dependence: WorkloadDependence, add: Add
) -> None:
    """Join rows with equal y and z: all at once, or column by column at even steps."""
    rows = source.grid[1] * source.grid[2]
    if rows != target.grid[1] * target.grid[2]:
        raise ModelError(
            f"{dependence.pattern}: {source.name} has {rows} rows of blocks, {target.name} "
            f"{target.grid[1] * target.grid[2]}"
        )
    width = source.grid[0]
    tiles = {"row": width, "tile": 1}.get(dependence.pattern, dependence.tiles)
    if width % tiles:
        raise ModelError(f"strided: a row of {width} blocks cannot be cut into steps of {tiles}")
    steps = width // tiles
    for row in range(rows):
        targets = row * target.grid[0] + np.arange(target.grid[0])
        for step in range(steps):
            columns = np.arange(step, width, steps)
            add(row * width + columns, targets, step / steps)


def _split_k(
    source: WorkloadKernel, target: WorkloadKernel, dependence: WorkloadDependence, add: Add
) -> None:
    """Join rows with equal y; of its columns, part z of the waiting kernel needs its share."""
    del dependence
    (width, rows, depth), (columns, target_rows, parts) = source.grid, target.grid
    if depth != 1 or rows != target_rows:
        raise ModelError(
            f"split-k: {source.name} has grid {source.grid}, {target.name} {target.grid}; give the "
            "first a z of 1 and both the same y"
        )
    if width % parts:
        raise ModelError(f"split-k: a row of {width} blocks cannot be cut into {parts} parts")
    steps = width // parts
    for part, row, step in np.ndindex(parts, rows, steps):
        targets = columns * (row + rows * part) + np.arange(columns)
        add([row * width + part * steps + step], targets, step / steps)


def _stencil(
    source: WorkloadKernel, target: WorkloadKernel, dependence: WorkloadDependence, add: Add
) -> None:
    if source.grid != target.grid:
        raise ModelError(
            f"stencil: {source.name} has grid {source.grid}, {target.name} {target.grid}"
        )
    index = np.arange(source.blocks).reshape(source.grid[::-1])
    r = dependence.radius
    for z, y, x in np.ndindex(index.shape):
        near = index[
            max(z - r, 0) : z + r + 1, max(y - r, 0) : y + r + 1, max(x - r, 0) : x + r + 1
        ]
        add(near.reshape(-1), [index[z, y, x]])


def _groups(
    source: WorkloadKernel, target: WorkloadKernel, dependence: WorkloadDependence, add: Add
) -> None:
    """Join a part of a collective with the blocks that make what it sends or need it."""
    del dependence
    sources, targets = np.arange(source.blocks), np.arange(target.blocks)
    if source.collective is None:
        begin, end = (round(share * source.blocks) for share in target.span)
        sources = sources[begin:end]
    else:
        begin, end = (round(share * target.blocks) for share in source.span)
        targets = targets[begin:end]
    if begin < end:
        add(sources, targets)


def _edges(
    source: WorkloadKernel, target: WorkloadKernel, dependence: WorkloadDependence, add: Add
) -> None:
    sources_of: dict[int, list[int]] = {}
    for before, after in dependence.edges:
        if not (0 <= before < source.blocks and 0 <= after < target.blocks):
            raise ModelError(
                f"edge {before} to {after}: {source.name} has blocks 0 to {source.blocks - 1}, "
                f"{target.name} 0 to {target.blocks - 1}"
            )
        sources_of.setdefault(after, []).append(before)
    for after, sources in sources_of.items():
        add(sources, [after])


_PATTERN_RULES = {
    "all": _all,
    "one-to-one": _one_to_one,
    "row": _steps,
    "tile": _steps,
    "strided": _steps,
    "split-k": _split_k,
    "stencil": _stencil,
    "groups": _groups,
    "edges": _edges,
}


def program_launches(
    kernels: Sequence[WorkloadKernel], launches: Sequence[tuple[int, DeviceLaunches]]
) -> DeviceLaunches | None:
    """Put the launches of single kernels together, with the program's numbers of blocks.

    Parameters
    ----------
    launches : sequence of (int, DeviceLaunches)
        Place in the list of kernels, and launches by blocks that are numbered within the kernel.
    """
    if not launches:
        return None
    first = np.concatenate([[0], np.cumsum([k.blocks for k in kernels])])
    parts = [replace(own, block=own.block + first[place]) for place, own in launches]
    return DeviceLaunches(
        *(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(DeviceLaunches))
    ).in_order()


def workload_extraction(
    kernels: Sequence[WorkloadKernel],
    dependences: Sequence[WorkloadDependence],
    launches: Sequence[tuple[int, DeviceLaunches]] = (),
    *,
    unit: str,
    metadata: dict[str, Any],
    links: Sequence[Link] = (),
) -> Extraction:
    """Turn a described program into what the extraction of a trace yields.

    Parameters
    ----------
    launches : sequence of (int, DeviceLaunches)
        As `program_launches` takes them.
    unit : str
        Of the durations.
    metadata : dict
        Provenance.
    links : sequence of Link
        That the collectives cross.

    Raises
    ------
    ModelError
        If a pattern does not fit the grids it joins.
    """
    graph = workload_graph(kernels, dependences)
    rows = [
        Kernel.launched(
            KernelLaunch(k.name, k.grid, k.block, k.registers, k.shared_bytes, k.stream),
            kernel=place,
            operation=place,
            first_block=int(graph.first_block[place]),
            occupancy=k.occupancy,
            cuttable=k.cuttable,
        )
        for place, k in enumerate(kernels)
    ]
    communication = Communication(
        {link.name: link for link in links},
        {k.name: k.collective for k in kernels if k.collective is not None},
    )
    none = np.zeros(graph.n_blocks, np.int64)
    counts = BlockCounts(none, none, none, none)
    graph = replace(
        graph,
        cost=counts.cost,
        resources=launch_resources(rows, graph.n_operations),
        duration_unit=unit,
        launches=program_launches(kernels, launches),
    )
    return Extraction(
        kernels=rows,
        copies=[],
        counts=counts,
        footprints=stack_footprints([]),
        graph=graph,
        metadata={
            "format": FORMAT,
            "options": {
                "granularity": 1,
                "kinds": sorted(graph.kinds),
                "kernels": None,
                "allow_damaged": False,
            },
            "lines": 0,
            "input_bytes": 0,
            "opcodes": {},
            "skipped": {},
            "warnings": {},
            "blind_spots": [],
            "false_edges": None,
            "duration_unit": unit,
            "position_step": 0.0,
            **communication.to_metadata(),
            **metadata,
        },
    )
