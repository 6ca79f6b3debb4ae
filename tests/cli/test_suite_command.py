"""Many programs in one command: each answers as if it were asked alone."""

import csv
import io
import json
import shutil

import pytest
from program_runs import LOG, files

from depgraph.cli.options.suite_file import Program
from depgraph.cli.suite import Task, run_task
from depgraph.reports.tables.table import plain, whole_sms
from depgraph.samples import sample_path
from depgraph.system.processes import Processes

WORKLOADS = ("cusync_toy", "whole_waves")


@pytest.fixture
def stores(program, tmp_path):
    """Two described programs as stores, in a folder of their own."""
    folder = tmp_path / "stores"
    folder.mkdir()
    for name in WORKLOADS:
        made = program(
            "extract", sample_path(f"workloads/{name}.toml"), "-o", folder / f"{name}.out"
        )
        assert made.code == 0, made.err
    return folder


@pytest.fixture
def in_this_process(monkeypatch):
    """Run programs one after another, where fixtures have a say."""
    monkeypatch.setattr(Processes, "attempt", lambda _, run, items: enumerate(map(run, items)))
    monkeypatch.setattr("depgraph.system.workers.limit_jobs", lambda _: None)


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


OPTIONS = (
    ["--sms=4"],
    ["--sms=2,inf"],
    ["--sms=4", "--deps=raw", "--occupancy=2"],
    ["--sms=4", "--gpu=V100", "--what-if=kernel=1 duration*=2"],
    ["--sms=4", "--mechanism=cuda-graph,dataflow,stream-k", "--launch=2,1,0.5"],
    ["--sms=4", "--mechanism=acs-sw", "--contention=sm", "--cost=acs-sw.launch=8us"],
)


@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
def test_each_row_is_what_the_program_alone_answers(program, stores, options):
    store = str(stores / "cusync_toy.out")
    task = Task("bound", Program("toy", store), tuple((word, (word,)) for word in options))
    results = {plain(whole_sms(r.sms)): r for r in run_task(task).results}
    alone = json.loads(program("bound", store, *options, "--format", "json").out)
    kinds = alone["bounds"][0].get("dependences")
    whole = [b for b in alone["bounds"] if b.get("dependences") == kinds]
    assert list(results) == [b["sms"] for b in whole]
    for bound in whole:
        for key in ("serial", "critical_path", "work", "lower_bound", "upper_bound"):
            assert getattr(results[bound["sms"]].bound, key) == bound[key]
    for bound in (b for b in alone["bounds"] if b.get("dependences") == "RAW"):
        assert results[bound["sms"]].value("upper_bound_raw_only") == bound["upper_bound"]
    for policy in alone.get("mechanisms", []):
        result = results[policy["sms"]]
        assert result.value(policy["mechanism"]) == policy["speedup"]
        assert result.predicted(policy["mechanism"]) == policy.get("predicted_speedup")
    for row in alone.get("schedules", []):
        if row["dependences"] == kinds and row["schedule"] != "serial":
            assert results[row["sms"]].value(row["schedule"]) == row["speedup"]
    (verdict,) = {result.verdict for result in results.values()} - {""}
    assert verdict == alone["verdict"]


@pytest.mark.jit_only
def test_each_report_is_the_one_that_the_program_alone_gets(program, stores):
    done = program("report", stores, "--sms", "4", "-o", "many", "--flows", "all", "--top", "3")
    assert done.code == 0, done.err
    assert files(stores.parent / "many") == [
        "index.html", "plots", "programs", "suite.csv", "suite.json", "suite.md",
    ]  # fmt: skip
    assert files(stores.parent / "many" / "programs") == list(WORKLOADS)
    name = WORKLOADS[0]
    store = stores / f"{name}.out"
    again = program("report", store, "--sms", "4", "-o", name, "--flows", "all", "--top", "3")
    assert again.code == 0, again.err
    alone = stores.parent / name
    for file in (f for f in alone.rglob("*") if f.is_file()):
        own = stores.parent / "many" / "programs" / name / file.relative_to(alone)
        assert own.read_bytes() == file.read_bytes()
    page = (stores.parent / "many" / "index.html").read_text()
    assert 'href="programs/cusync_toy/index.html"' in page
    assert page.count("What keeps each slow?</h2>") == 1
    chart = stores.parent / "many" / "plots"
    assert files(chart) == ["speedups.pdf", "speedups.svg"]
    assert "(plots/speedups.svg)" in (stores.parent / "many" / "suite.md").read_text()


