"""Measure ``depgraph bound`` on synthetic stores: many local edges, and edges without number.

Both have 1 million blocks in 200 kernels. In one each block waits for ten neighbours in the kernel
before; in the other every block waits for every block of two or three kernels before, 10^10 edges
in all, which nobody could hold one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from figures import MIB, Figure, seconds
from inputs import Options, main
from measure import DEPGRAPH, median_wall, run_together

from depgraph.footprint.footprints import stack_footprints
from depgraph.graph.block_graph import BlockGraph
from depgraph.graph.kinds import KINDS_WITHOUT_FREES
from depgraph.graph.program import BlockCounts, Extraction, Kernel
from depgraph.store.writer import write_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

TITLE = "Speed and memory of bound"

_NEIGHBOURS = 10
_EXPANDED = 10**10
_SECONDS = 5.0
_BYTES = 1.5e9


def measure(chosen: Options) -> Iterator[Figure]:
    """Yield all figures of this program."""
    kernels, blocks = (20, 50) if chosen.quick else (200, 5000)
    stores = {
        "local": (local_graph(kernels, blocks), "edges to neighbours"),
        "all-to-all": (all_to_all_graph(kernels, blocks), "edges, all-to-all"),
    }
    commands: dict[str, list[str | Path]] = {}
    for name, (graph, _) in stores.items():
        path = chosen.work / f"{name}.out"
        write_graph(graph, path)
        commands[name] = [*DEPGRAPH, "bound", path, "--sms", "80", "-q"]
    for cores in chosen.cores:
        runs = run_together(commands, chosen.work, repeat=chosen.repeat, cores=cores)
        for name, (graph, edges) in stores.items():
            took = median_wall(runs[name])
            peak = max(one.peak for one in runs[name])
            number = sum(pair.edges for pair in graph.pairs())
            yield Figure(
                f"`bound`, {graph.n_blocks:,} blocks, {kernels} kernels, {number:.2g} {edges}",
                f"{seconds(took)}, peak {peak / MIB:.0f} MiB",
                f"{_SECONDS:.0f} s, {_BYTES / MIB:.0f} MiB",
                took <= _SECONDS and peak <= _BYTES,
                cores,
            )


def local_graph(kernels: int, blocks: int) -> BlockGraph:
    """Return a graph in which a block waits for the ten blocks around its place one kernel before.

    Parameters
    ----------
    kernels : int
    blocks : int
        Of each kernel.
    """
    n = kernels * blocks
    target = np.arange(blocks, n, dtype=np.int32)
    near = np.arange(_NEIGHBOURS) - _NEIGHBOURS // 2
    operation, place = np.divmod(target, blocks)
    source = (operation[:, None] - 1) * blocks + (place[:, None] + near) % blocks
    source.sort(axis=1)
    return _graph(
        kernels,
        blocks,
        np.arange(n, dtype=np.int32),
        np.arange(n + 1),
        (np.arange(len(target) + 1) * _NEIGHBOURS, source.ravel()),
        target,
    )


def all_to_all_graph(kernels: int, blocks: int) -> BlockGraph:
    """Return a graph of 10^10 edges for 200 kernels of 5000 blocks, fewer for fewer.

    Parameters
    ----------
    kernels : int
    blocks : int
        Of each kernel.
    """
    pairs = [(k - back, k) for back in (1, 2, 3) for k in range(back, kernels)]
    return kernel_graph(kernels, blocks, pairs[: -(-_EXPANDED // blocks**2)])


def kernel_graph(kernels: int, blocks: int, pairs: list[tuple[int, int]]) -> BlockGraph:
    """Return a graph in which every block of a kernel waits for all blocks of others.

    Parameters
    ----------
    kernels : int
    blocks : int
        Of each kernel.
    pairs : list of (int, int)
        Kernels, the second waits for the first.
    """
    source, target = np.array(sorted(pairs, key=lambda pair: (pair[1], pair[0])), np.int32).T
    return _graph(
        kernels,
        blocks,
        np.arange(kernels * blocks, dtype=np.int32),
        np.arange(kernels + 1) * blocks,
        (np.arange(len(source) + 1), source),
        target,
    )


def _graph(
    kernels: int,
    blocks: int,
    set_blocks: NDArray[np.int32],
    set_offsets: NDArray[np.int64],
    source_lists: tuple[NDArray[np.int64], NDArray[Any]],
    targets: NDArray[np.int32],
) -> BlockGraph:
    """Build a RAW graph with one target set a join."""
    source_offsets, sources = source_lists
    set_operation = (set_blocks[set_offsets[:-1]] // blocks).astype(np.int32)
    random = np.random.default_rng(1)
    return BlockGraph(
        kernel=np.arange(kernels, dtype=np.int32),
        first_block=np.arange(kernels + 1) * blocks,
        set_operation=set_operation,
        set_offsets=set_offsets,
        set_blocks=set_blocks,
        join_kind=np.zeros(len(targets), np.uint8),
        join_source_operation=set_operation[sources[source_offsets[:-1]]],
        join_target_operation=set_operation[targets],
        source_offsets=source_offsets,
        sources=sources.astype(np.int32),
        target_offsets=np.arange(len(targets) + 1),
        targets=targets,
        kinds=KINDS_WITHOUT_FREES,
        cost=random.integers(50, 150, kernels * blocks).astype(np.float64),
    )


def write_graph(graph: BlockGraph, path: Path) -> None:
    """Write a store that holds a graph and kernels of 256 threads, but no footprints.

    Parameters
    ----------
    graph : BlockGraph
    path : Path
    """
    assert graph.cost is not None  # noqa: S101
    instructions = graph.cost.astype(np.int64)
    nothing = np.zeros(graph.n_blocks, np.int64)
    sizes = np.diff(graph.first_block).tolist()
    counted = np.add.reduceat(instructions, graph.first_block[:-1]).tolist()
    kernels = [
        Kernel(
            kernel=number,
            operation=number,
            name=f"kernel_{number}",
            mangled_name=None,
            trace_id=number,
            grid_x=size,
            grid_y=1,
            grid_z=1,
            block_x=256,
            block_y=1,
            block_z=1,
            registers=64,
            shared_bytes=0,
            architecture=90,
            stream=0,
            context=1,
            first_block=int(graph.first_block[number]),
            blocks=size,
            active_blocks=size,
            accesses=counted[number],
            instructions=counted[number],
            read_bytes=0,
            written_bytes=0,
            shared_written_bytes=0,
            untraced=None,
        )
        for number, size in enumerate(sizes)
    ]
    extraction = Extraction(
        kernels=kernels,
        copies=[],
        counts=BlockCounts(instructions, instructions, nothing, nothing),
        footprints=stack_footprints([]),
        graph=graph,
        metadata={
            "format": "synthetic",
            "sources": [],
            "options": {"granularity": 1, "kinds": sorted(graph.kinds), "kernels": None},
            "lines": 0,
            "input_bytes": 0,
            "opcodes": {},
            "skipped": {},
            "warnings": {},
            "blind_spots": [],
            "false_edges": None,
        },
    )
    write_store(extraction, path)


if __name__ == "__main__":
    main(__doc__, TITLE, lambda chosen: list(measure(chosen)))
