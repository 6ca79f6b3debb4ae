"""Mechanisms on the command line."""

import csv
import io
import json
from pathlib import Path

import pytest

from depgraph.cli.app import main
from depgraph.mechanisms import MECHANISMS

WORKLOADS = Path(__file__).resolve().parents[1] / "samples" / "workloads"


@pytest.fixture
def run(capsys):
    """Run a command; return exit code, stdout and stderr."""

    def call(*words):
        with pytest.raises(SystemExit) as left:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        return left.value.code, out, err

    return call


@pytest.fixture
def store(run, tmp_path):
    """Return the store of the LLaMA MLP as it is described."""
    path = tmp_path / "mlp.out"
    code, out, _ = run("extract", WORKLOADS / "llama_mlp_2048.toml", "-o", path)
    assert code == 0
    assert "5 632 edges" in out
    return path


@pytest.fixture
def traced(run, tmp_path, sample_trace):
    """Return the store of the packaged trace, with positions."""
    path = tmp_path / "gru.out"
    assert run("extract", sample_trace, "-o", path, "--positions", "-q")[0] == 0
    return path


def rows(text):
    return {row["mechanism"]: row for row in csv.DictReader(io.StringIO(text))}


@pytest.mark.jit_only
def test_a_row_for_each_mechanism(run, traced):
    code, out, _ = run("bound", traced, "--sms", 8, "--mechanism", "all", "--format", "csv")
    assert code == 0
    found = rows(out)
    assert {label.partition("(")[0].strip() for label in found} == set(MECHANISMS)
    serial = float(found["serial"]["makespan"])
    for row in found.values():
        assert float(row["makespan"]) * (1 + 1e-9) >= float(row["bound"])
        assert float(row["gain"]) == pytest.approx(serial / float(row["makespan"]))
    assert found["cusync-tile"]["against"] == "fine"
    assert "left out: durations are instructions" in found["acs-sw"]["assumptions"]


def test_costs_change_a_row(run, store):
    words = ["bound", store, "--sms", 80, "--mechanism", "acs-sw", "--format", "csv"]
    plain = float(rows(run(*words)[1])["acs-sw"]["makespan"])
    dearer = float(rows(run(*words, "--cost", "acs-sw.launch=8us")[1])["acs-sw"]["makespan"])
    # Two dependent kernels, 8 us dearer each: launches cost nothing unless asked for.
    assert dearer - plain == pytest.approx(16)


def test_json_says_what_was_assumed(run, store):
    _, out, _ = run("bound", store, "--sms", 80, "--mechanism", "cusync-row,dataflow-bloom",
                    "--cost", "cusync-row.sync=0", "--format", "json")  # fmt: skip
    content = json.loads(out)
    assert content["details"][0]["availability"] == "needs a code change"
    assert content["mechanisms"][0]["makespan"] == pytest.approx(1700.94)
    assert "needs footprints" in content["left_out"]["dataflow-bloom(256,4)"]


def test_the_plain_bound_keeps_its_rows(run, store):
    _, out, _ = run("bound", store, "--sms", 80, "--format", "csv")
    schedules = [row["schedule"] for row in csv.DictReader(io.StringIO(out))]
    assert schedules[:4] == [
        "serial", "dataflow, oldest-first", "dataflow, newest-first",
        "dataflow, longest-path-first",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--mechanism", "magic"], 1, "there is no mechanism 'magic'"),
        (["--cost", "acs-sw.launch=8us"], 2, "give --mechanism too"),
        (["--mechanism", "serial", "--cost", "acs-sw.launch=8us"], 1, "not among those asked for"),
        (
            ["--mechanism", "acs-sw", "--cost", "acs-sw.launch=8%"],
            1,
            "is a time in launches, not a share",
        ),
        (["--mechanism", "acs-sw", "--cost", "acs-sw.lunch=8us"], 1, "no cost 'lunch'"),
    ],
)
def test_a_mistake_is_explained(run, store, words, code, message):
    found, out, err = run("bound", store, "--sms", 80, *words)
    assert found == code
    assert message in err
    assert out == ""


def test_the_schedule_of_a_mechanism_is_exported(run, store, tmp_path):
    file = tmp_path / "schedule.csv"
    words = ["export", store, "--what", "schedule", "--sms", 80, "-o", file]
    assert run(*words, "--mechanism", "cusync-row", "--cost", "cusync-row.sync=0")[0] == 0
    with file.open() as lines:
        blocks = list(csv.DictReader(lines))
    assert len(blocks) == 176 + 256
    assert max(float(b["end"]) for b in blocks) == pytest.approx(1700.94)
    assert len({b["sm"] for b in blocks}) == 80
    code, _, err = run(*words, "--force", "--mechanism", "all")
    assert code == 2
    assert "name one" in err


def test_every_mechanism_is_described(run):
    code, out, _ = run("mechanisms")
    assert code == 0
    for name in MECHANISMS:
        assert f"\n{name}" in f"\n{out}"
    assert "--cost acs-sw.check = 0.51us" in out
    listed = json.loads(run("mechanisms", "--format", "json")[1])
    assert len(listed["mechanisms"]) == len(MECHANISMS)


def test_the_cheapest_cusync_policy_of_a_pair(run, store):
    words = ["show", store, "pairs", "--cusync", "--gpu", "V100", "--format", "csv"]
    code, out, _ = run(*words)
    assert code == 0
    (pair,) = csv.DictReader(io.StringIO(out))
    assert pair["policy"] == "row"
    assert (int(pair["semaphores"]), int(pair["waits"])) == (8, 256)
    assert float(pair["gain"]) == pytest.approx(2189.29 / 1700.94)
