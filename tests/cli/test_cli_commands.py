"""Every command of the main job on the packaged trace, in every form it can be printed in."""

import csv
import io
import json
import re

import networkx as nx
import pandas as pd
import pytest
from programs import BASE, access_line, launch_line

from depgraph import samples
from depgraph.cli.options.shared import FORMATS
from depgraph.reports.tables.render import JSON_SCHEMA_VERSION

MODEL = ["--gpu", "A100 40GB"]
RESULTS = {
    "bound": ["bound", "STORE", "--sms", "8,80,inf"],
    "kernels": ["show", "STORE", "kernels"],
    "pairs": ["show", "STORE", "pairs"],
    "path": ["show", "STORE", "path"],
    "block": ["show", "STORE", "block", "5:0"],
    "gpus": ["gpus"],
    "mechanisms": ["mechanisms"],
}


@pytest.fixture
def run(program, sample_store):
    """Return a function that runs the program; the word STORE stands for the sample's store."""
    return lambda *words: program(*(sample_store.path if w == "STORE" else w for w in words))


def block_times(sample_store, path):
    """Write the made-up block times that the published figures of the sample are for."""
    kernel, block = sample_store.graph().block_names()
    frame = pd.DataFrame({"kernel": kernel, "block": block})
    frame["duration_us"] = 100 + 7 * (block % 13) + 11 * (kernel % 5)
    frame.to_csv(path, index=False)
    return path


def parsed(text, form):
    """Read what a command printed; fail if it is not what the form promises."""
    if form == "json":
        content = json.loads(text)
        assert content["schema_version"] == JSON_SCHEMA_VERSION
        return content
    if form == "csv":
        rows = list(csv.reader(io.StringIO(text)))
        assert len(rows) > 1
        assert {len(row) for row in rows} == {len(rows[0])}
        return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
    if form == "markdown":
        rules = re.findall(r"^\|(?: -+:? \|| ---:? \|)+$", text, re.MULTILINE)
        assert rules
        widths = [line.replace("\\|", "").count("|") for line in text.splitlines() if "|" in line]
        assert set(widths) == {rule.count("|") for rule in rules}
    assert max(map(len, text.splitlines())) > 10
    return text


@pytest.mark.jit_only
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", RESULTS)
def test_every_result_in_every_form(run, name, form):
    outcome = run(*RESULTS[name], "--format", form)
    assert (outcome.code, outcome.err) == (0, "")
    assert parsed(outcome.out, form)


@pytest.mark.jit_only
def test_programs_are_given_every_row(program, sample_trace):
    rows = parsed(program("extract", sample_trace, "--format", "csv").out, "csv")
    assert len(rows) == 70
    content = parsed(program("extract", sample_trace, "--force", "--format", "json").out, "json")
    assert len(content["pairs"]) == 70
    assert sum(row["raw"] for row in content["pairs"]) == content["raw_edges"] == 713


@pytest.mark.parametrize("form", FORMATS)
def test_the_summary_of_extract_in_every_form(program, tmp_path, form):
    (tmp_path / "some.log").write_bytes(
        launch_line(0) + access_line(0, 1, "STG.E", [BASE])
        + launch_line(1) + access_line(1, 2, "LDG.E", [BASE])
    )  # fmt: skip
    outcome = program("extract", "some.log", "--format", form)
    assert outcome.code == 0
    assert parsed(outcome.out, form)


def test_the_table_is_the_form_without_asking(run):
    assert (
        run("show", "STORE", "kernels").out
        == run("show", "STORE", "kernels", "--format", "table").out
    )


@pytest.mark.jit_only
def test_the_summary_of_extract(program, sample_trace):
    outcome = program("extract", sample_trace, "--details")
    for part in (
        "25 kernels, 189 thread blocks, 11978 global-memory accesses",
        "994 edges between blocks",
        "713 RAW, 217 WAR, 69 WAW",
        "one-to-one",
        "all-to-all",
        "independent",
        "shared-memory side of asynchronous copies (LDGSTS)",
        "MB/s",
    ):
        assert part in outcome.out, part


def bounds_of(content):
    return {(row["sms"], row["dependences"]): row for row in content["bounds"]}


def test_bound_has_the_published_figures(run, sample_store, tmp_path):
    times = block_times(sample_store, tmp_path / "blocks.csv")
    words = ["--timing", times, "--occupancy", "1", "--format", "json"]
    content = parsed(run("bound", "STORE", "--sms", "inf", *words).out, "json")
    assert (content["unit"], content["occupancy_most"]) == ("us", 1)
    rows = bounds_of(content)
    every, raw = rows["inf", "RAW,WAR,WAW"], rows["inf", "RAW"]
    assert (every["serial"], every["critical_path"], every["lower_bound"]) == (3890, 2739, 2739)
    assert (raw["serial"], raw["critical_path"]) == (3890, 2308)
    assert every["upper_bound"] == 3890 / 2739


