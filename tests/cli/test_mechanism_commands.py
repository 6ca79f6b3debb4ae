"""Mechanisms on the command line."""

import csv
import io
import json
import re

import pytest
from published import WORKLOADS

from depgraph.mechanisms import MECHANISMS
from depgraph.samples import KERNEL_TIMES, sample_path


@pytest.fixture
def store(program, tmp_path):
    """Return the store of the LLaMA MLP as it is described."""
    path = tmp_path / "mlp.out"
    code, out, _ = program("extract", WORKLOADS / "llama_mlp_2048.toml", "-o", path)
    assert code == 0
    assert "5632 edges" in out
    return path


@pytest.fixture
def traced(program, tmp_path, sample_trace):
    """Return the store of the packaged trace, with positions."""
    path = tmp_path / "gru.out"
    assert program("extract", sample_trace, "-o", path, "--positions", "-q")[0] == 0
    return path


def rows(text):
    return {row["mechanism"]: row for row in csv.DictReader(io.StringIO(text))}


@pytest.mark.jit_only
def test_predictions_that_know_nothing_of_links_say_so(program, store, tmp_path):
    path = tmp_path / "c3.out"
    assert program("extract", WORKLOADS / "flashoverlap.toml", "-o", path, "-q").code == 0
    said = "Graphs are predicted as if links had no limit"
    assert said in program("bound", path, "--sms", 132).out
    assert said not in program("bound", store, "--sms", 132).out


def test_no_column_of_csv_is_there_twice(program, store):
    """With predictions, which a described program has: its durations are times."""
    _, out, _ = program("bound", store, "--sms", 80, "--mechanism", "serial", "--format", "csv")
    columns = next(csv.reader(io.StringIO(out)))
    assert {"predicted_us", "predicted_low_us", "predicted_high_us"} < set(columns)
    assert len(columns) == len(set(columns))


@pytest.mark.jit_only
def test_a_row_for_each_mechanism(program, traced):
    code, out, _ = program(
        "bound", traced, "--sms", 8, "--mechanism", "all", "--format", "csv", "--hypothetical"
    )
    assert code == 0
    found = rows(out)
    of_blocks = {
        name
        for name, kind in MECHANISMS.items()
        if not kind.needs_launches and not kind.needs_collectives
    }
    of_blocks.remove("green-contexts")  # 8 SMs are one part of an H100
    assert {label.partition("(")[0].strip() for label in found} == of_blocks
    serial = float(found["serial"]["makespan"])
    for row in found.values():
        assert float(row["makespan"]) * (1 + 1e-9) >= float(row["lower_bound"])
        assert float(row["speedup"]) == pytest.approx(serial / float(row["makespan"]))
    assert found["cusync-tile"]["against"] == "intra-block"
    of_bound = {name for name, row in found.items() if row["share_of_upper_bound"]}
    assert of_bound == {name for name, row in found.items() if row["against"] == "block"}
    assert "left out: durations are instructions" in found["acs-sw"]["assumptions"]


def test_costs_change_a_row(program, store):
    words = ["bound", store, "--sms", 80, "--mechanism", "acs-sw", "--format", "csv"]
    plain = float(rows(program(*words)[1])["acs-sw"]["makespan"])
    dearer = float(rows(program(*words, "--cost", "acs-sw.launch=8us")[1])["acs-sw"]["makespan"])
    # Two dependent kernels, 8 us dearer each: launches cost nothing unless asked for.
    assert dearer - plain == pytest.approx(16)


def test_json_says_what_was_assumed(program, store):
    _, out, _ = program("bound", store, "--sms", 80, "--mechanism", "cusync-row,dataflow-bloom",
                    "--cost", "cusync-row.sync=0", "--format", "json")  # fmt: skip
    content = json.loads(out)
    assert content["details"][0]["availability"] == "needs a code change"
    assert content["mechanisms"][0]["makespan"] == pytest.approx(1700.94)
    assert "needs footprints" in content["left_out"]["dataflow-bloom(256,4)"]


