"""Measure ``depgraph bound`` on synthetic stores: many local edges, and edges without number.

Both have 1 million blocks in 200 kernels. In one each block waits for ten neighbours in the kernel
before; in the other every block waits for every block of two or three kernels before, 10^10 edges
in all, which nobody could hold one by one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from figures import MIB, Figure, seconds
from inputs import Options, main
from measure import DEPGRAPH, median_wall, run_together

from depgraph.extraction.workload import WorkloadKernel, workload_extraction
from depgraph.graph.block_graph import BlockGraph
from depgraph.graph.dependences import KINDS_WITHOUT_FREES
from depgraph.graph.program import BlockCounts
from depgraph.store.store import write_store

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
    """Return kernels of so many blocks that wait for ten around their place one kernel before."""
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
    """Return a graph of 10^10 edges for 200 kernels of 5000 blocks, fewer for fewer."""
    pairs = [(k - back, k) for back in (1, 2, 3) for k in range(back, kernels)]
    return kernel_graph(kernels, blocks, pairs[: -(-_EXPANDED // blocks**2)])


def kernel_graph(kernels: int, blocks: int, pairs: list[tuple[int, int]]) -> BlockGraph:
    """Return kernels of so many blocks, all of which wait for all of others: source, target."""
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
    """Write a store that holds a graph and kernels of 256 threads, but no footprints."""
    assert graph.cost is not None  # noqa: S101
    instructions = graph.cost.astype(np.int64)
    nothing = np.zeros(graph.n_blocks, np.int64)
    described = [
        WorkloadKernel(
            f"kernel_{number}", (size, 1, 1), (256, 1, 1), registers=64, shared_bytes=0,
            architecture=90,
        )
        for number, size in enumerate(np.diff(graph.first_block).tolist())
    ]  # fmt: skip
    about = {"format": "synthetic", "sources": []}
    extraction = workload_extraction(described, [], unit="us", metadata=about)
    counted = np.add.reduceat(instructions, graph.first_block[:-1]).tolist()
    kernels = [
        replace(kernel, accesses=count, instructions=count)
        for kernel, count in zip(extraction.kernels, counted, strict=True)
    ]
    counts = BlockCounts(instructions, instructions, nothing, nothing)
    write_store(replace(extraction, kernels=kernels, counts=counts, graph=graph), path)


if __name__ == "__main__":
    main(__doc__, TITLE, lambda chosen: list(measure(chosen)))
