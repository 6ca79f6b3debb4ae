"""Real traces: the edges are, row for row, those of an independent reference, and so the bounds."""

import numpy as np
import pandas as pd
import pytest
from small_graphs import scenario_of

import depgraph
from depgraph import parsers, samples
from depgraph.analysis.bound import bound_one
from depgraph.graph.dependences import KIND_NAMES
from depgraph.reports.export.tables import write_edges
from depgraph.store.schema import TABLES

COLUMNS = ["src_kernel", "src_block", "dst_kernel", "dst_block", "kind"]
EDGES = {
    "gru_train": 999,
    "streams4": 1_536,
    "gpt2_d256": 37_390,
    "mlp_m256": 44_352,
    "lstm_h128": 746_476,
}


def in_order(frame):
    """Return edges as records in one order, so that equal sets are equal arrays."""
    kinds = frame["kind"].astype(str).map(KIND_NAMES.index)
    return np.sort(
        np.rec.fromarrays([*(frame[c].to_numpy(np.int64) for c in COLUMNS[:4]), kinds]), axis=0
    )


def edges_of(graph):
    kernel, block = graph.block_names()
    source, target, kind = (np.concatenate(column) for column in zip(*graph.edges(), strict=True))
    names = np.array(KIND_NAMES)[kind]
    columns = kernel[source], block[source], kernel[target], block[target], names
    return pd.DataFrame(dict(zip(COLUMNS, columns, strict=True)))


@pytest.fixture(scope="module")
def sample_edges():
    return pd.read_parquet(samples.sample_path(samples.GOLDEN_EDGES))


def test_edges_of_the_packaged_trace(sample_store, sample_edges):
    edges = edges_of(sample_store.graph())
    assert len(edges) == 999
    assert np.array_equal(in_order(edges), in_order(sample_edges))


@pytest.mark.jit_only
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (n > 40_000)) for name, n in EDGES.items()],
)
def test_edges_of_real_traces(name, shared_data, tmp_path):
    trace = parsers.open_trace(shared_data / "nvbit" / f"{name}.log.xz")
    graph = depgraph.extract(trace, tmp_path / "out").graph()
    edges = edges_of(graph.certain())
    golden = pd.read_parquet(shared_data / "golden" / f"{name}.edges.parquet")
    assert len(edges) == EDGES[name]
    assert np.array_equal(in_order(edges), in_order(golden))
    pairs = graph.pairs()
    counted = [sum(getattr(p, kind.lower()) for p in pairs) for kind in KIND_NAMES]
    assert counted == [int((golden["kind"] == kind).sum()) for kind in KIND_NAMES]


def test_exported_edges_are_the_golden_file(sample_store, sample_edges, tmp_path):
    rows = write_edges(sample_store.graph(), tmp_path / "edges.parquet", "parquet")
    exported = pd.read_parquet(tmp_path / "edges.parquet")
    assert rows == len(exported) == 999
    assert list(exported) == [c.name for c in TABLES["edges"]]
    assert list(exported)[: len(COLUMNS)] == list(sample_edges) == COLUMNS
    assert exported["certain"].all()
    assert exported.dtypes[:4].tolist() == sample_edges.dtypes[:4].tolist()
    assert np.array_equal(in_order(exported), in_order(sample_edges))


@pytest.mark.parametrize("kinds", [{"RAW"}, {"WAR", "WAW"}])
def test_some_kinds_are_a_part_of_the_golden_edges(kinds, sample_store, sample_edges):
    edges = edges_of(sample_store.graph(kinds))
    assert np.array_equal(in_order(edges), in_order(sample_edges[sample_edges["kind"].isin(kinds)]))


def test_a_window_of_kernels_has_the_golden_edges_inside_it(sample_trace, sample_edges, tmp_path):
    trace = parsers.open_trace(sample_trace)
    store = depgraph.extract(trace, tmp_path / "out", kernels=(3, 10), kinds={"RAW", "WAR"})
    assert [kernel.kernel for kernel in store.kernels] == list(range(3, 10))
    inside = (
        sample_edges["src_kernel"].between(3, 9)
        & sample_edges["dst_kernel"].between(3, 9)
        & sample_edges["kind"].isin(["RAW", "WAR"])
    )
    assert inside.sum() > 0
    assert np.array_equal(in_order(edges_of(store.graph())), in_order(sample_edges[inside]))


def block_times(graph):
    """Return the made-up durations that the published figures of this trace are for."""
    kernel, block = graph.block_names()
    return (100 + 7 * (block % 13) + 11 * (kernel % 5)).astype(np.float64)


@pytest.mark.parametrize(("kinds", "critical_path"), [(None, 2739), (["RAW"], 2308)])
def test_critical_path_and_serial_time_of_the_packaged_trace(sample_store, kinds, critical_path):
    graph = sample_store.graph(kinds)
    bound = bound_one(scenario_of(graph, block_times(graph)))
    assert bound.critical_path == critical_path
    assert bound.serial == 3890
    assert bound.lower_bound == critical_path
    assert bound.upper_bound == 3890 / critical_path


@pytest.mark.jit_only
def test_lines_give_the_critical_path_of_earlier_tools(sample_trace, tmp_path):
    trace = parsers.open_trace(sample_trace)
    graph = depgraph.extract(trace, tmp_path / "out", granularity=128).graph()
    assert graph.earliest_finish(block_times(graph))[0].max() == 2739


@pytest.mark.jit_only
def test_false_edges_are_those_that_the_golden_file_lacks(shared_data, tmp_path):
    trace = parsers.open_trace(shared_data / "nvbit" / "gpt2_d256.log.xz")
    store = depgraph.extract(trace, tmp_path / "out", granularity=128)
    golden = pd.read_parquet(shared_data / "golden" / "gpt2_d256.edges.parquet")
    exact = {*golden.astype({"kind": str}).itertuples(index=False, name=None)}
    coarse = {*edges_of(store.graph()).itertuples(index=False, name=None)}
    assert store.metadata["false_edges"] == len(coarse - exact) == 928
