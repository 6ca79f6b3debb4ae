"""ACS: kernels out of order, found independent by their byte ranges at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from depgraph.mechanisms.base import (
    Availability,
    Cost,
    Mechanism,
    dependent_operations,
    whole_numbers,
)
from depgraph.rules import ALL_ENDED, IGNORED, Gates, Rules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from depgraph.mechanisms.costs import Charges
    from depgraph.scenario import Scenario

_PAPER = "Durvasula et al., ACS: Concurrent kernel execution on irregular, input-dependent graphs"
DEFAULT_WINDOW = 32


class AcsSoftware(Mechanism):
    """ACS with the window in software: host threads launch and synchronise.

    Parameters
    ----------
    window : int
        Kernels looked at together.
    """

    name = "acs-sw"
    signature = "acs-sw(N)"
    rule = (
        "a kernel starts once no older kernel that it conflicts with is unfinished; kernels enter "
        "a window of N = 32 in launch order and leave it in any"
    )
    cost = "a check as a kernel enters, launch and synchronisation before it runs"
    availability = Availability.CODE
    source = _PAPER
    costs: ClassVar[tuple[Cost, ...]] = (
        Cost(
            "launch", 5.0, "us", "launch and synchronisation of a kernel",
            f"{_PAPER}: 5 to 20 us a kernel; the low end",
        ),
        Cost(
            "check", 0.51, "us", "comparing a kernel with those in the window, one at a time",
            f"{_PAPER}: 0.51 us at N = 32 and 6 segments; 0.41 us at N = 16",
        ),
    )  # fmt: skip

    def __init__(self, window: int = DEFAULT_WINDOW) -> None:
        self.window = window

    @property
    def label(self) -> str:
        """The name, with the window if it is not the default."""
        return self.name if self.window == DEFAULT_WINDOW else f"{self.name}({self.window})"

    @classmethod
    def with_parameters(cls, parameters: Sequence[str]) -> Mechanism:
        """Read the window."""
        return cls(*whole_numbers(cls, parameters, 1))

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Gate each kernel by older ones in the window that it conflicts with."""
        graph = program.graph
        source, target = dependent_operations(graph)
        kinds = program.dependences.replace(",", ", ")
        notes = [f"conflicts: kernels that share written bytes, exact byte ranges ({kinds})"]
        gates = Gates.between(source, target, ALL_ENDED)
        waits_for_all = np.zeros(graph.n_operations, np.bool_)
        if program.opaque.any():
            waits_for_all = program.opaque
            gates += _after_the_last(program.opaque)
            notes.append(
                f"{int(program.opaque.sum())} kernels with accesses that the trace cannot show "
                "conflict with all others"
            )
        launch = program.is_kernel * charges.time("launch")
        enter = program.is_kernel * charges.time("check")
        return Rules(
            joins=np.full(len(program.graph.join_kind), IGNORED, np.uint8),
            gates=gates,
            waits_for_all=waits_for_all,
            launch=launch,
            enter=enter,
            window=self.window,
            assumptions=tuple(notes),
        )


class AcsHardware(AcsSoftware):
    """ACS with the window in the GPU's command processor."""

    name = "acs-hw"
    signature = "acs-hw(N)"
    cost = "50 to 100 ns a kernel"
    availability = Availability.HARDWARE
    costs = (
        Cost(
            "launch", 50.0, "ns", "dispatching a kernel",
            f"{_PAPER}: 50 to 100 ns a kernel; the low end",
        ),
        Cost("check", 0.0, "us", "in hardware, beside other work", _PAPER),
    )  # fmt: skip


def _after_the_last(opaque: NDArray[np.bool_]) -> Gates:
    """Gate each operation by the last one marked before it, which itself waits for all before."""
    marked = np.flatnonzero(opaque)
    target = np.arange(marked[0] + 1, len(opaque))
    return Gates.between(marked[np.searchsorted(marked, target) - 1], target, ALL_ENDED)
