"""Programs described instead of traced: kernels with durations, dependences by pattern."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from depgraph.errors import ModelError
from depgraph.footprint.footprints import stack_footprints
from depgraph.graph import program
from depgraph.graph.block_graph import BlockGraph
from depgraph.graph.builder import GraphBuilder
from depgraph.system.arrays import columns_of
from depgraph.trace.records import KernelLaunch

Joins = Iterator[tuple[range | ArrayLike, range | ArrayLike, float]]
"""Blocks waited for, blocks that wait, and after which share of their work."""

PATTERNS = ("all", "one-to-one", "row", "tile", "strided", "split-k", "stencil", "groups")
FORMAT = "workload"
MOST_JOINS = 1 << 18  # sets of blocks that wait for sets: each is a Python object on the way
MOST_SOURCES = 1 << 24  # blocks waited for, over all joins


@dataclass(slots=True)
class WorkloadKernel(KernelLaunch):
    """A kernel that someone described."""

    duration: float | NDArray[np.float64] = 0.0  # of every block, or of each
    occupancy: int | None = None  # resident blocks per SM; None to work it out from the resources
    cuttable: bool | None = None  # along k, as Stream-K does; None to tell by the name
    collective: program.Collective | None = None  # None for computation
    span: tuple[float, float] = (0.0, 1.0)  # part of a whole collective that it moves


@dataclass(slots=True)
class WorkloadDependence:
    """How the blocks of a kernel depend on those of an earlier one."""

    source: int  # place in the list of kernels, as `target`
    target: int
    pattern: str  # one of `PATTERNS`, or "edges"
    edges: Sequence[tuple[int, int]] = ()  # "edges": block of the source, block of the target
    kind: str = "RAW"
    tiles: int = 2  # "strided": blocks of a row that one step needs
    radius: int = 1  # "stencil": how far neighbours go in each dimension


def workload_graph(
    kernels: Sequence[WorkloadKernel], dependences: Sequence[WorkloadDependence]
) -> BlockGraph:
    """Build the block graph of a described program; each pattern must fit the grids it joins."""
    first = _first_blocks(kernels).tolist()
    sizes = [end - begin for begin, end in pairwise(first)]
    builder = GraphBuilder(range(len(kernels)), sizes, positions=True)
    all_joins = all_sources = 0
    for dependence in dependences:
        source, target = kernels[dependence.source], kernels[dependence.target]
        joins, sources = _size(source, target, dependence)
        all_joins, all_sources = all_joins + joins, all_sources + sources
        if all_joins > MOST_JOINS or all_sources > MOST_SOURCES:
            raise ModelError(
                f"{dependence.pattern}: {source.name} and {target.name} need {joins} joins of "
                f"{sources} blocks; a program may have {MOST_JOINS} of {MOST_SOURCES} in all"
            )
        pattern = _PATTERN_RULES[dependence.pattern]
        for awaited, waiting, needed_at in pattern(source, target, dependence):
            builder.add(
                dependence.kind,
                _from(first[dependence.source], awaited),
                _from(first[dependence.target], waiting),
                needed_at=needed_at,
            )
    duration = np.empty(first[-1])
    for (begin, end), kernel in zip(pairwise(first), kernels, strict=True):
        duration[begin:end] = kernel.duration
    return replace(
        builder.build(),
        duration=duration,
        occupancy=np.array([k.occupancy or 0 for k in kernels], np.int64),
    )


def _from(first: int, blocks: range | ArrayLike) -> range | ArrayLike:
    """Return the global numbers of blocks of a kernel."""
    if isinstance(blocks, range):
        return range(first + blocks.start, first + blocks.stop)
    return first + np.asarray(blocks)


def _first_blocks(kernels: Sequence[WorkloadKernel]) -> NDArray[np.int64]:
    return np.cumsum([0, *(k.blocks for k in kernels)])


def check_dependence(kernels: Sequence[WorkloadKernel], dependence: WorkloadDependence) -> None:
    """Raise the `ModelError` that `workload_graph` does, if this dependence is the reason."""
    pair = [kernels[dependence.source], kernels[dependence.target]]
    workload_graph(pair, [replace(dependence, source=0, target=1)])


def _size(
    source: WorkloadKernel, target: WorkloadKernel, dependence: WorkloadDependence
) -> tuple[int, int]:
    """Return about how many joins a dependence needs, and how many blocks stand in them."""
    if dependence.pattern in ("all", "groups"):
        return 1, source.blocks + target.blocks
    if dependence.pattern == "edges":
        return len({after for _, after in dependence.edges}), len(dependence.edges)
    if dependence.pattern == "one-to-one":
        return source.blocks, source.blocks
    if dependence.pattern == "stencil":
        reach = 2 * dependence.radius + 1
        return source.blocks, source.blocks * prod(min(reach, size) for size in source.grid)
    rows = source.grid[1] * source.grid[2]
    steps = max(1, source.grid[0] // _step(source, dependence))
    return rows * steps, source.blocks + steps * target.blocks


def _step(source: WorkloadKernel, dependence: WorkloadDependence) -> int:
    """Return how many blocks of a row are needed at a time."""
    return {"row": source.grid[0], "tile": 1}.get(dependence.pattern, dependence.tiles)


def _all(source: WorkloadKernel, target: WorkloadKernel, _: WorkloadDependence) -> Joins:
    yield range(source.blocks), range(target.blocks), 0.0


def _one_to_one(source: WorkloadKernel, target: WorkloadKernel, _: WorkloadDependence) -> Joins:
    if source.blocks != target.blocks:
        raise ModelError(
            f"one-to-one: {source.name} has {source.blocks} blocks, {target.name} {target.blocks}"
        )
    for block in range(source.blocks):
        yield range(block, block + 1), range(block, block + 1), 0.0


def _steps(source: WorkloadKernel, target: WorkloadKernel, dependence: WorkloadDependence) -> Joins:
    """Join rows with equal y and z: all at once, or column by column at even steps."""
    rows = source.grid[1] * source.grid[2]
    if rows != target.grid[1] * target.grid[2]:
        raise ModelError(
            f"{dependence.pattern}: {source.name} has {rows} rows of blocks, {target.name} "
            f"{target.grid[1] * target.grid[2]}"
        )
    width, tiles = source.grid[0], _step(source, dependence)
    if width % tiles:
        raise ModelError(f"strided: a row of {width} blocks cannot be cut into steps of {tiles}")
    steps = width // tiles
    for row, step in np.ndindex(rows, steps):
        targets = range(row * target.grid[0], (row + 1) * target.grid[0])
        yield row * width + np.arange(step, width, steps), targets, step / steps


def _split_k(source: WorkloadKernel, target: WorkloadKernel, _: WorkloadDependence) -> Joins:
    """Join rows with equal y; of its columns, part z of the waiting kernel needs its share."""
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
        targets = range(columns * (row + rows * part), columns * (row + rows * part + 1))
        yield [row * width + part * steps + step], targets, step / steps


def _stencil(
    source: WorkloadKernel, target: WorkloadKernel, dependence: WorkloadDependence
) -> Joins:
    if source.grid != target.grid:
        raise ModelError(
            f"stencil: {source.name} has grid {source.grid}, {target.name} {target.grid}"
        )
    index = np.arange(source.blocks).reshape(source.grid[::-1])
    r = dependence.radius
    for at in np.ndindex(index.shape):
        near = index[tuple(slice(max(x - r, 0), x + r + 1) for x in at)]
        yield near.reshape(-1), [index[at]], 0.0


def _groups(source: WorkloadKernel, target: WorkloadKernel, _: WorkloadDependence) -> Joins:
    """Join a part of a collective with the blocks that make what it sends or need it."""
    sources, targets = range(source.blocks), range(target.blocks)
    if source.collective is None:
        begin, end = (round(share * source.blocks) for share in target.span)
        sources = sources[begin:end]
    else:
        begin, end = (round(share * target.blocks) for share in source.span)
        targets = targets[begin:end]
    if begin < end:
        yield sources, targets, 0.0


def _edges(source: WorkloadKernel, target: WorkloadKernel, dependence: WorkloadDependence) -> Joins:
    sources_of: dict[int, list[int]] = {}
    for before, after in dependence.edges:
        if not (0 <= before < source.blocks and 0 <= after < target.blocks):
            raise ModelError(
                f"edge {before} to {after}: {source.name} has blocks 0 to {source.blocks - 1}, "
                f"{target.name} 0 to {target.blocks - 1}"
            )
        sources_of.setdefault(after, []).append(before)
    for after, sources in sources_of.items():
        yield sources, [after], 0.0


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
    kernels: Sequence[WorkloadKernel], launches: Sequence[tuple[int, program.DeviceLaunches]]
) -> program.DeviceLaunches | None:
    """Join launches of single kernels, named by place, whose blocks are numbered within each."""
    if not launches:
        return None
    first = _first_blocks(kernels)
    parts = [replace(own, block=own.block + first[place]) for place, own in launches]
    return program.DeviceLaunches(
        *(
            np.concatenate([getattr(p, f.name) for p in parts])
            for f in fields(program.DeviceLaunches)
        )
    ).in_order()


def workload_extraction(
    kernels: Sequence[WorkloadKernel],
    dependences: Sequence[WorkloadDependence],
    launches: Sequence[tuple[int, program.DeviceLaunches]] = (),
    *,
    unit: str,
    metadata: dict[str, Any],
    links: Sequence[program.Link] = (),
) -> program.Extraction:
    """Turn a program, its durations in `unit`, into what the extraction of a trace yields."""
    graph = workload_graph(kernels, dependences)
    places = range(len(kernels))
    rows = program.Kernel.launched(
        kernels,
        {
            "kernel": places,
            "operation": places,
            "first_block": graph.first_block.tolist(),
            **columns_of(kernels, ("occupancy", "cuttable")),
        },
    )
    communication = program.Communication(
        {link.name: link for link in links},
        {k.name: k.collective for k in kernels if k.collective is not None},
    )
    none = np.zeros(graph.n_blocks, np.int64)
    counts = program.BlockCounts(none, none, none, none)
    graph = replace(
        graph,
        cost=counts.cost,
        resources=program.launch_resources(rows, graph.n_operations),
        duration_unit=unit,
        launches=program_launches(kernels, launches),
    )
    return program.Extraction(
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