def test_the_plain_bound_keeps_its_rows(program, store):
    _, out, _ = program("bound", store, "--sms", 80, "--format", "csv")
    schedules = [row["schedule"] for row in csv.DictReader(io.StringIO(out))]
    assert schedules[:4] == [
        "serial", "dataflow (oldest-first)", "dataflow (newest-first)",
        "dataflow (longest-path-first)",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--mechanism", "magic"], 2, "there is no mechanism 'magic'"),
        (["--cost", "acs-sw.launch=8us"], 2, "--cost needs --mechanism"),
        (["--mechanism", "serial", "--cost", "acs-sw.launch=8us"], 1, "not among those asked for"),
        (
            ["--mechanism", "acs-sw", "--cost", "acs-sw.launch=8%"],
            1,
            "is a time in launches, not a share",
        ),
        (["--mechanism", "acs-sw", "--cost", "acs-sw.lunch=8us"], 1, "no cost 'lunch'"),
    ],
)
def test_a_mistake_is_explained(program, store, words, code, message):
    found, out, err = program("bound", store, "--sms", 80, *words)
    assert found == code
    assert message in err
    assert out == ""


def test_the_schedule_of_a_mechanism_is_exported(program, store, tmp_path):
    file = tmp_path / "schedule.csv"
    words = ["export", store, "--what", "schedule", "--sms", 80, "-o", file]
    assert program(*words, "--mechanism", "cusync-row", "--cost", "cusync-row.sync=0")[0] == 0
    with file.open() as lines:
        blocks = list(csv.DictReader(lines))
    assert len(blocks) == 176 + 256
    assert max(float(b["end"]) for b in blocks) == pytest.approx(1700.94)
    assert len({b["sm"] for b in blocks}) == 80
    code, _, err = program(*words, "--force", "--mechanism", "all")
    assert code == 2
    assert "name one" in err


def test_what_is_hypothetical_needs_all_mechanisms(program, store):
    for words in ([], ["--mechanism", "pdl"]):
        code, _, err = program("bound", store, "--sms", 8, "--hypothetical", *words)
        assert (code, "--hypothetical needs --mechanism all" in err) == (2, True)


def test_every_mechanism_is_described(program):
    code, out, _ = program("mechanisms")
    assert code == 0
    assert all(name in out for name in MECHANISMS)
    assert out.count("\n") <= 25
    code, out, _ = program("mechanisms", "--details")
    assert code == 0
    for name in MECHANISMS:
        assert f"\n{name}" in f"\n{out}"
    assert "--cost acs-sw.check = 0.51us" in out
    assert "needs NVIDIA GPUs of compute capability 9.0 and kernels that wait" in " ".join(
        out.split()
    )
    listed = json.loads(program("mechanisms", "--format", "json")[1])
    assert len(listed["mechanisms"]) == len(MECHANISMS)


def test_the_cheapest_cusync_policy_of_a_pair(program, store):
    words = ["show", store, "pairs", "--cusync", "--gpu", "V100", "--format", "csv"]
    code, out, _ = program(*words)
    assert code == 0
    (pair,) = csv.DictReader(io.StringIO(out))
    assert pair["policy"] == "row"
    assert (int(pair["semaphores"]), int(pair["waits"])) == (8, 256)
    # Without the cost of synchronising 1700.94 us; with it each of four waves takes 3 % longer.
    makespan = 1700.94 + 4 * 0.03 * 181.06
    assert float(pair["speedup"]) == pytest.approx(2189.29 / makespan, rel=1e-4)


@pytest.mark.jit_only
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llama_mlp_1024", ()),
        ("llama_mlp_1024", ("--launch", "gpu")),
        ("llama_mlp_2048", ("--timing", "TIMES")),
        ("llama_mlp_2048", ("--timing", "TIMES", "--launch", "gpu", "--deps", "raw")),
        ("cusync_toy", ()),
        ("whole_waves", ("--occupancy", "2")),
    ],
)
def test_policies_of_pairs_are_predicted_as_bound_does(program, tmp_path, name, words):
    store, times = tmp_path / "store", tmp_path / "times.csv"
    assert program("extract", WORKLOADS / f"{name}.toml", "-o", store, "-q")[0] == 0
    times.write_text("kernel,duration_us\n0,300\n1,200\n")
    words = [times if word == "TIMES" else word for word in words]
    words += ["--gpu", "V100", "--sms", 16, "--format", "csv"]
    (pair,) = csv.DictReader(io.StringIO(program("show", store, "pairs", "--cusync", *words)[1]))
    label = f"cusync-{pair['policy']}"
    out = program("bound", store, "--mechanism", f"cusync-tile,{label}", *words)[1]
    found = rows(out)
    for speedup in ("speedup", "predicted_speedup"):
        assert pair.get(speedup) == found[label].get(speedup)
        assert pair.get(f"tile_{speedup}") == found["cusync-tile"].get(speedup)
    assert "predicted_speedup" in pair


