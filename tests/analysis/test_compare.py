"""``depgraph compare``: kernels are aligned, what changed is said, a regression fails."""

import json
from dataclasses import replace

import pytest
from small_graphs import chain_edges, graph_of, kernels_of, scenario_of

import depgraph
from depgraph import parsers
from depgraph.analysis.compare_stores import compare
from depgraph.errors import ModelError
from depgraph.samples import sample_path


def side(sizes, names, edges=None, cost=None, sms=4):
    graph = graph_of(sizes, chain_edges(sizes) if edges is None else edges, cost=cost)
    return scenario_of(graph, kernels=kernels_of(sizes, names), sms=sms)


def changes(diff):
    return [(k.base, k.new, k.change) for k in diff.kernels]


def test_a_program_is_the_same_as_itself():
    one = side([4, 2], ["a", "b"])
    diff = compare(one, one)
    assert changes(diff) == [(0, 0, "same"), (1, 1, "same")]
    assert diff.pairs == ()
    assert all(base == new for base, new in diff.metrics.values())


def test_an_added_kernel_shifts_no_other():
    diff = compare(side([4, 2], ["a", "b"]), side([4, 3, 2], ["a", "c", "b"]))
    assert changes(diff) == [(0, 0, "same"), (None, 1, "added"), (1, 2, "same")]


def test_a_removed_kernel_shifts_no_other():
    diff = compare(side([4, 3, 2], ["a", "c", "b"]), side([4, 2], ["a", "b"]))
    assert changes(diff) == [(0, 0, "same"), (1, None, "removed"), (2, 1, "same")]


def test_a_kernel_with_another_grid_or_template_is_the_same_kernel_changed():
    diff = compare(side([4, 2], ["k<int>(int)", "b"]), side([8, 2], ["k<float>(float)", "b"]))
    assert changes(diff)[0] == (0, 0, "grid 4,1,1 -> 8,1,1, template or arguments")


def on_streams(*streams):
    one = side([1] * len(streams), [f"k{i}" for i in range(len(streams))])
    kernels = [replace(k, stream=s) for k, s in zip(one.kernels, streams, strict=True)]
    return replace(one, kernels=kernels)


def test_streams_are_compared_by_what_runs_on_them_not_by_what_they_are_called():
    renamed = compare(on_streams(7, 7, 9), on_streams(94123456789, 94123456789, 94123450000))
    assert {change for *_, change in changes(renamed)} == {"same"}
    moved = compare(on_streams(0, 0, 0, 1), on_streams(0, 0, 1, 1))
    assert [change for *_, change in changes(moved)] == ["same", "same", "stream 0 -> 1", "same"]
    elsewhere = compare(on_streams(0, 0, 0), on_streams(0, 0, 94123456789))
    assert changes(elsewhere)[2] == (2, 2, "another stream")


def test_dependences_that_changed_are_named_with_their_patterns():
    everything = [((0, a), (1, b)) for a in range(3) for b in range(3)]
    diff = compare(side([3, 3], ["a", "b"]), side([3, 3], ["a", "b"], everything))
    (pair,) = diff.pairs
    assert (pair.source, pair.target, pair.side) == (0, 1, "new")
    assert (pair.base_pattern, pair.new_pattern) == ("one-to-one", "all-to-all")
    assert (pair.base_edges, pair.new_edges) == (3, 9)


def test_dependences_of_a_removed_kernel_are_numbered_in_the_base():
    diff = compare(side([2, 2, 2], ["a", "b", "c"]), side([2, 2], ["a", "c"], []))
    assert [(p.source, p.target, p.side, p.new_edges) for p in diff.pairs] == [
        (0, 1, "base", 0),
        (1, 2, "base", 0),
    ]


def test_a_fused_kernel_names_those_in_whose_place_it_stands():
    found = compare(side([2, 2, 2, 2], "abcd"), side([2, 2, 2], "axd")).kernels
    (fused,) = [kernel for kernel in found if kernel.change == "added"]
    assert (fused.name, fused.replaces) == ("x", (1, 2))
    assert fused.base_time == sum(k.base_time for k in found if k.change == "removed")
    alone = compare(side([2, 2], "ad"), side([2, 2, 2], "axd")).kernels
    assert [kernel.replaces for kernel in alone] == [()] * 3


def test_sides_on_different_gpus_or_sizes_are_refused():
    base = side([2, 2], "ab")
    with pytest.raises(ModelError, match="the base is on 4 SMs, the new program on 8 SMs"):
        compare(base, side([2, 2], "ab", sms=8))
    other = replace(base.resources, gpu=depgraph.load_gpu("A100"))
    with pytest.raises(ModelError, match="on H100 SXM, the new program on A100 80GB: give --gpu"):
        compare(base, replace(base, resources_of=lambda _: other))


def test_what_two_recordings_differ_by_is_noise():
    base, again = side([2, 2], "ab"), side([2, 2], "ab", cost=[3, 3, 3, 3])
    found = compare(base, side([2, 2], "ab", cost=[2, 2, 2, 2]), again)
    assert found.is_noise("serial")
    assert not compare(base, side([2, 2], "ab", cost=[9, 9, 9, 9]), again).is_noise("serial")
    assert not compare(base, again).is_noise("serial")


def test_metrics_are_of_each_side():
    diff = compare(side([4, 4], ["a", "b"], []), side([2, 2], ["a", "b"], []))
    assert diff.metrics["upper_bound"] == (1.0, 2.0)
    assert diff.metrics["utilization"] == (1.0, 0.5)


@pytest.fixture
def run(program):
    """Return a function that compares two stores."""
    return lambda *words: program("compare", *words)


@pytest.fixture(scope="module")
def part(tmp_path_factory):
    """Return the store of the first 20 kernels of the packaged trace."""
    folder = tmp_path_factory.mktemp("part")
    return depgraph.extract(parsers.open_trace(sample_path()), folder / "out", kernels=(0, 20))


@pytest.mark.jit_only
def test_the_command_says_what_changed(run, sample_store, part):
    result = run(sample_store.path, part.path, "--sms", 8)
    assert result.code == 0
    assert "kernels: 20 same, 0 changed, 0 added, 5 removed" in result.out
    assert max(map(len, result.out.splitlines())) <= 100


@pytest.mark.jit_only
def test_json_has_numbers(run, sample_store, part):
    words = (sample_store.path, part.path, "--sms", 8, "--format", "json")
    content = json.loads(run(*words).out)
    edges = next(row for row in content["metrics"] if row["metric"] == "edges")
    assert edges["base"] == 994
    assert edges["new"] < 994


@pytest.mark.jit_only
def test_a_regression_exits_with_3_and_says_expected_and_got(run, sample_store, part):
    words = (part.path, sample_store.path, "--sms", 8, "-q", "--fail-on-increase")
    result = run(*words, "edges", "--fail-on-increase", "untraced")
    assert result.code == 3
    (line,) = result.err.splitlines()
    assert line.startswith("depgraph: edges: expected at most ")
    assert line.endswith("got 994")
    assert run(*words, "edges", "--tolerance", 100).code == 0
    assert run(*words, "untraced").code == 0


@pytest.mark.jit_only
def test_total_is_one_number(run, sample_store, part):
    words = (part.path, sample_store.path, "--sms", 8, "--format", "total", "--metric")
    assert run(*words, "utilization").out == "0.09863\n"


@pytest.mark.jit_only
def test_times_of_one_side_alone_are_wrong_usage(run, sample_store, part):
    result = run(sample_store.path, part.path, "--timing", "x.csv")
    assert result.code == 2
    assert "give both" in result.err
