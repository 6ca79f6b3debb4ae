"""Random small programs for laws about schedules."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st
from small_graphs import scenario_of, shares_of

from depgraph.gpu.model import load_gpu
from depgraph.gpu.sm_resources import sm_resources
from depgraph.graph.block_graph import Resources
from depgraph.graph.builder import GraphBuilder
from depgraph.graph.dependences import Basis


@st.composite
def graphs(draw, *, positions=False, most_kernels=4, most_blocks=6, bases=(Basis.SEEN,)):
    """Return a graph of a few kernels with random sets of blocks that wait for one another."""
    sizes = draw(st.lists(st.integers(1, most_blocks), min_size=1, max_size=most_kernels))
    first = np.concatenate([[0], np.cumsum(sizes)])
    builder = GraphBuilder(range(len(sizes)), sizes, positions=positions)
    sixteenths = st.integers(0, 16).map(lambda n: n / 16)
    for target in range(1, len(sizes)):
        for source in range(target):
            for _ in range(draw(st.integers(0, 2))):
                builder.add(
                    draw(st.sampled_from(["RAW", "WAR", "WAW"])),
                    first[source] + draw(block_sets(sizes[source])),
                    first[target] + draw(block_sets(sizes[target])),
                    needed_at=draw(sixteenths) if positions else 0.0,
                    done_at=draw(sixteenths) if positions else 1.0,
                    basis=draw(st.sampled_from(bases)),
                )
    return builder.build()


def block_sets(n):
    return st.sets(st.integers(0, n - 1), min_size=1).map(lambda s: np.array(sorted(s)))


@st.composite
def programs(draw, **options):
    """Return a scenario: a graph, whole durations, what blocks take of an SM, a number of SMs.

    Blocks take 1/occupancy of an SM, or threads, registers and shared memory of which some may be
    unknown.
    """
    graph = draw(graphs(**options))
    durations = np.array(
        draw(st.lists(st.integers(1, 8), min_size=graph.n_blocks, max_size=graph.n_blocks)), float
    )
    n = graph.n_operations
    graph = replace(graph, resources=draw(launch_resources(n)))
    occupancy = np.array(draw(st.lists(st.integers(1, 3), min_size=n, max_size=n)), np.int64)
    gpu = load_gpu(draw(st.sampled_from(["H100 SXM", "RTX 3090", "GTX 1080"])))
    return scenario_of(
        graph=graph,
        durations=durations,
        resources=draw(st.sampled_from([sm_resources(graph, gpu), shares_of(graph, occupancy)])),
        sms=draw(st.integers(1, 4)),
        functions=draw(st.lists(st.sampled_from("ab"), min_size=n, max_size=n)),
        grid=draw(st.sampled_from([one_row, one_column]))(graph),
        block=np.ones((n, 3), np.int64),
    )


@st.composite
def launch_resources(draw, n):
    """Return what kernels take: few per SM, limited by this or that; -1 where unknown."""

    def column(values):
        return np.array(draw(st.lists(values, min_size=n, max_size=n)), np.int64)

    return Resources(
        threads=column(st.sampled_from([32, 96, 256, 416, 1024])),
        registers=column(st.sampled_from([-1, 16, 40, 104, 168, 255])),
        shared_bytes=column(st.sampled_from([-1, 0, 1000, 20_000, 48_000, 90_000])),
        stream=column(st.integers(0, 1)),
        architecture=90,
    )


def one_column(graph):
    """Return grids in which every block is a row of its own."""
    blocks = np.diff(graph.first_block)
    return np.stack([np.ones_like(blocks), blocks, np.ones_like(blocks)], axis=1)


def one_row(graph):
    """Return grids in which all blocks are in one row."""
    return one_column(graph)[:, [1, 0, 2]]
