"""Work side by side, on threads here or on workers of a cluster: its memory, and how far it is."""

import ctypes
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

from depgraph.errors import ModelError

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Limit:
    jobs = 1 << 20


def available_jobs() -> int:
    """Return the number of processors this process may use."""
    has_affinity = hasattr(os, "sched_getaffinity")
    found = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return min(found, _Limit.jobs)


def limit_jobs(jobs: int) -> None:
    """Let this process use so many processors at most: others work beside it."""
    _Limit.jobs = max(1, jobs)


class Workers(Protocol):
    """Something that applies a function to many items, several at a time."""

    jobs: int
    remote: bool  # whether workers share only a file system with this process

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result]:
        """Yield the results in the order of the items, reading only a few items ahead."""


class Threads:
    """Threads of this process. Compiled functions and Arrow let them run at the same time."""

    remote = False

    def __init__(self, jobs: int | None = None) -> None:
        self.jobs = jobs or available_jobs()

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result]:
        """Yield the results in the order of the items, reading only a few items ahead."""
        if self.jobs == 1:
            yield from map(function, items)
            return
        with ThreadPoolExecutor(self.jobs, thread_name_prefix="depgraph") as pool:
            running: deque[object] = deque()
            try:
                for item in items:
                    running.append(pool.submit(function, item))
                    if len(running) > 2 * self.jobs:
                        yield running.popleft().result()  # type: ignore[attr-defined]
                while running:
                    yield running.popleft().result()  # type: ignore[attr-defined]
            finally:
                for future in running:
                    future.cancel()  # type: ignore[attr-defined]


class Steps:
    """Is told, by any thread, what begins in how many steps, and when one is done."""

    def begin(self, what: str, steps: int) -> None:
        """Begin something of so many steps."""

    def done(self) -> None:
        """Be told that one step is done."""


NOBODY = Steps()
"""Watches nothing."""

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)
LEAST_LIMIT = 64 << 20
_FALLBACK = 2 << 30
# What a run takes beside what a limit counts: the interpreter, libraries, buffers of the scan.
BASE_BYTES = 256 << 20
_GROUPS = Path("/sys/fs/cgroup")


def parse_size(text: str, least: int = LEAST_LIMIT) -> int:
    """Turn ``512MiB``, ``2G`` or ``1.5GB`` into bytes, not below `least`."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or (match[3] and not match[2]):
        message = f"{text!r} is not a size: give one such as 512MiB or 8GiB"
        raise ModelError(message)
    units = _BINARY_UNITS if match[3] else _UNITS
    size = int(min(float(match[1]) * units[match[2].upper()], sys.maxsize))
    if size < least:
        message = f"a memory limit of {text} is too small: give at least {least >> 20}MiB"
        raise ModelError(message)
    return size


def return_free_memory() -> None:
    """Give back what this process has freed, where the C library has ``malloc_trim``."""
    # It and Arrow keep freed memory; what is freed in one order and asked for in another grows.
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def default_limit() -> int:
    """Return half of the memory that is free to this process, in bytes."""
    free = [_FALLBACK * 2]
    meminfo = _read("/proc/meminfo")
    if available := re.search(r"MemAvailable:\s+(\d+) kB", meminfo):
        free = [int(available[1]) * 1024]
    free += _free_in_groups(_read("/proc/self/cgroup"), _GROUPS)
    return max(LEAST_LIMIT, min(free) // 2)


def _free_in_groups(membership: str, root: Path) -> list[int]:
    """Return what control groups leave this process, by lines ``number:controllers:path``."""
    free = []
    for line in ["0::/", "1:memory:/", *membership.splitlines()]:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            base, names = root, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base, names = root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        group = Path(path.lstrip("/"))
        for folder in (group, *group.parents):
            limit, usage = (_read(base / folder / name).strip() for name in names)
            if limit.isdigit() and usage.isdigit():
                free.append(int(limit) - int(usage))
    return free


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except OSError:
        return ""
