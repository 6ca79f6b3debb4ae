"""The command line forgives: words in any order, wrong ones corrected, output anywhere."""

import gzip
import json
import os
import subprocess
import sys

import pytest
from checkout import ROOT

from depgraph.cli.app import COMMANDS
from depgraph.reports.tables.render import render
from depgraph.reports.tables.table import Column, Report, Table
from depgraph.samples import sample_path


@pytest.fixture
def toy(program, tmp_path):
    path = tmp_path / "toy.out"
    made = program("extract", sample_path("workloads/cusync_toy.toml"), "-o", path)
    assert made.code == 0
    return path


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["bond", "x"], "no such command 'bond'; did you mean 'bound'?"),
        (["xyzzy"], "no such command 'xyzzy'; there are record, apply, extract"),
        (["bound", "--gpu", "H100SMX"], "GPU model is called 'H100SMX'; did you mean 'H100 SXM'?"),
        (["bound", "--mechanism", "cuda-grph"], "'cuda-grph'; did you mean 'cuda-graph'?"),
        (["bound", "--mechanism", "xyzzy"], "there is no mechanism 'xyzzy'; known: serial"),
        (["bound", "--mechanism", "pdl", "--cost", "pdl=1"], "cost 'pdl=1': give MECHANISM.COST"),
        (["export", "--what", "schedule", "-o", "x.csv", "--priority", "old"], "'old' is not"),
        (["show", "kernls"], "nothing to show; did you mean 'kernels'?"),
    ],
)  # fmt: skip
def test_a_wrong_word_is_wrong_usage_and_corrected(program, words, meant):
    done = program(*words)
    assert (done.code, done.out) == (2, "")
    assert meant in done.err.splitlines()[-1]


def test_help_has_examples_as_they_were_written(program):
    shown = program("--help").out
    assert "\n    depgraph extract trace.log      trace -> ./depgraph.out\n" in shown
    for name in COMMANDS:
        assert not {"\b", "\\"} & set(program(name, "--help").out)


def test_show_takes_the_store_before_or_after(program, toy):
    for words in (["kernels"], ["pairs"], ["block", "1:0"]):
        before = program("show", toy, *words)
        assert before.code == 0
        assert program("show", *words, toy) == before
    assert program("show", "block", toy, "1:0").code == 0
    toy.rename(toy.with_name("kernels"))
    assert program("show", "kernels", "kernels").code == 0


def test_force_has_a_short_form(program, toy):
    words = ["export", toy, "--what", "kernels", "-o", "k.csv"]
    assert program(*words).code == 0
    assert program(*words).code == 1
    assert program(*words, "-f").code == 0


DASHES = (("edges", "json"), ("kernels", "csv"), ("schedule", "perfetto"), ("graph", "dot"))


@pytest.mark.jit_only
@pytest.mark.parametrize(("what", "form"), DASHES)
def test_a_dash_is_standard_output(program, toy, tmp_path, what, form):
    words = ["export", toy, "--what", what, "--to", form]
    assert program(*words, "-o", "file", "-q").code == 0
    done = subprocess.run(
        [sys.executable, "-m", "depgraph", *map(str, words), "-o", "-", "-q"],
        cwd=tmp_path, capture_output=True, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout == (tmp_path / "file").read_bytes()
    assert done.stderr == b""


def test_a_dash_needs_to_know_the_form(program, toy):
    done = program("export", toy, "--what", "edges", "-o", "-")
    assert done.code == 2
    assert "-o - needs --to" in done.err


def test_a_schedule_is_exported_for_perfetto(program, toy, tmp_path):
    words = ["export", toy, "--what", "schedule", "--sms", "4", "-o", "t.json.gz"]
    assert program(*words, "--mechanism", "cusync-row").code == 0
    content = json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))
    slices = [event for event in content["traceEvents"] if event["ph"] == "X"]
    assert len(slices) >= 12