def test_bound_has_a_row_a_size_and_schedules_between_the_bounds(run):
    content = parsed(run("bound", "STORE", "--sms", "8,16,80,132", "--format", "json").out, "json")
    rows = bounds_of(content)
    assert [key[0] for key in rows if key[1] == "RAW"] == [8, 16, 80, 132]
    for row in content["schedules"]:
        bound = rows[row["sms"], row["dependences"]]
        assert row["makespan"] >= bound["lower_bound"]
        assert row["speedup"] <= bound["upper_bound"]
        assert 0 < row["utilization"] <= 1
    names = {row["schedule"] for row in content["schedules"]}
    assert {"serial", "dataflow (oldest-first)"} <= names


def test_bound_with_raw_only(run):
    content = parsed(
        run("bound", "STORE", "--sms", "80", "--deps", "raw", "--format", "json").out, "json"
    )
    assert [row["dependences"] for row in content["bounds"]] == ["RAW"]


@pytest.mark.jit_only
def test_bound_with_kernel_times(run, tmp_path):
    (tmp_path / "kernels.csv").write_text(
        "kernel,duration_us\n" + "".join(f"{kernel},10\n" for kernel in range(25))
    )
    words = ["--timing", "kernels.csv", "--measured-sms", "80", "--format", "json", *MODEL]
    content = parsed(run("bound", "STORE", "--sms", "80", *words).out, "json")
    assert content["unit"] == "us"
    assert content["bounds"][0]["serial"] == pytest.approx(250)


@pytest.mark.parametrize(
    ("sms", "sizes"),
    [("80", [80]), ("8:10", [8, 9, 10]), ("8:132:62", [8, 70, 132]), ("inf,2", ["inf", 2])],
)
def test_sizes_of_a_gpu(run, sms, sizes):
    content = parsed(run("bound", "STORE", "--sms", sms, "--format", "json").out, "json")
    assert [r["sms"] for r in content["bounds"] if r["dependences"] == "RAW"] == sizes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--timing", "none.csv"], "none.csv: no such file"),
        (["--gpu-file", "none.toml"], "none.toml"),
    ],
)
def test_bound_with_an_input_that_is_not_there(run, words, message):
    outcome = run("bound", "STORE", "--sms", "80", *words)
    assert (outcome.code, outcome.out) == (1, "")
    assert message in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.jit_only
def test_a_threshold_that_is_missed_gives_3(run):
    words = ["--format", "json", "--fail-under", "bound=1000"]
    outcome = run("report", "STORE", "--sms", "80", *words)
    assert outcome.code == 3
    assert json.loads(outcome.out)
    assert "bound" in outcome.err
    assert run("report", "STORE", "--sms", "80", *words[:-1], "bound=0.5").code == 0


def test_show_kernels(run):
    rows = parsed(run("show", "STORE", "kernels", "--format", "json").out, "json")["kernels"]
    assert [row["kernel"] for row in rows] == list(range(25))
    assert rows[0]["name"].startswith("void gemmSN_TN_kernel<float, 128")
    assert (rows[0]["grid"], rows[0]["block"]) == ([24, 1, 1], [128, 1, 1])
    assert rows[0]["registers"] is None
    assert all(row["accesses"] > 0 for row in rows)


def test_show_pairs(run, sample_store):
    rows = parsed(run("show", "STORE", "pairs", "--format", "csv").out, "csv")
    assert len(rows) == len(sample_store.pairs)
    assert sum(int(row["raw"]) for row in rows) == 713
    raw = parsed(run("show", "STORE", "pairs", "--deps", "raw", "--format", "csv").out, "csv")
    assert sum(int(row["raw"]) for row in raw) == 713
    assert {row["war"] for row in raw} == {"0"}


def test_show_path(run, sample_store, tmp_path):
    times = block_times(sample_store, tmp_path / "blocks.csv")
    words = ["show", "STORE", "path", "--timing", times, "--format", "json"]
    content = parsed(run(*words).out, "json")
    assert content["critical_path"] == sum(row["duration"] for row in content["path"]) == 2739
    kernels = [row["kernel"] for row in content["path"]]
    assert kernels == sorted(kernels)
    by_function = content["functions"]
    assert sum(row["duration"] for row in by_function) == 2739
    assert sum(row["kernels"] for row in by_function) == len(kernels)
    assert sum(row["share"] for row in by_function) == pytest.approx(1)


