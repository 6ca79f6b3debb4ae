"""Calls that name the same store have one each, unless it holds them all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_graphs import FakeProgram, Kernel

from depgraph.apply.captured import write_captures
from depgraph.apply.recorded import captures_of, store_of_call


def record(store, *calls):
    graph = FakeProgram([Kernel(reads=[], writes=[(0, 32)])]).captured()
    write_captures(captures_of(store), [replace(graph, call=call) for call in calls])


@pytest.mark.parametrize("is_recorded_before", [False, True])
def test_a_second_call_of_the_same_name_has_a_store_of_its_own(tmp_path, is_recorded_before):
    store, second = tmp_path / "m.out", tmp_path / "m.out-1"
    if is_recorded_before:
        record(store, 0)
        record(second, 1)
    used = set()
    assert store_of_call(store, 0, used) == store
    record(store, 0)
    assert store_of_call(store, 1, used) == second


def test_a_store_that_has_all_calls_is_used_for_all(tmp_path):
    record(tmp_path / "m.out", 0, 1)
    used = set()
    assert {store_of_call(tmp_path / "m.out", call, used) for call in (0, 1)} == used
    assert used == {tmp_path / "m.out"}


def test_a_call_with_a_name_of_its_own_has_that_store(tmp_path):
    """Also where it is of another call: the program has changed, and that is refused."""
    record(tmp_path / "m.out", 0)
    used = {tmp_path / "other.out"}
    assert store_of_call(tmp_path / "m.out", 1, used) == tmp_path / "m.out"
