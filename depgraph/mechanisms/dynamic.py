"""Dynamic parallelism: what launching a child kernel costs, and when SPAWN would do it."""

from __future__ import annotations

LAUNCH_CYCLES = 20_000
"""Cycles of a device-side launch, whatever its size (GPGPU-Sim's published setting)."""
LANE_CYCLES = 1_700
"""Cycles more for each lane that launches (the same)."""


def launch_cycles(lanes: int) -> int:
    """Return the cycles that launching child kernels from some lanes of a warp costs.

    Parameters
    ----------
    lanes : int
        Lanes that launch, 1 to 32.

    Notes
    -----
    The public simulator's model, its setting ``7200,8000,100,12000,1600,10`` added up:
    20 000 cycles and 1 700 for each lane. 21 700 for one lane, 74 400 for a whole warp.
    """
    return LAUNCH_CYCLES + LANE_CYCLES * lanes


def spawns(
    child_blocks: int, queued_blocks: int, throughput: float, own_work: float, *, overhead: float
) -> bool:
    """Tell whether SPAWN launches a child rather than letting the parent do the work.

    Parameters
    ----------
    child_blocks : int
        Blocks of the child (x).
    queued_blocks : int
        Child blocks queued or running (n).
    throughput : float
        Child blocks that end in a unit of time (T): mean concurrent over mean time, in a window of
        1024 cycles.
    own_work : float
        Time the parent would need to do the work itself.
    overhead : float
        Time of a launch, such as `launch_cycles`.

    Notes
    -----
    Tang et al., "Controlled kernel launch for dynamic parallelism in GPUs", HPCA 2017
    (second-hand): ``overhead + n / T + x / T < own work``.
    """
    return overhead + (queued_blocks + child_blocks) / throughput < own_work
