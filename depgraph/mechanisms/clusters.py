"""Thread-block clusters: blocks that are placed together, on SMs that are close to each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from depgraph.mechanisms.base import Availability, Mechanism, Numbered, whole_number, whole_numbers
from depgraph.mechanisms.launching import LAUNCH, serialized

if TYPE_CHECKING:
    from collections.abc import Sequence

    from depgraph.mechanisms.costs import Charges
    from depgraph.scenario.scenario import Scenario
    from depgraph.schedule.policy import Rules

PORTABLE, LARGEST = 8, 16


class Clusters(Numbered):
    """Serialized launches whose blocks start in clusters.

    Parameters
    ----------
    size : int
        Blocks of a cluster: those with consecutive numbers.
    """

    name = "clusters"
    signature = "clusters(C)"
    rule = (
        "serialized launches; C = 8 blocks on end start at once, on SMs of one graphics processing "
        "cluster (GPC), or none of them does; kernels whose blocks C does not divide have none"
    )
    cost = "SMs that stay empty because what is left of a GPC holds no cluster; launches as serial"
    availability = Availability.SHIPS
    source = (
        "CUDA C++ programming guide, thread block clusters (compute capability 9.0): 8 blocks at "
        "most on every GPU, 16 where a kernel asks for a non-portable size; GPCs as a GPU's model "
        "states them, else of up to 18 SMs"
    )
    costs = (LAUNCH,)

    def __init__(self, size: int = PORTABLE) -> None:
        super().__init__(size)
        self.size = size

    @property
    def freedom(self) -> tuple[str, float]:
        """Smaller clusters should be no slower."""
        return self.name, 1 / self.size

    @classmethod
    def with_parameters(cls, parameters: Sequence[str]) -> Mechanism:
        """Read the size."""
        whole_numbers(cls, parameters, 1)
        return cls(whole_number(cls.name, parameters[0], most=LARGEST))

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Place the blocks of a cluster together."""
        blocks = np.diff(program.graph.first_block)
        has = program.is_kernel & (blocks % self.size == 0) & (self.size > 1)
        note = f"kernels in clusters: {int(has.sum())} of {int(program.is_kernel.sum())}"
        if self.size > PORTABLE:
            note += "; the size is not portable"
        return serialized(
            program, charges, cluster=np.where(has, self.size, 1), assumptions=(note,)
        )
