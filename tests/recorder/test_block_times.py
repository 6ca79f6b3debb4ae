"""Block times of a run of their own, put with the kernels of another."""

from __future__ import annotations

import numpy as np

from depgraph.recorder.block_times import BlockRun, with_block_times
from depgraph.trace.block_spans import BlockSpans, unpacked


def launch(name, longest):
    spans = BlockSpans(np.zeros(2, np.int64), np.array([1, longest]), np.zeros(2, np.int64), 1, 0)
    return (name, (2, 1, 1, 32, 1, 1)), spans


def event(name):
    return {"cat": "kernel", "name": name, "args": {"grid": [2, 1, 1], "block": [32, 1, 1]}}


def longest_in(events):
    spans = [unpacked(each["args"].get("blocks"), 2) for each in events]
    return [None if each is None else int(each.duration.max()) for each in spans]


def test_each_launch_has_the_times_of_the_same_one_in_whatever_order_others_ran():
    run = BlockRun([launch("b", 5), launch("a", 6), launch("a", 7)], 1)
    memset = {"cat": "gpu_memset", "name": "Memset", "args": {}}
    found, reason = with_block_times([event("a"), memset, event("b"), event("a")], [run])
    assert longest_in(found) == [6, None, 5, 7]
    assert not reason


def test_a_kernel_that_was_not_launched_as_often_has_none():
    run = BlockRun([launch("a", 6), launch("a", 7), launch("b", 8)], 1)
    found, reason = with_block_times([event("a"), event("b"), event("c")], [run])
    assert longest_in(found) == [None, 8, None]
    assert reason == "kernels without block times: 2 of 3"


def test_two_processes_that_launched_the_same_have_their_own():
    runs = [BlockRun([launch("a", 5)], 1), BlockRun([launch("a", 6)], 1)]
    first, second = (with_block_times([event("a")], runs)[0] for _ in range(2))
    assert sorted(longest_in(first) + longest_in(second)) == [5, 6]
    assert with_block_times([event("a")], runs)[1] == "kernels without block times: 1 of 1"
