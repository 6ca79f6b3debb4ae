"""Small block graphs, kernels and scenarios to write tests with."""

import math
from dataclasses import replace

import numpy as np

from depgraph.gpu.model import load_gpu
from depgraph.gpu.sm_resources import SmResources, equal_shares
from depgraph.graph.block_graph import BlockGraph, Resources
from depgraph.graph.dependences import KIND_NAMES
from depgraph.graph.program import Kernel
from depgraph.scenario.scenario import Scenario
from depgraph.timing.program_times import Durations, counted_durations


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


def kernels_of(sizes, names=None, *, untraced=None, waits_inside=None):
    """Return rows of the table of kernels for kernels of so many blocks."""
    first = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    return [
        Kernel(
            kernel=i, operation=i, name=names[i] if names else f"kernel_{i}", mangled_name=None,
            trace_id=None, grid_x=size, grid_y=1, grid_z=1, block_x=128, block_y=1, block_z=1,
            registers=32, shared_bytes=0, architecture=90, stream=0, context=0,
            first_block=first[i], blocks=size, active_blocks=size, accesses=size,
            instructions=size, read_bytes=4 * size, written_bytes=4 * size,
            shared_written_bytes=0, untraced=(untraced or {}).get(i),
            waits_inside=(waits_inside or {}).get(i),
        )
        for i, size in enumerate(sizes)
    ]  # fmt: skip


def chain_edges(sizes):
    """Return one-to-one edges from each kernel to the next, as far as both have blocks."""
    return [
        ((k, b), (k + 1, b)) for k in range(len(sizes) - 1) for b in range(min(sizes[k : k + 2]))
    ]


def shares_of(graph, occupancy=1, gpu="H100 SXM"):
    """Return resources of which a block of a kernel takes 1/occupancy."""
    each = np.broadcast_to(np.asarray(occupancy, np.int64), graph.n_operations)
    return equal_shares(graph.kernel >= 0, each, load_gpu(gpu))


def resources_of(capacity, need, gpu="H100 SXM"):
    """Return resources of which blocks take what is listed."""
    need = np.array(need, np.int64)
    names = tuple(f"resource {x}" for x in range(len(capacity)))
    return SmResources(names, np.array(capacity, np.int64), need, need, load_gpu(gpu))


def scenario_of(
    graph, durations=None, *, occupancy=1, resources=None, kernels=None, functions=None,
    grid=None, block=None, **more,
):  # fmt: skip
    """Return a scenario: what is not said is small, free and equal.

    Parameters
    ----------
    graph : BlockGraph
    durations : sequence of float, optional
        In microseconds; default the counts of the graph.
    occupancy : int or sequence of int
        Of all kernels, or of each.
    resources : SmResources, optional
        In place of the occupancy.
    kernels : list of Kernel, optional
        Default none, or such as have the functions, grids and blocks that are given.
    functions, grid, block : optional
    **more
        Other attributes of a scenario.
    """
    if kernels is None and not functions and grid is None and block is None:
        kernels = ()
    elif kernels is None:
        kernels = kernels_of(np.diff(graph.first_block).tolist(), functions or None)
        for name, sizes in (("grid", grid), ("block", block)):
            for i, size in enumerate([] if sizes is None else sizes):
                x, y, z = (int(n) for n in size)
                kernels[i] = replace(kernels[i], **{f"{name}_x": x, f"{name}_y": y, f"{name}_z": z})
    found = resources or shares_of(graph, occupancy)
    timing = (
        counted_durations(graph)
        if durations is None
        else Durations(np.array(durations, np.float64), "us", "made up")
    )
    return Scenario(
        graph=graph, timing=timing, resources_of=lambda _: found, kernels=kernels,
        **{"sms": math.inf, **more},
    )  # fmt: skip
