"""The first lines of a command: the verdict, how the program ran, and steps that can be run."""

import json
import shlex

import pytest

from depgraph.samples import KERNEL_TIMES, sample_path


@pytest.fixture
def timing():
    return sample_path(KERNEL_TIMES)


def test_bound_begins_with_times_and_the_verdict(program, sample_store, timing):
    words = ["bound", sample_store.path, "--sms", 132, "--timing", timing]
    first = program(*words).out
    assert first.startswith(
        "5.03 ms now; 55.4 us (51.5 to 59.8 us) as a CUDA graph; 47.2 us (38.2 to 60.7\n"
        "us) with independent branches side by side, 106x faster; at least 25.9 us.\n"
        "Launch-bound: use a CUDA graph. In the profile no kernel runs for"
    )
    assert "Kernels could overlap: predicted 1.17x" in first
    assert first.count("\n") <= 25
    text = " ".join(program(*words, "--details").out.split())
    assert "as profiled: wall time 5025 us; kernels 54.15 us (1.1 %)" in text
    assert "One stream. At most 1.43x more, ignoring launches." in text


@pytest.mark.jit_only
def test_times_on_a_gpu_that_nothing_was_measured_on_are_not_validated(
    program, sample_store, timing
):
    words = ["bound", sample_store.path, "--timing", timing, "--gpu", "a100"]
    first = " ".join(program(*words).out.split())
    assert "55.4 us (not validated) as a CUDA graph; 47.2 us (not validated) with" in first


@pytest.mark.jit_only
def test_no_range_goes_below_what_any_schedule_needs(program, sample_store, timing):
    words = [
        "bound",
        sample_store.path,
        "--timing",
        timing,
        "--what-if",
        "gap=0",
        "--format",
        "json",
    ]
    times = json.loads(program(*words).out)["times"]
    assert times["least_us"] - 1e-9 <= times["changed_low_us"] <= times["changed_us"] + 1e-9


@pytest.mark.jit_only
@pytest.mark.parametrize("more", [[], ["--mechanism", "streams,cuda-graph"]])
def test_json_has_the_verdict(program, sample_store, timing, more):
    shown = program(
        "bound", sample_store.path, "--sms", 132, "--timing", timing, "--format", "json", *more
    )
    answer = json.loads(shown.out)
    assert answer["verdict_rules"] == ["launch-bound", "ships-today"]
    assert answer["verdict"].startswith("Launch-bound")
    launched = answer["as_launched"]
    assert launched["streams"] == 1
    assert launched["wall"] == pytest.approx(launched["idle"] + launched["kernel_time"], rel=0.01)
    assert launched["is_cuda_graph"] is False


@pytest.mark.jit_only
def test_next_steps_run(program, sample_store, timing):
    shown = program(
        "bound", sample_store.path, "--sms", "8,132", "--timing", timing, "--launch", "gpu",
        "--deps", "raw,war,waw", "--contention", "sm",
        "--memory-bandwidth", "gpu", "--format", "json",
    )  # fmt: skip
    commands = [step["command"] for step in json.loads(shown.out)["next_steps"]]
    commands = [words for words in map(shlex.split, filter(None, commands)) if words[1] != "report"]
    assert len(commands) == 3
    for words in commands:
        assert program(*words[1:]).code == 0, words


@pytest.mark.jit_only
@pytest.mark.usefixtures("undrawn")
def test_a_report_says_the_same(program, sample_store, timing, tmp_path):
    common = ["--sms", 132, "--timing", timing]
    first = json.loads(
        program("bound", sample_store.path, *common, "--format", "json").out
    )  # fmt: skip
    shown = program("report", sample_store.path, *common, "-o", tmp_path / "r", "--group-by", "op")
    assert shown.out.startswith("5.03 ms now; ")
    full = json.loads((tmp_path / "r" / "report.json").read_text())
    for key in ("times", "verdict", "as_launched"):
        assert full[key] == first[key]
    page = (tmp_path / "r" / "index.html").read_text()
    for sentence in ("Launch-bound: use a CUDA graph.", "As profiled: wall time", "Next steps"):
        assert sentence in page
    assert full["functions"][0]["op"] == "aten::mm"
    assert {row["op"] for row in full["kernels"]} >= {"aten::mm", "aten::sum"}
    assert [row["buffer"] for row in full["buffers"]][:2] == [15, 17]
    assert (tmp_path / "r" / "report.md").read_text().startswith("5.03 ms now; ")


@pytest.mark.jit_only
def test_a_renamed_program_has_no_section_of_buffers(program, sample_store):
    shown = program(
        "report", sample_store.path, "--sms", 8, "--format", "json",
        "--what-if", "buffer=0:0xffffffffffffffff drop=war,waw",
    )  # fmt: skip
    assert "buffers" not in json.loads(shown.out)


def test_kernels_by_operator(program, sample_store, timing):
    common = [sample_store.path, "kernels", "--timing", timing]
    rows = json.loads(program("show", *common, "--format", "json").out)["kernels"]
    assert (rows[0]["op"], rows[0]["time"]) == ("aten::mm", pytest.approx(2.208))
    groups = json.loads(program("show", *common, "--group-by", "op", "--format", "json").out)
    assert groups["groups"][0]["op"] == "aten::mm"
    assert sum(row["kernels"] for row in groups["groups"]) == 25
    assert sum(row["share"] for row in groups["groups"]) == pytest.approx(1)


def test_groups_without_a_profile(program, sample_store):
    table = program("show", sample_store.path, "kernels", "--group-by", "name").out
    assert "Kernels by name" in table
    assert "share" not in table
    assert "time" not in program("show", sample_store.path, "kernels").out
    missing = program("show", sample_store.path, "pairs", "--group-by", "module")
    assert missing.code == 1
    assert "with_stack=True" in missing.err


def test_pairs_by_operator(program, sample_store, timing):
    shown = program(
        "show",
        sample_store.path,
        "pairs",
        "--timing",
        timing,
        "--group-by",
        "op",
        "--format",
        "csv",
    )
    assert shown.out.splitlines()[0] == "target,source,pairs,edges,raw,war,waw"
    assert program("show", sample_store.path, "pairs", "--timing", timing).code == 2


def test_only_kernels_and_pairs_are_grouped(program, sample_store):
    for words in (["path"], ["buffers"], ["block", "0:0"], ["pairs", "--cusync"]):
        refused = program("show", sample_store.path, *words, "--group-by", "name")
        assert (refused.code, "--group-by needs kernels or pairs" in refused.err) == (2, True)


def test_a_graph_for_other_tools_knows_operators(program, sample_store, timing, tmp_path):
    file = tmp_path / "graph.json"
    program("export", sample_store.path, "--what", "graph", "--timing", timing, "-o", file)
    nodes = json.loads(file.read_text())["nodes"]
    assert nodes[0]["op"] == "aten::mm"
    assert nodes[0]["duration"] == pytest.approx(2.208)


@pytest.mark.jit_only
def test_graphs_have_the_name_of_the_gpus_vendor(program, timed_store):
    out = program("bound", timed_store.path, "--gpu", "MI300X").out
    assert "as a HIP graph" in out
    assert "CUDA graph" not in out
    assert "as a CUDA graph" in program("bound", timed_store.path).out
