"""Stream-K: work split evenly over the SMs, so that no wave is part-filled."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from depgraph.mechanisms.base import Availability, Cost, Mechanism
from depgraph.mechanisms.serial import LAUNCH
from depgraph.rules import Against, Rules

if TYPE_CHECKING:
    from depgraph.mechanisms.costs import Charges
    from depgraph.scenario import Scenario

_PAPER = "Osama et al., Stream-K, PPoPP 2023"


class StreamK(Mechanism):
    """Serial execution with perfectly even waves."""

    name = "stream-k"
    rule = "kernel after kernel, each one's work split evenly over all slots; blocks may be cut"
    cost = "a fix-up for each block"
    availability = Availability.CODE
    source = _PAPER
    costs = (
        Cost("fixup", 0.0, "us", "adding up the pieces of a block", "none assumed"),
        LAUNCH,
    )

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Give the blocks of each kernel such equal durations that its last wave is full."""
        graph = program.graph
        blocks = np.diff(graph.first_block)
        limit = blocks if math.isinf(program.sms) else program.occupancy * int(program.sms)
        slots = np.maximum(limit, 1)
        total = np.add.reduceat(program.durations, graph.first_block[:-1])
        waves = -(-blocks // slots)
        even = total / (slots * waves) + charges.time("fixup") * program.is_kernel
        return Rules(
            waits_for_all=True,
            launch=program.is_kernel * charges.launch(),
            durations=even[graph.operation_of_block],
            against=Against.WORK,
            assumptions=("every kernel can be cut anywhere",),
        )
