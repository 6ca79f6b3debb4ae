"""``--timing``, ``depgraph timing``, ``depgraph gpus`` and the options that change the model."""

import json

import pytest

from depgraph.gpu.model import available_gpus
from depgraph.samples import KERNEL_TIMES, sample_path

PROFILE = sample_path(KERNEL_TIMES)
KERNEL_TIME = 49.506  # of the 25 kernels of the sample that were traced, in us


@pytest.fixture
def run(program, sample_store, monkeypatch):
    """Return a function that runs a command on the sample's store: exit code, stdout, stderr."""
    monkeypatch.setenv("DEPGRAPH_STORE", str(sample_store.path))
    return program


@pytest.fixture
def answer(run):
    """Return a function that runs a command and returns its JSON."""

    def read(*words):
        code, out, err = run(*words, "--format", "json")
        assert code == 0, err
        return json.loads(out)

    return read


@pytest.mark.jit_only
def test_the_profile_is_all_that_has_to_be_given(answer):
    found = answer("bound", "--sms", 132, "--timing", PROFILE)
    assert (found["unit"], found["gpu"]) == ("us", "H100 SXM")
    assert found["bounds"][0]["serial"] == pytest.approx(KERNEL_TIME)
    measured = found["schedules"][-1]
    assert (measured["schedule"], measured["sms"]) == ("measured", 132)
    assert measured["makespan"] > KERNEL_TIME
    notes = " ".join(found["notes"])
    assert "25 of 25 kernels matched, 4 of 29 profile kernels not in the trace" in notes
    assert "registers of 24 kernels taken from the profile" in notes


def test_timing_shows_the_match(answer):
    found = answer("timing", PROFILE)
    assert (found["matched"], found["guessed"], found["unmatched"]) == (25, 0, 0)
    assert (found["profile_kernels"], found["iterations"]) == (29, 1)
    assert found["kernel_time"] == pytest.approx(KERNEL_TIME)
    assert found["matched_share_of_time"] + found["unmatched_share_of_time"] == pytest.approx(1)
    assert [kernel["kernel"] for kernel in found["kernels"]] == list(range(25))
    assert len(found["only_in_profile"]) == 4
    assert all("vectorized_elementwise" in row["name"] for row in found["only_in_profile"])


@pytest.mark.parametrize("form", ["table", "csv", "markdown"])
def test_timing_is_written_in_every_form(run, form):
    code, out, _ = run("timing", PROFILE, "--format", form)
    assert code == 0
    assert sum("gru_cell" in line.replace("\\", "") for line in out.splitlines()) == 4


def test_the_table_names_what_only_the_profile_has(run):
    _, out, _ = run("timing", PROFILE)
    assert "only in the profile: vectorized_elementwise_kernel (4)" in out
    assert max(map(len, out.splitlines())) <= 100


def test_block_times_are_shown_as_well(run, sample_store, tmp_path):
    file = tmp_path / "blocks.csv"
    rows = [f"{k.kernel},{b},1.5" for k in sample_store.kernels for b in range(k.blocks)]
    file.write_text("kernel,block,duration_us\n" + "\n".join(rows) + "\n")
    _, out, _ = run("timing", file)
    assert "blocks with a time: 189 of 189" in out


@pytest.mark.jit_only
def test_a_table_of_kernel_times_need_not_be_whole(answer, tmp_path):
    file = tmp_path / "kernels.csv"
    file.write_text("kernel,duration_us\n0,4\n2,3\n")
    found = answer("bound", "--sms", 132, "--timing", file, "--measured-sms", 132)
    notes = " ".join(found["notes"])
    same = "estimated at the median time of launches of the same function, grid and block"
    assert f"no measured time of kernels 1, 3, 4, 5: {same}" in notes
    assert "2 of 25 kernels matched, 23 without a measurement" in notes


@pytest.mark.jit_only
def test_estimated_times_have_rows_of_their_own(answer, tmp_path):
    file = tmp_path / "kernels.csv"
    file.write_text("kernel,duration_us\n0,4\n2,3\n")
    found = answer("timing", file)
    status = [row["status"] for row in found["kernels"]]
    assert (status.count("matched"), status.count("estimated")) == (2, 23)
    assert min(row["duration"] for row in found["kernels"]) == 3
    assert sum(row["share"] for row in found["kernels"]) == pytest.approx(1)
    assert [row["what"] for row in found["times"]] == ["matched", "estimated"]
    assert found["times"][1]["time"] == pytest.approx(found["estimated_time"])
    assert found["kernel_time"] == 7
    assert "estimated at the shortest measured time, 3.000 us" in " ".join(found["notes"])
    answered = answer("bound", "--sms", 132, "--timing", file, "--measured-sms", 132)
    assert answered["bounds"][0]["serial"] == pytest.approx(7 + found["estimated_time"])


