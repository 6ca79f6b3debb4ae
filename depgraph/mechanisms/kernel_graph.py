"""A graph of kernels, as CUDA graphs run it at best."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from depgraph.mechanisms.base import Availability, Mechanism, dependent_operations
from depgraph.mechanisms.serial import LAUNCH
from depgraph.rules import ALL_ENDED, IGNORED, Gates, Rules

if TYPE_CHECKING:
    from depgraph.mechanisms.costs import Charges
    from depgraph.scenario import Scenario


class KernelGraph(Mechanism):
    """Every kernel a node, every dependence between two kernels an edge."""

    name = "kernel-graph"
    rule = "a kernel starts once every kernel that it depends on has ended"
    cost = "a launch gap on each path"
    availability = Availability.SHIPS
    source = "CUDA C++ programming guide, CUDA graphs; ideal: edges are the true dependences"
    costs = (LAUNCH,)

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Gate each kernel by those it depends on."""
        return Rules(
            joins=np.full(len(program.graph.join_kind), IGNORED, np.uint8),
            gates=Gates.between(*dependent_operations(program.graph), ALL_ENDED),
            launch=program.is_kernel * charges.launch(),
        )
