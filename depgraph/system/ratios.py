"""Ratios of times, where a time may be 0."""

from __future__ import annotations


def ratio(numerator: float, denominator: float) -> float:
    """Return a ratio of times; 1 where there is nothing to do."""
    return numerator / denominator if denominator > 0 else 1.0


def share_of_gain(speedup: float, possible: float) -> float | None:
    """Return which share of a possible speedup's gain a speedup has; None if there is none."""
    return None if possible == 1 else (speedup - 1) / (possible - 1)


def share_of(part: float, whole: float) -> float:
    """Return a part of a whole, 0 to 1; it is above by rounding at most."""
    return min(1.0, part / whole) if whole > 0 else 0.0
