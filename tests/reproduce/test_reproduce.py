"""What papers published is computed anew, and the page has what the command says."""

import importlib.util
import json
from pathlib import Path

import pytest
from programs import edges_of

from depgraph.cli.commands.reproduce import packaged
from depgraph.dependence.sweep import build_graph, sweep
from depgraph.reproduce.figures import Figure, read_published
from depgraph.reproduce.papers import EXPERIMENTS, KUPER_TABLE, graph_of, reproduce
from depgraph.reproduce.simulator import read_run
from depgraph.samples import sample_path
from depgraph.store.store import Store

DOCS = Path(__file__).resolve().parents[2] / "docs"
IN_CI = ("kuper", "c3", "simulator")


def page_maker():
    spec = importlib.util.spec_from_file_location("generate", DOCS / "_generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def by_what(name):
    return {figure.what: figure for figure in reproduce(name, packaged()).figures}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in IN_CI else pytest.mark.slow) for n in EXPERIMENTS],
)
def test_the_page_has_what_is_computed(name):
    page = (DOCS / "reproduced.md").read_text(encoding="utf-8")
    assert page_maker().reproduced(name) in page, "run: python docs/_generate.py"


def test_every_name_has_figures_and_every_figure_a_source_and_a_reason():
    published = read_published(packaged())
    assert set(published) == set(EXPERIMENTS)
    for name in IN_CI:
        for figure in reproduce(name, packaged()).figures:
            assert figure.source
            assert figure.why or figure.ours == figure.paper, figure.what


def test_edges_of_the_original_tool_are_found_one_by_one():
    for case in json.loads(sample_path(KUPER_TABLE).read_text()):
        graph, _ = graph_of(case["input"])
        kernel, index = graph.block_names()
        found = {
            (f"kernel-{kernel[s] + 1}_{index[s]},0,0", f"kernel-{kernel[t] + 1}_{index[t]},0,0",
             kind)
            for s, t, kind in edges_of(graph)
            if kernel[t] - kernel[s] <= case["depth"]
        }  # fmt: skip
        expected = {
            (source, *target.rsplit("_", 1))
            for source, targets in case["edges"].items()
            for target in targets
        }
        assert found == expected, case["case"]


def test_ideal_times_differ_from_the_original_tool_only_where_it_drops_something():
    differing = {what: f.ours for what, f in by_what("kuper").items() if f.ours != f.paper}
    assert differing == {
        "skip dep, depth 1: between blocks": 1,
        "skip dep, depth 1: ideal, kernel by kernel": 165,
        "skip dep, depth 1: ideal, block by block": 150,
        "read read, depth 1: ideal, block by block": 60,
        "uniform independent all dropped, depth 1: ideal, block by block": 50,
    }


def test_on_its_own_block_times_the_schedule_is_that_of_the_simulator():
    figures = by_what("simulator")
    own = [f for what, f in figures.items() if "own times" in what]
    assert len(own) == 3
    assert all(abs(f.difference) < 6e-4 for f in own)
    assert all(f.ours == 0 for what, f in figures.items() if "violated" in what)


def test_a_block_that_begins_early_violates_its_dependences(monkeypatch):
    from depgraph.reproduce import simulator

    def hasty(inputs, graph, name):
        run = read_run(inputs, graph, name)
        if "rule" in name:
            run.start[:] = 0
        return run

    monkeypatch.setattr(simulator, "read_run", hasty)
    assert all(f.ours == f_checked(f) for f in by_what("simulator").values() if violated(f))


def violated(figure):
    return "violated" in figure.what


def f_checked(figure):
    return 999 if "gru_train" in figure.what else 1536


@pytest.mark.jit_only
@pytest.mark.parametrize("name", ["gru_train", "streams4"])
def test_packaged_stores_are_of_the_version_that_is_read_and_of_their_footprints(name):
    store = Store(sample_path(f"simulator/{name}.out"))
    graph, footprints = store.graph(), store.footprints()
    swept = sweep(footprints, graph.operation_of_block, graph.n_operations)
    found = build_graph([swept], graph.first_block, graph.kernel)
    assert edges_of(found) == edges_of(graph)


@pytest.mark.parametrize(
    ("paper", "ours", "difference"), [(2, 2, 0), (0, 0, 0), (0, 1, None), (4, 5, 0.25)]
)
def test_differences_are_relative_to_the_paper(paper, ours, difference):
    assert Figure("", paper, ours, "x", "").difference == difference


def test_without_a_name_all_are_listed(program):
    found = program("reproduce")
    assert found.code == 0
    assert all(name in found.out for name in EXPERIMENTS)


def test_a_picture_and_plain_values(program, tmp_path):
    found = program("reproduce", "c3", "--plot", tmp_path / "c3.svg", "--format", "json")
    assert found.code == 0
    assert (tmp_path / "c3.svg").read_text(encoding="utf-8").startswith("<?xml")
    rows = json.loads(found.out)["figures"]
    assert {row["what"]: row["paper"] for row in rows}["copy engines"] == 66
    assert program("reproduce", "c3", "--plot", tmp_path / "c3.svg").code == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cusink"], "did you mean 'cusync'"),
        (["c3", "--plot", "c3.pdf"], ".png or .svg"),
        (["--plot", "c3.svg"], "needs the NAME"),
    ],
)
def test_what_cannot_be_reproduced_is_refused_in_a_line(program, words, said):
    found = program("reproduce", *words)
    assert found.code
    assert said in found.err
