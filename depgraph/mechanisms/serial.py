"""Kernel after kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depgraph.mechanisms.base import Availability, Mechanism
from depgraph.mechanisms.launching import LAUNCH, one_by_one
from depgraph.rules import Rules

if TYPE_CHECKING:
    from depgraph.mechanisms.costs import Charges
    from depgraph.scenario import Scenario


class Serial(Mechanism):
    """What a GPU does with the kernels of one stream."""

    name = "serial"
    rule = "a kernel starts once the whole kernel before it has ended"
    cost = "launches: host and gap of each kernel"
    availability = Availability.SHIPS
    source = "CUDA C++ programming guide, streams"
    costs = (LAUNCH,)

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Let every operation wait for all before it."""
        launching = one_by_one(program, charges)
        return Rules(waits_for_all=True, enter=launching.enter, launch=launching.launch)
