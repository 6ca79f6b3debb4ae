"""Predictions with contention: what a kernel alone takes, what no schedule can be below."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_programs import programs
from small_graphs import chain_edges, graph_of, scenario_of

from depgraph.analysis.compare_mechanisms import compare_mechanisms
from depgraph.analysis.findings import predict
from depgraph.errors import DeadlockError
from depgraph.gpu.model import MeasuredErrors, load_gpu
from depgraph.gpu.sm_resources import sm_resources
from depgraph.mechanisms import find_mechanisms, predicted_time
from depgraph.mechanisms.base import serial
from depgraph.mechanisms.cuda_graph import CudaGraph
from depgraph.scenario.contention import time_alone
from depgraph.timing.program_times import launch_model, parse_launch

LEAD = 0.5  # of an H100, in microseconds
FREE = launch_model(parse_launch("0,0,0"), unit="us", gpu=load_gpu("H100 SXM"))


def contended(sizes, edges, durations, **more):
    """Return a scenario on an H100, as measured there."""
    graph = graph_of(sizes, edges)
    resources = sm_resources(graph, load_gpu("H100 SXM"))
    usual = {"sms": 132, "contention": "full", "launch": FREE}
    return scenario_of(graph, durations, resources=resources, **(usual | more))


def predicted(scenario, *names):
    found = compare_mechanisms(scenario, [scenario.sms], find_mechanisms(names))
    return [outcome.predicted for outcome in found.outcomes], found.limits[0]


@pytest.mark.jit_only
@pytest.mark.parametrize("blocks", [1, 100, 132, 500, 3000, 9000])
def test_a_kernel_alone_takes_its_measured_time(blocks):
    scenario = contended([blocks], [], np.full(blocks, 20.0))
    (time,), _ = predicted(scenario, "serial")
    # Of many blocks that end at nearly one time, rounding decides which is first.
    assert time == pytest.approx(serial(scenario).makespan, rel=5e-3)


@pytest.mark.parametrize("time", [0.05, 0.2, 0.6, 0.7])
def test_a_kernel_that_is_hardly_longer_than_its_launch_takes_its_measured_time(time):
    scenario = contended([4, 4], [], np.full(8, time))
    (found,), _ = predicted(scenario, "serial")
    assert found == pytest.approx(2 * time)


@pytest.mark.jit_only
def test_a_chain_takes_what_its_kernels_take_one_after_another():
    sizes = [500, 40, 3000]
    scenario = contended(sizes, chain_edges(sizes), np.full(sum(sizes), 8.0))
    times, _ = predicted(scenario, "serial", "cuda-graph")
    assert times == pytest.approx([serial(scenario).makespan] * 2)


def test_kernels_that_fill_all_sms_gain_little_side_by_side():
    """Fixed durations would let both run at full speed: 2x."""
    sizes = [264, 264]
    scenario = contended(sizes, [], np.full(sum(sizes), 50.0))
    (serial_time, time), limits = predicted(scenario, "serial", "cuda-graph")
    assert limits.upper_bound == 2
    assert 1 < serial_time / time < 1.6
    assert serial_time / time <= limits.contended_upper_bound


def test_predictions_on_another_gpu_are_not_validated_and_say_so():
    scenario = contended([4], [], np.ones(4))
    scenario = replace(
        scenario, resources_of=lambda graph: sm_resources(graph, load_gpu("A100 40GB"))
    )
    assert scenario.assumptions[-1].startswith(
        "predictions on A100 40GB are not validated: constants of the H100 SXM; of programs "
    )
    assert scenario.trust.of("fans") is None
    on_h100 = contended([4], [], np.ones(4))
    assert on_h100.assumptions[-1].startswith("predictions: of programs measured on an NVIDIA H100")
    assert on_h100.trust.of("fans").family == "fans"


ERRORS = MeasuredErrors("fans", "M1", 40, 0.08, 0.2, 0.5, 0.95, 0.8, 1.3)
COMPARED = (
    "of programs measured on an M1 that no constant was fitted to, times were off by (on average, "
    "nine of ten at most): fans 8.0 %, 20.0 %"
)


@pytest.mark.parametrize(("contention", "without"), [("full", ""), ("none", "without contention")])
def test_predictions_say_how_far_off_they_were(contention, without):
    scenario = with_errors((ERRORS,), contention)
    assert scenario.assumptions[-1].endswith(COMPARED)
    assert without in scenario.assumptions[-1]
    assert (scenario.trust.of("fans") is None) == bool(without)


def test_what_was_read_off_the_programs_that_count_is_said():
    early = ERRORS._replace(family="PDL")
    said = with_errors((ERRORS, early), "full").assumptions[-1]
    assert said.endswith(f"{COMPARED}; PDL 8.0 %, 20.0 % (fitted in part)")


def test_predictions_that_nobody_compared_say_so():
    assert with_errors((), "full").assumptions[-1] == (
        "predictions: nobody compared them with measurements (depgraph calibrate does)"
    )


def with_errors(errors, contention):
    gpu = replace(load_gpu("H100 SXM"), errors=errors)
    return replace(
        contended([4], [], np.ones(4)),
        contention=contention,
        resources_of=lambda graph: sm_resources(graph, gpu),
    )


def test_a_row_prints_the_range_of_its_family_or_none():
    scenario = with_errors((ERRORS,), "full")
    scenario = replace(scenario, graph=graph_of([4, 4], []), timing=scenario_of(
        graph_of([4, 4], []), np.full(8, 20.0)).timing)  # fmt: skip
    found = compare_mechanisms(scenario, [132], find_mechanisms(["cuda-graph", "mega"]))
    fan, mega = found.outcomes
    assert (fan.family, fan.errors) == ("fans", ERRORS)
    # A kernel alone takes as long as any schedule of both.
    assert fan.predicted_low_us == found.limits[0].contended > 0.8 * fan.predicted_us
    assert fan.predicted_high_us >= 1.3 * fan.predicted_us
    assert fan.predicted_speedup == fan.predicted_serial_us / fan.predicted_us
    assert mega.errors is None is mega.predicted_low_us
    assert mega.predicted_us > 0


@pytest.mark.parametrize("short", [0.3, 0.6])
@pytest.mark.parametrize("name", ["mega(task)", "inside.toml"])
def test_a_short_kernel_does_not_take_the_slots_of_what_it_waits_for(
    name, short, tmp_path, monkeypatch
):
    (tmp_path / "inside.toml").write_text('waits = "inside"\n')
    monkeypatch.chdir(tmp_path)
    graph = graph_of([8, 8], [((0, a), (1, b)) for a in range(8) for b in range(8)])
    scenario = scenario_of(graph, [100.0] * 8 + [short] * 8, sms=8, contention="full")
    (time,), _ = predicted(scenario, name)
    assert 100 < time < 120


def test_a_row_that_deadlocks_with_contention_alone_has_no_prediction(monkeypatch):
    def deadlock(name, *_):
        if name != "serial":
            raise DeadlockError(name, 0, 1, 2)
        return serial(scenario)

    monkeypatch.setattr(predicted_time, "run_contended", deadlock)
    scenario = contended([4, 4], [], np.full(8, 20.0))
    found = compare_mechanisms(scenario, [132], find_mechanisms(["serial", "pdl"]))
    assert [row.predicted for row in found.outcomes] == [40, None]
    assert [row.makespan for row in found.outcomes] == [40, 40]
    assert "pdl: nothing is predicted: with contention block 1 of kernel 0 waits forever" in (
        found.notes
    )


def test_rows_that_the_bound_of_predictions_does_not_hold_for_are_named():
    sizes = [4, 4]
    scenario = contended(sizes, [((0, 0), (1, 0))], np.full(8, 20.0))
    names = ["cuda-graph", "stream-k", "cusync-tile"]
    found = compare_mechanisms(scenario, [132], find_mechanisms(names))
    (note,) = (n for n in found.notes if "not held to the bound of predictions" in n)
    others = [o.mechanism for o in found.outcomes if o.against != "block"]
    assert others
    assert note.startswith(f"{', '.join(others)}: ")
    fixed = replace(scenario, contention="none")
    found = compare_mechanisms(fixed, [132], find_mechanisms(names))
    assert not any("bound of predictions" in n for n in found.notes)


def test_counts_of_instructions_are_no_times():
    scenario = replace(scenario_of(graph_of([2], [])), contention="full", sms=4)
    assert scenario.unit == "instructions"
    assert scenario.sharing is None
    assert scenario.trust is None


@given(programs() | programs(positions=True), st.sampled_from(["sm", "full"]))
def test_no_prediction_is_below_its_bound(program, contention):
    program = replace(program, contention=contention, launch=FREE)
    names = ["serial", "streams", "cuda-graph", "acs-sw", "pdl", "dataflow(best)", "cusync-tile"]
    found = compare_mechanisms(program, [program.sms], find_mechanisms(names))
    (limits,) = found.limits
    longest = time_alone(program.contended).max()
    for outcome in found.outcomes:
        assert outcome.predicted >= longest * (1 - 1e-9)
        if outcome.against == "block":
            assert outcome.predicted >= limits.contended * (1 - 1e-9)
            assert outcome.predicted_speedup <= limits.contended_upper_bound * (1 + 1e-9)


def test_on_fewer_sms_than_were_measured_serial_launches_are_slower_too():
    """Eight blocks an SM in place of one: all rates are lower, of serial launches as of others."""
    scenario = replace(contended([120, 120], [], np.full(240, 50.0)), sms=16)
    (serial_time, time), limits = predicted(scenario, "serial", "cuda-graph")
    assert serial_time > 1.3 * limits.serial
    assert 1 <= serial_time / time <= limits.contended_upper_bound
    (found,) = predict([CudaGraph()], scenario)
    assert found.overlap == pytest.approx(serial_time / time, rel=1e-3)
    assert found.overlap <= limits.upper_bound
    assert found.speedup >= 0.98


def test_no_prediction_holds_for_sms_without_limit():
    scenario = replace(contended([4], [], np.ones(4)), sms=math.inf)
    (time,), limits = predicted(scenario, "serial")
    assert (time, limits.contended_upper_bound) == (None, None)