def test_blocks_without_times_are_estimated_too(answer, sample_store, tmp_path):
    kernels = sample_store.kernels
    whole = {kernel.kernel: kernel.blocks for kernel in kernels[1:]}
    rows = answer("timing", blocks_table(tmp_path / "blocks.csv", whole), "--allow-mismatch")
    assert rows["kernels"][0]["status"] == "estimated"
    assert rows["kernels"][0]["mean"] > 0


@pytest.mark.jit_only
def test_memsets_and_copies_are_rows(answer, tmp_path):
    content = json.loads(PROFILE.read_text())
    kernels = [e for e in content["traceEvents"] if e.get("cat") == "kernel"]
    second = sorted(e["ts"] for e in kernels)[5]
    memset = {"ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", "ts": second - 0.5,
              "dur": 0.25, "args": {"device": 0, "context": 1, "stream": 7}}  # fmt: skip
    content["traceEvents"].append(memset)
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(content))
    found = answer("timing", file)
    (row,) = found["memory_operations"]
    assert (row["name"], row["count"], row["time"]) == ("Memset (Device)", 1, 0.25)
    assert found["times"][-1] == {"what": "memsets and copies", "count": 1, "time": 0.25}
    assert found["memory_time"] == 0.25
    notes = " ".join(answer("bound", "--sms", 8, "--timing", file)["notes"])
    assert "memsets and copies between kernels of the profile: 1, 0.2500 us in all" in notes


def test_every_gpu_is_listed(answer):
    names = {row["name"] for row in answer("gpus")["gpus"]}
    assert names == {gpu.name for gpu in available_gpus()}
    assert {"A100 80GB", "H100 SXM", "RTX 4090"} <= names


def test_the_listed_names_are_taken(answer):
    for name in ("GTX 1080", "b200"):
        found = answer("bound", "--sms", 8, "--gpu", name)
        assert found["gpu"] == name.upper()


def test_sms_alone_keep_the_limits_of_the_gpu(answer):
    found = answer("bound", "--sms", "8,132,inf")
    assert found["gpu"] == "H100 SXM"
    assert {row["sms"] for row in found["bounds"]} == {8, 132, "inf"}


@pytest.mark.jit_only
def test_many_sizes_are_a_curve_of_one_line_each(run, answer):
    _, out, _ = run("bound", "--sms", "8:40", "--details")
    lines = [line.split() for line in out.splitlines()]
    rows = [line for line in lines if line and line[0].isdecimal() and line[-1].endswith("x")]
    assert [int(row[0]) for row in rows] == [*range(8, 41)]
    found = answer("bound", "--sms", "8:40")
    speedups = [row["upper_bound RAW,WAR,WAW"] for row in found["curve"]]
    assert speedups == [b["upper_bound"] for b in found["bounds"] if b["dependences"] != "RAW"]


def test_few_sizes_are_tables_of_bounds_and_schedules(run):
    _, out, _ = run("bound", "--sms", "8:12", "--details")
    assert "Schedules" in out
    assert "longest-path-first" in out


@pytest.mark.jit_only
def test_what_ifs_change_the_answer_and_are_named(answer):
    before = answer("bound", "--sms", 132, "--timing", PROFILE, "--launch-gap", 2)
    after = answer(
        "bound", "--sms", 132, "--timing", PROFILE, "--launch-gap", 2,
        "--what-if", "gap=0", "--what-if", "kernel=* duration*=0.5",
    )  # fmt: skip
    assert before["bounds"][0]["serial"] == pytest.approx(KERNEL_TIME)
    assert before["launches"][0]["serial"] == pytest.approx(KERNEL_TIME + 25 * 2)
    assert after["bounds"][0]["serial"] == pytest.approx(KERNEL_TIME / 2)
    assert after["launches"][0]["serial"] == pytest.approx(KERNEL_TIME / 2)
    assert "what if gap=0: what launches cost changes" in after["notes"]
    assert not any(row["schedule"] == "measured" for row in after["schedules"])


@pytest.mark.jit_only
def test_a_program_held_up_by_its_host_has_no_overlap_to_gain_from_that(answer):
    words = ("bound", "--sms", 132, "--timing", PROFILE, "--launch", "measured")
    plain = answer(*words)
    free = answer("bound", "--sms", 132, "--timing", PROFILE)
    assert plain["bounds"] == free["bounds"]
    costs = plain["launches"][0]
    assert costs["without"] < costs["cuda_graph"] < costs["serial"]
    found = answer(*words, "--mechanism", "serial,cuda-graph,dataflow,stream-k")
    rows = {row["mechanism"]: row for row in found["mechanisms"]}
    parts = {row["mechanism"]: row for row in found["parts"]}
    assert rows["serial"]["makespan"] == pytest.approx(costs["serial"])
    assert rows["cuda-graph"]["speedup"] > 10
    for name, part in parts.items():
        assert part["speedup"] == pytest.approx(part["launch_speedup"] * part["overlap_speedup"])
        assert name == "stream-k" or (rows[name]["share_of_bound"] or 0) <= 1 + 1e-9
    # What overlaps is what overlaps without launch costs, whoever issues the kernels.
    assert parts["cuda-graph"]["overlap_speedup"] <= plain["bounds"][0]["upper_bound"] * (1 + 1e-9)
    assert parts["dataflow (oldest-first)"]["launch_speedup"] < 1


