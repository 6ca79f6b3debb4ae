"""How each kernel, alone on the GPU, fills the SMs, wave by wave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from depgraph.system.ratios import share_of
from depgraph.timing.durations import kernel_makespans

if TYPE_CHECKING:
    from depgraph.scenario.scenario import Scenario


@dataclass(frozen=True, slots=True)
class KernelLoad:
    """How a kernel, alone on the GPU, fills the SMs."""

    kernel: int
    blocks: int
    slots: int  # blocks that run at once: SMs times occupancy
    time: float  # from the kernel's start to its end, in the unit of the durations
    # share of the SMs that its blocks hold, 0 to 1, of the resource that sets its work
    utilization: float

    @property
    def waves(self) -> float:
        """How often its blocks fill every slot."""
        return self.blocks / self.slots

    @property
    def full_waves(self) -> int:
        """Waves that fill every slot."""
        return self.blocks // self.slots

    @property
    def tail_blocks(self) -> int:
        """Blocks of the last wave, if it does not fill every slot."""
        return self.blocks % self.slots

    @property
    def tail_utilization(self) -> float:
        """Share of the slots that the last wave fills; 1 where every wave is full."""
        return self.tail_blocks / self.slots if self.tail_blocks else 1.0

    @property
    def tail_cost(self) -> float:
        """Time that a last wave costs beside full ones, with blocks of equal length."""
        if not self.full_waves or not self.tail_blocks:
            return 0.0
        share = (1 - self.tail_utilization) / (self.full_waves + 1)
        return self.time * min(share, 1 - self.utilization)


def kernel_loads(scenario: Scenario) -> list[KernelLoad]:
    """Say how each kernel, alone, fills the SMs, in launch order, without copies and memsets."""
    graph, resources = scenario.graph, scenario.resources
    slots = resources.occupancy * int(scenario.sms)
    times = kernel_makespans(graph, scenario.durations, slots)
    busy = np.bincount(
        graph.operation_of_block, weights=scenario.durations, minlength=graph.n_operations
    )
    work = busy * resources.largest_shares / scenario.sms
    blocks = np.diff(graph.first_block)
    return [
        KernelLoad(
            int(graph.kernel[i]), int(blocks[i]), int(slots[i]), float(times[i]),
            share_of(float(work[i]), float(times[i])),
        )
        for i in np.flatnonzero(scenario.is_kernel)
    ]  # fmt: skip
