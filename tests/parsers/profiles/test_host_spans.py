"""Where in the code kernels were launched: operators, modules, lines, annotations, NVTX ranges."""

import json

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from profiles_made import database_of

from depgraph.parsers.profiles import host_spans, read_profile
from depgraph.parsers.profiles.host_spans import HostSpans
from depgraph.timing.profile import NOWHERE, Site

MAIN, AUTOGRAD = (7, 70), (7, 71)


def event(category, name, ts, dur, thread=MAIN, **arguments):
    pid, tid = thread
    return {
        "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur,
        "args": arguments,
    }  # fmt: skip


def launch(correlation, ts, thread=MAIN):
    """Return a call and the kernel that it launched."""
    return [
        event("cuda_runtime", "cudaLaunchKernel", ts, 1, thread, correlation=correlation),
        event("kernel", f"k{correlation}", 1000 + ts, 1, (0, 7), correlation=correlation),
    ]


def sites_in(path):
    profile = read_profile(path)
    return None if profile.site is None else [profile.sites[code] for code in profile.site]


@pytest.fixture
def sites_of(tmp_path):
    """Return a function that says where the kernels of a PyTorch trace were launched."""

    def read(*events):
        path = tmp_path / "trace.json"
        path.write_text(json.dumps({"traceEvents": list(events)}))
        return sites_in(path)

    return read


def test_a_kernel_is_of_all_that_its_launch_lies_within(sites_of):
    assert sites_of(
        event("user_annotation", "ProfilerStep#3", 0, 100),
        event("user_annotation", "forward", 5, 90),
        event("python_function", "run.py(4): main", 6, 80),
        event("python_function", "torch/nn/modules/module.py(9): _call_impl", 7, 70),
        event("python_function", "nn.Module: Net_0", 8, 60),
        event("python_function", "model.py(12): forward", 9, 50),
        event("python_function", "/usr/lib/python3/site-packages/lib.py(1): f", 9, 50),
        event("python_function", "<built-in method linear>", 9, 50),
        event("python_function", "nn.Module: Linear_3", 10, 40),
        event("user_annotation", "gemm", 11, 30),
        event("cpu_op", "aten::linear", 12, 20),
        event("cpu_op", "aten::addmm", 13, 10),
        *launch(1, 15),
    ) == [
        Site("aten::addmm", "Net_0/Linear_3", "model.py(12): forward", "forward/gemm"),
    ]  # fmt: skip


def test_what_has_ended_or_is_of_another_thread_does_not_count(sites_of):
    assert sites_of(
        event("cpu_op", "aten::early", 0, 9),
        event("cpu_op", "aten::other", 0, 100, AUTOGRAD),
        event("cpu_op", "aten::late", 11, 9),
        *launch(1, 10),
        *launch(2, 12),
    ) == [NOWHERE, Site("aten::late")]


def test_an_annotation_that_is_recorded_twice_is_one(sites_of):
    twice = [event("user_annotation", "loss", ts, 10) for ts in (0, 1)]
    assert sites_of(*twice, *launch(1, 2)) == [Site(range="loss")]


def test_a_backward_pass_is_of_the_module_of_its_forward_pass(sites_of):
    sequence = {"Sequence number": 46}
    forward = {**sequence, "Fwd thread id": 0}
    backward = {**sequence, "Fwd thread id": 1}
    found = sites_of(
        event("python_function", "nn.Module: Linear_0", 0, 10),
        event("cpu_op", "aten::addmm", 1, 5, **forward),
        *launch(1, 2),
        event("cpu_op", "AddmmBackward0", 20, 10, AUTOGRAD, **backward),
        event("cpu_op", "aten::mm", 21, 5, AUTOGRAD),
        *launch(2, 22, AUTOGRAD),
    )
    assert found == [Site("aten::addmm", "Linear_0"), Site("aten::mm", "Linear_0")]


def test_a_kernel_may_name_its_operator(sites_of):
    kernel = event("kernel", "k", 50, 1, (0, 7), **{"External id": 12})
    assert sites_of(
        event("cpu_op", "aten::mm", 0, 5, **{"External id": 12}), kernel
    ) == [Site("aten::mm")]  # fmt: skip


def test_a_trace_of_the_gpu_alone_has_none(sites_of):
    assert sites_of(*launch(1, 5)) is None


