"""The graph of a scenario for other tools: names, durations, and where kernels were launched."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.timing.durations import kernel_makespans
from depgraph.timing.launch_sites import NOWHERE
from depgraph.trace.names import base_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import networkx as nx
    from numpy.typing import NDArray

    from depgraph.graph.block_graph import BlockGraph
    from depgraph.graph.program import Kernel
    from depgraph.timing.launch_sites import Site

Attributes = dict[str, str | float]


def described_graph(
    graph: BlockGraph,
    durations: NDArray[np.float64],
    kernels: Mapping[int, Attributes],
    level: str = "kernel",
) -> nx.DiGraph[Any]:
    """Return the graph for networkx, as `BlockGraph.to_networkx`, and what is known of nodes.

    Parameters
    ----------
    graph : BlockGraph
    durations : float64[n_blocks]
    kernels : mapping
        As `kernel_attributes` returns them; blocks have a duration alone.
    level : {"kernel", "block"}
    """
    result = graph.to_networkx(level)
    if level == "kernel":
        for node, attributes in kernels.items():
            result.nodes[node].update(attributes)
        for node in graph.copies:
            result.nodes[node]["name"] = graph.copy_name(node)
    else:
        names = zip(*(a.tolist() for a in graph.block_names()), strict=True)
        for name, duration in zip(names, durations.tolist(), strict=True):
            result.nodes[name]["duration"] = duration
    return result


def kernel_attributes(
    graph: BlockGraph,
    durations: NDArray[np.float64],
    kernels: Sequence[Kernel],
    sites: Mapping[int, Site],
    occupancy: NDArray[np.int64],
    sms: float,
) -> dict[int, Attributes]:
    """Return name, duration and place in the code of each kernel, by kernel number.

    A duration is how long the kernel takes alone on the SMs.
    """
    size = min(sms, float(np.diff(graph.first_block).max(initial=1)))
    alone = kernel_makespans(graph, durations, occupancy * int(size))
    return {
        kernel.kernel: {
            "name": base_name(kernel.name),
            "duration": float(alone[kernel.operation]),
            **{
                name: text
                for name, text in asdict(sites.get(kernel.kernel, NOWHERE)).items()
                if text
            },
        }
        for kernel in kernels
    }
