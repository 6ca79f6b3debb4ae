"""Dataflow: any block of the program, as soon as the blocks it depends on have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depgraph.errors import ModelError
from depgraph.mechanisms.base import Availability, Mechanism
from depgraph.rules import Rules
from depgraph.schedules import PRIORITIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from depgraph.mechanisms.costs import Charges
    from depgraph.scenario import Scenario

DEFAULT_PRIORITY = "oldest-first"


class Dataflow(Mechanism):
    """All kernels of the program in one pool.

    Parameters
    ----------
    priority : {"oldest-first", "newest-first", "longest-path-first"}
    """

    name = "dataflow"
    signature = "dataflow(oldest-first|newest-first|longest-path-first)"
    rule = (
        "a block starts once all blocks that it depends on have ended; waiting blocks hold no slot"
    )
    availability = Availability.HARDWARE
    source = "Kuper et al., the dependence tool for Accel-Sim (rkuper/accel-sim-scripts)"

    def __init__(self, priority: str = DEFAULT_PRIORITY) -> None:
        if priority not in PRIORITIES:
            raise ModelError(f"priority {priority!r}: give one of {', '.join(PRIORITIES)}")
        self.priority = priority

    @property
    def label(self) -> str:
        """The name, with the priority if it is not oldest-first."""
        return self.name if self.priority == DEFAULT_PRIORITY else f"{self.name}({self.priority})"

    @classmethod
    def with_parameters(cls, parameters: Sequence[str]) -> Mechanism:
        """Read the priority."""
        if len(parameters) != 1:
            raise ModelError(f"give {cls.signature}")
        return cls(parameters[0])

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Order ready blocks by the priority."""
        del charges
        order = PRIORITIES[self.priority](program.graph, program.durations)
        return Rules(order=order, strict=False)
