"""No limit but the dependences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depgraph.mechanisms.base import Availability, Mechanism
from depgraph.schedule.policy import Rules

if TYPE_CHECKING:
    from depgraph.mechanisms.costs import Charges
    from depgraph.scenario.scenario import Scenario


class Ideal(Mechanism):
    """Dataflow on unlimited SMs: the critical path."""

    name = "ideal"
    rule = "a block starts once all blocks that it depends on have ended, on unlimited SMs"
    availability = Availability.LIMIT
    source = "Kuper et al., the dependence tool for Accel-Sim (rkuper/accel-sim-scripts)"

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Take away the limit on SMs."""
        del program, charges
        return Rules(unlimited=True, assumptions=("unlimited SMs: no utilization",))
