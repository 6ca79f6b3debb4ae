"""The graph of a scenario for other tools: names, durations, and where kernels were launched."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.timing.durations import kernel_makespans
from depgraph.timing.launch_sites import NOWHERE
from depgraph.trace.names import base_name

if TYPE_CHECKING:
    import networkx as nx

    from depgraph.scenario.scenario import Scenario


def described_graph(scenario: Scenario, level: str = "kernel") -> nx.DiGraph[Any]:
    """Return the graph for networkx, as `BlockGraph.to_networkx`, and what is known of nodes.

    Kernels have a name, where in the code they were launched as far as that is known, and a
    duration: how long each takes alone on the SMs. Blocks have a duration alone.

    Parameters
    ----------
    scenario : Scenario
    level : {"kernel", "block"}
    """
    result = scenario.graph.to_networkx(level)
    if level == "kernel":
        for node, attributes in kernel_attributes(scenario).items():
            result.nodes[node].update(attributes)
    else:
        names = zip(*(a.tolist() for a in scenario.graph.block_names()), strict=True)
        for name, duration in zip(names, scenario.durations.tolist(), strict=True):
            result.nodes[name]["duration"] = duration
    return result


def kernel_attributes(scenario: Scenario) -> dict[int, dict[str, str | float]]:
    """Return name, duration and place in the code of each kernel, by kernel number."""
    graph = scenario.graph
    size = min(scenario.sms, float(np.diff(graph.first_block).max(initial=1)))
    alone = kernel_makespans(graph, scenario.durations, scenario.occupancy * int(size))
    found: dict[int, dict[str, str | float]] = {}
    for kernel in scenario.kernels:
        site = scenario.sites.get(kernel.kernel, NOWHERE)
        found[kernel.kernel] = {
            "name": base_name(kernel.name),
            "duration": float(alone[kernel.operation]),
            **{name: text for name, text in asdict(site).items() if text},
        }
    return found
