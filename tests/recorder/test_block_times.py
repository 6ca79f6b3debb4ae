"""Block times of a run of their own, put with the kernels of another."""

import json

import numpy as np

from depgraph.recorder.times import TIMES, BlockRun, block_runs_in, with_block_times
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


def block(begin, end, sm, began=0, left=0, left_cycle=0):
    """Return what is left of a block that ran from one cycle to another."""
    return (2**64 - 1 - begin, end, sm, began, left, left_cycle)


def spans_in(tmp_path, *launches):
    """Return the block times of launches of one function, from the rows that each leaves."""
    launched = {
        "event": "kernel", "name": "k", "block": [32, 1, 1], "state": "recorded", "device": 0,
        "context": 0,
    }  # fmt: skip
    events, at = [{"event": "recording", "format": 2, "process": 5}], 0
    for number, rows in enumerate(launches):
        place = {"number": number, "times_at": at, "times": len(rows), "grid": [len(rows), 1, 1]}
        events.append({**launched, **place})
        at += len(rows) * TIMES.itemsize
    lines = "".join(json.dumps(event) + "\n" for event in events)
    (tmp_path / "events-5.jsonl").write_text(lines)
    tables = np.concatenate([np.array(rows, TIMES) for rows in launches])
    (tmp_path / "sectors-5.bin").write_bytes(tables.tobytes())
    (run,) = block_runs_in(tmp_path)
    return [spans for _, spans in run.launches], run.clock_ns


FAST = 1 << 40  # cycles of one SM are nothing to those of another


def test_cycles_of_each_sm_count_from_a_block_that_read_the_clock_of_all(tmp_path):
    rows = [
        block(1000, 9000, 0, 64_000, 68_000, 9000),
        block(FAST, FAST + 8000, 1, 64_320, 68_320, FAST % 2**32 + 8000),
        block(10_000, 12_000, 0),
        block(FAST + 8100, FAST + 10_000, 1),
    ]
    (spans,), clock = spans_in(tmp_path, rows)
    assert clock == 160  # of 4000 and 320
    assert spans.duration.tolist() == [4000, 4000, 1000, 950]
    assert spans.begin.tolist() == [0, 320, 4500, 4370]
    assert spans.sm.tolist() == [0, 1, 0, 1]


def test_an_sm_without_such_a_block_begins_with_the_first(tmp_path):
    rows = [block(1000, 3000, 0, 64, 1064, 3000), block(FAST + 500, FAST + 1500, 1)]
    (spans,), _ = spans_in(tmp_path, rows)
    assert spans.begin.tolist() == [0, 0]
    assert spans.duration.tolist() == [1000, 500]


def test_the_clock_may_begin_anew(tmp_path):
    """Of both clocks the lower half is kept."""
    late = 2**32 - 1000
    rows = [block(late, late + 8000, 0, late, 3000, 7000), block(0, 10, 1, 600, 605, 10)]
    (spans,), _ = spans_in(tmp_path, rows)
    assert spans.duration.tolist() == [4000, 5]
    assert spans.begin.tolist() == [0, 1600]


def test_launches_too_short_to_tell_how_fast_cycles_are_have_the_usual(tmp_path):
    long = [block(0, 200_000, 0, 32, 100_032, 200_000)]
    short = [block(5000, 5200, 0, 64, 160, 5200)]
    (first, second), clock = spans_in(tmp_path, long, short)
    assert clock == 32
    assert (first.duration.tolist(), second.duration.tolist()) == ([100_000], [100])


def test_a_kernel_that_takes_seconds_has_the_usual_rate(tmp_path):
    usual = [block(0, 200_000, 0, 32, 100_032, 200_000)]
    waits = [block(0, 6_000_000_000, 0, 32, 3_000_000_032, 6_000_000_000 % 2**32)]
    (_, spans), _ = spans_in(tmp_path, usual, waits)
    assert spans.duration.tolist() == [3_000_000_000]


def test_without_any_reading_of_the_clock_there_are_no_times(tmp_path):
    (spans,), _ = spans_in(tmp_path, [block(5, 10, 0)])
    assert spans is None
