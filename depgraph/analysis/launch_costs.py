"""What launches cost a program whose kernels run one after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from depgraph.mechanisms.serial import serial
from depgraph.system.ratios import ratio

if TYPE_CHECKING:
    from depgraph.scenario.scenario import Scenario


@dataclass(frozen=True, slots=True)
class LaunchCosts:
    """The makespan of one and the same serial program, launched in two ways."""

    serial: float  # one by one, from the host
    cuda_graph: float  # as a CUDA graph in which each kernel waits for the one before it

    @property
    def cuda_graph_speedup(self) -> float:
        """How much faster the CUDA graph is."""
        return ratio(self.serial, self.cuda_graph)


def launch_costs(scenario: Scenario) -> LaunchCosts | None:
    """Work out what launches cost; None where they cost nothing."""
    if scenario.launch.is_off:
        return None
    return LaunchCosts(serial(scenario).makespan, serial(scenario, as_graph=True).makespan)