@pytest.mark.jit_only
def test_a_report_shows_what_launches_cost(answer):
    words = (
        "--sms",
        132,
        "--timing",
        PROFILE,
        "--launch",
        "gpu",
        "--mechanism",
        "serial,cuda-graph",
    )
    reported, bounded = answer("report", *words), answer("bound", *words[:-2])
    assert reported["launches"] == bounded["launches"]
    assert answer("report", *words[:4]).get("launches") is None


def test_launch_costs_of_counts_are_left_out(answer):
    found = answer("bound", "--sms", 132, "--launch", "gpu")
    note = "launch costs are left out: durations are instructions, no times"
    assert note in found["notes"]
    assert "launches" not in found


def test_renaming_every_buffer_leaves_raw_only(answer):
    found = answer("bound", "--sms", 132, "--what-if", "buffer=0:0xffffffffffff drop=war,waw")
    everything, raw = found["bounds"]
    assert everything["critical_path"] == raw["critical_path"]
    assert answer("bound", "--sms", 132)["bounds"][0]["critical_path"] > raw["critical_path"]


@pytest.mark.jit_only
def test_memory_bandwidth_is_a_column_only_when_asked_for(answer, tmp_path):
    # All that the program touches fits into the L2 cache of an H100.
    words = ("bound", "--sms", 132, "--timing", PROFILE)
    small = tmp_path / "small.toml"
    small.write_text('name = "small"\nbased_on = "H100 SXM"\nl2_bytes = "64 KiB"\n')
    slow = answer(*words, "--gpu-file", small, "--memory-bandwidth", 1)["bounds"][0]
    assert slow["lower_bound"] == slow["memory"] == slow["serial"] > slow["critical_path"]
    assert "memory" not in answer(*words)["bounds"][0]
    named = answer(*words, "--memory-bandwidth", "gpu")
    assert any("3352 GB/s (of H100 SXM" in note for note in named["notes"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--what-if", "kernels=3 duration*=2"), "there is no word 'kernels'; give kernel=N"),
        (
            ("--launch-gap", "soon"),
            "launch costs 'soon': 'soon' is not a time from 0 to 1e+15; give none",
        ),
        (("--launch", "1,2"), "launch costs '1,2': give none, gpu, measured, or HOST,GAP,NODE"),
        (
            ("--launch", "gpu,lunch=2"),
            "'lunch' is none of host, gap, sync, node, path, fork, wide, root, second, leaf, issue",
        ),
        (("--launch", "gpu,host=nan"), "'nan' is not a time from 0"),
        (("--launch", "1e999"), "'1e999' is not a time from 0"),
        (("--memory-bandwidth", "-3"), "'-3' is not a bandwidth: give 0.001 to 1e+09 GB/s, or gpu"),
        (("--iteration", "best"), "'best': give median, mean, min, last or a number from 0"),
        (("--gpu", "A100", "--gpu-file", "x.toml"), "--gpu and --gpu-file: give one of them"),
    ],
)
def test_wrong_words_are_wrong_usage(run, words, message):
    code, _, err = run("bound", "--sms", 8, *words)
    assert code == 2
    assert message in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--device", 3), "has no kernel of device 3; has 0"),
        (("--iteration", "4"), "has no iteration 4; it has 1, numbered from 0"),
    ],
)
def test_a_choice_that_is_not_there_is_one_line(run, words, message):
    code, _, err = run("bound", "--sms", 8, "--timing", PROFILE, *words)
    assert code == 1
    assert message in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("words", [("--stream", 7), ("--iteration", 2), ("--measured-sms", 80)])
def test_what_chooses_among_times_needs_some(run, words):
    code, _, err = run("bound", "--sms", 8, *words)
    assert code == 1
    assert f"{words[0]} needs measured times, with --timing or recorded" in err


def test_the_critical_path_is_in_microseconds(answer):
    found = answer("show", "path", "--timing", PROFILE)
    assert found["unit"] == "us"
    assert found["critical_path"] == pytest.approx(34.59, abs=0.01)


