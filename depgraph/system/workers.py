"""Work side by side, on threads here or on the workers of a cluster, and how far it is."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

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