def test_a_broken_program_is_a_row_that_says_why_and_the_exit_code_is_1(program, stores):
    (stores / "whole_waves.out" / "joins.parquet").write_bytes(b"damaged")
    done = program("bound", stores, "--sms", "4", "--format", "csv")
    assert done.code == 1
    good, bad = rows(done.out)
    assert (good["program"], good["error"]) == ("cusync_toy", "")
    assert float(good["upper_bound"]) > 1
    assert bad["program"] == "whole_waves"
    assert "joins.parquet: is damaged" in bad["error"]
    assert bad["upper_bound"] == ""
    assert done.err == "depgraph: 1 of 2 programs failed: whole_waves\n"


@pytest.mark.usefixtures("in_this_process", "undrawn")
def test_a_report_is_written_of_what_is_not_broken(program, stores):
    shutil.rmtree(stores / "whole_waves.out")
    (stores / "whole_waves.out").mkdir()
    (stores / "whole_waves.out" / "kernels.parquet").touch()
    done = program(
        "report", stores, "--sms", "4", "-o", "many", "-q", "--fail-below", "upper_bound=9"
    )
    assert done.code == 1  # a program that failed weighs more than a threshold
    assert "cusync_toy: upper_bound: expected at least 9" in done.err
    assert files(stores.parent / "many" / "programs") == ["cusync_toy"]
    content = json.loads((stores.parent / "many" / "suite.json").read_text())
    assert content["programs_broken"] == 1
    assert content["thresholds_missed"] == 1
    # And is replaced by the next one, by --force alone.
    assert program("report", stores, "--sms", "4", "-o", "many").code == 1
    assert program("report", stores, "--sms", "4", "-o", "many", "--force").code == 1
    shutil.rmtree(stores / "whole_waves.out")
    last = program(
        "report", stores, "--sms", "4", "-o", "many", "--force", "--fail-below", "speedup=9"
    )
    assert last.code == 3


SUITE = """
gpu = "V100"

[[program]]
name = "a toy"
trace = "{toy}"
sms = 4

[[program]]
name = "a log"
trace = "some.log"
store = "kept.out"
sms = 2
timing = "times.csv"
what-if = ["kernel=1 duration*=0.5"]
"""


