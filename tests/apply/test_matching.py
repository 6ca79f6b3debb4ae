"""Recorded and captured nodes: the same program, or one clear line that says why not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_graphs import OTHER, POOL, FakeProgram, Kernel
from small_graphs import kernels_of

from depgraph.apply.captured import (
    COPY,
    EMPTY,
    KERNEL,
    MEMSET,
    Captured,
    Node,
    read_captures,
    write_captures,
)  # fmt: skip
from depgraph.apply.matching import (
    Operation,
    is_understood,
    match_memory,
    match_nodes,
    operations_of,
)
from depgraph.errors import ApplyError
from depgraph.graph.program import Copy

PROGRAM = FakeProgram([Kernel([(-64, 8)], [(0, 64)]), Kernel([(0, 64)], [(-512, 8)])])
TOUCHED = PROGRAM.touched()


def launched(*nodes):
    """Return the operations that a recording of nodes has."""
    rows = kernels_of([1] * len(nodes), [n.name for n in nodes])
    return [
        Operation(
            replace(
                row, mangled_name=node.name, grid_x=1, grid_y=1, grid_z=1, block_x=32, block_y=1,
                block_z=1,
            )
        )
        if node.kind == KERNEL
        else Operation(None, "memset" if node.kind == MEMSET else "memcpy DtoD")
        for node, row in zip(nodes, rows, strict=True)
    ]  # fmt: skip


def node(name):
    return Node(KERNEL, name, (1, 1, 1), (32, 1, 1))


def test_empty_nodes_and_what_the_host_does_are_not_in_a_recording():
    nodes = (node("a"), Node("host function"), Node(MEMSET), Node(EMPTY), Node(COPY), node("b"))
    first, second = (Captured(nodes, (), (), call=call) for call in (0, 3))
    operations = launched(node("a"), Node(MEMSET), Node(COPY), node("b")) * 2
    assert match_nodes([first, second], operations, 0) == [0, None, 1, None, 2, 3]
    assert match_nodes([first, second], operations, 1) == [4, None, 5, None, 6, 7]


@pytest.mark.parametrize(
    ("which", "is_free"),
    [
        (Node(KERNEL, "a"), True), (Node(MEMSET), True), (Node(EMPTY), True), (Node(COPY), True),
        (Node(COPY, to_host=True), False), (Node("host function"), False),
        (Node("conditional"), False), (Node("child graph"), False),
    ],
)  # fmt: skip
def test_what_the_host_does_and_is_not_understood_keeps_its_place(which, is_free):
    assert is_understood(which) == is_free


@pytest.mark.parametrize(
    ("recorded", "message"),
    [
        (["a", "x"], "node 1 is b <<<(1, 1, 1), (32, 1, 1)>>>, the recording has x <<<"),
        (["a"], "node 1 is b <<<(1, 1, 1), (32, 1, 1)>>>, the recording has no more"),
        (["a", "b", "c"], "the recording has 1 operations more than the captured graphs"),
    ],
)
def test_a_recording_of_something_else_is_refused(recorded, message):
    graph = Captured((node("a"), node("b")), ((0, 1),), ())
    with pytest.raises(ApplyError, match="record the program as it is now") as error:
        match_nodes([graph], launched(*map(node, recorded)), 0)
    assert message in str(error.value)


def test_operations_are_in_program_order():
    kernels = [replace(k, operation=2 * k.kernel) for k in kernels_of([1, 1])]
    copies = [Copy(copy=0, operation=1, block=2, address=0, size=4, source=None, what="memset")]
    assert [o.kernel is None for o in operations_of(kernels, copies)] == [False, True, False]


def test_memory_that_lies_elsewhere_is_found():
    placed = match_memory(PROGRAM.captured(), PROGRAM.captured(1 << 20), TOUCHED)
    assert placed.region == {0: 0, 1: 1}
    assert [placed.shift_of(region) for region in (0, 1)] == [1 << 20, 0]
    assert placed.recorded == PROGRAM.captured()


def changed(*words):
    captured = PROGRAM.captured()
    return replace(captured, nodes=(replace(captured.nodes[0], words=words), captured.nodes[1]))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (FakeProgram(PROGRAM.kernels[:1]).captured(), "1 nodes were captured, 2 recorded"),
        (replace(PROGRAM.captured(), edges=()), "it uses its streams in another way"),
        (changed((0, 0, OTHER + 64), (1, 0, POOL + 8)), "the memory of node 0 (k0) is laid out"),
        (changed((0, 0, OTHER + 64)), "the memory of node 0 (k0) is laid out in another way"),
        (
            replace(PROGRAM.captured(), nodes=(PROGRAM.captured().nodes[0], node("k2"))),
            "node 1 is k2 <<<(1, 1, 1), (32, 1, 1)>>>, recorded was k1",
        ),
    ],
)
def test_another_program_is_refused(other, message):
    with pytest.raises(ApplyError, match="another program: ") as error:
        match_memory(PROGRAM.captured(), other, TOUCHED)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_words_that_only_look_like_pointers_may_differ():
    """Parameters have gaps, and what lies there is left over from something else."""
    recorded = changed((0, 0, OTHER + 64), (1, 0, POOL), (2, 0, POOL + 4096), (3, 0, OTHER + 65))
    captured = changed((0, 0, OTHER + 64), (1, 0, POOL), (3, 0, OTHER))
    placed = match_memory(recorded, captured, TOUCHED)
    assert placed.region == {0: 0, 1: 1}
    assert placed.recorded.nodes[0].words == ((0, 0, OTHER + 64), (1, 0, POOL))


def test_captured_graphs_come_back_from_their_file(tmp_path):
    captures = [replace(PROGRAM.captured(), call=call) for call in (0, 2)]
    write_captures(tmp_path / "captures.json", captures)
    assert read_captures(tmp_path / "captures.json") == captures


@pytest.mark.parametrize("text", ["", "[1]", '[{"version": 0}]', '[{"version": 1, "nodes": []}]'])
def test_a_damaged_file_is_one_line(text, tmp_path):
    path = tmp_path / "captures.json"
    path.write_text(text)
    with pytest.raises(ApplyError, match="no captured graphs that can be read") as error:
        read_captures(path)
    assert "\n" not in str(error.value)
