"""PyTorch profiler traces: what is a kernel, when it ran, and what versions do differently."""

import bz2
import gzip
import json
import lzma
import sys

import pytest

from depgraph.errors import ProfileError
from depgraph.parsers.profiles import read_profile

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def kernel(name="k", ts=10.5, dur=2.25, correlation=1, **arguments):
    arguments = {"device": 0, "context": 1, "stream": 7, "correlation": correlation} | arguments
    return {"ph": "X", "cat": "kernel", "name": name, "ts": ts, "dur": dur, "args": arguments}


CPU_EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 1, "dur": 2}


@pytest.fixture
def trace(tmp_path):
    def write(*events, text=None, **properties):
        path = tmp_path / "trace.json"
        content = json.dumps({"traceEvents": list(events), **properties}) if text is None else text
        path.write_text(content)
        return path

    return write


def test_a_kernel_event(trace):
    arguments = {"registers per thread": 92, "shared memory": 6528} | {
        "grid": [1, 98, 1],
        "block": [64, 1, 1],
    }
    profile = read_profile(trace(CPU_EVENT, kernel("gemm", 10.5, 2.25, 12, **arguments)))
    assert profile.format == "kineto"
    assert profile.unit == "ns"
    assert profile.name == ("gemm",)
    assert profile.duration.tolist() == [2250.0]
    assert profile.start.tolist() == [10500]
    assert profile.grid.tolist() == [[1, 98, 1]]
    assert profile.block.tolist() == [[64, 1, 1]]
    assert profile.registers.tolist() == [92]
    assert profile.shared_bytes.tolist() == [6528]
    assert profile.static_shared_bytes is None
    assert (profile.devices, profile.contexts, profile.streams) == ((0,), (1,), (7,))
    assert profile.correlation.tolist() == [12]
    assert profile.measured_sms is None


def test_memsets_and_copies_are_kept_apart(trace):
    copy = kernel("Memcpy HtoD (Pageable -> Device)", 30.0, 5.0, 4) | {"cat": "gpu_memcpy"}
    memset = kernel("Memset (Device)", 10.0, 0.928, 3, stream=8) | {"cat": "gpu_memset"}
    profile = read_profile(trace(kernel(), copy, memset, baseTimeNanoseconds=1000))
    assert profile.name == ("k",)
    assert profile.memory.name == ("Memset (Device)", "Memcpy HtoD (Pageable -> Device)")
    assert profile.memory.start.tolist() == [11000, 31000]
    assert profile.memory.duration.tolist() == [928, 5000]
    assert profile.memory.streams == (7, 8)
    assert profile.only(stream=7).memory.name == ("Memcpy HtoD (Pageable -> Device)",)


def call(name="cudaLaunchKernel", ts=1.5, correlation=1, category="cuda_runtime"):
    arguments = {"correlation": correlation, "cbid": 211}
    return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": 1, "args": arguments}


def test_launch_calls_say_when_a_kernel_was_asked_for(trace):
    events = [
        call(ts=1.5, correlation=12), kernel(ts=10, correlation=12),
        call("cuLaunchKernelEx", 3.25, 13, "cuda_driver"), kernel(ts=20, correlation=13),
        call("cudaMemcpyAsync", 5, 14), kernel(ts=30, correlation=14),
    ]  # fmt: skip
    profile = read_profile(trace(*events, baseTimeNanoseconds=100))
    assert profile.issued.tolist() == [1600, 3350, -1]
    assert profile.start.tolist() == [10_100, 20_100, 30_100]
    assert read_profile(trace(kernel())).issued is None


def test_launch_order_is_by_correlation(trace):
    profile = read_profile(
        trace(kernel("c", 1, correlation=9), kernel("a", 3, correlation=2), kernel("b", 2, 1, 4))
    )
    assert profile.name == ("a", "b", "c")


def test_kernels_of_one_graph_launch_are_ordered_by_start(trace):
    profile = read_profile(trace(kernel("b", 2), kernel("c", 3), kernel("a", 1)))
    assert profile.name == ("a", "b", "c")
    assert "share a correlation id with another" in profile.notes[0]


def test_without_correlation_the_order_is_by_start(trace):
    events = [kernel("b", 2), kernel("a", 1)]
    del events[0]["args"]["correlation"]
    profile = read_profile(trace(*events))
    assert profile.name == ("a", "b")
    assert "not all kernels have a correlation id" in profile.notes[0]


def test_the_base_time_is_added_and_no_digit_lost(trace):
    path = trace(kernel(ts=4359723498561.045), baseTimeNanoseconds=1790857026000000000)
    assert read_profile(path).start.tolist() == [1795216749498561045]


def test_microseconds_of_the_epoch_keep_their_fraction(trace):
    text = '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1695835573023613.123'
    assert read_profile(trace(text=text + ', "dur": 1}]}')).start.tolist() == [1695835573023613123]


def test_display_time_unit_changes_nothing(trace):
    assert read_profile(trace(kernel(), displayTimeUnit="ns")).duration.tolist() == [2250.0]


def test_old_traces_are_bare_lists_with_capital_categories_and_whole_numbers(trace):
    event = kernel(ts=1000, dur=0) | {"cat": "Kernel"}
    profile = read_profile(trace(text=json.dumps([event, kernel(ts=2000, dur=3, correlation=2)])))
    assert profile.duration.tolist() == [0.0, 3000.0]
    assert profile.start.tolist() == [1000000, 2000000]
    assert "kernels with a duration of 0: 1 of 2" in profile.notes[0]


def test_rocm_has_no_grid(trace):
    event = kernel()
    event["args"] = {"device": 2, "stream": 0, "correlation": 3, "kind": "Dispatch Kernel"}
    profile = read_profile(trace(event))
    assert profile.grid is None
    assert profile.block is None
    assert profile.registers is None
    assert profile.context is None
    assert profile.devices == (2,)


