"""Programmatic dependent launch: the next kernel's blocks take their slots early."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import ModelError
from depgraph.graph.program import common_architecture
from depgraph.mechanisms.base import (
    LAUNCH,
    Availability,
    Charges,
    Cost,
    Mechanism,
    gated,
    one_by_one,
    share,
)
from depgraph.mechanisms.streams import across_streams, previous_in_stream
from depgraph.scenario.scenario import Scenario
from depgraph.schedule.policy import ALL_ENDED, ALL_PLACED, ALL_TRIGGERED, Against, Gates, Rules
from depgraph.trace.records import TRIGGER, WAIT

FIRST_ARCHITECTURE = 90
"""The first whose code can trigger and wait (PTX ISA, griddepcontrol)."""
MEASURED = "--launch; samples/validation/pdl.cu and hardware.cu on an H100 and an H200: chains"


class ProgrammaticDependentLaunch(Mechanism):
    """Blocks let the next kernel take slots after a share of their work; 1: no trigger."""

    name = "pdl"
    signature = "pdl(early|S|end)"
    rule = (
        "a kernel takes slots once all blocks of the kernel before it in its stream are placed "
        "(early), have done a share S of their work, or have ended; it runs on, past its preamble, "
        "once that kernel has ended"
    )
    cost = (
        "slots held while waiting; launches: the host issues each kernel; the gap before the first "
        "of a stream, before others a shorter one after the trigger, and one after the wait"
    )
    family = "PDL"
    availability = Availability.SHIPS
    vendor = "NVIDIA"
    least_architecture = FIRST_ARCHITECTURE
    of_code = "kernels that wait and, but for pdl(end), trigger (griddepcontrol)"
    source = "CUDA C++ programming guide, programmatic dependent launch"
    costs = (
        Cost(
            "preamble", 0.0, "us", "work of a block that needs nothing of the kernel before",
            "none assumed: only the rule",
        ),
        Cost(
            "slot", 0.35, "us", "from the trigger until blocks of the next kernel take slots, no "
            "longer than the launch model's gap", MEASURED, is_launch=True,
        ),
        Cost(
            "release", 0.35, "us", "from the end of the kernel before until waiting blocks run on",
            MEASURED, is_launch=True,
        ),
        LAUNCH,
    )  # fmt: skip

    def __init__(self, trigger: float = 0.0) -> None:
        self.trigger = trigger
        self.shown = ("end" if trigger == 1 else f"{trigger:g}",) if trigger else ()
        self.freedom = self.name, 1 - trigger

    @classmethod
    def with_parameters(cls, parameters: Sequence[str]) -> Mechanism:
        """Read the trigger."""
        named = {"early": 0.0, "end": 1.0}
        match list(parameters):
            case [text]:
                return cls(named[text] if text in named else share(cls.name, text))
        raise ModelError(f"give {cls.signature}")

    def lacking_code(self, program: Scenario) -> str:
        """Say whether kernels in a stream wait for the one before, and trigger where it counts."""
        return lacking_code(program, *previous_in_stream(program), triggers=self.trigger < 1)

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Gate the slots and the body of each kernel by the kernel before."""
        before, after = previous_in_stream(program)
        preamble = charges.time("preamble")
        launching = one_by_one(program, charges)
        launch = launching.launch.astype(np.float64)
        if not charges.is_given(LAUNCH.name):
            launch[after] = np.minimum(launch[after], charges.time("slot"))
        release = charges.time("release")
        event = {0.0: ALL_PLACED, 1.0: ALL_ENDED}.get(self.trigger, ALL_TRIGGERED)
        gates = Gates.between(before, after, event)
        gates += Gates.between(before, after, ALL_ENDED, holds=True, lead=preamble - release)
        gates += Gates.between(*across_streams(program), ALL_ENDED)
        return gated(
            launching,
            gates,
            launch=launch,
            trigger=self.trigger or 1.0,
            first_come=True,
            against=Against.WORK if preamble else Against.BLOCK,
            assumptions=() if preamble else ("blocks need the kernel before from their start",),
        )


def lacking_code(
    program: Scenario, before: NDArray[np.int32], after: NDArray[np.int32], *, triggers: bool
) -> str:
    """Say what kernels lack to start early, each after another; empty for nothing."""
    needs = {WAIT: after.tolist(), TRIGGER: before.tolist() if triggers else []}
    code_of = _codes(program)
    lacking = {
        kernel
        for need, kernels in needs.items()
        for kernel in code_of.keys() & kernels
        if need not in code_of[kernel]
    }
    what = f"needs kernels that {'trigger and wait' if triggers else 'wait'} (griddepcontrol)"
    if lacking:
        return f"{what}: {len(lacking)} of {len(program.kernels)} do not"
    if any(kernel not in code_of for kernels in needs.values() for kernel in kernels):
        return f"{what}: their code was not read, so they are assumed not to"
    return ""


def _codes(program: Scenario) -> dict[int, str]:
    """Return what the code of operations has, as `Kernel.programmatic`, where it is known."""
    architecture = common_architecture(program.kernels)
    too_old = architecture is not None and architecture < FIRST_ARCHITECTURE
    return {
        k.operation: "" if too_old else k.programmatic or ""
        for k in program.kernels
        if too_old or k.programmatic is not None
    }
