"""Tensors of PyTorch's caching allocator, from a profile beside a recording."""

import json
from pathlib import Path

import pytest
from recordings import KERNEL, recording

from depgraph.errors import ProfileError
from depgraph.extraction.pipeline import analyse, extract
from depgraph.parsers import open_trace
from depgraph.parsers.profiles.kineto import read_memory
from depgraph.samples import MEMORY_PROFILE, RECORDING, sample_path

SEGMENT, THERE = 0x1000, 0x7F0000000000
SIZE = 2 << 20
BYTES = 1024
# A kernel of each number reads and writes the first byte of the first tensor.
BYTE = [(SEGMENT // 32, 0, i, 1, 1, 0, 1) for i in (1, 2, 3)]
LAUNCHES = [KERNEL | {"number": i, "grid_id": i, "name": f"k{i}(float*)"} for i in (1, 2, 3)]
ALLOC = {"event": "alloc", "address": SEGMENT, "bytes": SIZE, "flags": 0, "stream": 0}


def change(at, size, *, address=THERE, reserved=SIZE, device=1):
    """Return what the profiler writes where the allocator gives out or takes back memory."""
    arguments = {"Addr": address, "Bytes": size, "Device Type": device, "Device Id": 0}
    return {
        "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 77, "tid": 77,
        "ts": at, "args": arguments | {"Total Reserved": reserved, "Total Allocated": 0},
    }  # fmt: skip


def span(category, name, begin, end, **arguments):
    return {
        "ph": "X", "cat": category, "name": name, "pid": 77, "tid": 77, "ts": begin,
        "dur": end - begin, "args": arguments,
    }  # fmt: skip


def launch(number, called, name=None):
    """Return the events of a launch: the host's call, and the kernel long after."""
    known = {"correlation": number}
    return [
        span("cuda_runtime", "cudaLaunchKernel", called, called + 1, **known),
        span("kernel", name or f"k{number}(float*)", 1000 + called, 1001 + called, device=0,
             grid=[2, 1, 1], block=[32, 1, 1], **known),
    ]  # fmt: skip


def profile(tmp_path, *events):
    path = tmp_path / "profile.json"
    listed = [e for event in events for e in (event if isinstance(event, list) else [event])]
    path.write_text(json.dumps({"traceEvents": listed}))
    return path


def of_three_launches(tmp_path, *changes):
    return profile(tmp_path, launch(1, 10), launch(2, 20), launch(3, 30), *changes)


def recorded(tmp_path, memory, *, process=1):
    path = recording(tmp_path, ALLOC, *LAUNCHES, sectors=BYTE, process=process)
    opened = open_trace(path)
    opened.take_memory_profile(memory)
    return opened


def kinds(extraction):
    return {
        (p.source, p.target): "".join(
            kind for kind in ("raw", "war", "waw", "reuse") if getattr(p, kind)
        )
        for p in extraction.pairs
    }


def test_a_tensor_that_was_freed_between_launches_makes_reuse(tmp_path):
    memory = of_three_launches(tmp_path, change(5, BYTES), change(15, -BYTES), change(16, BYTES))
    found = analyse(recorded(tmp_path, memory))
    assert kinds(found) == {(0, 1): "reuse", (1, 2): "rawwarwaw"}
    assert [(a.address, a.size, a.allocated, a.freed) for a in found.allocations] == [
        (SEGMENT, SIZE, 0, None),  # of CUDA
        (SEGMENT, BYTES, 0, 1),
        (SEGMENT, BYTES, 1, None),
    ]


@pytest.mark.jit_only
def test_all_false_dependences_of_a_real_program_but_those_of_copies_are_its_allocators():
    def counted(memory):
        opened = open_trace(sample_path(RECORDING))
        if memory:
            opened.take_memory_profile(sample_path(MEMORY_PROFILE))
        pairs = analyse(opened).pairs
        return [sum(getattr(p, kind) for p in pairs) for kind in ("raw", "war", "waw", "reuse")]

    assert counted(memory=False) == [526, 97, 69, 0]
    assert counted(memory=True) == [526, 0, 3, 163]


def test_calls_of_the_host_are_in_order_where_kernels_ran_later(tmp_path):
    # The kernels run from 1010 on: what the host does at 25 comes before the third.
    memory = of_three_launches(tmp_path, change(5, BYTES), change(25, -BYTES))
    assert kinds(analyse(recorded(tmp_path, memory))) == {(0, 1): "rawwarwaw", (1, 2): "reuse"}


def test_what_only_the_recorded_run_launched_keeps_its_data(tmp_path):
    # Of eleven launches the profile lacks the second, which reads what the first wrote.
    kernels = [KERNEL | {"number": i, "grid_id": i, "name": f"k{i}(float*)"} for i in range(1, 12)]
    sectors = [(SEGMENT // 32, 0, i, 1, 1, 0, 1) for i in (1, 2, 3)]
    opened = open_trace(recording(tmp_path, ALLOC, *kernels, sectors=sectors))
    called = [launch(i, 10 * i) for i in (1, *range(3, 12))]
    opened.take_memory_profile(profile(tmp_path, *called, change(5, 512), change(15, -512)))
    assert kinds(analyse(opened)) == {(0, 1): "rawwarwaw", (1, 2): "reuse"}


def test_a_tensor_has_the_operator_and_the_line_that_allocated_it(tmp_path, program):
    memory = of_three_launches(
        tmp_path,
        span("python_function", "model.py(12): forward", 0, 40),
        span("cpu_op", "aten::mm", 1, 9),
        span("cpu_op", "aten::empty", 4, 6),
        change(5, BYTES),
        change(15, -BYTES),
    )
    store = extract(recorded(tmp_path, memory), tmp_path / "out")
    (_, tensor) = store.allocations
    assert (tensor.op, tensor.line) == ("aten::empty", "model.py(12): forward")
    again = ("extract", tmp_path / "it.recording", "--memory-profile", memory)
    assert program(*again, "-o", tmp_path / "again").code == 0
    shown = program("show", "buffers", tmp_path / "again", "--sms", "4", "--format", "json")
    (buffer,) = json.loads(shown.out)["buffers"]
    assert buffer["allocated_by"] == "aten::empty at model.py(12): forward"


def test_what_was_there_before_the_profile_is_freed_in_it(tmp_path):
    memory = profile(
        tmp_path, launch(1, 10), launch(2, 20), launch(3, 30),
        change(5, 512, address=THERE), change(25, -BYTES, address=THERE + 512),
    )  # fmt: skip
    found = analyse(recorded(tmp_path, memory))
    assert (SEGMENT + 512, BYTES, 0, 2) in [
        (a.address, a.size, a.allocated, a.freed) for a in found.allocations
    ]


def test_a_profile_of_the_recorded_run_itself_has_its_addresses(tmp_path):
    memory = of_three_launches(
        tmp_path, change(5, BYTES, address=SEGMENT), change(15, -BYTES, address=SEGMENT)
    )
    opened = recorded(tmp_path, memory, process=77)
    assert kinds(analyse(opened))[0, 1] == "reuse"


def test_memory_that_the_recorded_program_lacks_is_counted(tmp_path):
    memory = of_three_launches(
        tmp_path,
        change(5, BYTES),
        change(6, BYTES, address=2 * THERE, reserved=SIZE + 4096),
        change(7, BYTES, device=0),  # of the host
    )
    warnings = analyse(recorded(tmp_path, memory)).metadata["warnings"]
    assert [n for text, n in warnings.items() if "recorded program lacks" in text] == [1]


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([launch(1, 10)], "tells nothing of memory on a GPU"),
        ([launch(1, 10), change(5, BYTES)], "has 1 of the 3 recorded launches"),
        (
            [launch(1, 10), launch(2, 20), launch(3, 30), change(5, BYTES, reserved=4096)],
            "allocates in none of the memory",
        ),
    ],
)
def test_a_profile_that_does_not_fit_is_refused_in_one_line(tmp_path, events, said):
    with pytest.raises(ProfileError, match=said) as caught:
        recorded(tmp_path, profile(tmp_path, *events))
    assert "\n" not in str(caught.value)


def test_a_profile_goes_with_a_recording_alone(tmp_path, sample_trace, program):
    memory = of_three_launches(tmp_path, change(5, BYTES))
    said = program("extract", sample_trace, "--memory-profile", memory, "-o", tmp_path / "out")
    assert said.code == 2
    assert "--memory-profile goes with a recording" in said.err


def test_more_allocations_than_are_read_are_told(monkeypatch):
    path = Path(sample_path(MEMORY_PROFILE))
    n = len(read_memory(path).changes)
    monkeypatch.setattr("depgraph.parsers.profiles.kineto._MOST_EVENTS", n)
    with pytest.raises(ProfileError, match=f"tells of {n} allocations and frees, or more"):
        read_memory(path)
