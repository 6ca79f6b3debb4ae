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
    """The makespan of one and the same serial program, launched in two ways.

    Attributes
    ----------
    serial : float
        One by one, from the host.
    cuda_graph : float
        As a CUDA graph in which each kernel waits for the one before it.
    """

    serial: float
    cuda_graph: float

    @property
    def cuda_graph_speedup(self) -> float:
        """How much faster the CUDA graph is."""
        return ratio(self.serial, self.cuda_graph)


def launch_costs(scenario: Scenario) -> LaunchCosts | None:
    """Work out what launches cost; None where they cost nothing.

    Parameters
    ----------
    scenario : Scenario
        On one number of SMs.
    """
    if scenario.launch.is_off:
        return None
    return LaunchCosts(serial(scenario).makespan, serial(scenario, as_graph=True).makespan)
