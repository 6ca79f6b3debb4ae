"""`depgraph record` without a GPU: a program that leaves what the recorder would."""

import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from small_captures import captured
from waiting import wait_until

import depgraph.record
from depgraph.apply.captured import read_captures, write_captures
from depgraph.errors import RecorderError
from depgraph.parsers.recording.archive import SECTORS
from depgraph.recorder import toolkit
from depgraph.recorder.build import Builder, cache_folder
from depgraph.recorder.raw_recording import read_raw_recordings
from depgraph.recorder.run import Selection
from depgraph.recorder.times import PAUSE_NS, TIMES, take_times, timed_in
from depgraph.recorder.toolkit import Toolkit
from depgraph.store.store import Store
from depgraph.system.workers import Steps
from depgraph.trace.block_spans import unpacked

KERNEL = {
    "event": "kernel", "grid": [2, 1, 1], "block": [32, 1, 1], "cluster": [0, 0, 0],
    "registers": 8, "static_shared": 0, "dynamic_shared": 64, "stream": 0, "context": 0,
    "device": 0, "graph": 0, "state": "recorded", "lost": 0,
}  # fmt: skip
SECTOR = 4096  # the one that both kernels touch
PROGRAM = """
import json, os, pathlib, sys
folder = pathlib.Path(os.environ["DEPGRAPH_RECORD_FOLDER"])
if "timer" in os.environ["CUDA_INJECTION64_PATH"]:
    (folder / "times-1.jsonl").write_text({times!r})
elif os.environ["DEPGRAPH_RECORD_BLOCKS"]:
    (folder / "events-1.jsonl").write_text({timed!r})
    spans = {pause!r} if folder.name == "pause" else {spans!r}
    (folder / "sectors-1.bin").write_bytes(bytes.fromhex(spans))
else:
    (folder / "events-1.jsonl").write_text({events!r})
    (folder / "sectors-1.bin").write_bytes(bytes.fromhex({tables!r}))
with open("ran.txt", "a") as file:
    print("ran", file=file)
sys.exit({code})
"""


def kernel(number, name):
    at = 32 * (number - 1)
    return KERNEL | {
        "number": number, "ordinal": number - 1, "grid_id": number,
        "name": f"{name}(float*)", "mangled": f"_Z{name}",
        "sectors_at": at, "sectors": 1,
    }  # fmt: skip


def run_of(number, name, start, **arguments):
    return {
        "ph": "X", "cat": "kernel", "name": f"{name}(float*)", "ts": start, "dur": 5.0,
        "args": {
            "device": 0, "context": 1, "stream": 7, "correlation": number, "grid": [2, 1, 1],
            "block": [32, 1, 1], **arguments,
        },
    }  # fmt: skip


def span(begin, taken, sm):
    """Return what a block leaves that begins at a ns and takes so many, of two cycles each."""
    end = begin + taken
    return (2**64 - 1 - 2 * begin, 2 * end, sm, begin, end, 2 * end)


PAUSE = span(512, PAUSE_NS + 64, 0)
SPANS = [span(1024, 640, 3), span(1056, 1280, 4), span(4096, 960, 0), span(4096, 1600, 1)]


def blocks_of(first):
    """Return what a run for block times leaves of the two kernels."""
    kernels = [kernel(1, first), kernel(2, "consumer")]
    return [
        {"event": "recording", "format": 2, "process": 1},
        *(each | {"times_at": 64 * place, "times": 2} for place, each in enumerate(kernels)),
    ]


