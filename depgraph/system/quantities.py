"""Numbers that people and files state: how large they may be, their units, ratios of times.

Beyond a limit is a slip, or an attack on memory. One of two times that are compared may be 0.
"""

import re

MOST_SMS = 1 << 20
MOST_SM_COUNTS = 10_000  # of one sweep: each is a schedule
MOST_BLOCKS_PER_SM = 64
MOST_JOBS = 1024
MOST_ROWS = 1 << 31
LARGEST_ID = (1 << 63) - 1  # of a device, a process, a kernel: what a column of a table holds
LARGEST_PARAMETER = (1 << 31) - 1  # of a mechanism
LONGEST_TIME = 1e15  # of a block, a kernel, a gap or a cost, in any unit: 30 years in us
GREATEST_FACTOR = 1e9
SLOWEST_MEMORY, FASTEST_MEMORY = 1e-3, 1e9  # GB/s

_WHOLE = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER = re.compile(
    r"[+-]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,9})?"
)


def whole_number(text: str, least: int, most: int) -> int | None:
    """Read a whole number in plain digits, None where it is none from `least` to `most`."""
    text = text.strip()
    if not _WHOLE.fullmatch(text):
        return None
    value = int(text)
    return value if least <= value <= most else None


def number(text: str, least: float, most: float) -> float | None:
    """Read a number in plain digits, None where it is none from `least` to `most`."""
    text = text.strip()
    if not _NUMBER.fullmatch(text):
        return None
    value = float(text)
    return value if least <= value <= most else None


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
