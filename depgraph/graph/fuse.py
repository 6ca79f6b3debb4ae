"""Fuse two kernels of a block graph into one."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import ModelError
from depgraph.footprint.footprints import renumbered
from depgraph.graph.block_graph import BlockGraph, Resources, assemble
from depgraph.graph.program import Kernel
from depgraph.system import arrays

_ALONE = -1


def merge_kernels(
    graph: BlockGraph, kernels: Sequence[Kernel], first: int, second: int
) -> tuple[BlockGraph, list[Kernel], NDArray[np.int64]]:
    """Fuse a kernel with the one launched next; return graph, kernels and new block numbers."""
    # A block of the second that waits for one block of the first becomes a part of that block, as
    # a compiler would fuse them; one that waits for none becomes a block of its own. The new kernel
    # keeps the number of the first. It takes the larger of the registers and shared memory of the
    # two, and what waits for a part of a block waits for the whole.
    if graph.launches is not None:
        message = "kernels of a program that launches child kernels cannot be merged"
        raise ModelError(message)
    place = {kernel.kernel: at for at, kernel in enumerate(kernels)}
    for number in (first, second):
        if number not in place:
            raise ModelError(f"there is no kernel {number}")
    one, two = kernels[place[first]], kernels[place[second]]
    if two.operation != one.operation + 1:
        raise ModelError(
            f"kernel {second} is not launched right after kernel {first}: only neighbours can be "
            "merged"
        )
    if graph.space is not None and graph.space[one.operation] != graph.space[two.operation]:
        raise ModelError(f"kernels {first} and {second} are of different CUDA contexts")
    parent = _parents(graph, one.operation, two.operation)
    block, first_block = _renumbered(graph, one, two, parent)
    sets = _renumbered_sets(graph, one.operation, block)
    kept = np.flatnonzero(
        (graph.join_source_operation != one.operation)
        | (graph.join_target_operation != two.operation)
    )
    merged = assemble(
        np.delete(graph.kernel, two.operation),
        first_block,
        sets,
        graph.join_kind[kept],
        arrays.gather_lists(*graph.source_lists, kept),
        arrays.gather_lists(*graph.target_lists, kept),
        None if graph.join_basis is None else graph.join_basis[kept],
    )

    operation = np.arange(graph.n_operations + 1, dtype=np.int32)

    def summed(values: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
        if values is None:
            return None
        n_blocks = int(first_block[-1])
        return np.bincount(block, weights=values, minlength=n_blocks).astype(np.float64)

    merged = replace(
        graph.with_dependences_of(merged),
        cost=summed(graph.cost),
        duration=summed(graph.duration),
        resources=graph.resources and _larger_resources(graph.resources, one.operation),
        occupancy=None
        if graph.occupancy is None
        else _without_next(graph.occupancy, one.operation, np.minimum),
        frees=renumbered(
            graph.frees, operation - (operation > two.operation), graph.n_operations - 1
        ),
        space=None if graph.space is None else np.delete(graph.space, two.operation),
    )
    return merged, _kernel_rows(kernels, one, two, first_block), block


def _parents(graph: BlockGraph, source: int, target: int) -> NDArray[np.int64]:
    """Return which block of an operation each block of the next one waits for, or `_ALONE`."""
    first, n_blocks = graph.span(target)
    parent = np.full(n_blocks, _ALONE, np.int64)
    for join in graph.joins_between(source, target):
        sources = graph.blocks_of(graph.source_lists, join)
        targets = graph.blocks_of(graph.target_lists, join) - first
        before = parent[targets]
        if len(sources) > 1 or ((before != _ALONE) & (before != sources[0])).any():
            raise ModelError(
                f"blocks of kernel {graph.kernel[target]} wait for several blocks of kernel "
                f"{graph.kernel[source]}: one kernel cannot do both without a barrier"
            )
        parent[targets] = sources[0]
    return parent


def _renumbered(
    graph: BlockGraph, one: Kernel, two: Kernel, parent: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the new number of each block, and the first block of each operation."""
    low, high = (int(b) for b in graph.first_block[[two.operation, two.operation + 1]])
    alone = parent == _ALONE
    block = np.arange(graph.n_blocks)
    block[low:high] = np.where(alone, low + np.cumsum(alone) - 1, parent)
    shift = int(alone.sum()) - (high - low)
    block[high:] += shift
    first_block = np.delete(graph.first_block, two.operation)
    first_block[one.operation + 1 :] += shift
    return block, first_block


def _renumbered_sets(graph: BlockGraph, one: int, block: NDArray[np.int64]) -> arrays.Sets:
    operation = np.where(graph.set_operation > one, graph.set_operation - 1, graph.set_operation)
    # Parts of one block that stand in one set stand there once.
    n_blocks = max(1, graph.n_blocks)
    key = arrays.distinct(
        arrays.list_of_each(graph.set_offsets) * np.int64(n_blocks) + block[graph.set_blocks]
    )
    sizes = np.bincount(key // n_blocks, minlength=len(operation))
    return operation.astype(np.int32), arrays.list_offsets(sizes), (key % n_blocks).astype(np.int32)


def _without_next(values: NDArray[np.int64], one: int, combine: np.ufunc) -> NDArray[np.int64]:
    result: NDArray[np.int64] = np.delete(values, one + 1)
    result[one] = combine(values[one], values[one + 1])
    return result


def _larger_resources(resources: Resources, one: int) -> Resources:
    return resources._replace(
        stream=np.delete(resources.stream, one + 1),
        threads=_without_next(resources.threads, one, np.maximum),
        registers=_without_next(resources.registers, one, np.maximum),
        shared_bytes=_without_next(resources.shared_bytes, one, np.maximum),
    )


def _kernel_rows(
    kernels: Sequence[Kernel], one: Kernel, two: Kernel, first_block: arrays.FirstBlocks
) -> list[Kernel]:
    rows = []
    for kernel in kernels:
        if kernel.kernel == two.kernel:
            continue
        operation = kernel.operation - (kernel.operation > one.operation)
        moved = replace(kernel, operation=operation, first_block=int(first_block[operation]))
        if kernel.kernel == one.kernel:
            blocks = int(first_block[operation + 1] - first_block[operation])
            moved = replace(
                moved,
                name=f"{one.name} + {two.name}",
                mangled_name=None,
                blocks=blocks,
                active_blocks=min(blocks, one.active_blocks + two.active_blocks),
                grid_x=blocks,
                grid_y=1,
                grid_z=1,
                accesses=one.accesses + two.accesses,
                instructions=one.instructions + two.instructions,
                untraced=one.untraced or two.untraced,
                reach=None if one.is_opaque or two.is_opaque else one.reach or two.reach,
                waits_inside=min(filter(None, (one.waits_inside, two.waits_inside)), default=None),
                ldgsts_bytes=one.ldgsts_bytes + two.ldgsts_bytes,
                programmatic=None,
            )
        rows.append(moved)
    return rows
