"""The largest numbers taken from users and files: beyond them is a slip, or an attack on memory."""

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
