"""``depgraph.open``: objects for a notebook, which show themselves."""

import subprocess
import sys
from pathlib import Path

import networkx as nx
import pytest

import depgraph
from depgraph.errors import ModelError
from depgraph.parsers.workload import read_workload
from depgraph.samples import sample_path
from depgraph.store.store import write_store

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "_notebook.py"


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    path = tmp_path_factory.mktemp("toy") / "toy.out"
    write_store(read_workload(sample_path("workloads/cusync_toy.toml")), path)
    return depgraph.open(path)


def test_everything_shows_itself(toy):
    for shown, text in (
        (toy, "dependences"),
        (toy.store, "cusync_toy.toml"),
        (toy.graph, "edges between blocks"),
        (toy.bound(4), "upper bound on speedup"),
        (toy.mechanisms("cuda-graph", 4), "cuda-graph"),
        (toy.report(4), "Critical path"),
    ):
        assert text in shown._repr_html_()
        assert "object at 0x" not in repr(shown)


def test_names_of_a_trace_are_no_markup(tmp_path):
    text = sample_path("workloads/cusync_toy.toml").read_text()
    (tmp_path / "bad.toml").write_text(text.replace('"producer"', '"a&b$c$"'))
    write_store(read_workload(tmp_path / "bad.toml"), tmp_path / "bad.out")
    shown = depgraph.open(tmp_path / "bad.out").report(4)._repr_html_()
    assert "a&amp;b&#36;c" in shown
    assert "$" not in shown


def test_it_answers_as_the_command_does(toy, program):
    store = toy.store.path
    out = program(
        "bound", store, "--sms", "2", "--deps", "raw", "--what-if", "gap=0", "--format", "csv"
    ).out
    _, first, *_ = out.splitlines()
    opened = depgraph.open(store, deps="raw", what_if="gap=0").bound(2)
    assert first.split(",")[2:6] == [str(v) for v in opened.to_pandas().iloc[0][2:6]]


def test_graphs_for_networkx_have_weights(toy):
    kernels = toy.graph.to_networkx()
    assert [weight for *_, weight in kernels.edges(data="weight")] == [12]
    blocks = toy.graph.to_networkx("block")
    path = nx.dag_longest_path(blocks, weight="weight")
    longest = sum(blocks.nodes[block]["duration"] for block in path)
    assert longest == toy.bound(4).table.bounds[0].critical_path


def test_each_plot_is_a_method_and_each_table_a_frame(toy, tmp_path):
    report = toy.report(4, mechanisms="dataflow")
    assert {"schedules", "speedup_by_sms"} <= set(dir(report))
    picture = report.pair_blocks((0, 1))
    assert picture._repr_png_().startswith(b"\x89PNG")
    picture.save(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"pair-blocks.png", "pair-blocks.svg"}
    assert report.to_pandas("kernels")["kernel"].tolist() == [0, 1]
    with pytest.raises(AttributeError):
        report.pie()
    with pytest.raises(ModelError, match="has no table 'pies'"):
        report.to_pandas("pies")
    with pytest.raises(ModelError, match="there is no plot 'pie'"):
        report.plot("pie")


def test_a_report_is_written_as_the_command_writes_it(toy, tmp_path):
    page = toy.report(4).write(tmp_path / "report")
    assert page.is_file()


def test_defaults_are_those_of_the_gpu(toy):
    assert toy.bound().table.bounds[0].sms == 132
    assert depgraph.open(toy.store.path, gpu="V100").bound().table.bounds[0].sms == 80


@pytest.mark.jit_only
def test_the_notebook_of_the_documentation_shows_what_it_says(tmp_path):
    pytest.importorskip("nbclient", reason="depgraph[test-all] is not installed")
    pytest.importorskip("ipykernel", reason="depgraph[test-all] is not installed")
    done = subprocess.run(
        [sys.executable, str(NOTEBOOK), "--check"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