def test_some_kernels_without_a_grid(trace):
    profile = read_profile(trace(kernel(grid=[1, 2, 3]), kernel(correlation=2)))
    assert profile.grid.tolist() == [[1, 2, 3], [-1, -1, -1]]


def test_devices_are_named_and_counted_from_their_properties(trace):
    properties = [{"id": 0, "name": "A", "numSms": 108}, {"id": 1, "name": "B", "numSms": 132}]
    events = kernel(), kernel(correlation=2, device=1), kernel(correlation=3, device=5)
    profile = read_profile(trace(*events, deviceProperties=properties))
    assert profile.device_names == {0: "A", 1: "B"}
    assert profile.measured_sms.tolist() == [108, 132, -1]


@pytest.mark.parametrize("number", ["inf", "-inf", "nan", "-nan", "Infinity", "NaN", "-nan(ind)"])
def test_numbers_that_are_not_finite_may_stand_unquoted(trace, number):
    good = json.dumps(kernel("say: inf, nan"))
    odd = json.dumps(kernel(correlation=2) | {"args": {"occupancy": "@"}}).replace('"@"', number)
    lost = json.dumps(kernel(dur="@", correlation=3)).replace('"@"', number)
    profile = read_profile(trace(text=f'{{"traceEvents": [{good}, {odd}, {lost}, {good}]}}'))
    assert profile.name == ("say: inf, nan", "k", "say: inf, nan")
    assert profile.skipped == {"kernels without a duration": 1}


def test_kernels_without_a_time_are_counted(trace):
    no_duration = kernel()
    del no_duration["dur"]
    profile = read_profile(trace(no_duration, kernel(dur=-1), kernel(dur="long"), kernel(), 7))
    assert len(profile) == 1
    assert profile.skipped == {
        "kernels without a duration": 2,
        "kernels with a negative duration": 1,
        "events that are no JSON object": 1,
    }


def test_other_phases_and_categories_are_no_kernels(trace):
    events = [kernel() | {"ph": "f"}, kernel() | {"cat": "gpu_memcpy"}, kernel() | {"cat": None}]
    assert len(read_profile(trace(*events, kernel()))) == 1


def test_without_kernels_it_says_how_to_get_them(trace):
    with pytest.raises(ProfileError, match=r"no kernel with a time.*ProfilerActivity.CUDA"):
        read_profile(trace(CPU_EVENT))


def test_json_of_another_kind(trace):
    with pytest.raises(ProfileError, match="has no list of trace events"):
        read_profile(trace(text='{"version": 3, "traceEvents": null}'))


def test_what_follows_the_events_is_read_as_well(trace):
    text = f'{{"traceEvents": [{json.dumps(kernel())}], "deviceProperties": [{{"id": 0, '
    profile = read_profile(trace(text=text + '"numSms": 104}], "baseTimeNanoseconds": 1000}'))
    assert profile.measured_sms.tolist() == [104]
    assert profile.start.tolist() == [11500]


@pytest.mark.parametrize("module", [gzip, bz2, lzma, zstd])
def test_compressed(tmp_path, trace, module):
    path = tmp_path / "trace.json"
    path.write_bytes(module.compress(trace(kernel()).read_bytes()))
    assert read_profile(path).duration.tolist() == [2250.0]


def test_a_byte_order_mark(tmp_path, trace):
    path = tmp_path / "marked.json"
    path.write_bytes(b"\xef\xbb\xbf" + trace(kernel()).read_bytes())
    assert len(read_profile(path)) == 1


def test_a_file_that_ends_early_is_read_up_to_there(trace):
    path = trace(*(kernel(f"k{n}", correlation=n) for n in range(9)))
    path.write_text(path.read_text().replace("}}, ", "}},\n")[:-200])
    profile = read_profile(path)
    assert profile.name == tuple(f"k{n}" for n in range(len(profile)))
    assert 6 <= len(profile) < 9
    assert profile.skipped == {"unfinished ends of file": 1}
    assert "ends early, on line" in profile.notes[0]


def test_damage_is_refused_with_its_line(trace):
    path = trace(*(kernel(f"k{n}", correlation=n) for n in range(9)))
    lines = path.read_text().replace("}}, ", "}},\n").splitlines()
    lines[4] = lines[4].replace('"cat":', '"cat"')
    path.write_text("\n".join(lines))
    with pytest.raises(ProfileError, match=r"trace.json:5: the JSON is damaged"):
        read_profile(path)


@pytest.mark.parametrize("form", ['{"traceEvents": [%s]}', "[%s]"])
@pytest.mark.parametrize("more", ["{}", "\n[]", "x", " \n0"])
def test_a_second_profile_in_a_file_is_refused(trace, form, more):
    text = form % json.dumps(kernel())
    assert len(read_profile(trace(text=text + " \n"))) == 1
    with pytest.raises(ProfileError, match="goes on behind the end") as error:
        read_profile(trace(text=text + "\n\n" + more))
    assert error.value.line == 3 + more.count("\n")


def test_pieces_of_any_size_give_the_same(trace, monkeypatch):
    path = trace(*(kernel(f"k{n}", correlation=n) for n in range(50)), baseTimeNanoseconds=77)
    whole = read_profile(path)
    for size in (1, 2, 7, 100, 1000):
        monkeypatch.setattr("depgraph.parsers.profiles.source._CHUNK_CHARACTERS", size)
        pieces = read_profile(path)
        assert pieces.name == whole.name
        assert pieces.start.tolist() == whole.start.tolist()


def test_names_with_lone_surrogates_become_printable(trace):
    assert read_profile(trace(kernel("k\ud800"))).name == ("k?",)