@pytest.mark.parametrize(
    "odd",
    [
        event("cpu_op", 5, 0, 100),
        event("cpu_op", "aten::mm", None, 100),
        event("cpu_op", "aten::mm", 0, "long"),
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 9, "args": [1]},
        event("cpu_op", "a", 0, 100, AUTOGRAD, **{"Sequence number": 5, "Fwd thread id": 1}),
        event("cpu_op", "a", 0, 1e19, AUTOGRAD),
    ],
)
def test_odd_events_do_no_harm(sites_of, odd):
    assert sites_of(odd, *launch(1, 10)) in (None, [NOWHERE])


def test_names_that_no_output_can_encode(sites_of):
    (site,) = sites_of(event("cpu_op", "a\ud800", 0, 9), *launch(1, 5))
    assert site.op.encode("utf-8")


def test_what_is_too_much_is_counted(monkeypatch, tmp_path):
    monkeypatch.setattr(host_spans, "MOST_SPANS", 2)
    path = tmp_path / "trace.json"
    many = [event("cpu_op", f"op{i}", 0, 9) for i in range(5)]
    path.write_text(json.dumps({"traceEvents": [*many, *launch(1, 5)]}))
    profile = read_profile(path)
    assert "3 operators and ranges are too many to keep" in profile.notes
    assert profile.sites[profile.site[0]].op == "op1"


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(0, 1)), max_size=8),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 1)), min_size=1, max_size=6),
)
def test_spans_are_found_as_by_looking_at_each(spans, calls):
    host = HostSpans()
    for number, (start, length, thread) in enumerate(spans):
        host.add_range(str(number), start, start + length, thread)
    for correlation, (start, thread) in enumerate(calls):
        host.add_call((-1, correlation), start, thread)
    n = len(calls)
    site, sites = host.sites([(-1, number) for number in range(n)], np.full(n, -1))
    expected = []
    for at, thread in calls:
        around = [
            (start, -length, number)
            for number, (start, length, of) in enumerate(spans)
            if of == thread and start <= at <= start + length
        ]
        expected.append("/".join(str(number) for *_, number in sorted(around)))
    found = [sites[code].range for code in site] if sites else [""] * n
    assert found == expected


# Nsight Systems


PROCESS = 5 << 24


@pytest.fixture
def nsys(tmp_path):
    """Return a function that writes an export with one kernel a call, and NVTX ranges."""

    def write(calls, ranges, *, columns="start, end, globalTid, eventType, text, textId"):
        tables = {
            "StringIds": [{"id": 1, "value": "k"}, {"id": 2, "value": "named"}],
            "CUPTI_ACTIVITY_KIND_KERNEL": [
                {"start": 1000 + start, "end": 1001 + start, "shortName": 1,
                 "correlationId": correlation, "globalPid": PROCESS}
                for correlation, (start, _) in enumerate(calls)
            ],
            "CUPTI_ACTIVITY_KIND_RUNTIME": [
                {"start": start, "correlationId": correlation, "globalTid": PROCESS + thread}
                for correlation, (start, thread) in enumerate(calls)
            ],
            "NVTX_EVENTS": [
                dict(zip(columns.split(", "), (start, end, PROCESS + thread, *rest), strict=True))
                for start, end, thread, *rest in ranges
            ],
        }  # fmt: skip
        path = tmp_path / "run.sqlite"
        path.write_bytes(database_of(tables))
        return sites_in(path)

    return write


def test_nvtx_ranges(nsys):
    found = nsys(
        [(10, 1), (30, 1), (10, 2)],
        [
            (0, 50, 1, 59, "step", None),
            (5, 20, 1, 60, None, 2),
            (6, 15, 1, 59, "aten::mm, op_id = 3", None),
            (7, 15, 1, 34, "a mark", None),
            (8, None, 1, 59, "endless", None),
        ],
    )
    assert found == [Site("aten::mm", range="step/named"), Site(range="step"), NOWHERE]


def test_nvtx_ranges_of_an_export_with_fewer_columns(nsys):
    found = nsys([(10, 1)], [(0, 50, 1, "step")], columns="start, end, globalTid, text")
    assert found == [Site(range="step")]
    assert nsys


def test_an_export_without_times_of_ranges(nsys):
    assert nsys([(10, 1)], [(0, 50, 1)], columns="begin, finish, thread") is None


def test_operators_of_real_traces(shared_data):
    profile = read_profile(shared_data / "timing" / "dyn_moe.kineto.json")
    ops = [profile.sites[code].op for code in profile.site]
    assert (ops.count("aten::addmm"), ops.count("aten::clamp_min")) == (144, 72)
    nsight = read_profile(shared_data / "public" / "timing" / "nsys_h100_2gpu.sqlite")
    assert "aten::mm" in {site.op for site in nsight.sites}
