"""What a check leaves for the program that asked for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_captures import captured, kernel, memory, operator, view

from depgraph.apply.kernel_code import KernelCode
from depgraph.apply.order import chain
from depgraph.apply.verdicts import Verdict, Verdicts, fingerprint
from depgraph.errors import ApplyError
from depgraph.store.companions import checked, write_companion

X, Y = memory(0), memory(1)


def test_verdicts_come_back_from_their_file(tmp_path):
    path = tmp_path / "verdicts.json"
    found = Verdicts(
        weights=[1.0, 2.0], graphs=[Verdict("free, 2 lanes", "abc", 3.0, "call 1: 0 differs", 9)],
        inputs=4, varies=True, may_change=["net.cache"], notes=["seed 7"],
        codes={"k": KernelCode("it loads addresses", frozenset({8, -1}), reads_variables=True)},
    )  # fmt: skip
    found.write(path)
    assert Verdicts.read(path) == found
    assert Verdicts.read(path).of("free, 2 lanes", "abc").orders == 9
    assert Verdicts.read(path).of("free, 2 lanes", "other edges") is None


@pytest.mark.parametrize(
    "content",
    [
        {"x": 1},
        {"graphs": [1]},
        {"graphs": [], "codes": []},
        {"graphs": [], "codes": {}, "x": 1},
    ],
)
def test_damaged_verdicts_are_one_line(content, tmp_path):
    path = tmp_path / "verdicts.json"
    write_companion(path, content, what=checked(0))
    with pytest.raises(ApplyError, match="what the check found cannot be read") as error:
        Verdicts.read(path)
    assert "\n" not in str(error.value)


GRAPH = captured((operator("mm", [X], [Y]), [kernel("a", X)]), kernel("b"))


@pytest.mark.parametrize(
    "other",
    [
        replace(GRAPH, nodes=GRAPH.nodes[:1], edges=()),
        captured((operator("bmm", [X], [Y]), [kernel("a", X)]), kernel("b")),
        captured((operator("mm", [view(X, 0, (8,))], [Y]), [kernel("a", X)]), kernel("b")),
        captured((operator("mm", [X], [Y]), [kernel("a", X), kernel("b")])),
    ],
)
def test_a_verdict_is_of_one_graph(other):
    edges = chain(2)
    assert fingerprint(GRAPH, edges) == fingerprint(GRAPH, edges)
    assert fingerprint(other, chain(len(other.nodes))) != fingerprint(GRAPH, edges)
    assert fingerprint(GRAPH, []) != fingerprint(GRAPH, edges)


def test_where_memory_lies_changes_nothing():
    moved = captured((operator("mm", [memory(7)], [memory(8)]), [kernel("a", X)]), kernel("b"))
    assert fingerprint(moved, chain(2)) == fingerprint(GRAPH, chain(2))
