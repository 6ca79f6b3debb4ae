"""Whether kernels have in their code what programmatic launches need: triggers and waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depgraph.graph.program import common_architecture
from depgraph.trace.records import TRIGGER, WAIT

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from depgraph.scenario.scenario import Scenario

FIRST_ARCHITECTURE = 90
"""The first whose code can have them (PTX ISA, griddepcontrol)."""


def lacking_code(
    program: Scenario, before: NDArray[np.int32], after: NDArray[np.int32], *, triggers: bool
) -> str:
    """Say what kernels lack to start early, each after another; empty for nothing."""
    needs = {(kernel, WAIT) for kernel in after.tolist()}
    if triggers:
        needs |= {(kernel, TRIGGER) for kernel in before.tolist()}
    code_of = _codes(program)
    lacking = {kernel for kernel, need in needs if need not in code_of.get(kernel, need)}
    what = f"needs kernels that {'trigger and wait' if triggers else 'wait'} (griddepcontrol)"
    if lacking:
        return f"{what}: {len(lacking)} of {len(program.kernels)} do not"
    if any(kernel not in code_of for kernel, _ in needs):
        return f"{what}: their code was not read, so they are assumed not to"
    return ""


def _codes(program: Scenario) -> dict[int, str]:
    """Return what the code of operations has, as `Kernel.programmatic`, where it is known."""
    architecture = common_architecture(program.kernels)
    too_old = architecture is not None and architecture < FIRST_ARCHITECTURE
    codes = {k.operation: "" if too_old else k.programmatic for k in program.kernels}
    return {operation: code for operation, code in codes.items() if code is not None}
