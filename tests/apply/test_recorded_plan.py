"""From a store and the graphs beside it to a plan and its predicted times."""

from __future__ import annotations

import shutil

import pytest

from depgraph.apply.captured import KERNEL, Captured, Node, write_captures
from depgraph.apply.order import chain, reachable
from depgraph.apply.plan import make_plan
from depgraph.apply.prediction import make_predictor, recorded_profile
from depgraph.apply.recorded import captures_of
from depgraph.errors import ApplyError
from depgraph.recorder.times import write_times
from depgraph.store.files import times_of
from depgraph.store.store import Store

MICROSECONDS = 5.0


@pytest.fixture
def store(sample_store, tmp_path):
    """Return a store as if its program had been captured and recorded."""
    path = tmp_path / "gru.out"
    shutil.copytree(sample_store.path, path)
    store = Store(path)
    nodes = tuple(Node(KERNEL, k.mangled_name or k.name, k.grid, k.block) for k in store.kernels)
    write_captures(captures_of(path), [Captured(nodes, tuple(chain(len(nodes))), (), call=2)])
    events = [
        {
            "ph": "X", "cat": "kernel", "name": k.name, "ts": 10.0 * k.kernel, "dur": MICROSECONDS,
            "args": {
                "device": 0, "stream": 7, "correlation": 1, "grid": k.grid, "block": k.block,
            },
        }
        for k in store.kernels
    ]  # fmt: skip
    write_times(times_of(path), events, ["NVIDIA H100 80GB HBM3"], store=store.identity)
    return store


def test_every_dependence_of_the_recording_is_an_edge_or_implied(store):
    plan = make_plan(store, call=2)
    before = reachable(plan.n, plan.edges())
    assert plan.n == len(store.kernels)
    assert all(before[p.target] >> p.source & 1 for p in store.pairs)
    assert len(plan.edges()) < len(store.pairs)
    assert plan.why_fixed == {}
    assert plan.values_within(1 << 30) == []  # no pointer is known


def test_a_graph_with_fewer_edges_is_predicted_to_take_less(store):
    profile = recorded_profile(store.path)
    plan = make_plan(store, 2, (profile.duration / 1000).tolist)
    assert plan.weights == (MICROSECONDS,) * plan.n
    predictor = make_predictor(plan, store, profile, 132)
    in_a_chain, in_a_graph = predictor.time(chain(plan.n)), predictor.time(plan.edges())
    assert plan.n * MICROSECONDS < in_a_chain < 2 * plan.n * MICROSECONDS
    assert MICROSECONDS < in_a_graph < 0.9 * in_a_chain
    assert {c.name for c in plan.candidates([])} >= {"as captured", "all edges", "2 branches"}


def test_what_was_not_recorded_is_refused(store):
    with pytest.raises(ApplyError, match=r"call 0 of depgraph\.torch\.parallelize is not in it"):
        make_plan(store, 0)
    captures_of(store.path).unlink()
    with pytest.raises(ApplyError, match=r"recorded without depgraph\.torch\.parallelize"):
        make_plan(store, 2)


def test_no_times_no_prediction(store):
    times_of(store.path).unlink()
    assert recorded_profile(store.path) is None
    assert make_predictor(make_plan(store, 2), store, None, 132) is None