def test_a_suite_file_names_traces_profiles_and_gpus(program, tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "some.log").write_bytes(LOG)
    (tmp_path / "here" / "times.csv").write_text("kernel,duration_us\n0,10\n1,6\n")
    suite = tmp_path / "here" / "suite.toml"
    suite.write_text(SUITE.format(toy=sample_path("workloads/cusync_toy.toml")))
    done = program("bound", "here/suite.toml", "--format", "csv")
    assert done.code == 0, done.err
    toy, log = rows(done.out)
    assert (toy["program"], toy["sms"], toy["gpu"], toy["unit"]) == (
        "a toy",
        "4",
        "V100",
        "us",
    )
    assert (log["store"], log["sms"], log["serial"]) == ("here/kept.out", "2", "13.0")
    assert files(tmp_path / "here") == [
        "a-toy.out",
        "kept.out",
        "some.log",
        "suite.toml",
        "times.csv",
    ]
    # The stores are used again; what the command line says stands above the file.
    again = rows(
        program(
            "bound", "here/suite.toml", "--sms", "1", "--gpu", "A100 40GB", "--format", "csv"
        ).out
    )
    assert [row["sms"] for row in again] == ["1", "1"]
    assert {row["gpu"] for row in again} == {"A100 40GB"}
    (tmp_path / "here" / "some.log").write_bytes(LOG * 2)
    changed = program("bound", "here/suite.toml", "--format", "csv")
    assert "was not made from here/some.log" in rows(changed.out)[1]["error"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "suite.toml: no programs; give [[program]] tables"),
        ("[[program]]\nstore = 'a'\ngpus = 'T4'", "suite.toml:3: unknown key 'gpus'"),
        ("[[program]]\nname = 'a'", "suite.toml:1: a program without store or trace"),
        ("[[program]]\nname = 3", "suite.toml:2: name 3; give text"),
        ("[[program]]\ntrace = ['a', '']", "suite.toml:2: trace ['a', '']; give text"),
        ("[[program]]\ntrace = 7", "suite.toml:2: trace 7; give a file name"),
        ("program = [1]", "suite.toml: program is not a table; write [[program]]"),
        ("[[program]]\nstore = 'a'\nsms = 'many'", "suite.toml:1: Invalid value for '--sms'"),
        ("[[program]]\nstore = 'a'\nallow-mismatch = 1", "suite.toml:3: allow-mismatch is of no"),
        ("[[program]]\nstore = 'a'\ntiming = [1]", "suite.toml:3: timing is of no use; give text"),
        ("[[kernel]]\nname = 'a'", "suite.toml: describes one program, not a suite"),
        ("program = 3", "suite.toml:1: no programs"),
    ],
)  # fmt: skip
def test_a_suite_file_that_makes_no_sense_is_refused_at_once(program, tmp_path, text, said):
    (tmp_path / "suite.toml").write_text(text)
    done = program("bound", "suite.toml", "--sms", "4")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"depgraph: error: {said}")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bound", "a", "b", "--timing", "t.csv"], "--timing is of one program: state it for each"),
        (["report", "a", "b", "--pair", "0:1"], "--pair is of one program: name one store"),
        (["report", "a", "b", "--coarse", "c"], "--coarse is of one program: name one store"),
        (["bound", "a", "--jobs", "2"], "--jobs needs several stores"),
        (["report", "a", "--scheduler", "local:2"], "--scheduler needs several stores"),
        (["bound", "a", "b", "-j", "2", "--scheduler", "local:2"], "--jobs does not go with"),
        (["bound", "a", "a"], "program 'a' is there twice"),
        (["bound", "a", "b", "--cost", "x.y=1"], "--cost needs --mechanism"),
        (["bound", "a", "b", "--gpu", "V100", "--gpu-file", "x.toml"], "--gpu and --gpu-file"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused_in_one_line(program, words, said):
    done = program(*words, "--sms", "4")
    assert done.code == 2
    assert said in done.err.splitlines()[-1]


def test_programs_are_called_after_their_stores(program, stores):
    nested = stores / "gpt2"
    nested.mkdir()
    (stores / "cusync_toy.out").rename(nested / "depgraph.out")
    found = rows(program("bound", stores, "--sms", "4", "--format", "csv").out)
    assert [row["program"] for row in found] == ["gpt2", "whole_waves"]


def test_what_a_program_says_is_said_with_its_name(stores, program):
    done = program("bound", stores, "--format", "csv")
    assert done.err.splitlines() == [
        f"{name}: depgraph: --sms is not given: 132 SMs, those of H100 SXM (see --gpu)"
        for name in WORKLOADS
    ]
    assert program("bound", stores, "--format", "csv", "-q").err == ""


def test_a_task_fails_with_a_row_not_with_an_exception(tmp_path):
    given = (("sms", ("--sms=4",)),)
    task = Task("bound", Program("gone", str(tmp_path / "gone.out")), given)
    (broken,) = run_task(task).results
    assert broken.reason.endswith("no such store; make one with: depgraph extract TRACE")


@pytest.mark.slow
@pytest.mark.jit_only
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_cluster_gives_what_this_machine_gives(program, stores):
    pytest.importorskip("distributed", reason="depgraph[cluster] is not installed")
    (stores / "whole_waves.out" / "joins.parquet").unlink()
    here = program("bound", stores.absolute(), "--sms", "4", "--format", "csv")
    there = program(
        "bound", stores.absolute(), "--sms", "4", "--format", "csv", "--scheduler", "local:2"
    )
    assert there.out == here.out
    assert (there.code, here.code) == (1, 1)
