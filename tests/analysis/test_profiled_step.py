"""What a profile alone says: where the time goes, and how long it takes as a CUDA graph."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles_made import kineto
from small_graphs import chain_edges, graph_of, scenario_of

from depgraph.analysis.profiled_step import profiled_step
from depgraph.errors import ModelError, ProfileError
from depgraph.gpu.model import load_gpu
from depgraph.mechanisms.base import serial
from depgraph.parsers.profiles import read_profile
from depgraph.samples import KERNEL_TIMES, sample_path
from depgraph.timing.program_times import launch_model, parse_launch

CAUSES = (
    "computing", "communicating", "copying", "host", "launching", "waiting", "unexplained",
)  # fmt: skip


def profile_of(folder, kernels, **more):
    """Read a profile of (name, start, duration, stream, launch call) in microseconds."""
    path = kineto(folder / "times.json", [(n, s, d, 132) for n, s, d, *_ in kernels], **more)
    content = json.loads(path.read_text())
    launches = {
        correlation: (stream, issued) for correlation, (*_, stream, issued) in enumerate(kernels, 1)
    }
    for event in content["traceEvents"]:
        correlation = event["args"].get("correlation")
        if event["cat"] == "kernel":
            event["args"]["stream"] = launches[correlation][0]
        elif correlation is not None:
            event["ts"] = launches[correlation][1]
    path.write_text(json.dumps(content))
    return read_profile(path)


def read(folder, kernels):
    """Read a profile whose launches cost nothing."""
    return profiled_step(profile_of(folder, kernels), launch=parse_launch("none"))


def causes(spent):
    """Return what is not 0 of where the time goes."""
    return {name: value for name in CAUSES if (value := round(getattr(spent, name), 6))}


def test_a_gap_has_the_cause_that_the_launch_call_shows(tmp_path):
    found = profiled_step(
        profile_of(
            tmp_path,
            [
                ("a", 100, 10, 7, 90),
                ("launched late", 150, 10, 7, 145),  # 35 us late, 5 us to start
                ("launched early", 163, 10, 7, 146),  # 3 us after its stream was free
                ("waits", 180, 10, 8, 147),  # its own stream was free all the time
            ],
        )
    )
    assert causes(found.spent) == {"computing": 40, "host": 35, "launching": 8, "waiting": 7}
    assert found.now == 90
    assert found.streams == 2


def test_communication_counts_where_nothing_computes(tmp_path):
    found = profiled_step(
        profile_of(
            tmp_path,
            [("gemm", 100, 10, 7, 90), ("ncclDevKernel_AllReduce", 105, 25, 8, 90)],
        )
    )
    assert causes(found.spent) == {"computing": 10, "communicating": 20}
    assert found.spent.side_by_side == 5


def test_copies_from_gpu_to_gpu_communicate_and_are_no_kernels(tmp_path):
    found = profiled_step(profile_of(tmp_path, [("gemm", 100, 10, 7, 90)], copies=[(105, 25)]))
    assert causes(found.spent) == {"computing": 10, "communicating": 20}
    assert (found.spent.launches, found.spent.kernels, found.spent.side_by_side) == (1, 10, 0)


def test_of_several_steps_the_median_counts_and_each_can_be_had(tmp_path):
    kernels = [("a", 1000 * n + 100, 10 * (n + 1), 7, 1000 * n + 90) for n in range(4)]
    kernels[2] = ("a", 2500, 30, 7, 2490)
    profile = profile_of(
        tmp_path, kernels, steps=[(f"ProfilerStep#{n}", 1000 * n, 1000 * n + 999) for n in range(4)]
    )
    # A step lasts until the next one's first kernel: 1000, 1400, 600 us; the last one has no next.
    assert [profiled_step(profile, iteration=str(n)).now for n in range(4)] == [1000, 1400, 600, 40]
    assert profiled_step(profile).step == "ProfilerStep#0"
    assert profiled_step(profile, iteration="min").now == 600
    assert profiled_step(profile, iteration="mean").now == 1000
    with pytest.raises(ProfileError, match="has no step 4; has 4 steps"):
        profiled_step(profile, iteration="4")


def test_what_ran_side_by_side_still_does_in_a_graph(tmp_path):
    kernels = [("a", 100, 50, 7, 90), ("b", 110, 50, 8, 90), ("c", 200, 10, 7, 90)]
    found = profiled_step(
        profile_of(tmp_path, kernels), launch=parse_launch("none"), gpu=load_gpu("H100")
    )
    assert found.spent.as_graph == 60
    chain = profiled_step(
        profile_of(tmp_path, [(n, s if n != "b" else 150, d, 7, i) for n, s, d, _, i in kernels]),
        launch=parse_launch("none"),
    )
    assert chain.spent.as_graph == 110


def test_a_chain_costs_what_it_costs_everywhere_else():
    profile = read_profile(sample_path(KERNEL_TIMES))
    gpu = load_gpu("H100")
    durations = profile.duration[np.argsort(profile.start)] / 1000
    sizes = [1] * len(durations)
    chain = scenario_of(graph_of(sizes, chain_edges(sizes)), durations=durations).on(132)
    launch = launch_model(parse_launch("gpu"), unit="us", gpu=gpu)
    found = profiled_step(profile, gpu=gpu)
    assert found.spent.launches == len(sizes)
    expected = serial(chain.with_launch(launch), as_graph=True).makespan
    assert found.spent.as_graph == pytest.approx(expected)


def test_the_wall_time_without_a_profiler_shortens_what_the_host_takes(tmp_path):
    profile = profile_of(tmp_path, [("a", 100, 10, 7, 90), ("b", 150, 10, 7, 145)])
    assert causes(profiled_step(profile, wall=40).spent) == {
        "computing": 20, "host": 15, "launching": 5,
    }  # fmt: skip
    assert causes(profiled_step(profile, wall=22).spent) == {"computing": 20, "launching": 2}
    assert causes(profiled_step(profile, wall=100).spent)["host"] == 75
    with pytest.raises(ModelError, match="take 20 us"):
        profiled_step(profile, wall=19)


def test_a_cuda_graph_is_told_by_its_one_launch():
    profile = read_profile(sample_path(KERNEL_TIMES))
    assert not profiled_step(profile).is_graph


@st.composite
def timelines(draw):
    """Return kernels with streams, launch calls and durations of all kinds."""
    start, kernels = 100, []
    for _ in range(draw(st.integers(1, 12))):
        start += draw(st.integers(0, 60))
        duration = draw(st.integers(1, 50))
        name = draw(st.sampled_from(["gemm", "ncclKernel", "add"]))
        stream = draw(st.integers(7, 9))
        kernels.append((name, start, duration, stream, start - draw(st.integers(0, 90))))
    return kernels


@given(timelines())
def test_the_parts_add_up_and_no_graph_is_faster_than_its_kernels(tmp_path_factory, kernels):
    found = profiled_step(profile_of(tmp_path_factory.mktemp("law"), kernels))
    spent = found.spent
    assert sum(getattr(spent, name) for name in CAUSES) == pytest.approx(spent.wall)
    assert min(getattr(spent, name) for name in CAUSES) >= 0
    assert spent.longest <= spent.as_graph
    assert spent.independent <= spent.as_graph + 1e-9
    assert spent.side_by_side <= spent.wall


def test_kernels_of_one_stream_overlap_no_more_than_they_did(tmp_path):
    kernels = [(f"k{n}", 100 + 8 * n, 10, 7, 90) for n in range(5)]  # 2 us each, as launched by PDL
    found = read(tmp_path, kernels)
    assert found.spent.as_graph == 42
    assert found.spent.side_by_side == 8


def test_what_takes_no_time_has_no_timeline(tmp_path):
    with pytest.raises(ProfileError, match="no kernel that takes any time"):
        read(tmp_path, [("a", 100, 0, 7, 90)])


def test_steps_without_kernels_are_no_steps(tmp_path):
    kernels = [("a", 100, 10, 7, 90), ("b", 110, 10, 7, 90)]
    profile = profile_of(tmp_path, kernels, steps=[("ProfilerStep#1", 5000, 6000)])
    assert profiled_step(profile).now == 20


def test_a_collective_that_began_in_the_step_before_still_runs(tmp_path):
    kernels = [("a", 100, 10, 7, 90), ("ncclKernel", 105, 1000, 8, 91), ("b", 1100, 10, 7, 1090)]
    steps = [("ProfilerStep#0", 0, 1000), ("ProfilerStep#1", 1001, 2000)]
    profile = profile_of(tmp_path, kernels, steps=steps)
    assert causes(profiled_step(profile, iteration="1").spent) == {"computing": 10}
    assert profiled_step(profile, iteration="0").now == 1000
