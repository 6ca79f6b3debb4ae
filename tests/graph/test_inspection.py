"""Questions about one block, and about the critical path, answered from explicit edges."""

import naive
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import (
    BASE,
    edges_of,
    find_dependences,
    footprints_of,
    frees_in,
    frees_of,
    graph_of,
    graphs_with_durations,
    programs,
)

from depgraph.errors import ModelError
from depgraph.graph.queries import (
    block_number,
    common_ranges,
    critical_path,
    describe_neighbours,
    neighbour_kinds,
)
from depgraph.trace.records import READ, WRITE


def kinds_of(edges, block, *, is_source):
    found = {}
    for source, target, kind in edges:
        if is_source and target == block:
            found.setdefault(source, set()).add(kind)
        if not is_source and source == block:
            found.setdefault(target, set()).add(kind)
    return found


@given(graphs_with_durations())
def test_neighbours_are_the_ends_of_edges(drawn):
    graph, _ = drawn
    edges = edges_of(graph)
    for block in range(graph.n_blocks):
        sources, targets = neighbour_kinds(graph, block)
        assert sources == kinds_of(edges, block, is_source=True)
        assert targets == kinds_of(edges, block, is_source=False)


@given(programs(max_operations=4), st.data())
def test_neighbours_are_described_by_common_bytes(program, data):
    footprints, first_block, kernel = footprints_of(program)
    frees = data.draw(st.none() | frees_in(program))
    freed = frees_of(frees, len(program))
    graph, _ = find_dependences(footprints, first_block, kernel, freed)
    touched = {b: both for operation in program for b, both in operation.items()}
    block = data.draw(st.sampled_from(sorted(touched)))
    sources, targets = neighbour_kinds(graph, block)
    for found, is_source in ((sources, True), (targets, False)):
        described = describe_neighbours(graph, footprints, block, found, is_source=is_source)
        assert len(described) == len(found)
        for neighbour, other in zip(described, sorted(found), strict=True):
            earlier, later = (other, block) if is_source else (block, other)
            assert graph.first_block[neighbour.kernel] + neighbour.block == other
            assert set(neighbour.kinds) == found[other]
            first, last = graph.operation_of_block[[earlier, later]]
            freed_since = {b for k, some in frees or () if first < k <= last for b in some}
            shared = {
                "RAW": touched[earlier][1] & touched[later][0],
                "WAR": touched[earlier][0] & touched[later][1],
                "WAW": touched[earlier][1] & touched[later][1],
            }
            bytes_of = {kind: len(some - freed_since) for kind, some in shared.items()}
            bytes_of["REUSE"] = len(set().union(*shared.values()) & freed_since)
            assert [getattr(neighbour, f"{kind.lower()}_bytes") for kind in naive.KINDS] == [
                bytes_of[kind] if kind in found[other] else 0 for kind in naive.KINDS
            ]
            assert all(bytes_of[kind] > 0 for kind in found[other])


@given(programs(sizes=(1, 1)))
def test_common_bytes(program):
    footprints, _, _ = footprints_of(program)
    one, two = footprints.of_block(0), footprints.of_block(1)
    for first in (READ, WRITE):
        for second in (READ, WRITE):
            common = program[0][0][first] & program[1][1][second]
            found = common_ranges(one.take(one.kind == first), two.take(two.kind == second))
            pairs = zip(found.start.tolist(), found.end.tolist(), strict=True)
            assert {byte - BASE for low, high in pairs for byte in range(low, high)} == common


@given(graphs_with_durations())
def test_the_critical_path_is_a_path_of_greatest_length(drawn):
    graph, durations = drawn
    edges = edges_of(graph)
    path = critical_path(graph, durations)
    longest = max(naive.earliest_finish(edges, durations))
    assert sum(step.duration for step in path) == longest
    now = 0
    for before, step in zip([None, *path], path, strict=False):
        block = block_number(graph, step.kernel, step.block)
        assert (step.start, step.duration) == (now, durations[block])
        now += step.duration
        if before is None:
            assert step.kinds == ()
        else:
            source = block_number(graph, before.kernel, before.block)
            assert set(step.kinds) == {kind for s, t, kind in edges if (s, t) == (source, block)}
            assert step.kinds


def test_a_path_through_kernels():
    program = [{0: (set(), {1}), 1: (set(), {2})}, {2: ({2}, {3})}, {3: ({3}, {2})}]
    path = critical_path(graph_of(program), np.array([9.0, 5.0, 1.0, 2.0]))
    assert [(s.kernel, s.block, s.start, s.kinds) for s in path] == [(0, 0, 0.0, ())]
    path = critical_path(graph_of(program), np.array([7.0, 5.0, 1.0, 2.0]))
    assert [(s.kernel, s.block, s.start, s.kinds) for s in path] == [
        (0, 1, 0, ()),
        (1, 0, 5, ("RAW",)),
        (2, 0, 6, ("RAW", "WAR")),
    ]


@pytest.mark.parametrize(
    ("kernel", "block", "message"),
    [
        (3, 0, "there is no kernel 3: the store has 0 to 2"),
        (-1, 0, "there is no kernel -1: the store has 0 to 2"),
        (0, 2, "kernel 0 has blocks 0 to 1, not 2"),
        (0, -1, "kernel 0 has blocks 0 to 1, not -1"),
    ],
)
def test_a_block_that_is_not_there(kernel, block, message):
    program = [{0: (set(), {1}), 1: (set(), set())}, {2: (set(), {1})}, {3: (set(), {1})}]
    with pytest.raises(ModelError, match=message):
        block_number(graph_of(program), kernel, block)
