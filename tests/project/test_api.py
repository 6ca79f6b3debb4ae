"""The Python interface, as the documentation shows it."""

import doctest
import subprocess
import sys

import networkx as nx
import pandas as pd
import pytest
from programs import BASE, access_line, launch_line

import depgraph
from depgraph import parsers
from depgraph.system.output import tool_version

SNIPPET = """
from depgraph import parsers
import depgraph

store = depgraph.extract(parsers.open_trace("trace.log"), "out")
graph = store.graph()
table = depgraph.bound(graph, sms=80).to_pandas()
kernels = graph.to_networkx(level="kernel")
"""


@pytest.fixture
def trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "trace.log"
    path.write_bytes(
        launch_line(0) + access_line(0, 1, "STG.E", [BASE])
        + launch_line(1) + access_line(1, 2, "LDG.E", [BASE])
    )  # fmt: skip
    return path


def test_the_snippet_of_the_documentation(trace):
    names = {}
    exec(SNIPPET, names)  # noqa: S102 - as a user would paste it
    assert isinstance(names["store"], depgraph.Store)
    assert isinstance(names["graph"], depgraph.BlockGraph)
    assert names["graph"].n_blocks == 8
    assert names["table"]["dependences"].unique().tolist() == ["RAW,WAR,WAW", "RAW"]
    assert (names["table"]["makespan"] >= names["table"]["lower_bound"]).all()
    assert list(names["kernels"].edges(data="raw")) == [(0, 1, 1)]
    assert (trace.parent / "out").is_dir()


def test_the_graph_of_a_real_program(sample_store):
    kernels = sample_store.graph().to_networkx(level="kernel")
    assert (len(kernels), kernels.number_of_edges()) == (25, 70)
    assert nx.is_directed_acyclic_graph(kernels)
    assert sum(nx.get_edge_attributes(kernels, "raw").values()) == 713


def test_the_docstring_shows_the_same_names():
    examples = doctest.DocTestParser().get_examples(depgraph.__doc__)
    text = "".join(example.source for example in examples)
    for name in ("depgraph.extract(", "parsers.open_trace(", "depgraph.bound(", "to_networkx("):
        assert name in text
    assert [name for name in depgraph.__all__ if not hasattr(depgraph, name)] == []


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="module 'depgraph' has no attribute 'exract'"):
        depgraph.exract  # noqa: B018


def test_analyse_writes_nothing(trace):
    with depgraph.analyse(parsers.open_trace(trace), kernels=(0, 1)) as extraction:
        assert len(extraction.kernels) == 1
    assert list(trace.parent.iterdir()) == [trace]


def test_every_table_as_a_data_frame(sample_store):
    kernels = sample_store.to_pandas("kernels")
    blocks = sample_store.to_pandas("blocks")
    assert len(kernels) == 25
    assert len(blocks) == kernels["blocks"].sum() == 189
    assert blocks["accesses"].sum() == kernels["accesses"].sum()
    pairs = sample_store.graph().to_pandas()
    pd.testing.assert_frame_equal(
        pairs, sample_store.to_pandas("pairs").drop(columns="cross_stream"),
        check_dtype=False, check_categorical=False,
    )  # fmt: skip


def test_importing_depgraph_loads_no_numeric_library():
    program = (
        "import sys, depgraph;"
        "print([name for name in ('numpy', 'numba', 'pyarrow', 'pandas') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert result.stdout.strip() == b"[]"


def test_running_the_module_is_running_the_program():
    command = [sys.executable, "-m", "depgraph", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == f"depgraph {tool_version()}\n"