@pytest.fixture
def toy(program, tmp_path):
    """Return the store of cuSync's toy: two kernels of 3 x 2 tiles."""
    path = tmp_path / "toy.out"
    assert program("extract", WORKLOADS / "cusync_toy.toml", "-o", path, "-q")[0] == 0
    return path


def test_a_deadlock_is_a_row_beside_the_others(program, toy):
    words = ["bound", toy, "--sms", 4, "--mechanism", "serial,cusync-row(nowait),cusync-row"]
    code, out, _ = program(*words)
    assert code == 0
    assert "deadlock" in out
    assert "cusync-row(nowait): deadlock: block 0 of kernel 0 waits forever, as do 11" in out
    found = json.loads(program(*words, "--format", "json")[1])
    row = next(r for r in found["mechanisms"] if r["mechanism"] == "cusync-row(nowait)")
    assert (row["makespan"], row["speedup"], row["share_of_bound"]) == (None, None, None)
    places = {d["mechanism"]: d["deadlock"] for d in found["details"]}
    assert places == {
        "serial": None, "cusync-row(nowait)": "block 0 of kernel 0", "cusync-row": None,
    }  # fmt: skip
    table = rows(program(*words, "--format", "csv")[1])
    assert table["cusync-row(nowait)"]["makespan"] == ""
    assert float(table["cusync-row"]["speedup"]) > 1


def test_policies_of_pairs_are_those_on_so_many_sms(program, toy):
    # Two waves of consumers take 3 % longer for synchronising, or one.
    for sms, speedup in ((4, 4 / 3.06), (6, 2 / 2.03)):
        words = ["show", toy, "pairs", "--cusync", "--sms", sms, "--format", "csv"]
        (pair,) = csv.DictReader(io.StringIO(program(*words)[1]))
        assert float(pair["speedup"]) == pytest.approx(speedup)
    code, _, err = program("show", toy, "pairs", "--sms", 4)
    assert code == 2
    assert "--sms needs buffers or pairs --cusync" in err


def test_stream_k_is_neither_first_nor_best(program, tmp_path):
    file = tmp_path / "one.toml"
    file.write_text('[[kernel]]\nname = "gemm"\ngrid = 5\nduration = 8\n')
    assert program("extract", file, "-o", tmp_path / "one.out", "-q")[0] == 0
    words = [tmp_path / "one.out", "--sms", 4, "--mechanism", "all"]
    _, out, _ = program("bound", *words, "--format", "json")
    found = json.loads(out)
    times = {row["mechanism"]: row["makespan"] for row in found["mechanisms"]}
    assert times["stream-k"] < times["serial"]
    assert not any("stream-k" in line for line in found.get("headline", []))
    assert " by stream-k" not in program("bound", *words)[1]
    _, out, _ = program("report", *words, "--format", "json")
    assert json.loads(out)["mechanisms"][0]["mechanism"] != "stream-k"


def test_a_larger_window_that_is_slower_says_so(program, tmp_path):
    # Entering a window of 600 kernels takes 4 us.
    file = tmp_path / "three.toml"
    file.write_text(
        "".join(f'[[kernel]]\nname = "k{i}"\ngrid = 1\nduration = {d}\n' for i, d in enumerate(
            (4, 1, 1)
        ))
    )  # fmt: skip
    assert program("extract", file, "-o", tmp_path / "three.out", "-q")[0] == 0
    words = ["bound", tmp_path / "three.out", "--sms", 2, "--mechanism", "acs-sw(1),acs-sw(600)"]
    _, out, _ = program(*words, "--details")
    assert "slower than acs-sw(1)" in out
    assert "its check takes longer, or an anomaly of list schedules" in " ".join(out.split())


