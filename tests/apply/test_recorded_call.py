"""From a store and the graphs beside it to recorded dependences and predicted times."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import recordings
from small_captures import captured
from stores import set_metadata

from depgraph.analysis.compare_mechanisms import compare_mechanisms
from depgraph.analysis.findings import Findings
from depgraph.apply.captured import KERNEL, MEMSET, Node, write_captures
from depgraph.apply.order import chain, masks_of, reduced
from depgraph.apply.plan import make_plan
from depgraph.apply.recorded import store_of_call
from depgraph.apply.recorded_call import make_predictor, read_recorded
from depgraph.errors import ApplyError
from depgraph.extraction.pipeline import extract
from depgraph.mechanisms.cuda_graph import CudaGraph
from depgraph.parsers import open_trace
from depgraph.parsers.profiles import read_profile
from depgraph.recorder.times import as_trace
from depgraph.scenario.of_store import Request
from depgraph.scenario.scenario import Scenario
from depgraph.store.companions import captures_of, times_of, write_companion
from depgraph.store.store import Store

MICROSECONDS = 5.0
H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture
def store(sample_store, tmp_path):
    """Return a store as if its program had been captured and recorded."""
    path = tmp_path / "gru.out"
    shutil.copytree(sample_store.path, path)
    set_metadata(path, format="recording")
    store = Store(path)
    nodes = (Node(KERNEL, k.mangled_name or k.name, k.grid, k.block) for k in store.kernels)
    write_captures(captures_of(path), [replace(captured(*nodes), call=2)], store=store.identity)
    events = [
        {
            "ph": "X", "cat": "kernel", "name": k.name, "ts": 10.0 * k.kernel, "dur": MICROSECONDS,
            "args": {
                "device": 0, "stream": 7, "correlation": 1, "grid": k.grid, "block": k.block,
            },
        }
        for k in store.kernels
    ]  # fmt: skip
    write_companion(times_of(path), as_trace(events, [H100]), store=store.identity)
    return store


def plan_of(call, weights=None):
    return make_plan(call.captured, weights, recorded=call.shown())


def predictor_of(call):
    said = []
    found = make_predictor(call, 132, read_profile, said.append)
    assert not said
    return found


def test_every_dependence_of_the_recording_is_an_edge_or_implied(store):
    plan = plan_of(read_recorded(store.path, 2))
    _, before = reduced(masks_of(plan.n, plan.edges))
    assert plan.n == len(store.kernels)
    assert all(before[p.target] >> p.source & 1 for p in store.pairs)
    assert len(plan.edges) < len(store.pairs)
    assert plan.fixed == {}


def test_a_graph_with_fewer_edges_is_predicted_to_take_less(store):
    profile = read_profile(times_of(store.path))
    call = read_recorded(store.path, 2)
    plan = plan_of(call, (profile.duration / 1000).tolist())
    assert plan.weights == (MICROSECONDS,) * plan.n
    predictor = predictor_of(call)
    in_a_chain, in_a_graph = (predictor.time(edges).us for edges in (chain(plan.n), plan.edges))
    assert plan.n * MICROSECONDS < in_a_chain < 1.1 * plan.n * MICROSECONDS
    assert MICROSECONDS < in_a_graph < 0.9 * in_a_chain


def test_memsets_and_joins_take_time_in_a_graph(tmp_path):
    first, second, third = (recordings.KERNEL | {"number": i, "grid_id": i} for i in (1, 2, 3))
    path = recordings.recording(tmp_path, first, recordings.MEMSET, second, third)
    extract(open_trace(path), tmp_path / "it.out")
    nodes = [Node(KERNEL, "_Z1kv", (2, 1, 1), (32, 1, 1)) for _ in range(3)]
    nodes.insert(1, Node(MEMSET))
    store = Store(tmp_path / "it.out")
    write_captures(captures_of(store.path), [captured(*nodes)], store=store.identity)
    args = {"device": 0, "stream": 7, "correlation": 1, "grid": (2, 1, 1), "block": (32, 1, 1)}
    times = [
        {"ph": "X", "cat": category, "name": name, "ts": 10.0 * i, "dur": 5.0, "args": args}
        for i, (category, name) in enumerate(
            [("kernel", "k()"), ("gpu_memset", "Memset"), ("kernel", "k()"), ("kernel", "k()")]
        )
    ]
    write_companion(times_of(store.path), as_trace(times, [H100]), store=store.identity)
    call = read_recorded(store.path, 0)
    predictor = predictor_of(call)

    def predict(edges):
        return predictor.time(edges).us

    with_memset = predict(chain(4))
    assert with_memset - predict([(0, 2), (2, 3)]) == pytest.approx(5.0 + 1.43, abs=0.5)
    # An implied edge makes no join.
    assert predict([*chain(4), (0, 3)]) == with_memset
    side_by_side = predict([(0, 1), (1, 3), (2, 3)])
    assert side_by_side < with_memset - 4
    assert side_by_side - predict([(0, 1), (1, 3)]) == pytest.approx(0, abs=2)


def test_what_was_not_recorded_is_refused(store):
    with pytest.raises(ApplyError, match=r"call 0 of depgraph\.torch\.parallelize is not in it"):
        read_recorded(store.path, 0)
    captures_of(store.path).unlink()
    with pytest.raises(ApplyError, match=r"recorded without depgraph\.torch\.parallelize"):
        read_recorded(store.path, 2)


def test_a_recording_of_another_program_is_refused(store):
    other = replace(read_recorded(store.path, 2).captured, nodes=())
    with pytest.raises(ApplyError, match="another program: "):
        read_recorded(store.path, 2, other)


def test_no_times_no_prediction(store):
    times_of(store.path).unlink()
    said = []
    assert make_predictor(read_recorded(store.path, 2), 132, read_profile, said.append) is None
    assert said == ["nothing is predicted: the recording has no times"]


@pytest.mark.jit_only
def test_apply_and_bound_predict_the_same_microseconds(store, program):
    call = read_recorded(store.path, 2)
    scenario = Scenario.of_store(store, Request(read_profile=read_profile)).on(132)
    found = Findings(scenario).graph_prediction
    (row,) = compare_mechanisms(scenario, [132], [CudaGraph()]).outcomes
    predictor = predictor_of(call)
    applied = predictor.time(call.shown().edges)
    assert applied.us == row.predicted_us == found.makespan
    assert (applied.low_us, applied.high_us) == (row.predicted_low_us, row.predicted_high_us)
    in_a_chain = predictor.time(chain(len(store.kernels)))
    assert in_a_chain.us == row.predicted_serial_us == found.chain.time
    assert in_a_chain.family == "chains"
    assert row.predicted_speedup == found.speedup == in_a_chain.us / applied.us
    asked = "--sms", "132", "--mechanism", "cuda-graph", "--format", "json"
    (printed,) = json.loads(program("bound", store.path, *asked).out)["predictions"]
    for key in ("us", "low_us", "high_us"):
        assert printed[f"predicted_{key}"] == getattr(applied, key)
    assert printed["predicted_serial_us"] == in_a_chain.us


def record(store, *calls):
    write_captures(captures_of(store), [replace(captured(), call=call) for call in calls])


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
