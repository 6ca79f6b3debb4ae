"""A CUDA graph of the program's kernels, with no edges but the true dependences."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from depgraph.errors import ModelError
from depgraph.mechanisms.base import Availability, Mechanism, dependent_operations, share
from depgraph.mechanisms.costs import Charges, Cost, Launching, first, gated
from depgraph.mechanisms.programmatic import FIRST_ARCHITECTURE, lacking_code
from depgraph.schedule.policy import ALL_ENDED, ALL_PLACED, ALL_TRIGGERED, Gates, Rules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from depgraph.scenario.scenario import Scenario

END, LAUNCH_ORDER, PROGRAMMATIC = "end", "launch-order", "programmatic"


class CudaGraph(Mechanism):
    """Every kernel a node, every dependence between two kernels an edge.

    Parameters
    ----------
    port : {"end", "launch-order", "programmatic"}
        When an edge fires: once the kernel it comes from has ended, once all its blocks have begun,
        or once all have triggered.
    trigger : float
        Share of its work after which a block triggers.
    """

    name = "cuda-graph"
    signature = "cuda-graph(end|launch-order|programmatic[,S])"
    rule = (
        "a kernel starts once every kernel that it depends on has ended; with other ports of edges "
        "its blocks take slots once all blocks of those kernels have begun (launch-order) or have "
        "done a share S of their work (programmatic; default 0), and wait there for their ends"
    )
    cost = (
        "launches: one of the whole graph, then a node at a time, each further one that waits for "
        "none, and what a node needs after those it waits for have ended, or fired its edges"
    )
    availability = Availability.SHIPS
    of_code = "what pdl needs, for ports other than end"
    source = (
        "CUDA C++ programming guide, CUDA graphs, and cudaGraphEdgeData for ports; ideal: edges "
        "are the true dependences"
    )

    costs = (
        Cost(
            "release", 0.35, "us", "from the end of the kernels before until blocks that wait in "
            "their slots run on", "--launch; benchmarks/block_placement.cu on an H200: chains of "
            "kernels of 10 us", is_launch=True,
        ),
    )  # fmt: skip

    def __init__(self, port: str = END, trigger: float = 0.0) -> None:
        self.port = port
        self.trigger = trigger
        if port != END:
            self.vendor, self.least_architecture = "NVIDIA", FIRST_ARCHITECTURE

    @property
    def label(self) -> str:
        """The name, with the port if it is not the default."""
        if self.port == END:
            return self.name
        return f"{self.name}({self.port}{f',{self.trigger:g}' if self.trigger else ''})"

    @classmethod
    def every(cls) -> Sequence[Mechanism]:
        """Return the plain one and the earliest edges."""
        return [cls(), cls(PROGRAMMATIC)]

    @classmethod
    def with_parameters(cls, parameters: Sequence[str]) -> Mechanism:
        """Read the port, and where kernels trigger."""
        match list(parameters):
            case [("end" | "launch-order" | "programmatic") as port]:
                return cls(port)
            case ["programmatic", text]:
                return cls(PROGRAMMATIC, share(cls.name, text))
        raise ModelError(f"give {cls.signature}")

    def lacking_code(self, program: Scenario) -> str:
        """Say whether kernels wait for those that they depend on, and those trigger."""
        source, target = dependent_operations(program.graph)
        early = self._early(program, source, target)
        triggers = self.port == PROGRAMMATIC
        return lacking_code(program, source[early], target[early], triggers=triggers)

    def _early(
        self, program: Scenario, source: NDArray[np.int32], target: NDArray[np.int32]
    ) -> NDArray[np.bool_]:
        """Return which edges fire before the end of their source."""
        both: NDArray[np.bool_] = program.is_kernel[source] & program.is_kernel[target]
        return both & (self.port != END)

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Gate each kernel by those it depends on."""
        source, target = dependent_operations(program.graph)
        rules = graph_rules(program, charges, source, target)
        early = self._early(program, source, target)
        if not early.any():
            return rules
        release = charges.time("release")
        event = ALL_TRIGGERED if self.trigger else ALL_PLACED
        gates = Gates.between(source[~early], target[~early], ALL_ENDED)
        gates += Gates.between(source[early], target[early], event)
        gates += Gates.between(source[early], target[early], ALL_ENDED, holds=True, lead=-release)
        return replace(rules, gates=gates, trigger=self.trigger or 1.0)


def graph_rules(
    program: Scenario, charges: Charges, source: NDArray[np.int32], target: NDArray[np.int32]
) -> Rules:
    """Return the rules of a CUDA graph in which each target operation waits for its source."""
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
    launching = Launching(enter, program.is_kernel * latency)
    return gated(program, launching, Gates.between(source, target, ALL_ENDED))