@pytest.fixture
def recorded(tmp_path):
    """Return a function that makes a program that writes with one kernel, reads with the next."""

    def make(code=0, *, first="producer", cut=False, fault=False):
        events = [
            {"event": "recording", "format": 1, "process": 1},
            {"event": "context", "context": 0, "device": 0, "architecture": 90},
            kernel(1, first),
            kernel(2, "consumer"),
        ]
        if fault:
            events[1:] = [{"event": "fault", "what": "subscribing", "reason": "Not supported"}]
        text = "".join(json.dumps(event) + "\n" for event in events)
        if cut:
            text += '{"event": "ker'
        rows = np.array(
            [(SECTOR, 0, 1, 0, 15, 0, 1), (SECTOR, 1, 2, 15, 0, 0, 1)], SECTORS
        )  # fmt: skip
        times = [run_of(1, first, 10.0), run_of(2, "consumer", 20.0)]
        path = tmp_path / "program.py"
        path.write_text(
            PROGRAM.format(
                times="".join(json.dumps(each) + "\n" for each in times),
                events=text, tables=rows.tobytes().hex(), code=code,
                timed="".join(json.dumps(event) + "\n" for event in blocks_of(first)),
                spans=np.array(SPANS, TIMES).tobytes().hex(),
                pause=np.array([PAUSE] * 4, TIMES).tobytes().hex(),
            )
        )  # fmt: skip
        return [sys.executable, str(path)]

    return make


@pytest.fixture
def with_a_gpu(monkeypatch, tmp_path, tmp_path_factory):
    """Let this machine have all that recording needs."""
    monkeypatch.setattr(Toolkit, "requirements", [])
    monkeypatch.setattr(Toolkit, "gpus", [("NVIDIA H100 80GB HBM3", 90)])
    for name in ("recorder", "timer", "patch"):
        built = tmp_path / f"{name}.so"
        monkeypatch.setattr(Builder, name, lambda *_, built=built, **__: built)
    pause = tmp_path_factory.mktemp("built") / "pause"
    pause.write_text(f"#!/bin/sh\nexec {sys.executable} {tmp_path}/program.py\n")
    pause.chmod(0o700)
    monkeypatch.setattr(Builder, "pause", lambda _: pause)


@pytest.mark.usefixtures("with_a_gpu")
def test_a_program_is_timed_and_recorded_into_a_store(program, recorded, tmp_path):
    result = program("record", "--keep", "kept.recording", "--", *recorded())
    assert result.code == 0, result.err
    assert (tmp_path / "ran.txt").read_text() == "ran\nran\n"
    store = Store(tmp_path / "depgraph.out")
    assert [k.name for k in store.kernels] == ["producer(float*)", "consumer(float*)"]
    assert [(p.source, p.target, p.raw) for p in store.pairs] == [(0, 1, 1)]
    assert {k.architecture for k in store.kernels} == {90}
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "depgraph.out", "depgraph.out.times.json", "kept.recording", "program.py",
        "ran.txt",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("listed", "gib"), [("143771\n", 17), ("15360\n81559\n", 1), ("", 1), ("No devices\n", 1)]
)
def test_tables_get_an_eighth_of_the_smallest_gpu(monkeypatch, listed, gib):
    monkeypatch.setattr(toolkit, "_output", lambda *_: listed)
    assert Toolkit().table_bytes >> 30 == gib


@pytest.mark.usefixtures("with_a_gpu")
def test_bound_takes_the_times_that_record_has_left(program, recorded):
    assert program("record", "--", *recorded()).code == 0
    found = json.loads(program("bound", "--sms", "80", "--format", "json").out)
    assert found["durations"] == "kernel times of depgraph.out.times.json"
    assert found["bounds"][0]["serial"] == 10


@pytest.mark.usefixtures("with_a_gpu")
def test_kernels_are_shown_with_the_times_that_record_has_left(program, recorded):
    assert program("record", "--", *recorded()).code == 0
    rows = json.loads(program("show", "kernels", "--format", "json").out)["kernels"]
    assert [row["time"] for row in rows] == [5, 5]
    refused = program("show", "kernels", "--what-if", "merge=0,1")
    assert refused.code == 2
    assert "kernels that have times" in refused.err


@pytest.mark.usefixtures("with_a_gpu")
def test_times_of_an_earlier_store_are_not_used(program, recorded, tmp_path):
    assert program("record", "--keep", "kept", "--", *recorded()).code == 0
    assert program("record", "--force", "--no-time", "--", *recorded(first="other")).code == 0
    assert not (tmp_path / "depgraph.out.times.json").exists()
    assert program("record", "--force", "--", *recorded(first="other")).code == 0
    assert program("extract", "--force", "kept").code == 0
    result = program("bound", "--sms", "80", "--format", "json")
    assert result.code == 1
    assert "depgraph.out.times.json: goes with another store" in result.err
    given = program("bound", "--sms", "80", "--timing", "depgraph.out.times.json")
    assert "holds times that were taken for another store" in given.err