def test_the_gpu_says_how_many_sms_there_are(program, toy):
    for words in (["bound", toy], ["export", toy, "--what", "schedule", "-o", "s.csv"]):
        done = program(*words, "--gpu", "V100")
        assert done.code == 0
        assert "--sms is not given: 80 SMs, those of V100" in done.err
    assert "on 80 SMs" in program("bound", toy, "--gpu", "V100", "-q").out


@pytest.mark.jit_only
def test_the_profile_says_which_gpu(program, sample_store):
    times = sample_path("timing/gru_train.kineto.json")
    done = program("bound", sample_store.path, "--timing", times)
    assert "132 SMs, those of H100 SXM (which the profile names)" in done.err


def test_tables_fit_a_screen_of_80_where_nobody_sees_them(program, sample_store):
    for words in (["bound", "--sms", "8"], ["show", "pairs"], ["show", "kernels"]):
        verb, *rest = words
        lines = program(verb, sample_store.path, *rest).out.splitlines()
        assert max(len(line) for line in lines if " depgraph " not in line) <= 80


@pytest.mark.parametrize("width", [40, 80, 120, 300])
def test_tables_fit_whatever_screen_there_is(width):
    columns = [
        Column("a", "a long head", is_text=True),
        *(Column(f"n{i}", f"n{i}") for i in range(40)),
    ]
    table = Table("t", "T", columns, [("x" * 90, *range(1000, 1040))])
    report = Report("r", {}, headline=["word " * 60], tables=[table], notes=["note " * 60])
    lines = render(report, "table", width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert min(100, width) - 12 <= max(len(line) for line in lines if "word" in line) <= 100


def test_a_described_program_is_not_told_what_its_trace_lacks(program, toy):
    made = program("extract", sample_path("workloads/cusync_toy.toml"), "-o", "again.out").out
    assert made.startswith("2 kernels, 12 thread blocks\n")
    for text in (made, program("bound", toy, "--sms", "4").out):
        assert "trace" not in text
    report = json.loads(program("report", toy, "--sms", "4", "--format", "json").out)
    assert report["untraced_notes"] == []


def test_the_size_read_is_said_decompressed(program, tmp_path):
    from program_runs import LOG

    (tmp_path / "plain.log").write_bytes(LOG)
    with gzip.open(tmp_path / "packed.log.gz", "wb") as file:
        file.write(LOG)
    plain = json.loads(program("extract", "plain.log", "-o", "a", "--format", "json").out)
    packed = json.loads(program("extract", "packed.log.gz", "-o", "b", "--format", "json").out)
    assert plain["text_bytes"] == plain["input_bytes"] == packed["text_bytes"] == len(LOG)
    assert packed["input_bytes"] == (tmp_path / "packed.log.gz").stat().st_size
    assert "KiB decompressed) in " in program("extract", "packed.log.gz", "-o", "c").out
    assert "decompressed" not in program("extract", "plain.log", "-o", "d").out
    assert "KiB decompressed)" in program("check", "packed.log.gz").out


@pytest.mark.jit_only
def test_kernel_files_are_counted_as_text_too(program):
    found = json.loads(program("check", sample_path("accelsim/gru_train"), "--format", "json").out)
    assert found["text_bytes"] > 2 * found["input_bytes"]


@pytest.mark.skipif(not os.access("/bin/bash", os.X_OK), reason="no bash")
def test_completion_knows_commands_and_options(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "_DEPGRAPH_COMPLETE": "bash_complete"}

    def completed(line, word):
        done = subprocess.run(
            [sys.executable, "-m", "depgraph"], cwd=tmp_path, capture_output=True, text=True,
            env=environment | {"COMP_WORDS": line, "COMP_CWORD": str(word)}, check=False,
        )  # fmt: skip
        return done.stdout

    assert "plain,bound" in completed("depgraph bo", 1)
    assert "plain,--sms" in completed("depgraph bound --s", 2)
