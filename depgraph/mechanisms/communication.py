"""Computation beside communication: how much faster overlap could make it, and how much it did."""

from __future__ import annotations

PUBLISHED_SHARES = {
    "plain": 0.21,
    "scheduling first": 0.42,
    "reserved CUs": 0.41,
    "scheduling first and reserved CUs": 0.42,
    "DMA engines": 0.66,
    "DMA engines and 8 CUs removed": 0.72,
}
"""Share of the ideal speedup on an MI300X of 304 CUs (C3 and ConCCL, the published ladder)."""


def ideal_speedup(computation: float, communication: float) -> float:
    """Return how much faster both together could be than one after the other.

    Parameters
    ----------
    computation, communication : float
        Times alone.
    """
    return (computation + communication) / max(computation, communication)


def share_of_ideal(speedup: float, ideal: float) -> float:
    """Return which share of the possible speedup is reached; 0 where none is possible."""
    return (speedup - 1) / (ideal - 1) if ideal > 1 else 0.0


def slowed_by_fewer_units(units: int, removed: int) -> float:
    """Return by which factor work that scales with the units takes longer without some.

    Parameters
    ----------
    units, removed : int
        Compute units or SMs: all, and those that communication takes away.

    Notes
    -----
    On an MI300X a matrix product loses 17 % with 32 of 304 units less and 27 % with 64: more, and
    about as much, as the 11.8 % and 26.7 % of pure scaling.
    """
    return units / (units - removed)
