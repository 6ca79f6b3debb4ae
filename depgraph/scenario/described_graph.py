"""The graph of a scenario for other tools: names, durations, and where kernels were launched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.timing.profile import NOWHERE
from depgraph.timing.program_times import kernel_makespans
from depgraph.trace.names import base_name

if TYPE_CHECKING:
    import networkx as nx

    from depgraph.scenario.scenario import Scenario


def described_graph(scenario: Scenario, level: str = "kernel") -> nx.DiGraph[Any]:
    """Return the graph for networkx, and what is known of its nodes: of blocks a duration alone."""
    graph, durations = scenario.graph, scenario.durations
    result = graph.to_networkx(level)
    if level == "kernel":
        for node, attributes in _kernel_attributes(scenario).items():
            result.nodes[node].update(attributes)
        for node in graph.copies:
            result.nodes[node]["name"] = graph.copy_name(node)
    else:
        names = zip(*(a.tolist() for a in graph.block_names()), strict=True)
        for name, duration in zip(names, durations.tolist(), strict=True):
            result.nodes[name]["duration"] = duration
    return result


def _kernel_attributes(scenario: Scenario) -> dict[int, dict[str, str | float]]:
    """Return name, duration alone on the SMs and place in the code of each kernel, by number."""
    graph, durations = scenario.graph, scenario.durations
    size = min(scenario.sms, float(np.diff(graph.first_block).max(initial=1)))
    alone = kernel_makespans(graph, durations, scenario.occupancy * int(size))
    return {
        kernel.kernel: {
            "name": base_name(kernel.name),
            "duration": float(alone[kernel.operation]),
            **{
                name: text
                for name, text in scenario.sites.get(kernel.kernel, NOWHERE)._asdict().items()
                if text
            },
        }
        for kernel in scenario.kernels
    }