@pytest.mark.jit_only
def test_a_sweep_of_hints_is_told_in_sentences_and_has_every_point(program, sample_store):
    done = program("sweep-hints", sample_store.path, "--sms", "4,8", "--format", "json")
    found = json.loads(done.out)
    assert (done.code, len(found["sentences"])) == (0, 3)
    labels = {point["mechanism"] for point in found["points"]}
    assert len(found["points"]) == 2 * len(labels)
    assert {"dataflow-hints(tensor,4)", "dataflow-hints(block,0)", "blockmaestro"} <= labels
    two = program("sweep-hints", sample_store.path, "other.out", "--timing", "times.csv")
    assert (two.code, two.err.splitlines()[-1]) == (
        2, "Error: --timing is of one program: state it for each in a suite file"
    )  # fmt: skip


def test_two_stores_share_a_gpu(program, sample_store):
    store = sample_store.path
    done = program(
        "bound", store, store, "--sms", "4,8", "--share", "streams,partition(2),eclip,blocks"
    )
    said = " ".join(done.out.split())
    assert (done.code, said.count(" instructions by blocks, which needs hardware.")) == (0, 2)
    assert re.search(r"4 SMs: \d+ instructions in turn; \d+ instructions by (streams|eclip)", said)
    shown = program("bound", store, store, "--sms", "4", "--share", "streams", "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(shown.out))
    assert (row["how"], float(row["speedup"]) >= 1) == ("streams", True)


@pytest.mark.jit_only
def test_programs_of_a_suite_share_a_gpu_each_with_its_own_times(program, sample_store, tmp_path):
    times = sample_path(KERNEL_TIMES)
    (tmp_path / "slow.toml").write_text(
        '[[kernel]]\nname = "k"\ngrid = 300\nduration = 4\noccupancy = 2\n'
    )
    pair = tmp_path / "pair.toml"
    pair.write_text(
        f'[[program]]\nname = "gru"\nstore = "{sample_store.path}"\ntiming = "{times}"\n'
        '[[program]]\ntrace = "slow.toml"\n'
    )
    words = "bound", pair, "--share", "streams,blocks", "--sms", 132, "--format", "json"
    assert (
        program(*words)
        .err.splitlines()[-1]
        .endswith("contention is full for one program and none for the other: pass --contention")
    )
    found = json.loads(program(*words, "--contention", "full").out)
    assert (found["programs"], found["unit"]) == (["gru", "slow"], "us")
    for row in (*found["share"], *found["predicted_share"]):
        assert min(row["first_slowdown"], row["second_slowdown"]) >= 1
    itself = "bound", sample_store.path, sample_store.path, "--share", "streams", "--sms", 132
    shown = program(*itself, "--timing", times).out
    assert " us in turn" in shown
    assert "\nPredicted, with contention and launches\n" in shown
    without = "--contention", "none", "--deps", "raw"
    shown = program(*itself, "--timing", times, *without).out
    assert "\nPredicted, with launches\n" in shown
    found = json.loads(program(*itself, "--timing", times, *without, "--format", "json").out)
    assert (found["gpu"], found["dependences"]) == ("H100 SXM", "RAW")
    pair.write_text(pair.read_text() + "sms = 8\n")
    assert "slow: sms is of all programs here: give --sms" in program(*words).err


def test_what_ifs_hold_for_both_that_share_a_gpu(program, sample_store):
    def in_turn(*words):
        form = "--sms", "4", "--share", "streams", "--format", "csv"
        shown = program("bound", sample_store.path, sample_store.path, *form, *words)
        (row,) = csv.DictReader(io.StringIO(shown.out))
        return float(row["in_turn"])

    assert in_turn("--what-if", "kernel=0:25 duration*=0.5") == pytest.approx(in_turn() / 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--share", "streams"], "--share needs two programs, not 1"),
        (
            ["b", "--share", "halves"],
            "share 'halves': give streams, partition(SMS), eclip or blocks",
        ),
        (["b", "--share", "blocks", "--timing", "t"], "--timing is of one program: state it"),
        (["b", "--share", "blocks", "--mechanism", "pdl"], "--mechanism does not go with --share"),
        (["b", "--share", "blocks", "--wall", "2ms"], "--wall does not go with --share"),
    ],
)
def test_what_does_not_go_with_sharing_is_refused(program, words, message):
    done = program("bound", "a", *words)
    assert (done.code, done.out) == (2, "")
    assert message in done.err.splitlines()[-1]
