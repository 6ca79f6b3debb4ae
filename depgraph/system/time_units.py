"""Times from one unit into another: us, ns, ms, s, and cycles of a known clock."""

from __future__ import annotations

MICROSECONDS = {"us": 1.0, "ns": 1e-3, "ms": 1e3, "s": 1e6}
TIMES = frozenset({*MICROSECONDS, "cycles"})


def convert_time(value: float, unit: str, wanted: str, clock_mhz: float | None) -> float | None:
    """Return a time in another unit; None where there is no telling, as of cycles of no clock."""
    if value == 0 or unit == wanted:
        return value
    if not {unit, wanted} <= TIMES:
        return None
    if "cycles" not in (unit, wanted):
        return value * MICROSECONDS[unit] / MICROSECONDS[wanted]
    if clock_mhz is None:
        return None
    if unit == "cycles":
        return value / clock_mhz / MICROSECONDS[wanted]
    return value * MICROSECONDS[unit] * clock_mhz