@pytest.mark.usefixtures("with_a_gpu")
def test_a_store_is_found_with_its_times_from_inside(program, recorded, tmp_path, monkeypatch):
    assert program("record", "--", *recorded()).code == 0
    monkeypatch.chdir(tmp_path / "depgraph.out")
    result = program("bound", ".", "--sms", "80", "--format", "json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["durations"].endswith("depgraph.out.times.json")


@pytest.mark.usefixtures("with_a_gpu")
@pytest.mark.parametrize("name", ["depgraph.out.times.json", "kept"])
def test_files_that_exist_are_replaced_by_force_alone(program, recorded, tmp_path, name):
    (tmp_path / name).write_text("mine")
    result = program("record", "--keep", "kept", "--", *recorded())
    assert result.code == 1
    assert f"{name}: already exists" in result.err
    assert (tmp_path / name).read_text() == "mine"
    assert not (tmp_path / "ran.txt").exists()
    assert program("record", "--force", "--keep", "kept", "--", *recorded()).code == 0
    assert (tmp_path / name).read_bytes() != b"mine"


@pytest.mark.usefixtures("with_a_gpu")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--keep", "depgraph.out"], "name another file"),
        (["--keep", "depgraph.out.times.json"], "name another file"),
        (["--gpu-memory", "64GiB"], "at most 32GiB"),
        (["--time-only", "--count", "2"], "leave out what chooses"),
        (["--block-times", "--no-time"], "leave out --no-time"),
        (["--name", "(?i)gemm"], "only (?:, (?= and (?! are known"),
    ],
)
def test_options_that_make_no_sense_are_wrong_usage(program, recorded, tmp_path, words, said):
    result = program("record", *words, "--", *recorded())
    assert result.code == 2
    assert said in result.err
    assert not (tmp_path / "ran.txt").exists()


def test_each_process_takes_the_times_of_the_one_that_launched_the_same(tmp_path):
    for process, name in ((1, "consumer"), (2, "producer")):
        line = json.dumps(run_of(1, name, 10.0))
        (tmp_path / f"times-{process}.jsonl").write_text(line + "\n")
    (tmp_path / "times-3.jsonl").write_text(json.dumps(run_of(1, "x", 1.0) | {"cat": "gpu_memset"}))
    timed = timed_in(tmp_path)
    assert [len(events) for events in timed] == [1, 1]  # not the one without kernels
    for name in ("producer", "consumer"):
        assert take_times(timed, [kernel(1, name)])[0]["name"] == f"{name}(float*)"
    assert take_times(timed, [kernel(1, "producer")]) == []


@pytest.mark.usefixtures("with_a_gpu")
def test_what_a_crashed_program_did_is_kept_and_its_exit_code_passed_on(
    program, recorded, tmp_path
):
    result = program("record", "--no-time", "--", *recorded(7, cut=True))
    assert result.code == 7
    assert len(Store(tmp_path / "depgraph.out").kernels) == 2


@pytest.mark.usefixtures("with_a_gpu")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--no-time", "--", sys.executable, "-c", "pass"], "launched no kernel"),
        (["--no-time", "--", "no-such-program"], "no-such-program: No such file or directory"),
        (["--", sys.executable, "-c", "raise SystemExit(3)"], "ended with exit code 3 before"),
    ],
)
def test_what_cannot_be_recorded_is_one_clear_line(program, tmp_path, words, said):
    result = program("record", *words)
    assert result.code == 1
    assert said in result.err
    assert result.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("with_a_gpu")
def test_what_the_recorder_could_not_do_is_told(program, recorded):
    result = program("record", "--no-time", "--", *recorded(fault=True))
    assert result.code == 1
    assert "the recorder failed (subscribing: Not supported)" in result.err


