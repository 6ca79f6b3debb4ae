"""The dependence tool of Kuper et al.: its own output on nine small programs, and ours."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.dependence.sweep import build_graph, sweep
from depgraph.extraction.workload import WorkloadDependence, WorkloadKernel, workload_graph
from depgraph.footprint.footprints import Footprints, concatenate_footprints
from depgraph.graph.lists import list_of_each
from depgraph.reproduce.figures import Published
from depgraph.trace.records import READ, WRITE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from depgraph.graph.block_graph import BlockGraph
    from depgraph.reproduce.figures import Figure, Inputs, Reproduction

TABLE = "papers/kuper_tool.json"
_LINE = 128  # bytes of what the tool tells apart


def reproduce(inputs: Inputs) -> Reproduction:
    """Find edges and ideal times of the programs that the tool was run on."""
    published = Published(inputs, "kuper")
    cases = json.loads(inputs.path(TABLE).read_text(encoding="utf-8"))
    return published.found([row for case in cases for row in _rows(published, case)])


def _rows(published: Published, case: Mapping[str, Any]) -> Iterator[Figure]:
    graph, durations = graph_of(case["input"])
    edges = sum(len(targets) for targets in case["edges"].values())
    ours = sum(len(sources) for sources, _, _ in graph.edges())
    alone = np.array([kernel["kernel_time"] for kernel in case["input"]], np.float64)
    blocks, _ = graph.earliest_finish(durations)
    figures = {
        "edges": (edges, ours),
        "kernels": (case["ideal_kernel"], _ideal_of_kernels(graph, alone)),
        "blocks": (case["ideal_tb"], blocks.max()),
    }
    for key, (paper, found) in figures.items():
        name = case["case"].replace("_", " ")
        why = published.why(f"{name} {key}")
        yield published.figure(key, found, float(paper), why=why, case=name, depth=case["depth"])


def graph_of(program: Sequence[Mapping[str, Any]]) -> tuple[BlockGraph, NDArray[np.float64]]:
    """Return the dependences between blocks, by lines of 128 bytes, and how long blocks run."""
    blocks: list[int] = []
    kinds: list[int] = []
    lines: list[int] = []
    durations: list[float] = []
    first = [0]
    for kernel in program:
        for block in kernel["tbs"].values():
            for line, kind in block["accesses"]:
                blocks.append(len(durations))
                kinds.append(WRITE if kind == "W" else READ)
                lines.append(line)
            durations.append(block["end"] - block["start"])
        first.append(len(durations))
    start = np.array(lines, np.uint64) * np.uint64(_LINE)
    touched = Footprints(
        np.array(blocks, np.int32), np.array(kinds, np.uint8), start, start + np.uint64(_LINE)
    )
    footprints = concatenate_footprints([touched], len(durations))
    first_block = np.array(first, np.int64)
    swept = sweep(footprints, list_of_each(first_block), len(program))
    graph = build_graph([swept], first_block, np.arange(len(program), dtype=np.int32))
    return graph, np.array(durations, np.float64)


def _ideal_of_kernels(graph: BlockGraph, times: NDArray[np.float64]) -> float:
    """Return when the last kernel ends if each starts once all that it depends on have ended."""
    kernels = [
        WorkloadKernel(f"kernel-{i + 1}", (1, 1, 1), (1, 1, 1), np.array([time]))
        for i, time in enumerate(times)
    ]
    waits = [WorkloadDependence(pair.source, pair.target, "all") for pair in graph.pairs()]
    finish, _ = workload_graph(kernels, waits).earliest_finish(times)
    return float(finish.max())
