"""What the values of options may be; whoever gives another is told which."""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import click

from depgraph.system.text import (
    FASTEST_MEMORY,
    LARGEST_ID,
    LONGEST_TIME,
    MOST_BLOCKS_PER_SM,
    MOST_JOBS,
    MOST_ROWS,
    MOST_SM_COUNTS,
    MOST_SMS,
    SLOWEST_MEMORY,
    in_short,
    read_number,
    read_whole_number,
)
from depgraph.system.workers import LEAST_LIMIT, parse_size

_MICROSECONDS = {"us": 1.0, "ms": 1e3, "s": 1e6}


@contextmanager
def wrong_usage() -> Iterator[None]:
    """Let an option value that makes no sense end the program as wrong usage does."""
    from depgraph.errors import ModelError

    try:
        yield
    except ModelError as error:
        raise click.UsageError(str(error)) from None


def import_numpy() -> None:
    """Import it without a thread for each core: starting these takes longer than a command."""
    named = "OPENBLAS_NUM_THREADS"
    is_ours = named not in os.environ
    os.environ.setdefault(named, "1")
    import numpy  # noqa: F401, ICN001

    if is_ours:
        del os.environ[named]  # it is not for programs that we run


def reading(read: Callable[[str], Any], missing: Any = None) -> Callable[..., Any]:
    """Return the callback of an option whose value, or each of several, is read by the core."""

    def callback(_: click.Context, __: click.Parameter, value: Any) -> Any:
        if value is None:
            return missing
        import_numpy()  # what reads may import more
        with wrong_usage():
            return tuple(map(read, value)) if isinstance(value, tuple) else read(value)

    return callback


class Value(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A value that is read from text; a default that is none is taken as it is."""

    # A `ValueError` of `read` says what the text is not, and what to give.
    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name, self._read = name, read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return what is read from the text."""
        from depgraph.errors import ModelError

        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(f"{in_short(value)!r} {error}", param, ctx)
        except ModelError as error:
            self.fail(str(error), param, ctx)


def whole(least: int, most: int) -> Value:
    """Return the type of a whole number within limits."""

    def read(text: str) -> int:
        value = read_whole_number(text, least, most)
        if value is None:
            raise ValueError(f"is not a whole number from {least} to {most}")
        return value

    return Value("N", read)


def size(least: int = LEAST_LIMIT, most: int | None = None) -> Value:
    """Return the type of a number of bytes, such as 512MiB."""

    def read(text: str) -> int:
        found = parse_size(text, least)
        if most is not None and found > most:
            raise ValueError(f"is too much: give at most {most >> 30}GiB")
        return found

    return Value("SIZE", read)


def _read_percent(text: str) -> float:
    value = read_number(text, 0.0, 1e6)
    if value is None:
        raise ValueError("is not a percentage from 0")
    return value


def _read_sm_counts(text: str) -> tuple[float, ...]:
    """Read ``80``, ``8,16,80``, ``8:132``, ``8:132:4`` or ``inf``, in the order given."""
    counts: list[float] = []
    for part in text.split(","):
        found = _sm_counts_of(part.strip().lower())
        if len(counts) + len(found) > MOST_SM_COUNTS:
            raise ValueError(f"is more than {MOST_SM_COUNTS} numbers of SMs")
        counts += map(float, found)
    return tuple(counts)


def _sm_counts_of(part: str) -> Sequence[float]:
    if part in {"inf", "unlimited"}:
        return [math.inf]
    bounds = [read_whole_number(text, 1, MOST_SMS) for text in part.split(":")]
    if None in bounds or len(bounds) > len(("first", "last", "step")):
        raise ValueError(f"is not a number of SMs: give N to {MOST_SMS}, FIRST:LAST[:STEP] or inf")
    first, last, step = (*bounds, *(bounds[:1] if len(bounds) == 1 else ()), 1)[:3]
    found = range(first, last + 1, step)
    if not found:
        raise ValueError("is not a number of SMs: the first is above the last")
    return found


def _read_kernel_range(text: str) -> tuple[int | None, int | None]:
    """Read ``A:B``, ``A:``, ``:B`` or one number: the first kernel and the last one plus one."""
    first, colon, last = text.partition(":")
    low = _kernel_number(first) if first.strip() or not colon else None
    if not colon:
        return low, (low or 0) + 1
    high = _kernel_number(last) if last.strip() else None
    if high is not None and high <= (low or 0):
        raise ValueError("names no kernel: give A:B with A below B")
    return low, high


def _kernel_number(text: str) -> int:
    value = read_whole_number(text, 0, LARGEST_ID - 1)
    if value is None:
        raise ValueError("is not a range of kernels: give A:B")
    return value


def _read_pair(text: str) -> tuple[int, int]:
    """Read the kernel waited for and the kernel that waits."""
    ends = [read_whole_number(end, -LARGEST_ID, LARGEST_ID) for end in text.split(":")]
    if len(ends) != len(("source", "target")) or ends[0] is None or ends[1] is None:
        raise ValueError("are not two kernels: give SOURCE:TARGET, such as 3:11")
    return ends[0], ends[1]


def _read_bandwidth(text: str) -> float | Literal["gpu"]:
    if text == "gpu":
        return "gpu"
    bandwidth = read_number(text, SLOWEST_MEMORY, FASTEST_MEMORY)
    if bandwidth is None:
        limits = f"{SLOWEST_MEMORY:g} to {FASTEST_MEMORY:g} GB/s"
        raise ValueError(f"is not a bandwidth: give {limits}, or gpu")
    return bandwidth


def _read_time(text: str) -> float:
    """Read ``2.3ms``, ``850us`` or ``1.2s``, in microseconds."""
    unit = next((unit for unit in _MICROSECONDS if text.endswith(unit)), None)
    value = read_number(text.removesuffix(unit or "").strip(), 0.0, LONGEST_TIME)
    if unit is None or not value:
        raise ValueError("is not a time with its unit, such as 2.3ms, 850us or 1.2s")
    return value * _MICROSECONDS[unit]


PATH = click.Path(path_type=Path)
SMS = whole(1, MOST_SMS)
OCCUPANCY = whole(1, MOST_BLOCKS_PER_SM)
JOBS = whole(1, MOST_JOBS)
ROWS = whole(0, MOST_ROWS)
ID = whole(0, LARGEST_ID)
PERCENT = Value("PERCENT", _read_percent)
SM_COUNTS = Value("N[,N...]", _read_sm_counts)
KERNEL_RANGE = Value("A:B", _read_kernel_range)
PAIR = Value("SOURCE:TARGET", _read_pair)
BANDWIDTH = Value("GB/s", _read_bandwidth)
TIME = Value("TIME", _read_time)
