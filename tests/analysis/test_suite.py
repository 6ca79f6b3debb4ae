"""Means over programs: geometric, with their spread, over those that have a value."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from depgraph.analysis.bound import Bound, Outcome
from depgraph.analysis.suite import Broken, ProgramResult, Suite
from depgraph.reports.plots.style import house_style
from depgraph.reports.plots.suite_bars import default_policies, plot
from depgraph.reports.tables.render import render
from depgraph.reports.tables.suite_table import suite_report


def policy(name, availability, speedup, predicted=None, against="block"):
    return Outcome(
        name, availability, 8.0, 1.0, speedup or 0.0, 1.0, speedup or 0.0, None, 1.0, 1.0, 0.0,
        against, 2.0, 4.0, (), "" if speedup else "a block", predicted_speedup=predicted,
    )  # fmt: skip


STREAMS = policy("streams", "ships today", 1.0)
GRAPH = policy("cuda-graph", "ships today", 2.0, 1.5)
CUTS = policy("stream-k", "needs a code change", 9.0, against="work")
WIREFRAME = policy("wireframe", "needs hardware", 4.0)
BOUND = Bound(8.0, "RAW,WAR,WAW", serial=8.0, critical_path=1.0, work=2.0)
RENAMED = Bound(8.0, "RAW", serial=8.0, critical_path=1.0, work=1.0)
BASIS = SimpleNamespace(gpu="H100 SXM", unit="us", durations="a profile", kernels=2, blocks=4)
ONE = ProgramResult(
    "one", "one.out", BASIS, BOUND, RENAMED, WIREFRAME, (STREAMS, GRAPH, CUTS, WIREFRAME)
)
TWO = replace(
    ONE, program="two", bound=BOUND._replace(work=8.0), renamed=RENAMED._replace(work=4.0),
    best=STREAMS, policies=(STREAMS, policy("cuda-graph", "ships today", None, 1.5)),
)  # fmt: skip
FAILED = Broken("three", "three.out", "three.out: no such store")


def on_16(result):
    return replace(result, bound=result.bound._replace(sms=16.0))


def mean(suite, column, *, is_predicted=False):
    (found,) = [m for m in suite.means if (m.column, m.is_predicted) == (column, is_predicted)]
    return found


def test_means_are_geometric_and_their_spread_is_a_factor():
    found = mean(Suite([ONE, TWO, FAILED]), "upper_bound")
    assert (found.programs, found.least, found.most) == (2, 1.0, 4.0)
    assert found.mean == pytest.approx(math.sqrt(4.0 * 1.0))
    # The sample's standard deviation of ln 4 and ln 1 is ln 4 / sqrt(2).
    assert found.spread == pytest.approx(4.0 ** (1 / math.sqrt(2)))


def test_a_deadlock_and_what_a_policy_cannot_do_are_in_no_mean():
    suite = Suite([ONE, TWO])
    assert mean(suite, "cuda-graph").programs == 1
    assert mean(suite, "cuda-graph").spread is None
    assert mean(suite, "cuda-graph", is_predicted=True).mean == pytest.approx(1.5)
    assert mean(suite, "wireframe").programs == 1
    assert any("wireframe: 1 of 2 programs" in note for note in suite_report(suite).notes)


def test_means_are_taken_on_each_size_unless_each_program_has_its_own():
    own = Suite([ONE, on_16(TWO)])
    assert {m.size for m in own.means} == {"its own GPU"}
    both = Suite([ONE, on_16(ONE), TWO, on_16(TWO)])
    assert {m.size for m in both.means} == {"8 SMs", "16 SMs"}


def test_a_broken_program_is_a_row_that_says_why():
    report = suite_report(Suite([ONE, FAILED]))
    text = render(report, "table")
    assert "three failed: three.out: no such store" in text
    header, _, last = render(report, "csv").splitlines()
    assert last.startswith("three,three.out,,,")
    assert last.endswith(",three.out: no such store")
    keys = header.split(",")
    assert len(keys) == len(set(keys))


def test_a_suite_of_nothing_but_broken_programs_is_described_too():
    suite = Suite([FAILED])
    assert suite.means == []
    assert "three failed" in render(suite_report(suite), "markdown")
    with house_style():
        assert plot(suite).result == "No program could be read."


def test_the_chart_shows_the_best_policy_of_each_kind_that_the_bound_holds_for():
    suite = Suite([ONE, TWO])
    # cuda-graph is faster, but only for one of the programs.
    assert default_policies(suite) == ["streams", "wireframe"]


def test_the_chart_has_a_bar_for_each_program_and_policy_and_for_the_mean():
    suite = Suite([ONE, TWO, FAILED])
    with house_style():
        axes = plot(suite, ["streams", "cuda-graph"]).figure.axes[0]
    heights = [[1 + bar.get_height() for bar in bars] for bars in axes.containers]
    assert heights == [pytest.approx([1.0, 1.0, 1.0]), pytest.approx([2.0, 2.0])]
    assert [label.get_text() for label in axes.get_xticklabels()] == [
        "one",
        "two",
        "three",
        "geomean",
    ]
    assert "failed" in [text.get_text() for text in axes.texts]
