"""Times: from one unit into another, and ratios of them where one may be 0."""

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


def ratio(numerator: float, denominator: float) -> float:
    """Return a ratio of times; 1 where there is nothing to do."""
    return numerator / denominator if denominator > 0 else 1.0


def share_of_gain(speedup: float, possible: float) -> float | None:
    """Return which share of a possible speedup's gain a speedup has; None if there is none."""
    return None if possible == 1 else (speedup - 1) / (possible - 1)


def share_of(part: float, whole: float) -> float:
    """Return a part of a whole, 0 to 1; it is above by rounding at most."""
    return min(1.0, part / whole) if whole > 0 else 0.0