def test_a_schedule_is_exported_in_microseconds(run, tmp_path):
    file = tmp_path / "schedule.csv"
    code, _, err = run(
        "export", "--what", "schedule", "--schedule", "serial", "--sms", 132, "--timing", PROFILE,
        "-o", file,
    )  # fmt: skip
    assert code == 0, err
    ends = [float(line.split(",")[-1]) for line in file.read_text().splitlines()[1:]]
    assert max(ends) == pytest.approx(KERNEL_TIME)


# One judgement of a profile, whoever uses it


def blocks_table(path, blocks_of_kernels):
    lines = [f"{k},{b},1.5" for k, blocks in blocks_of_kernels.items() for b in range(blocks)]
    path.write_text("\n".join(["kernel,block,duration_us", *lines, ""]), encoding="utf-8")
    return path


FOREIGN = {
    "other kernels": lambda path: blocks_table(path, {30: 4, 31: 4}),
    "other grids": lambda path: blocks_table(path, {0: 1000}),
    "a block is missing": lambda path: blocks_table(path, {3: 1}),
}
WAYS = (
    ("bound", "--sms", 8, "--timing"),
    ("bound", "--sms", 8, "--mechanism", "serial", "--timing"),
    ("report", "--sms", 8, "--format", "json", "--timing"),
    ("show", "path", "--timing"),
    ("timing",),
)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("foreign", FOREIGN)
def test_block_times_of_another_program_are_refused_by_all_alike(run, tmp_path, foreign, way):
    table = FOREIGN[foreign](tmp_path / "blocks.csv")
    code, out, err = run(*way, table)
    assert code == 1, out
    errors = [line for line in err.splitlines() if line.startswith("depgraph: error: ")]
    assert len(errors) == 1
    assert "blocks.csv: " in errors[0]
    assert "--allow-mismatch" in errors[0]
    assert bool(out) == (way[0] == "timing")  # which shows what does not fit


def profile_of(path, names):
    """Write kernel times as PyTorch does, of kernels with these names and the grid of the store."""
    events = [
        {"ph": "X", "cat": "kernel", "name": name, "ts": 10 * i, "dur": 5, "args": {
            "grid": [1, 1, 1], "block": [32, 1, 1], "correlation": 10**9 + i, "device": 0,
            "stream": 7}}
        for i, name in enumerate(names)
    ]  # fmt: skip
    path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    return path


@pytest.fixture
def half_known(tmp_path, sample_store):
    """Return a function that writes a profile of which only some kernels are in the store."""

    def write(known):
        names = [kernel.name for kernel in sample_store.kernels]
        others = [f"other_{i}" for i in range(len(names) - known)]
        events = json.loads(PROFILE.read_text(encoding="utf-8"))["traceEvents"]
        kernels = [event for event in events if event.get("cat") == "kernel"]
        kernels.sort(key=lambda event: event["ts"])
        path = profile_of(tmp_path / "profile.json", others)
        content = json.loads(path.read_text(encoding="utf-8"))
        content["traceEvents"] = kernels[4 : 4 + known] + content["traceEvents"]
        path.write_text(json.dumps(content), encoding="utf-8")
        return path

    return write


@pytest.mark.jit_only
def test_less_than_half_of_the_kernels_is_another_program(run, half_known):
    profile = half_known(8)
    for way in WAYS:
        code, _, err = run(*way, profile)
        assert code == 1, way
        assert "seems to be of another program than the store" in err
    code, _, err = run("bound", "--sms", 8, "--allow-mismatch", "--timing", profile)
    assert code == 0
    assert "profile.json: not all of it fits the trace: 8 of 25 kernels matched" in err
    assert run("timing", "--allow-mismatch", profile)[0] == 0


@pytest.mark.jit_only
def test_what_does_not_fit_is_told_on_stderr(run, half_known):
    code, _, err = run("bound", "--sms", 8, "--timing", half_known(20))
    assert code == 0
    assert err.count("\n") == 1
    assert "profile.json: not all of it fits the trace: 18 of 25 kernels matched" in err
    assert run("bound", "--sms", 8, "-q", "--timing", half_known(20))[2] == ""


@pytest.mark.jit_only
def test_blocks_that_fit_are_used_if_the_user_insists(run, sample_store, tmp_path):
    kernels = sample_store.kernels
    whole = {kernel.kernel: kernel.blocks for kernel in kernels}
    table = blocks_table(tmp_path / "blocks.csv", whole | {0: kernels[0].blocks + 3, 99: 2})
    assert run("bound", "--sms", 8, "--timing", table)[0] == 1
    code, out, err = run("bound", "--sms", 8, "--allow-mismatch", "--timing", table, "--details")
    assert code == 0, err
    assert "kernels with a time for each block: 24 of 25" in err
    assert "kernel 0 block" in err
    assert "no measured time of kernel 0: estimated at" in " ".join(out.split())
