"""``depgraph report``: one run, fixed names, thresholds that a CI can act on."""

import gzip
import json
import shutil
import subprocess
import sys

import pytest

from depgraph.reports.ci import Threshold, folded_summary, missed_thresholds, step_summary
from depgraph.reports.tables.table import Column, Report, Table
from depgraph.samples import KERNEL_TIMES, sample_path

FILES = {"index.html", "plots", "report.md", "report.json", "timeline.json.gz"}


def run(*words, folder):
    """Run the program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "depgraph", *map(str, words)],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def written(sample_store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    result = run("report", sample_store.path, "--sms", 8, "-o", "out", folder=folder)
    assert result.returncode == 0, result.stderr
    return folder / "out", result


@pytest.mark.jit_only
def test_one_run_writes_everything_under_fixed_names(written):
    folder, _ = written
    assert {file.name for file in folder.iterdir()} == FILES
    plots = {
        "schedules", "policies", "speedup-by-sms", "critical-path", "dependence-map", "pair-blocks",
    }  # fmt: skip
    assert {file.name for file in (folder / "plots").iterdir()} == {f"{plot}.svg" for plot in plots}


@pytest.mark.jit_only
def test_it_answers_on_stdout_and_ends_with_what_it_wrote(written):
    _, result = written
    assert result.stdout.startswith("Upper bound 1.33x on 8 SMs (critical path), 1.33x reached; ")
    assert "\nKernels could overlap: predicted 1.33x as a CUDA graph" in result.stdout
    assert "\nFrom 2 SMs on, dependences set the time." in result.stdout
    # Commands are to be pasted: they stand on one line.
    lines = [line for line in result.stdout.splitlines() if " depgraph " not in line]
    assert max(map(len, lines)) <= 100
    last = result.stderr.splitlines()[-1]
    assert last.startswith("Wrote out/index.html (")
    assert last.endswith(" KiB)")


@pytest.mark.usefixtures("undrawn")
@pytest.mark.jit_only
def test_plots_are_written_as_png_too_if_asked(program, sample_store, tmp_path):
    assert program("report", sample_store.path, "--sms", 8, "--png", "-o", "out").code == 0
    written = {file.name for file in (tmp_path / "out" / "plots").iterdir()}
    assert {"schedules.svg", "schedules.png"} < written


@pytest.mark.usefixtures("undrawn")
@pytest.mark.jit_only
def test_every_form_says_how_far_predictions_can_be_trusted(program, sample_store, tmp_path):
    """Measured on an H100, asked about an A100, on which nobody measured predictions."""
    words = (sample_store.path, "--sms", 108, "--timing", sample_path(KERNEL_TIMES))
    assert program("report", *words, "--gpu", "A100", "-o", "out").code == 0
    caveat = "predictions on A100 80GB are not validated: constants of the H100 SXM; of programs"
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert any(note.startswith(caveat) for note in report["notes"])
    assert report["trust"]["constants_of"] == "H100 SXM"
    assert sum(errors["programs"] for errors in report["trust"]["errors"]) > 200
    for name in ("index.html", "report.md"):
        assert caveat in (tmp_path / "out" / name).read_text(encoding="utf-8")
    table = program("bound", *words, "--gpu", "A100", "--mechanism", "cuda-graph", "--details").out
    assert caveat in " ".join(table.split())


@pytest.mark.jit_only
def test_two_runs_give_the_same_bytes(program, written, sample_store, tmp_path):
    folder, _ = written  # by another process
    program("report", sample_store.path, "--sms", 8, "-o", "again", "-q")
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert len(files) == 4 + 6
    for file in files:
        assert (tmp_path / "again" / file.relative_to(folder)).read_bytes() == file.read_bytes()


@pytest.mark.jit_only
def test_the_json_has_every_row_and_a_version(written):
    content = json.loads((written[0] / "report.json").read_text())
    assert content["schema_version"] == 3
    assert content["sms"] == 8
    assert len(content["kernels"]) == 25
    assert content["upper_bound"] == pytest.approx(4472 / 3354)
    assert {curve["name"] for curve in content["curves"]} >= {"upper bound"}
    assert any("cudaMemcpy" in note for note in content["untraced_notes"])


@pytest.mark.jit_only
def test_the_markdown_is_brief_and_shows_the_plots(written):
    text = (written[0] / "report.md").read_text()
    assert "5 more rows" in text
    assert "](plots/schedules.svg)" in text
    assert "**What the trace does not show**" in text


@pytest.mark.jit_only
def test_the_timeline_has_both_schedules(written):
    trace = json.loads(gzip.decompress((written[0] / "timeline.json.gz").read_bytes()))
    assert sum(event["ph"] == "X" for event in trace["traceEvents"]) == 2 * 189


@pytest.mark.usefixtures("undrawn")
@pytest.mark.jit_only
def test_an_earlier_report_is_replaced_only_with_force(program, written, sample_store, tmp_path):
    words = ("report", sample_store.path, "--sms", 2, "-o", "out", "-q")
    shutil.copytree(written[0], tmp_path / "out")
    refused = program(*words)
    assert refused.code == 1
    assert "already exists; pass --force" in refused.err
    assert program(*words, "--force").code == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    kept = program(*words[:-2], "mine", "--force")
    assert kept.code == 1
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"


@pytest.mark.jit_only
def test_missed_thresholds_give_exit_code_3_and_one_line_each(program, sample_store, tmp_path):
    result = program(
        "report", sample_store.path, "--sms", 8, "--format", "json", "-q",
        "--fail-below", "utilization=0.6", "--fail-above", "upper_bound=1.2",
        "--fail-above", "untraced=0.01",
    )  # fmt: skip
    assert result.code == 3
    assert result.err.splitlines() == [
        "depgraph: utilization: expected at least 0.6, got 0.09863",
        "depgraph: upper_bound: expected at most 1.2, got 1.333",
    ]
    assert json.loads(result.out)["thresholds_missed"] == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.jit_only
def test_thresholds_take_the_former_names_of_options_and_metrics(program, sample_store):
    result = program(
        "report", sample_store.path, "--sms", 8, "--format", "json", "-q",
        "--fail-under", "gain=2", "--fail-over", "bound=1.2", "--fail-below", "unseen=0.5",
    )  # fmt: skip
    assert result.code == 3
    assert result.err.splitlines() == [
        "depgraph: speedup: expected at least 2, got 1.333",
        "depgraph: untraced: expected at least 0.5, got 0",
        "depgraph: upper_bound: expected at most 1.2, got 1.333",
    ]


def test_help_shows_no_former_name(program):
    shown = program("report", "--help").out
    assert "--fail-above" in shown
    assert "--fail-over" not in shown
    assert "gain" not in program("compare", "--help").out


@pytest.mark.jit_only
def test_a_threshold_on_what_is_no_metric_is_wrong_usage(program, sample_store):
    result = program("report", sample_store.path, "--sms", 8, "--fail-above", "speed=2")
    assert result.code == 2
    assert "METRIC: upper_bound, bound_raw, speedup, utilization, untraced" in result.err


@pytest.mark.jit_only
def test_github_appends_to_the_step_summary(program, sample_store, tmp_path, monkeypatch):
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    words = ("--format", "markdown", "--top", 5, "--github")
    result = program("report", sample_store.path, "--sms", 8, *words)
    assert result.code == 0
    text = summary.read_text()
    assert text.startswith("before\n## depgraph: gru_train.log.xz on 8 SMs\n")
    assert "20 more rows" in text
    assert result.out in text


@pytest.fixture(scope="module")
def raw_store(tmp_path_factory):
    import depgraph
    from depgraph import parsers
    from depgraph.samples import sample_path

    folder = tmp_path_factory.mktemp("raw") / "raw"
    return depgraph.extract(parsers.open_trace(sample_path()), folder, kinds={"RAW"})


@pytest.mark.jit_only
def test_a_pull_request_gets_the_metrics_first_and_the_rest_folded(
    program, sample_store, raw_store, tmp_path, monkeypatch
):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    words = ("--sms", 8, "--github", "--fail-on-decrease", "upper_bound")
    result = program("compare", raw_store.path, sample_store.path, *words)
    assert result.code == 3
    head, folded = (tmp_path / "summary.md").read_text().split("<details>")
    assert head.startswith(f"## depgraph: {sample_store.path.name} compared with raw on 8 SMs\n\n")
    assert "the upper bound fell: the change added dependences (281 edges more)" in head
    assert "Kernels could overlap: predicted 1.33x" in head
    assert "| upper\\_bound | upper bound on the speedup | 1.402 | 1.333 | -4.9 % |" in head
    assert "**Pairs of kernels whose dependences differ**" in folded
    assert folded.endswith("</details>\n")


@pytest.mark.jit_only
def test_a_bound_that_rises_is_parallelism_left_unused(program, sample_store, raw_store):
    result = program("compare", sample_store.path, raw_store.path, "--sms", 8)
    assert "the upper bound rose: the change left parallelism unused" in result.out


def test_a_folded_summary_keeps_to_its_size_and_is_closed():
    text = folded_summary(long_report(2), "title", ["lead"], top=100_000, most_bytes=5_000)
    assert len(text.encode()) <= 5_000
    assert text.startswith("## title\n\nlead\n\n**T**")
    assert text.endswith("</details>\n")
    assert len(folded_summary(long_report(2), "title", top=5, most_bytes=50).encode()) <= 50


@pytest.mark.jit_only
@pytest.mark.parametrize(
    ("metric", "shown"), [("bound_raw", "1.402"), ("upper_bound", "1.333"), ("serial", "4472")]
)
def test_one_number_is_printed_for_a_badge(program, sample_store, metric, shown):
    result = program("report", sample_store.path, "--sms", 8, "--metric", metric)
    assert (result.code, result.out) == (0, f"{shown}\n")


@pytest.mark.jit_only
def test_one_number_can_miss_a_threshold_and_has_no_form(program, sample_store):
    words = ("report", sample_store.path, "--sms", 8, "--metric", "speedup")
    missed = program(*words, "--fail-above", "bound_raw=1.2")
    assert missed.code == 3
    assert "bound_raw: expected at most 1.2, got 1.402" in missed.err
    assert program(*words, "--format", "json").code == 2


@pytest.mark.jit_only
def test_github_without_a_summary_file_is_wrong_usage(program, sample_store, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "")
    result = program("report", sample_store.path, "--sms", 8, "--github")
    assert result.code == 2
    assert "$GITHUB_STEP_SUMMARY is not set" in result.err


@pytest.mark.jit_only
def test_another_trace_is_no_coarser_view_of_this_one(program, sample_store, tmp_path):
    import depgraph
    from depgraph import parsers
    from depgraph.samples import sample_path

    coarse = depgraph.extract(
        parsers.open_trace(sample_path()), tmp_path / "coarse", granularity=128
    )
    words = ("report", sample_store.path, "--sms", 8, "--format", "json", "--coarse")
    result = program(*words, coarse.path)
    kinds = json.loads(result.out)["kinds"]
    assert kinds[-1]["dependences"] == "with false sharing"
    # PyTorch's allocator aligns buffers to 512 bytes: lines of 128 add no edge here.
    assert kinds[-1]["edges_by_kind"] == kinds[-2]["edges_by_kind"] == 999
    part = depgraph.extract(parsers.open_trace(sample_path()), tmp_path / "part", kernels=(0, 5))
    wrong = program(*words, part.path)
    assert wrong.code == 1
    assert "holds other kernels or blocks" in wrong.err


def long_report(tables=1):
    rows = [(f"kernel {i}", i) for i in range(100_000)]
    columns = [Column("name", "name", is_text=True), Column("n", "n")]
    table = Table("t", "T", columns, rows)
    short = table.cut(3) if tables > 1 else table
    return Report("r", {}, headline=["answer"], tables=[short, *[table] * (tables - 1)])


def test_a_summary_has_fewer_rows_rather_than_too_many_bytes():
    text = step_summary(long_report(), "title", top=100_000, most_bytes=50_000)
    assert len(text.encode()) <= 50_000
    assert text.startswith("## title\n\nanswer\n")
    assert "more rows" in text
    assert "| kernel 0 | 0 |" in text


def test_a_summary_with_no_room_is_cut():
    assert len(step_summary(long_report(), "title" * 100, top=5, most_bytes=100).encode()) <= 100


@pytest.mark.parametrize(
    ("value", "is_least", "is_met"),
    [(1.0, True, True), (0.9, True, False), (1.0, False, True), (1.1, False, False)],
)
def test_a_limit_itself_is_within_it(value, is_least, is_met):
    missed = missed_thresholds([Threshold("bound", 1.0, is_least)], {"bound": value})
    assert (missed == []) is is_met


@pytest.mark.jit_only
@pytest.mark.usefixtures("undrawn")
def test_host_copies_that_wait_for_kernels_do_not_stop_a_report(program, shared_data, tmp_path):
    trace = shared_data / "public/accelsim/mgpusim_bfs_v3"
    extracted = program("extract", trace, "-o", "bfs", "-q")
    assert extracted.code == 0, extracted.err
    result = program("report", "bfs", "--sms", 80, "-o", "out")
    assert result.code == 0, result.err
    content = json.loads((tmp_path / "out" / "report.json").read_text())
    assert any(pair["target"] < 0 for pair in content["pairs"])
