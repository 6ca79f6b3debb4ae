"""By how much each kernel could be late without making the program longer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from depgraph.graph.block_graph import BlockGraph


@dataclass(frozen=True, slots=True)
class KernelSlack:
    """Where a kernel stands with unlimited SMs.

    Attributes
    ----------
    slack : float
        Least delay of a block of the kernel that the critical path would notice; 0 on it.
    critical_blocks : int
        Blocks without slack.
    """

    kernel: int
    slack: float
    critical_blocks: int
    blocks: int


def kernel_slacks(graph: BlockGraph, durations: NDArray[np.float64]) -> list[KernelSlack]:
    """Say how much slack each kernel has against the critical path.

    Parameters
    ----------
    durations : float64[n_blocks]

    Returns
    -------
    list of KernelSlack
        In launch order, without copies and memsets.
    """
    if not graph.n_blocks:
        return []
    finish, _ = graph.earliest_finish(durations)
    length = float(finish.max())
    slack = length - (finish - durations + graph.longest_tail(durations))
    # Rounding may leave a block of the path a little before or after it.
    slack[slack < length * 1e-9] = 0.0
    return [
        KernelSlack(
            int(graph.kernel[i]),
            float(slack[low:high].min()),
            int((slack[low:high] == 0).sum()),
            int(high - low),
        )
        for i, (low, high) in enumerate(
            zip(graph.first_block[:-1], graph.first_block[1:], strict=True)
        )
        if graph.kernel[i] >= 0 and high > low
    ]
