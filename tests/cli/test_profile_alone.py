"""``depgraph bound PROFILE``: what a profile answers without a trace."""

import gzip
import json

import pytest
from profiles_made import kineto, nsys

from depgraph.samples import KERNEL_TIMES, sample_path

TIMES = sample_path(KERNEL_TIMES)
RANK = sample_path("timing/overlap/rank0.json.gz")


def test_the_first_line_answers_in_times(program):
    out = program("bound", TIMES).out
    assert out.startswith(
        "5.03 ms now; predicted 60.5 us as a CUDA graph, 83.01x faster.\n"
        "Launch-bound: the GPU is idle for 98.9 % of the time: 92.1 % waiting for the\n"
        "host, 6.9 % waiting for launches to start.\n"
    )


def test_communication_and_streams_are_told(program):
    out = program("bound", RANK).out
    assert "(ProfilerStep#2, one of 3 steps)" in out
    assert "Not launch-bound" in out
    assert "2 streams: several kernels run at once for" in out
    assert "Communication that no computation hides: 46" in out


def test_all_formats_say_the_same(program):
    found = json.loads(program("bound", TIMES, "--format", "json").out)
    assert found["report"] == "profile"
    assert found["as_graph_us"] == found["spent_us"]["as_graph"] < found["now_us"]
    assert sum(row["time_us"] for row in found["time"]) == pytest.approx(found["now_us"])
    rows = program("bound", TIMES, "--format", "csv").out.splitlines()
    assert rows[0] == "cause,what,time_us,share"
    assert "5.03 ms now" in program("bound", TIMES, "--format", "markdown").out


def test_other_files_of_times_are_read_too(program, tmp_path):
    base = nsys(tmp_path / "t.sqlite", [("a", 100, 10, 132, 1), ("b", 130, 10, 132, 1)])
    assert "now; predicted" in program("bound", base).out
    packed = tmp_path / "t.json.gz"
    packed.write_bytes(gzip.compress(TIMES.read_bytes()))
    assert program("bound", packed).out.startswith("5.03 ms now")


def test_the_time_without_a_profiler_counts(program):
    assert program("bound", TIMES, "--wall", "0.5ms").out.startswith(
        "500 us now; predicted 60.5 us"
    )
    wrong = program("bound", TIMES, "--wall", "5")
    assert (wrong.code, "such as 2.3ms, 850us or 1.2s" in wrong.err) == (2, True)
    short = program("bound", TIMES, "--wall", "5us")
    assert (short.code, short.err.count("\n")) == (1, 1)


@pytest.mark.parametrize(
    "options",
    [
        ("--mechanism", "pdl"), ("--deps", "raw"), ("--timing", TIMES), ("--what-if", "gap=0"),
        ("--occupancy", "2"), ("--contention", "sm"), ("--sms", "8,16"), ("--sms", "inf"),
        ("--memory-bandwidth", "gpu"), ("--gpu", "H100", "--gpu-file", "x.toml"),
    ],
)  # fmt: skip
def test_what_needs_dependences_is_refused_in_one_line(program, options):
    outcome = program("bound", TIMES, *options)
    assert (outcome.code, outcome.out) == (2, "")


def test_a_gpu_of_ones_own_choice(program):
    assert "launch costs" not in program("bound", TIMES, "--gpu", "H200").err
    found = json.loads(program("bound", TIMES, "--gpu", "H200", "--format", "json").out)
    assert found["gpu"] == "H200"


def test_what_is_no_timeline_is_refused(program, tmp_path):
    table = tmp_path / "times.csv"
    table.write_text("kernel,duration_us\n0,5\n")
    outcome = program("bound", table)
    assert (outcome.code, outcome.err.count("\n")) == (1, 1)
    assert "does not say when its kernels ran" in outcome.err
    trace = tmp_path / "trace.log"
    trace.write_text("MEMTRACE: CTX 0x0\n")
    assert "is not a depgraph store" in program("bound", trace).err
    one = kineto(tmp_path / "one.json", [("a", 10, 5, 132)])
    assert "give it alone" in program("bound", TIMES, one).err
