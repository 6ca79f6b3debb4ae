"""Kernel after kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depgraph.mechanisms.base import Availability, Cost, Mechanism
from depgraph.rules import Rules

if TYPE_CHECKING:
    from depgraph.mechanisms.costs import Charges
    from depgraph.scenario import Scenario

LAUNCH = Cost(
    "launch",
    0.0,
    "us",
    "time lost before each kernel (default: --launch-gap)",
    "none assumed; V100: 9.6 us with a sync each, 3.8 in a stream; H100: 2.1 in a stream",
)


class Serial(Mechanism):
    """What a GPU does with the kernels of one stream."""

    name = "serial"
    rule = "a kernel starts once the whole kernel before it has ended"
    cost = "a launch gap before each kernel"
    availability = Availability.SHIPS
    source = "CUDA C++ programming guide, streams"
    costs = (LAUNCH,)

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Let every operation wait for all before it."""
        return Rules(waits_for_all=True, launch=program.is_kernel * charges.launch())
