"""Copies of this process: the same results in the same order, and errors where they can be seen."""

import os
import sys
from pathlib import Path

import pytest

from depgraph.system.forks import map_in_forks

needs_copies = pytest.mark.skipif(sys.platform != "linux", reason="processes are not copied here")


@pytest.mark.parametrize("jobs", [1, 2, 5, 50])
def test_results_come_in_order_however_many_processes_work(jobs):
    assert map_in_forks(lambda i: i * i, 12, jobs) == [i * i for i in range(12)]


def test_nothing_to_do_is_no_error():
    assert map_in_forks(lambda i: i, 0, 4) == []


@needs_copies
def test_other_processes_take_part():
    here = os.getpid()
    to_copy, to_here = os.pipe(), os.pipe()

    def meet(_):
        # Each waits for the other, so that neither can take both numbers.
        other, own = (to_copy, to_here) if os.getpid() == here else (to_here, to_copy)
        os.write(other[1], b".")
        os.read(own[0], 1)
        return os.getpid()

    assert len(set(map_in_forks(meet, 2, 2))) == 2
    for end in (*to_copy, *to_here):
        os.close(end)


@needs_copies
def test_what_a_copy_fails_to_do_is_done_here():
    here = os.getpid()

    def fails_elsewhere(i):
        if os.getpid() != here:
            raise RuntimeError(i)
        return i

    assert map_in_forks(fails_elsewhere, 6, 3) == list(range(6))


def test_an_error_is_raised_here():
    with pytest.raises(ZeroDivisionError):
        map_in_forks(lambda i: 1 // (i - 3), 6, 3)


@needs_copies
def test_no_copy_is_left_behind():
    before = children()
    map_in_forks(lambda i: i, 6, 3)
    assert children() <= before  # other tests may have left a server of processes


def children():
    """Return the processes that this one has started."""
    tasks = Path("/proc/self/task").glob("*/children")
    return {number for task in tasks for number in task.read_text().split()}
