"""What launches cost a program whose kernels run one after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from depgraph.schedules import serial

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from depgraph.graph import BlockGraph
    from depgraph.launch import LaunchModel


@dataclass(frozen=True, slots=True)
class LaunchCosts:
    """The makespan of one and the same serial program, launched in three ways.

    Attributes
    ----------
    serial : float
        One by one, from the host.
    cuda_graph : float
        As a CUDA graph in which each kernel waits for the one before it.
    without : float
        For nothing.
    """

    serial: float
    cuda_graph: float
    without: float


def launch_costs(
    graph: BlockGraph,
    durations: NDArray[np.float64],
    occupancy: NDArray[np.int64],
    sms: int,
    launch: LaunchModel,
) -> LaunchCosts | None:
    """Work out what launches cost; None where launch costs are off.

    Parameters
    ----------
    graph : BlockGraph
    durations : float64[n_blocks]
    occupancy : int64[n_operations]
    sms : int
    launch : LaunchModel
        In the unit of the durations.
    """
    if launch.is_off:
        return None
    program = graph, durations, occupancy, sms
    return LaunchCosts(
        serial(*program, launch=launch).makespan,
        serial(*program, launch=launch, as_graph=True).makespan,
        serial(*program).makespan,
    )
