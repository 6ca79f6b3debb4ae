"""Numbers and units as profilers print them."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

_NANOSECONDS = {
    "ns": Decimal(1),
    "us": Decimal(1000),
    "ms": Decimal(10**6),
    "s": Decimal(10**9),
}
_SHORT_UNITS = {
    **dict.fromkeys(("ns", "nsec", "nsecond", "nanosecond", "nanoseconds"), "ns"),
    **dict.fromkeys(("us", "\u00b5s", "\u03bcs", "usec", "usecond", "microseconds"), "us"),
    **dict.fromkeys(("ms", "msec", "msecond", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("s", "sec", "second", "seconds"), "s"),
}
_PLAIN = re.compile(r"[0-9]{1,18}")
_BYTE_UNIT = re.compile(r"(?P<prefix>[KM]?)(?:B|bytes?)(?:/block)?", re.IGNORECASE)
_INT64_LIMIT = 2**63
_LARGEST_EXPONENT = 30
_ROUNDED = Decimal("1.5")  # bytes between two values that can be told apart
_DIGIT_GROUP = 3


def time_unit(text: str) -> str | None:
    """Return ``ns``, ``us``, ``ms`` or ``s`` for a spelling of it, None for anything else."""
    return _SHORT_UNITS.get(text.strip().lower())


def nanoseconds(value: Decimal, unit: str) -> Decimal:
    """Convert a time in ``ns``, ``us``, ``ms`` or ``s``."""
    return value * _NANOSECONDS[unit]


def exact_bytes(value: Decimal, unit: str, kilo: int) -> int | None:
    """Return a size in bytes; None if it was rounded to more than a byte or has another unit.

    The value has the digits that the file shows; K stands for 1000 or 1024.
    """
    match = _BYTE_UNIT.fullmatch(unit.strip())
    exponent = value.as_tuple().exponent
    if match is None or not isinstance(exponent, int):
        return None
    scale = kilo ** " KM".index(match["prefix"].upper() or " ")
    return round(value * scale) if scale * Decimal(10) ** min(exponent, 0) < _ROUNDED else None


def decimal(text: str) -> Decimal | None:
    """Read a finite number, None where the text is none."""
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        return None
    return value if value.is_finite() and value.adjusted() < _LARGEST_EXPONENT else None


def integer(text: str) -> int | None:
    """Read a whole number that fits 64 bits, None where the text is none."""
    if _PLAIN.fullmatch(text):
        return int(text)
    value = decimal(text)
    if value is None or abs(value) >= _INT64_LIMIT or value != value.to_integral_value():
        return None
    return int(value)


_SPACES = re.compile("[\u00a0\u202f\u2009' ]")
_GROUPED = re.compile(r"[+-]?[0-9]{1,3}(?:([.,])[0-9]{3})(?:\1[0-9]{3})*")


class NumberFormat:
    """Which of ``.`` and ``,`` is the decimal mark in a file whose locale is not known.

    Feed it the numbers of the file with `learn`, then read them with `decimal`. ``1,860,000``
    and ``65.77`` mean English; ``27.595.520`` and ``65,77`` mean German; ``1,860`` alone could
    be either, and is taken as English.
    """

    def __init__(self) -> None:
        self.evidence = {".": 0, ",": 0}
        self.ambiguous = 0

    @property
    def mark(self) -> str:
        """The decimal mark that the numbers so far speak for."""
        return "," if self.evidence[","] > self.evidence["."] else "."

    @property
    def uncertain(self) -> bool:
        """Whether the numbers contradict one another, or could all be read either way."""
        if self.ambiguous and not any(self.evidence.values()):
            return True
        return all(self.evidence.values())

    def learn(self, text: str, *, whole: bool = False) -> None:
        """Note what one number says about the marks; `whole` numbers have no decimal mark."""
        text = _SPACES.sub("", text.strip())
        dot, comma = text.rfind("."), text.rfind(",")
        if dot < 0 and comma < 0:
            return
        last = "." if dot > comma else ","
        other = "," if last == "." else "."
        three_digits_after = len(text) - 1 - max(dot, comma) == _DIGIT_GROUP
        if text.count(last) > 1:
            self.evidence[other] += 1
        elif text.count(other) or not three_digits_after or text.lstrip("+-")[0] == "0":
            self.evidence[last] += 1
        elif whole:
            self.evidence[other] += 1
        else:
            self.ambiguous += 1

    def decimal(self, text: str) -> Decimal | None:
        """Read a finite number, None where the text is none."""
        text = _SPACES.sub("", text.strip())
        group = "," if self.mark == "." else "."
        whole, mark, fraction = text.partition(self.mark)
        if group in whole:
            if not _GROUPED.fullmatch(whole):
                return None
            whole = whole.replace(group, "")
        return decimal(f"{whole}{'.' if mark else ''}{fraction}")
