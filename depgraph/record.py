"""Marking what ``depgraph record --region profiler`` is to record."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_DRIVER = "libcuda.so.1"


@contextmanager
def region() -> Iterator[None]:
    """Record what is launched inside, if the program runs under ``--region profiler``.

    Any profiler that honours cudaProfilerStart and cudaProfilerStop sees the region, too. Without
    a GPU it does nothing.

    Examples
    --------
    >>> import depgraph.record
    >>> with depgraph.record.region():
    ...     pass  # the step that is to be recorded
    """
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError:
        yield
        return
    driver.cuInit(0)  # the recorder hears of nothing before
    driver.cuProfilerStart()
    try:
        yield
    finally:
        driver.cuProfilerStop()
