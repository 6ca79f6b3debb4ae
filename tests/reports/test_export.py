"""What other tools are given: edges, tables, graphs and schedules, in every form."""

import json

import networkx as nx
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from programs import edges_of, graph_of, programs
from small_graphs import scenario_of

from depgraph.errors import OutputExistsError
from depgraph.graph.builder import GraphBuilder
from depgraph.graph.dependences import KIND_NAMES, Basis, labelled_edges
from depgraph.mechanisms.base import serial
from depgraph.reports.export.tables import (
    write_edges,
    write_kernel_graph,
    write_schedule,
    write_table,
)
from depgraph.scenario.build_scenario import build_scenario

COLUMNS = ["src_kernel", "src_block", "dst_kernel", "dst_block", "kind", "certain", "ldgsts"]


def read(path, form):
    if form == "parquet":
        return pd.read_parquet(path)
    if form == "csv":
        return pd.read_csv(path)
    return pd.DataFrame([json.loads(line) for line in path.read_text().splitlines()])


def records(frame):
    """Return rows as dictionaries, None where a value is missing, however that is written."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
def test_edges_of_the_packaged_trace(form, sample_store, tmp_path):
    graph = sample_store.graph()
    assert write_edges(graph, tmp_path / "edges", form) == 999
    kernel, block = (column.tolist() for column in graph.block_names())
    expected = [
        (kernel[s], block[s], kernel[t], block[t], KIND_NAMES[kind], certain, ldgsts)
        for columns in labelled_edges(graph.arrays)
        for s, t, kind, certain, ldgsts in zip(*(c.tolist() for c in columns), strict=True)
    ]
    exported = read(tmp_path / "edges", form)
    assert list(exported) == COLUMNS
    assert sorted(exported.itertuples(index=False, name=None)) == sorted(expected)


@given(programs(max_operations=3, max_blocks=2))
def test_edges_of_any_graph(tmp_path_factory, program):
    graph = graph_of(program)
    path = tmp_path_factory.mktemp("drawn") / "edges.parquet"
    assert write_edges(graph, path, "parquet") == len(edges_of(graph))
    exported = pq.read_table(path)
    assert exported.column_names == COLUMNS
    assert len(exported) == len(edges_of(graph))


def test_edges_say_whether_they_are_certain_and_rest_on_ldgsts(tmp_path):
    builder = GraphBuilder([0, 1], [2, 1])
    builder.add("RAW", [0], [2])
    builder.add("WAR", [0], [2], basis=Basis.LDGSTS)
    builder.add("RAW", [0, 1], [2], basis=Basis.UNIT)
    write_edges(builder.build(), tmp_path / "edges.csv", "csv")
    exported = read(tmp_path / "edges.csv", "csv")
    assert sorted(
        exported[["src_block", "kind", "certain", "ldgsts"]].itertuples(index=False, name=None)
    ) == [
        (0, "RAW", True, False),
        (0, "WAR", True, True),
        (1, "RAW", False, False),
    ]


@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
@pytest.mark.parametrize("table", ["kernels", "blocks", "pairs"])
def test_tables(table, form, sample_store, tmp_path):
    write_table(sample_store.table(table), tmp_path / "file", form)
    assert records(read(tmp_path / "file", form)) == records(sample_store.to_pandas(table))


def test_parquet_keeps_units_and_meanings(sample_store, tmp_path):
    write_table(sample_store.table("blocks"), tmp_path / "file", "parquet")
    field = pq.read_schema(tmp_path / "file").field("read_bytes")
    assert field.metadata[b"unit"] == b"bytes"
    assert b"distinct bytes" in field.metadata[b"meaning"]


@pytest.mark.parametrize("form", ["graphml", "json"])
def test_the_graph_of_kernels_is_read_again(form, sample_store, tmp_path):
    scenario = build_scenario(sample_store.graph(), sample_store.kernels)
    write_kernel_graph(scenario, tmp_path / "file", form)
    expected = scenario.to_networkx()
    if form == "graphml":
        found = nx.read_graphml(tmp_path / "file", node_type=int)
    else:
        content = json.loads((tmp_path / "file").read_text())
        found = nx.node_link_graph(content, edges="edges")
    assert set(found.nodes) == set(expected.nodes)
    assert {(s, t): d for s, t, d in found.edges(data=True)} == {
        (s, t): d for s, t, d in expected.edges(data=True)
    }
    assert dict(found.nodes(data=True)) == dict(expected.nodes(data=True))
    assert found.nodes[0]["name"] == "gemmSN_TN_kernel"


def test_the_graph_of_kernels_for_graphviz(sample_store, tmp_path):
    graph = sample_store.graph()
    write_kernel_graph(build_scenario(graph, sample_store.kernels), tmp_path / "file", "dot")
    text = (tmp_path / "file").read_text()
    assert text.startswith("digraph")
    assert text.count(" -> ") == len(graph.pairs())
    assert text.count("label=") == 25 + len(graph.pairs())
    assert '"0 gemmSN_TN_kernel"' in text


@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
def test_a_schedule_has_a_row_a_block(form, tmp_path):
    graph = graph_of([{0: (set(), {1}), 1: (set(), set())}, {2: ({1}, set())}])
    plan = serial(scenario_of(graph, [2.0, 3.0, 4.0], sms=1))
    write_schedule(plan, graph, "us", tmp_path / "file", form)
    columns = ["kernel", "block", "sm", "start", "end"]
    exported = records(read(tmp_path / "file", form)[columns])
    rows = [(0, 0, 0, 0, 2), (0, 1, 0, 2, 5), (1, 0, 0, 5, 9)]
    assert exported == [dict(zip(columns, row, strict=True)) for row in rows]
    assert exported == records(plan.to_pandas(graph)[columns])
    if form == "parquet":
        assert pq.read_schema(tmp_path / "file").field("start").metadata[b"unit"] == b"us"


def test_an_existing_file_is_replaced_with_force_alone(sample_store, tmp_path):
    (tmp_path / "file").write_text("old")
    with pytest.raises(OutputExistsError):
        write_edges(sample_store.graph(), tmp_path / "file", "csv")
    assert write_edges(sample_store.graph({"WAW"}), tmp_path / "file", "csv", force=True) == 69
    assert len((tmp_path / "file").read_text().splitlines()) == 70
