"""Work side by side in copies of this process: for what holds the interpreter's lock."""

import os
import pickle
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

Result = TypeVar("Result")

_MOST_ITEMS = 256  # a byte each
# Elsewhere system libraries may not be used in a copy of a process that has used them.
_CAN_COPY = sys.platform == "linux"


def map_in_forks(
    function: Callable[[int], Result],
    items: int,
    jobs: int,
    *,
    without: Callable[[Result], Result] = lambda result: result,
) -> list[Result]:
    """Apply a function to numbers from 0, here and in forks; what one fails to do is done here."""
    jobs = min(jobs, items) if _CAN_COPY and items <= _MOST_ITEMS else 1
    if jobs <= 1:
        return [function(i) for i in range(items)]
    taking, giving = os.pipe()
    os.write(giving, bytes(range(items)))
    os.close(giving)

    def work() -> dict[int, Result]:
        """Take numbers until none is left."""
        found = {}
        while number := os.read(taking, 1):
            found[number[0]] = function(number[0])
        return found

    def work_in_copy() -> bytes:
        return pickle.dumps({i: without(result) for i, result in work().items()})

    copies = [_start(work_in_copy) for _ in range(jobs - 1)]
    try:
        found = work()
    finally:
        os.close(taking)
        texts = [_end(*copy) for copy in copies]
    for text in texts:
        found.update(pickle.loads(text) if text else {})  # noqa: S301  our own
    return [found[i] if i in found else function(i) for i in range(items)]


def _start(work: Callable[[], bytes]) -> tuple[int, int]:
    """Begin in a copy; return its number and where its result can be read."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Threads of libraries do not live on in the copy; it does not wait for them.
        warnings.simplefilter("ignore", DeprecationWarning)
        number = os.fork()
    if number:
        os.close(writing)
        return number, reading
    status = 1
    with suppress(BaseException):
        result = work()
        with open(writing, "wb") as pipe:  # noqa: PTH123  no path
            pipe.write(result)
        status = 0
    os._exit(status)


def _end(number: int, reading: int) -> bytes:
    """Wait for a copy; return its result, nothing if it failed."""
    with open(reading, "rb") as pipe:
        result = pipe.read()
    _, status = os.waitpid(number, 0)
    return result if status == 0 else b""