def test_show_block(run):
    content = parsed(run("show", "STORE", "block", "2:0", "--format", "json").out, "json")
    golden = pd.read_parquet(samples.sample_path(samples.GOLDEN_EDGES))
    waits = golden[(golden["dst_kernel"] == 2) & (golden["dst_block"] == 0)]
    sources = {(row["kernel"], row["block"]) for row in content["sources"]}
    assert content["waits_for"] == len(sources)
    assert sources == set(zip(waits["src_kernel"], waits["src_block"], strict=True))
    assert sum(row["raw_bytes"] for row in content["sources"]) > 0
    assert {row["kind"] for row in content["footprint"]} == {"read", "write"}


@pytest.mark.parametrize(
    ("place", "message"),
    [("25:0", "there is no kernel 25"), ("0:24", "kernel 0 has blocks 0 to 23, not 24")],
)
def test_show_a_block_that_is_not_there(run, place, message):
    outcome = run("show", "STORE", "block", place)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith(f"depgraph: error: {message}")
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
def test_export_edges(run, form, tmp_path):
    outcome = run("export", "STORE", "--what", "edges", "--to", form, "-o", "edges.out")
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err.startswith("Wrote edges.out (")
    read = {"parquet": pd.read_parquet, "csv": pd.read_csv, "json": read_json_lines}[form]
    assert len(read(tmp_path / "edges.out").drop_duplicates()) == 999


def read_json_lines(path):
    return pd.DataFrame([json.loads(line) for line in path.read_text().splitlines()])


@pytest.mark.parametrize("what", ["edges", "kernels", "blocks", "pairs", "schedule"])
def test_export_tables_by_the_name_of_the_file(run, what, tmp_path):
    words = ["--sms", "80"] if what == "schedule" else []
    assert run("export", "STORE", "--what", what, "-o", "file.csv", *words).code == 0
    rows = {"edges": 999, "kernels": 25, "blocks": 189, "pairs": 70, "schedule": 189}
    assert len(pd.read_csv(tmp_path / "file.csv")) == rows[what]


def test_export_the_graph_of_kernels(run, tmp_path):
    assert run("export", "STORE", "--what", "graph", "-o", "graph.graphml").code == 0
    graph = nx.read_graphml(tmp_path / "graph.graphml")
    assert (len(graph), graph.number_of_edges()) == (25, 70)
    run("export", "STORE", "--what", "graph", "-o", "raw.graphml", "--deps", "raw")
    assert nx.read_graphml(tmp_path / "raw.graphml").number_of_edges() < 70


def test_export_some_kinds_of_edges(run, tmp_path):
    run("export", "STORE", "--what", "edges", "-o", "edges.csv", "--deps", "raw,waw")
    kinds = pd.read_csv(tmp_path / "edges.csv")["kind"]
    assert kinds.value_counts().to_dict() == {"RAW": 713, "WAW": 69}


@pytest.mark.parametrize("what", ["kernels", "blocks", "pairs"])
def test_tables_are_of_the_whole_store(run, what):
    outcome = run("export", "STORE", "--what", what, "-o", "file.csv", "--deps", "raw")
    assert outcome.code == 2
    assert f"--deps does not go with --what {what}" in outcome.err


def test_export_does_not_overwrite(run, tmp_path):
    (tmp_path / "edges.csv").write_text("mine")
    outcome = run("export", "STORE", "--what", "edges", "-o", "edges.csv")
    assert outcome.code == 1
    assert "edges.csv: already exists; pass --force" in outcome.err
    assert (tmp_path / "edges.csv").read_text() == "mine"
    assert run("export", "STORE", "--what", "edges", "-o", "edges.csv", "--force").code == 0


@pytest.mark.jit_only
def test_demo_runs_the_main_job_and_says_what_it_means(program, tmp_path):
    outcome = program("demo")
    assert outcome.code == 0
    for part in ("25 kernels", "994 edges", "5.03 ms now on 132 SMs; ", "depgraph report "):
        assert part in outcome.out, part
    assert outcome.out.count("\n") <= 25
    assert "Wrote depgraph-demo.out (" in outcome.err
    assert "Schedules" in program("demo", "-q", "--details").out  # its own store may be replaced
    assert program("bound", "depgraph-demo.out", "--sms", "8").code == 0
    (tmp_path / "mine").mkdir()
    assert program("demo", "-o", "mine").code == 1