def test_a_machine_without_a_gpu_is_told_so(program, monkeypatch):
    monkeypatch.setattr(Toolkit, "gpus", [])
    result = program("record", "--", "true")
    assert result.code == 1
    assert result.err.startswith("depgraph: error: no GPU was found; ")
    doctor = program("record", "--doctor")
    assert doctor.code == 1
    assert "recording cannot work here yet" in doctor.out


@pytest.mark.parametrize("found", [Path("/opt/nvdisasm"), None])
def test_the_doctor_lists_nvdisasm_and_what_it_costs_to_lack_it(program, monkeypatch, found):
    monkeypatch.setattr(Toolkit, "requirements", [])
    monkeypatch.setattr(Toolkit, "nvdisasm", found)
    doctor = program("record", "--doctor", "--details")
    assert doctor.code == 0
    assert f"nvdisasm  {found or 'missing'}" in doctor.out
    assert ("what no hook sees" in doctor.out) == (found is None)


def test_the_program_is_not_optional(program):
    result = program("record")
    assert result.code == 2
    assert "give the program behind --" in result.err


def tools(folder, *, nvcc="exit 0"):
    """Make a CUDA toolkit of empty files, and a compiler that does as it is told."""
    for name in (
        "include/cuda.h", "compute-sanitizer/include/sanitizer.h",
        "compute-sanitizer/include/sanitizer_patching.h",
        "compute-sanitizer/libsanitizer-public.so", "bin/nvcc",
    ):  # fmt: skip
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (folder / "bin" / "nvcc").write_text(f"#!/bin/sh\n{nvcc}\n")
    (folder / "bin" / "nvcc").chmod(0o755)


def test_what_is_compiled_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    tools(tmp_path / "cuda", nvcc=f'echo "$@" >> {tmp_path}/calls; for made; do :; done; : > $made')
    first = Builder(Toolkit(), tmp_path / "kept").patch([90, 90])
    assert Builder(Toolkit(), tmp_path / "kept").patch([90]) == first
    assert Builder(Toolkit(), tmp_path / "kept").patch([90, 80]) != first
    calls = (tmp_path / "calls").read_text().splitlines()
    ninety, eighty = (f"-gencode=arch=compute_{n},code=sm_{n}" for n in (90, 80))
    assert [line.split(" -fatbin")[0] for line in calls] == [ninety, f"{eighty} {ninety}"]
    assert "-DDEPGRAPH_NO_TILES" in calls[0]  # the API's header has no hook for tiles


def test_an_interrupt_while_something_is_compiled_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tools(tmp_path / "cuda", nvcc=f": > {tmp_path}/began; exec sleep 60")
    script = """
from depgraph.recorder.build import Builder
from depgraph.recorder.toolkit import Toolkit
from depgraph.system.interrupts import end_on_signals
end_on_signals()
Builder(Toolkit()).patch([90])
"""
    process = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    wait_until((tmp_path / "began").exists)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == 130
    assert not list(cache_folder().iterdir())


