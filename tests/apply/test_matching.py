"""Recorded and captured nodes: the same program, or one clear line that says why not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from small_captures import captured, kernel, memory, operator, view
from small_graphs import kernels_of

from depgraph.apply.captured import (
    COPY,
    EMPTY,
    KERNEL,
    MEMSET,
    TARGET,
    Node,
    Pointer,
    read_captures,
    write_captures,
)
from depgraph.apply.matching import match_nodes, operations_of, refuse_other_nodes
from depgraph.errors import ApplyError
from depgraph.graph.program import Copy
from depgraph.store.companions import CAPTURES, write_companion

X = memory(0)


def launched(*nodes):
    """Return the operations that a recording of nodes has."""
    rows = kernels_of([1] * len(nodes), [n.name for n in nodes])
    return [
        replace(
            row, mangled_name=node.name, grid_x=1, grid_y=1, grid_z=1, block_x=32, block_y=1,
            block_z=1,
        )
        if node.kind == KERNEL
        else Copy(0, 0, 0, None, 0, None, "memset" if node.kind == MEMSET else "memcpy DtoD")
        for node, row in zip(nodes, rows, strict=True)
    ]  # fmt: skip


def test_empty_nodes_and_what_the_host_does_are_not_in_a_recording():
    others = (Node("host function"), Node(MEMSET), Node(EMPTY), Node(COPY))
    graph = captured(kernel("a"), *others, kernel("b"))
    graphs = [graph, replace(graph, call=3)]
    operations = launched(kernel("a"), Node(MEMSET), Node(COPY), kernel("b")) * 2
    assert match_nodes(graphs, operations, 0) == [0, None, 1, None, 2, 3]
    assert match_nodes(graphs, operations, 1) == [4, None, 5, None, 6, 7]


def test_memory_that_lies_elsewhere_or_is_laid_out_otherwise_is_the_same_program():
    def graph(first):
        fill = Node(MEMSET, pointers=(Pointer(TARGET, memory(first + 5)),))
        return captured(operator("relu", [memory(first)], [memory(first + 1)]), fill)

    refuse_other_nodes(graph(0), graph(40))
    with pytest.raises(ApplyError, match="node 1 is a copy, recorded was a memset"):
        refuse_other_nodes(graph(0), replace(graph(0), nodes=(graph(0).nodes[0], Node(COPY))))


@pytest.mark.parametrize(
    ("recorded", "message"),
    [
        (["a", "x"], "node 1 is b <<<(1, 1, 1), (32, 1, 1)>>>, the recording has x <<<"),
        (["a"], "node 1 is b <<<(1, 1, 1), (32, 1, 1)>>>, the recording has no more"),
        (["a", "b", "c"], "the recording has 1 operations more than the captured graphs"),
    ],
)
def test_a_recording_of_something_else_is_refused(recorded, message):
    graph = captured(kernel("a"), kernel("b"))
    with pytest.raises(ApplyError, match="record the program as it is now") as error:
        match_nodes([graph], launched(*map(kernel, recorded)), 0)
    assert message in str(error.value)


def test_operations_are_in_program_order():
    kernels = [replace(k, operation=2 * k.kernel) for k in kernels_of([1, 1])]
    copies = [Copy(copy=0, operation=1, block=2, address=0, size=4, source=None, what="memset")]
    assert operations_of(kernels, copies) == [kernels[0], *copies, kernels[1]]


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([kernel("a")], "1 nodes were captured, 2 recorded"),
        ([kernel("a"), kernel("c")], "node 1 is c <<<(1, 1, 1), (32, 1, 1)>>>, recorded was b"),
        ([kernel("a"), Node(MEMSET)], "node 1 is a memset, recorded was b <<<"),
    ],
)
def test_another_program_is_refused(nodes, message):
    recorded = captured(kernel("a", X), kernel("b"))
    refuse_other_nodes(recorded, captured(kernel("a", memory(5)), kernel("b")))
    with pytest.raises(ApplyError, match="another program: ") as error:
        refuse_other_nodes(recorded, captured(*nodes))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_captured_graphs_come_back_from_their_file(tmp_path):
    step = operator("mm", [view(X, 8, (2, 3), (16, 4))], [memory(1)], [memory(2)], (memory(3),))
    graph = captured((step, [kernel("gemm", X)]), Node(COPY, to_host=True), before=2)
    graphs = [graph, replace(graph, call=2)]
    write_captures(tmp_path / "captures.json", graphs)
    assert read_captures(tmp_path / "captures.json") == graphs


DAMAGED = [
    "1", "[[]]", "[1]", "[{}]", '[{"version": 1}]', '[{"version": 2, "nodes": []}]',
    '[{"version": 2, "nodes": [], "calls": [], "edges": [[0, 1]], "before": 0, "call": 0}]',
    '[{"version": 2, "nodes": [], "calls": [], "edges": [[1, 0]], "before": 0, "call": 0}]',
]  # fmt: skip


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_file_is_one_line(text, tmp_path):
    path = tmp_path / "captures.json"
    write_companion(path, {"captures": json.loads(text)}, what=CAPTURES)
    with pytest.raises(ApplyError, match="no captured graphs that can be read") as error:
        read_captures(path)
    assert "\n" not in str(error.value)
