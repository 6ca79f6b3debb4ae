"""Small block graphs and kernels to write tests with."""

import numpy as np

from depgraph.extraction import Kernel
from depgraph.graph import KIND_NAMES, BlockGraph, Resources


def graph_of(sizes, edges, *, cost=None):
    """Return a graph of kernels of so many blocks, with edges between their blocks.

    Parameters
    ----------
    sizes : list of int
        Blocks of kernel 0, 1, ...
    edges : list of ((kernel, block), (kernel, block)) or (..., kind)
        Who is waited for, who waits; the kind is RAW unless given.
    cost : list of float, optional
    """
    first = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    blocks = sorted({(k, b) for edge in edges for k, b in edge[:2]})
    number = {block: i for i, block in enumerate(blocks)}
    joins = sorted(
        ((target[0], source[0], KIND_NAMES.index((*kind, "RAW")[0]), source, target)
         for source, target, *kind in edges)
    )  # fmt: skip
    one_each = np.arange(len(joins) + 1, dtype=np.int64)
    n = len(sizes)
    return BlockGraph(
        kernel=np.arange(n, dtype=np.int32),
        first_block=first,
        set_operation=np.array([k for k, _ in blocks], np.int32),
        set_offsets=np.arange(len(blocks) + 1, dtype=np.int64),
        set_blocks=np.array([first[k] + b for k, b in blocks], np.int32),
        join_kind=np.array([j[2] for j in joins], np.uint8),
        join_source_operation=np.array([j[1] for j in joins], np.int32),
        join_target_operation=np.array([j[0] for j in joins], np.int32),
        source_offsets=one_each,
        sources=np.array([number[j[3]] for j in joins], np.int32),
        target_offsets=one_each,
        targets=np.array([number[j[4]] for j in joins], np.int32),
        cost=np.ones(first[-1]) if cost is None else np.array(cost, np.float64),
        resources=Resources(
            np.full(n, 128), np.full(n, 32), np.zeros(n, np.int64), np.zeros(n, np.int64), 90
        ),
    )


def kernels_of(sizes, names=None, *, unseen=None, waits_inside=None):
    """Return rows of the table of kernels for kernels of so many blocks."""
    first = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    return [
        Kernel(
            kernel=i, operation=i, name=names[i] if names else f"kernel_{i}", mangled_name=None,
            trace_id=None, grid_x=size, grid_y=1, grid_z=1, block_x=128, block_y=1, block_z=1,
            registers=32, shared_bytes=0, architecture=90, stream=0, context=0,
            first_block=first[i], blocks=size, active_blocks=size, accesses=size,
            instructions=size, read_bytes=4 * size, written_bytes=4 * size,
            shared_written_bytes=0, unseen=(unseen or {}).get(i),
            waits_inside=(waits_inside or {}).get(i),
        )
        for i, size in enumerate(sizes)
    ]  # fmt: skip


def chain_edges(sizes):
    """Return one-to-one edges from each kernel to the next, as far as both have blocks."""
    return [
        ((k, b), (k + 1, b)) for k in range(len(sizes) - 1) for b in range(min(sizes[k : k + 2]))
    ]