def test_a_compiler_that_fails_is_named_with_its_reason(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    tools(tmp_path / "cuda", nvcc='echo "patch.cu(3): error: no such type" >&2; exit 2')
    with pytest.raises(RecorderError, match=r"nvcc failed: patch.cu\(3\): error: no such type"):
        Builder(Toolkit(), tmp_path / "kept").patch([90])
    assert not any(path.is_file() for path in (tmp_path / "kept").rglob("*"))


def test_times_are_those_of_a_region_and_of_the_launches_that_were_recorded(tmp_path):
    lines = [
        run_of(1, "a", 1.0), {"region": "start", "correlation": 2}, run_of(3, "a", 2.0),
        run_of(4, "b", 3.0), {"region": "stop", "correlation": 5}, run_of(6, "b", 4.0),
    ]  # fmt: skip
    (tmp_path / "times-1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def starts(launched, *, in_region):
        timed = timed_in(tmp_path, in_region=lambda _: in_region)
        return [event["ts"] for event in take_times(timed, launched)]

    everything = [kernel(1, "a"), kernel(2, "a"), kernel(3, "b"), kernel(4, "b")]
    assert starts(everything, in_region=False) == [1, 2, 3, 4]
    assert starts([kernel(1, "a"), kernel(2, "b")], in_region=True) == [2, 3]
    assert starts([kernel(1, "a") | {"ordinal": 1}], in_region=False) == [2]


def test_a_launch_is_in_a_region_by_the_last_mark_before_it(tmp_path):
    regions = range(1000)
    lines = [
        line
        for n in regions
        for line in (
            {"region": "start", "correlation": 10 * n + 2}, run_of(10 * n + 2, "a", n),
            run_of(10 * n + 3, "b", n + 0.5), {"region": "stop", "correlation": 10 * n + 5},
            run_of(10 * n + 5, "c", n + 0.7), run_of(10 * n + 6, "d", n + 0.8),
        )
    ]  # fmt: skip
    (tmp_path / "times-1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for in_region, names in ((True, "bc"), (False, "abcd")):
        (events,) = timed_in(tmp_path, in_region=lambda _, chosen=in_region: chosen)
        assert [event["name"][0] for event in events] == [*names * len(regions)]


def leave(folder, *events):
    """Write events as the recorder leaves them."""
    lines = [{"event": "recording", "format": 2, "process": 5}, *events]
    (folder / "events-5.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "sectors-5.bin").write_bytes(b"")


def test_a_kernel_has_its_tables_whenever_they_were_read(tmp_path):
    begun = {"event": "kernel", "device": 0, "context": 0}
    leave(
        tmp_path, begun | {"number": 1}, begun | {"number": 2}, begun | {"number": 3},
        {"event": "tables", "number": 2, "state": "recorded", "sectors": 7},
        {"event": "tables", "number": 1, "state": "recorded", "sectors": 9},
    )  # fmt: skip
    (left,) = read_raw_recordings(tmp_path)
    assert [(e["number"], e["state"], e.get("sectors")) for e in left.events] == [
        (1, "recorded", 9), (2, "recorded", 7), (3, "did not end", None),
    ]  # fmt: skip


def test_of_a_process_with_captured_graphs_only_their_regions_count(tmp_path):
    def kernel_at(place):
        return kernel(place + 1, f"k{place}") | {"context": 0}

    leave(
        tmp_path, kernel_at(0), {"event": "memset"}, {"event": "alloc"},
        {"event": "region", "begins": 1, "launches": 1}, kernel_at(1), {"event": "copy"},
        {"event": "region", "begins": 0, "launches": 2}, kernel_at(2), {"event": "free"},
        {"event": "region", "begins": 1, "launches": 3}, kernel_at(3),
    )  # fmt: skip

    def events(*captured):
        (left,) = read_raw_recordings(tmp_path, lambda process: process in captured)
        return [
            (event.get("name", event["event"]).partition("(")[0], event.get("ordinal"))
            for event in left.events
        ]

    inside = [("alloc", None), ("k1", 0), ("copy", None), ("free", None), ("k3", 1)]
    assert events(5) == inside
    assert len(events()) == len(inside) + 3
    assert [place for name, place in events() if name[0] == "k"] == [0, 1, 2, 3]


def test_each_gpu_has_what_it_takes_part_in(tmp_path):
    between = {"event": "copy", "from_context": 0, "to_context": 1, "direction": 4}
    leave(
        tmp_path, {"event": "context", "context": 0, "device": 0, "architecture": 80},
        {"event": "kernel", "number": 1, "device": 0, "context": 0},
        {"event": "context", "context": 1, "device": 1, "architecture": 90}, between,
        {"event": "kernel", "number": 2, "device": 1, "context": 1},
        {"event": "memset", "context": 1},
    )  # fmt: skip
    first, second = read_raw_recordings(tmp_path)
    assert (first.device, first.architecture) == (0, 80)
    assert [e["event"] for e in first.events] == ["context", "kernel", "copy"]
    assert (second.device, second.architecture) == (1, 90)
    assert [e["event"] for e in second.events] == ["context", "copy", "kernel", "memset"]
    read, written = first.events[2]["direction"], second.events[1]["direction"]
    assert (read, written) == (3, 2)


@pytest.mark.parametrize(
    ("number", "is_told"),
    [
        (4096 // 32, True), (8160 // 32, True), (8192 // 32, False), (4064 // 32, False),
        (1 << 63 | 4096 // 1024, True), (3 << 62 | 7168 // 1024, True), (1 << 63 | 8, False),
        (1 << 63 | 9216 // 1024, True), ((1 << 20) // 32, False), ((1 << 21) // 32, True),
    ],
)  # fmt: skip
def test_a_kernel_of_another_gpu_is_told_where_it_touches_this_ones_memory(
    tmp_path, number, is_told
):
    alloc, other = {"event": "alloc", "address": 4096, "bytes": 4096}, 1 << 20
    kernel = {"event": "kernel", "stream": 0, "name": "k", "sectors_at": 0, "sectors": 1}
    leave(
        tmp_path, {"event": "context", "context": 0, "device": 0, "architecture": 90},
        {"event": "context", "context": 1, "device": 1, "architecture": 90},
        alloc | {"context": 0}, alloc | {"context": 1},  # which sees it, too
        alloc | {"context": 1, "address": other}, alloc | {"context": 0, "address": other},
        {"event": "alloc", "context": 0, "address": 9728, "bytes": 512},  # begins within a page
        *({"event": event, "context": gpu, "address": 1 << 21, "bytes": 64}
          for gpu in (1, 0) for event in ("alloc", "free")),
        kernel | {"number": 1, "device": 0, "context": 0, "sectors": 0},
        kernel | {"number": 2, "device": 1, "context": 1},
    )  # fmt: skip
    (tmp_path / "sectors-5.bin").write_bytes(np.array([number, 0, 0, 0], np.uint64).tobytes())
    first, second = read_raw_recordings(tmp_path)
    told = [event["name"] for event in first.events if event["event"] in {"kernel", "opaque"}]
    assert told == ["k", "(on GPU 1: k)"][: 1 + is_told]
    assert [event["number"] for event in second.events if event["event"] == "kernel"] == [2]


def test_what_orders_streams_of_one_gpu_may_go_by_another(tmp_path):
    orders = [
        {"event": "sync", "what": "record", "context": 1},
        {"event": "graph", "begins": 1, "context": 1},
        {"event": "stream", "context": 1},
    ]
    leave(
        tmp_path, {"event": "context", "context": 0, "device": 0, "architecture": 90},
        {"event": "kernel", "number": 1, "device": 0, "context": 0},
        {"event": "context", "context": 1, "device": 1, "architecture": 90}, *orders,
        {"event": "kernel", "number": 2, "device": 1, "context": 1},
    )  # fmt: skip
    for left in read_raw_recordings(tmp_path):
        assert [e for e in left.events if e["event"] in {"sync", "graph", "stream"}] == orders


def test_what_is_chosen_reaches_the_recorder():
    chosen = Selection(3, None, "gemm", "step", 5, 7, in_region=True).settings()
    assert {name.removeprefix("DEPGRAPH_RECORD_"): value for name, value in chosen.items()} == {
        "FIRST": "3", "END": "", "NAME": "gemm", "NVTX": "step", "SKIP": "5", "COUNT": "7",
        "REGION": "1", "GPU_MEMORY": str(1 << 30),
    }  # fmt: skip


@pytest.mark.usefixtures("with_a_gpu")
def test_a_program_is_only_timed_for_a_store_that_is_there(program, recorded, tmp_path):
    alone = program("record", "--time-only", "-o", "none", "--", *recorded())
    assert alone.code == 0, alone.err
    assert "there is no store none yet" in alone.err
    assert json.loads((tmp_path / "none.times.json").read_text())["traceEvents"]
    assert program("record", "--no-time", "--", *recorded()).code == 0
    result = program("record", "--time-only", "--", *recorded())
    assert result.code == 0, result.err
    assert (tmp_path / "ran.txt").read_text() == "ran\n" * 3
    found = json.loads(program("bound", "--sms", "80", "--format", "json").out)
    assert found["durations"] == "kernel times of depgraph.out.times.json"


def test_each_gpu_of_a_process_has_its_times(tmp_path):
    lines = [run_of(1, "a", 1.0), run_of(2, "b", 2.0), run_of(3, "a", 3.0)]
    lines[1]["args"]["device"] = 1
    (tmp_path / "times-1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    timed = timed_in(tmp_path)
    first = [kernel(1, "a"), kernel(3, "a")]
    assert [event["ts"] for event in take_times(timed, first)] == [1, 3]
    assert [event["ts"] for event in take_times(timed, [kernel(2, "b")])] == [2]
    assert take_times(timed, first) == []


def test_names_may_hold_what_else_ends_lines(tmp_path):
    leave(
        tmp_path,
        {"event": "kernel", "device": 0, "context": 0, "number": 1, "ranges": ["a\u2028b"]},
    )
    path = tmp_path / "events-5.jsonl"
    path.write_text(path.read_text().replace("\\u2028", "\u2028"), encoding="utf-8")
    ((event,),) = (left.events for left in read_raw_recordings(tmp_path))
    assert event["ranges"] == ["a\u2028b"]


@pytest.mark.usefixtures("with_a_gpu")
def test_stores_of_several_gpus_are_not_made_for_nothing(program, recorded, tmp_path):
    (tmp_path / "depgraph.out-gpu1").mkdir()
    result = program("record", "--", *recorded())
    assert result.code == 1
    assert "depgraph.out-gpu1: already exists" in result.err
    assert not (tmp_path / "ran.txt").exists()


def test_a_region_is_that_of_the_profiler(monkeypatch):
    calls = []

    class Driver:
        def __getattr__(self, name):
            return lambda *_: calls.append(name)

    monkeypatch.setattr(depgraph.record.ctypes, "CDLL", lambda _: Driver())
    with depgraph.record.region():
        calls.append("inside")
    assert calls == ["cuInit", "cuProfilerStart", "inside", "cuProfilerStop"]


def test_a_region_needs_no_gpu():
    with depgraph.record.region():
        ran = True
    assert ran


def test_processes_that_launched_nothing_leave_nothing(tmp_path):
    line = json.dumps({"event": "recording", "format": 1, "process": 5})
    (tmp_path / "events-5.jsonl").write_text(line + "\n")
    (tmp_path / "sectors-5.bin").write_bytes(b"")
    assert read_raw_recordings(tmp_path) == []


def test_a_signal_reaches_the_program(tmp_path):
    mark = tmp_path / "started"
    command = ["sh", "-c", f"touch {mark}; exec sleep 100"]
    script = (
        "import sys\nfrom pathlib import Path\nfrom depgraph.recorder.run import time\n"
        f"sys.exit(time({command!r}, Path('none.so'), Path({str(tmp_path)!r})))"
    )
    process = subprocess.Popen([sys.executable, "-c", script])
    wait_until(mark.exists)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM


@pytest.mark.usefixtures("with_a_gpu")
def test_graphs_that_a_program_captures_are_kept_beside_its_store(program, recorded, tmp_path):
    words = recorded()
    write_captures(tmp_path / "left.json", [captured()])
    left = (tmp_path / "left.json").read_text()
    leave = f"(folder / 'captures-1.json').write_text({left!r})\nwith open"
    with (tmp_path / "program.py").open("r+") as file:
        text = file.read()
        file.seek(0)
        file.write(text.replace("with open", leave))
    assert program("record", "--", *words).code == 0
    path = tmp_path / "depgraph.out.captures.json"
    assert read_captures(path, Store(tmp_path / "depgraph.out").identity) == [captured()]
    assert program("record", "--", *words).code == 1
    assert program("record", "--force", "--", *words).code == 0


@pytest.mark.usefixtures("with_a_gpu")
def test_block_times_stand_with_the_times_of_kernels(program, recorded, tmp_path):
    result = program("record", "--block-times", "--", *recorded())
    assert result.code == 0, result.err
    assert "steps of 32 ns; measuring adds 64 ns to a block" in result.err
    left = json.loads((tmp_path / "depgraph.out.times.json").read_text())
    spans = [unpacked(event["args"]["blocks"], 2) for event in left["traceEvents"]]
    assert [each.duration.tolist() for each in spans] == [[640, 1280], [960, 1600]]
    assert [each.begin.tolist() for each in spans] == [[0, 32], [0, 0]]
    assert [each.sm.tolist() for each in spans] == [[3, 4], [0, 1]]
    assert (tmp_path / "ran.txt").read_text() == "ran\n" * 4  # the fake pause is one
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "depgraph.out", "depgraph.out.times.json", "program.py", "ran.txt",
    ]  # fmt: skip


@pytest.mark.usefixtures("with_a_gpu")
def test_threads_tell_what_they_compile(program, recorded, monkeypatch):
    recorder = Builder.recorder

    def compiled(builder):
        builder._say("compiling recorder.cpp of the recorder, for this machine, once")
        return recorder(builder)

    monkeypatch.setattr(Builder, "recorder", compiled)
    result = program("record", "--no-time", "--", *recorded())
    assert result.code == 0, result.err
    assert "depgraph: compiling recorder.cpp" in result.err


@pytest.mark.usefixtures("with_a_gpu")
@pytest.mark.parametrize(
    ("words", "parts"),
    [([], 3), (["--no-time"], 2), (["--block-times"], 5), (["--time-only"], 1)],
)
def test_a_bar_counts_the_parts_that_are_compiled(program, recorded, monkeypatch, words, parts):
    told = []

    class Told(Steps):
        def begin(self, what, steps):
            told.append((what, steps))

        def done(self):
            told.append("done")

    monkeypatch.setattr("depgraph.cli.recording.step_progress", lambda **_: nullcontext(Told()))
    assert program("record", *words, "--", *recorded()).code == 0
    assert told == [("compiling the recorder", parts)] + ["done"] * parts


@pytest.mark.usefixtures("with_a_gpu")
def test_block_times_are_taken_again_beside_a_store(program, recorded):
    assert program("record", "--no-time", "--", *recorded()).code == 0
    result = program("record", "--time-only", "--block-times", "--", *recorded())
    assert result.code == 0, result.err
    timing = json.loads(program("timing", "depgraph.out.times.json", "--format", "json").out)
    assert timing["kernels_with_block_times"] == 2
    assert [row["block_longest"] for row in timing["kernels"]] == [1.216, 1.536]
    assert [row["resident"] for row in timing["kernels"]] == [1, 1]
    given = [
        "--timing",
        "depgraph.out.times.json",
        "--sms",
        "1",
        "--gpu",
        "H100",
        "--occupancy",
        "1",
    ]
    bound = json.loads(program("bound", *given, "--format", "json").out)
    assert bound["durations"] == "kernel times and block times of depgraph.out.times.json"
    # On two SMs a kernel takes 5 us, as its longer block; on one, as both.
    serial = 2 * 5 + 5 * (640 - 64) / (1280 - 64) + 5 * (960 - 64) / (1600 - 64)
    assert bound["bounds"][0]["serial"] == pytest.approx(serial, rel=1e-3)


@pytest.mark.usefixtures("with_a_gpu")
def test_a_program_that_fails_in_the_run_for_block_times_is_named(program, recorded, tmp_path):
    words = recorded()
    path = tmp_path / "program.py"
    path.write_text(path.read_text() + 'if "timer" not in os.environ[library]: os._exit(4)\n')
    path.write_text(path.read_text().replace("library", '"CUDA_INJECTION64_PATH"'))
    path.write_text(path.read_text().replace("sys.exit(0)", ""))
    result = program("record", "--block-times", "--", *words)
    assert result.code == 1
    assert "ended with exit code 4 in the run for block times; leave out" in result.err
    assert not (tmp_path / "depgraph.out").exists()


@pytest.mark.usefixtures("with_a_gpu")
def test_kernels_whose_blocks_were_not_all_measured_are_counted(program, recorded, monkeypatch):
    monkeypatch.setitem(globals(), "SPANS", [*SPANS[:2], (0, 0, 0, 0, 0, 0), SPANS[3]])
    result = program("record", "--block-times", "--", *recorded())
    assert "depgraph.out: kernels without block times: 1 of 2" in result.err
