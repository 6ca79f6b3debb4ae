"""A CUDA graph of the program's kernels, with no edges but the true dependences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from depgraph.mechanisms.base import Availability, Mechanism, dependent_operations
from depgraph.mechanisms.launching import first
from depgraph.schedule.policy import ALL_ENDED, IGNORED, Gates, Rules

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from depgraph.mechanisms.costs import Charges
    from depgraph.scenario.scenario import Scenario


class CudaGraph(Mechanism):
    """Every kernel a node, every dependence between two kernels an edge."""

    name = "cuda-graph"
    rule = "a kernel starts once every kernel that it depends on has ended"
    cost = (
        "launches: one of the whole graph, then a node at a time, each further one that waits for "
        "none, and what a node needs after those it waits for"
    )
    availability = Availability.SHIPS
    source = "CUDA C++ programming guide, CUDA graphs; ideal: edges are the true dependences"

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Gate each kernel by those it depends on."""
        return graph_rules(program, charges, *dependent_operations(program.graph))


def graph_rules(
    program: Scenario, charges: Charges, source: NDArray[np.int32], target: NDArray[np.int32]
) -> Rules:
    """Return the rules of a CUDA graph of a program's operations, with edges of any choice.

    Parameters
    ----------
    source, target : int32[n]
        Operations; the target waits for the source.
    """
    model = charges.launches
    latency = np.zeros(program.graph.n_operations)
    latency[target] = model.path.value
    is_fork = np.bincount(source, minlength=len(latency)) > 1
    latency[target[is_fork[source]]] = max(model.path.value, model.fork.value)
    enter = program.is_kernel * model.node.value + first(program, model.graph.value)
    # Roots become known one after another, beside the other nodes.
    waits = np.bincount(target, minlength=len(latency)) > 0
    roots = np.flatnonzero(program.is_kernel & ~waits)
    known = np.cumsum(enter)[roots] - model.graph.value
    latency[roots] = np.maximum(model.root.value * np.arange(len(roots)) - known, 0.0)
    return Rules(
        joins=np.full(len(program.graph.join_kind), IGNORED, np.uint8),
        gates=Gates.between(source, target, ALL_ENDED),
        enter=enter,
        launch=program.is_kernel * latency,
    )
