"""Programmatic dependent launch: the next kernel's blocks take their slots early."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from depgraph.errors import ModelError
from depgraph.mechanisms.base import Availability, Mechanism
from depgraph.mechanisms.costs import Cost
from depgraph.mechanisms.launching import LAUNCH, one_by_one
from depgraph.mechanisms.streams import across_streams, previous_in_stream
from depgraph.schedule.policy import ALL_ENDED, ALL_PLACED, IGNORED, Against, Gates, Rules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from depgraph.mechanisms.costs import Charges
    from depgraph.scenario.scenario import Scenario


class ProgrammaticDependentLaunch(Mechanism):
    """CUDA's programmatic dependent launch, Hopper and newer.

    Parameters
    ----------
    trigger : {"early", "end"}
        When a kernel lets the next one in its stream take slots: once its last block is placed,
        or, without a trigger in its code, once it has ended.
    """

    name = "pdl"
    signature = "pdl(early|end)"
    rule = (
        "a kernel takes slots once the last block of the kernel before it in its stream is placed; "
        "it runs on, past its preamble, once that kernel has ended"
    )
    cost = (
        "slots held while waiting; launches: host and gap of each kernel, with an early trigger "
        "the gap is hidden behind the kernel before"
    )
    availability = Availability.SHIPS
    source = "CUDA C++ programming guide, programmatic dependent launch"
    costs = (
        Cost(
            "preamble", 0.0, "us", "work of a block that needs nothing of the kernel before",
            "none assumed: only the rule",
        ),
        LAUNCH,
    )  # fmt: skip

    def __init__(self, trigger: str = "early") -> None:
        self.trigger = trigger

    @property
    def label(self) -> str:
        """The name, with the trigger if it is the default of CUDA."""
        return self.name if self.trigger == "early" else f"{self.name}({self.trigger})"

    @property
    def freedom(self) -> tuple[str, float]:
        """An early trigger should be no slower."""
        return self.name, ("end", "early").index(self.trigger)

    @classmethod
    def with_parameters(cls, parameters: Sequence[str]) -> Mechanism:
        """Read the trigger."""
        if list(parameters) not in (["early"], ["end"]):
            raise ModelError(f"give {cls.signature}")
        return cls(parameters[0])

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Gate the slots and the body of each kernel by the kernel before."""
        before, after = previous_in_stream(program)
        preamble = charges.time("preamble")
        launching = one_by_one(program, charges)
        event = ALL_PLACED if self.trigger == "early" else ALL_ENDED
        gates = Gates.between(before, after, event)
        gates += Gates.between(before, after, ALL_ENDED, holds=True, lead=preamble)
        gates += Gates.between(*across_streams(program), ALL_ENDED)
        return Rules(
            joins=np.full(len(program.graph.join_kind), IGNORED, np.uint8),
            gates=gates,
            enter=launching.enter,
            launch=launching.launch,
            against=Against.WORK if preamble else Against.BLOCK,
            assumptions=() if preamble else ("blocks need the kernel before from their start",),
        )
