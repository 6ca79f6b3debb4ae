"""What the values of options may be; whoever gives another is told which."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import click

from depgraph.system.limits import (
    FASTEST_MEMORY,
    LARGEST_ID,
    LONGEST_TIME,
    MOST_BLOCKS_PER_SM,
    MOST_JOBS,
    MOST_ROWS,
    MOST_SM_COUNTS,
    MOST_SMS,
    SLOWEST_MEMORY,
    number,
    whole_number,
)
from depgraph.system.text import in_short

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@contextmanager
def wrong_usage() -> Iterator[None]:
    """Let an option value that makes no sense end the program as wrong usage does."""
    from depgraph.errors import ModelError

    try:
        yield
    except ModelError as error:
        raise click.UsageError(str(error)) from None


class OptionType(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A value that is read from text; a default that is none is taken as it is."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return what `read` makes of the text."""
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except ValueError as error:
            self.fail(f"{in_short(value)!r} {error}", param, ctx)

    def read(self, text: str) -> Any:
        """Return the value; `ValueError` says what the text is not, and what to give."""
        raise NotImplementedError


class Whole(OptionType):
    """A whole number within limits.

    Parameters
    ----------
    least, most : int
    """

    name = "N"

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most

    def read(self, text: str) -> int:
        """Return the number."""
        value = whole_number(text, self._least, self._most)
        if value is None:
            raise ValueError(f"is not a whole number from {self._least} to {self._most}")
        return value


SMS = Whole(1, MOST_SMS)
OCCUPANCY = Whole(1, MOST_BLOCKS_PER_SM)
JOBS = Whole(1, MOST_JOBS)
ROWS = Whole(0, MOST_ROWS)
ID = Whole(0, LARGEST_ID)


class Percent(OptionType):
    """A share in percent, from 0."""

    name = "PERCENT"

    def read(self, text: str) -> float:
        """Return the number."""
        value = number(text, 0.0, 1e6)
        if value is None:
            raise ValueError("is not a percentage from 0")
        return value


class SmCounts(OptionType):
    """SM counts: ``80``, ``8,16,80``, ``8:132``, ``8:132:4``, ``inf``."""

    name = "N[,N...]"

    def read(self, text: str) -> tuple[float, ...]:
        """Return the counts in the order given."""
        counts: list[float] = []
        for part in text.split(","):
            found = self._one(part.strip().lower())
            if len(counts) + len(found) > MOST_SM_COUNTS:
                raise ValueError(f"is more than {MOST_SM_COUNTS} numbers of SMs")
            counts += map(float, found)
        return tuple(counts)

    @staticmethod
    def _one(part: str) -> Sequence[float]:
        if part in {"inf", "unlimited"}:
            return [math.inf]
        bounds = [whole_number(text, 1, MOST_SMS) for text in part.split(":")]
        if None in bounds or len(bounds) > len(("first", "last", "step")):
            raise ValueError(
                f"is not a number of SMs: give N to {MOST_SMS}, FIRST:LAST[:STEP] or inf"
            )
        first, last, step = (*bounds, *(bounds[:1] if len(bounds) == 1 else ()), 1)[:3]
        found = range(first, last + 1, step)
        if not found:
            raise ValueError("is not a number of SMs: the first is above the last")
        return found


class KernelRange(OptionType):
    """Kernels in launch order: ``A:B``, ``A:``, ``:B``, or one number."""

    name = "A:B"

    def read(self, text: str) -> tuple[int | None, int | None]:
        """Return the first kernel and the last one plus one."""
        first, colon, last = text.partition(":")
        low = self._end(first) if first.strip() or not colon else None
        if not colon:
            return low, (low or 0) + 1
        high = self._end(last) if last.strip() else None
        if high is not None and high <= (low or 0):
            raise ValueError("names no kernel: give A:B with A below B")
        return low, high

    @staticmethod
    def _end(text: str) -> int:
        value = whole_number(text, 0, LARGEST_ID - 1)
        if value is None:
            raise ValueError("is not a range of kernels: give A:B")
        return value


class Pair(OptionType):
    """Two kernels: ``SOURCE:TARGET``."""

    name = "SOURCE:TARGET"

    def read(self, text: str) -> tuple[int, int]:
        """Return the kernel waited for and the kernel that waits."""
        ends = [whole_number(end, -LARGEST_ID, LARGEST_ID) for end in text.split(":")]
        if len(ends) != len(("source", "target")) or ends[0] is None or ends[1] is None:
            raise ValueError("are not two kernels: give SOURCE:TARGET, such as 3:11")
        return ends[0], ends[1]


class Bandwidth(OptionType):
    """A number of GB/s, or the word ``gpu``."""

    name = "GB/s"

    def read(self, text: str) -> float | Literal["gpu"]:
        """Return the bandwidth, or the word."""
        if text == "gpu":
            return "gpu"
        bandwidth = number(text, SLOWEST_MEMORY, FASTEST_MEMORY)
        if bandwidth is None:
            raise ValueError(
                f"is not a bandwidth: give {SLOWEST_MEMORY:g} to {FASTEST_MEMORY:g} GB/s, or gpu"
            )
        return bandwidth


class Time(OptionType):
    """A time with its unit, in microseconds: ``2.3ms``, ``850us``, ``1.2s``."""

    name = "TIME"

    def read(self, text: str) -> float:
        """Return the time in microseconds."""
        units = {"us": 1.0, "ms": 1e3, "s": 1e6}
        unit = next((unit for unit in units if text.endswith(unit)), None)
        value = None if unit is None else number(text.removesuffix(unit).strip(), 0.0, LONGEST_TIME)
        if unit is None or not value:
            raise ValueError("is not a time with its unit, such as 2.3ms, 850us or 1.2s")
        return value * units[unit]
