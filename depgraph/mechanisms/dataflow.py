"""Dataflow: any block of the program, as soon as the blocks it depends on have ended."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from depgraph.errors import ModelError
from depgraph.mechanisms.base import Availability, Mechanism
from depgraph.mechanisms.launching import ahead
from depgraph.schedule.policy import Rules
from depgraph.schedule.priorities import PRIORITIES
from depgraph.schedule.simulate import run_rules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from depgraph.mechanisms.costs import Charges
    from depgraph.scenario.scenario import Scenario

DEFAULT_PRIORITY = "oldest-first"
BEST = "best priority"


class Dataflow(Mechanism):
    """All kernels of the program in one pool.

    Parameters
    ----------
    priority : {"oldest-first", "newest-first", "longest-path-first", "best priority"}
        Which of the blocks that are ready goes first; the best is that of the shortest schedule.
    """

    name = "dataflow"
    signature = "dataflow(oldest-first|newest-first|longest-path-first|best)"
    rule = (
        "a block starts once all blocks that it depends on have ended; waiting blocks hold no "
        "slot; of those that are ready the oldest (default), the newest, or the one with the "
        "longest path to the end goes first; best: whichever of the three is fastest"
    )
    cost = "launches: the host issues each kernel, ahead of the GPU; no gaps"
    availability = Availability.HARDWARE
    source = "Kuper et al., the dependence tool for Accel-Sim (rkuper/accel-sim-scripts)"

    def __init__(self, priority: str = DEFAULT_PRIORITY) -> None:
        if priority == "best":
            priority = BEST
        if priority not in (*PRIORITIES, BEST):
            raise ModelError(f"priority {priority!r}: give one of {', '.join(PRIORITIES)}, best")
        self.priority = priority

    @property
    def label(self) -> str:
        """The name with the priority."""
        return f"{self.name} ({self.priority})"

    @classmethod
    def every(cls) -> Sequence[Mechanism]:
        """Return the plain one and the best."""
        return [cls(), cls(BEST)]

    @classmethod
    def with_parameters(cls, parameters: Sequence[str]) -> Mechanism:
        """Read the priority."""
        if len(parameters) != 1:
            raise ModelError(f"give {cls.signature}")
        return cls(parameters[0])

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Order ready blocks by the priority."""
        rules = Rules(strict=False, enter=ahead(program, charges).enter)
        graph, durations = program.graph, program.durations
        if self.priority != BEST:
            return replace(rules, order=PRIORITIES[self.priority](graph, durations))
        shortest = {}
        for name, priority in PRIORITIES.items():
            ordered = replace(rules, order=priority(graph, durations))
            plan = run_rules(name, ordered, graph, durations, program.resources, program.sms)
            shortest[name] = plan.makespan, ordered
        best = min(shortest, key=lambda name: shortest[name][0])
        return shortest[best][1].assuming(f"the best of three priorities: {best}")


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
