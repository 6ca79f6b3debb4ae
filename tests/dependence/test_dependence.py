"""Who waits for whom: the definition of RAW, WAR and WAW, byte by byte, and its laws."""

import naive
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import (
    edges_of,
    find_dependences,
    footprints_of,
    frees_in,
    graph_of,
    n_blocks_of,
    programs,
    programs_with_ways,
    with_all_reads,
)

from depgraph.dependence.sweep import sweep
from depgraph.errors import ModelError
from depgraph.footprint.footprints import join_footprints
from depgraph.graph.dependences import Basis
from depgraph.system.arrays import list_of_each
from depgraph.trace.records import LDGSTS_READ, READ, WRITE


def program(*operations):
    """Return a program, given one list of (reads, writes) an operation."""
    numbered = []
    first = 0
    for operation in operations:
        numbered.append(
            {first + i: (set(reads), set(writes)) for i, (reads, writes) in enumerate(operation)}
        )
        first += len(operation)
    return numbered


def writes(*touched):
    return (), touched


def reads(*touched):
    return touched, ()


def updates(*touched):
    return touched, touched


def test_a_reader_waits_for_every_block_that_wrote_the_byte():
    graph = graph_of(program([writes(7), writes(7), writes(8)], [reads(7)]))
    assert edges_of(graph) == [(0, 3, "RAW"), (1, 3, "RAW")]


def test_a_reader_waits_for_the_last_writer_alone():
    graph = graph_of(program([writes(7)], [writes(7)], [reads(7)]))
    assert edges_of(graph) == [(0, 1, "WAW"), (1, 2, "RAW")]


def test_a_writer_waits_for_the_readers_since_the_last_writer_and_in_it():
    graph = graph_of(program([reads(7)], [updates(7), reads(7)], [reads(7)], [writes(7)]))
    assert edges_of(graph) == [
        (0, 1, "WAR"),
        (1, 3, "RAW"),
        (1, 4, "WAR"),
        (1, 4, "WAW"),
        (2, 4, "WAR"),
        (3, 4, "WAR"),
    ]


def test_a_first_writer_waits_for_all_earlier_readers():
    graph = graph_of(program([reads(7)], [reads(7)], [writes(7)]))
    assert edges_of(graph) == [(0, 2, "WAR"), (1, 2, "WAR")]


def test_blocks_of_one_kernel_never_wait_for_each_other():
    kernel = program([updates(7), updates(7), reads(7)])
    footprints, first_block, number = footprints_of(kernel)
    graph, shared = find_dependences(footprints, first_block, number)
    assert edges_of(graph) == []
    assert shared.tolist() == [1]


def test_a_block_that_touches_long_does_not_outlive_its_last_byte():
    graph = graph_of(program([reads(*range(10)), reads(2, 3, 12, 13)], [writes(12)]))
    assert edges_of(graph) == [(1, 2, "WAR")]


def test_a_writer_in_between_hides_readers_wherever_else_it_writes():
    graph = graph_of(program([reads(4)], [writes(0, 4)], [writes(4)]))
    assert edges_of(graph) == [(0, 1, "WAR"), (1, 2, "WAW")]


def test_neighbouring_bytes_are_apart():
    assert edges_of(graph_of(program([writes(6), writes(8)], [reads(7)]))) == []


def test_sectors_bring_false_sharing():
    sharing = program([writes(31), writes(32)], [reads(0)])
    assert edges_of(graph_of(sharing)) == []
    assert edges_of(graph_of(sharing, 32)) == [(0, 2, "RAW")]
    assert edges_of(graph_of(sharing, 128)) == [(0, 2, "RAW"), (1, 2, "RAW")]


def test_a_granularity_is_a_power_of_two():
    footprints, _, _ = footprints_of(program([reads(1)]))
    with pytest.raises(ModelError, match="granularity 48 is not a power of two"):
        footprints.rounded(48, 1)


def test_a_host_copy_is_a_kernel_with_a_negative_number():
    footprints, first_block, _ = footprints_of(program([writes(7)], [reads(7)]))
    graph, _ = find_dependences(footprints, first_block, np.array([-1, 0], np.int32))
    kernel, block = graph.block_names()
    assert kernel.tolist() == [-1, 0]
    assert block.tolist() == [0, 0]
    assert [(p.source, p.target) for p in graph.pairs()] == [(-1, 0)]


def test_nothing_touched_gives_a_graph_without_edges():
    graph = graph_of(program([((), ())], [((), ())]))
    assert graph.n_blocks == 2
    assert edges_of(graph) == []
    assert graph.pairs() == []


@pytest.mark.parametrize(
    ("freed", "kinds"),
    [
        ([], ["RAW", "WAR", "WAW"]),
        ([(1, {7})], ["REUSE", "WAR", "REUSE"]),  # the read is of what nobody has written since
        ([(2, {7})], ["RAW", "REUSE", "REUSE"]),
        ([(2, {8})], ["RAW", "WAR", "WAW"]),
        ([(0, {7}), (3, {7})], ["RAW", "WAR", "WAW"]),
    ],
)
def test_a_free_between_two_accesses_makes_them_allocator_reuse(freed, kinds):
    graph = graph_of(program([writes(7)], [reads(7)], [writes(7)]), frees=freed)
    pairs = [(0, 1), (1, 2), (0, 2)]
    assert edges_of(graph) == sorted((*p, k) for p, k in zip(pairs, kinds, strict=True))
    assert graph.kinds == {"RAW", "WAR", "WAW", "REUSE"}


def test_bytes_side_by_side_are_freed_apart():
    # One range of each block, whose middle was freed.
    graph = graph_of(program([writes(6, 7, 8)], [writes(6, 7, 8)]), frees=[(1, {7})])
    assert edges_of(graph) == [(0, 1, "REUSE"), (0, 1, "WAW")]
    (pair,) = graph.pairs()
    assert (pair.waw, pair.reuse, pair.edges) == (1, 1, 1)


@given(st.data())
def test_edges_past_frees_are_those_of_the_definition(data):
    drawn = data.draw(programs(max_operations=8))
    frees = data.draw(frees_in(drawn))
    assert edges_of(graph_of(drawn, frees=frees)) == sorted(naive.dependences(drawn, frees))


@given(st.data())
def test_frees_change_what_dependences_are_called_and_no_order(data):
    drawn = data.draw(programs_with_ways())
    graph = graph_of(drawn, frees=data.draw(frees_in(drawn)))
    without = graph_of(drawn)

    def pairs_of(edges, *kinds):
        return {edge[:2] for edge in edges_of(edges) if edge[2] in kinds}

    assert pairs_of(graph, *graph.kinds) == pairs_of(without, "RAW", "WAR", "WAW")
    for kind in ("RAW", "WAR", "WAW"):
        kept, before = pairs_of(graph, kind), pairs_of(without, kind)
        assert kept <= before <= kept | pairs_of(graph, "REUSE")
    assert graph.with_kinds(without.kinds).kinds == without.kinds


@given(programs())
def test_edges_are_those_of_the_definition(drawn):
    assert edges_of(graph_of(drawn)) == sorted(naive.dependences(drawn))


@given(programs(max_operations=40, max_blocks=2, memory=6))
def test_edges_are_those_of_the_definition_over_many_kernels(drawn):
    assert edges_of(graph_of(drawn)) == sorted(naive.dependences(drawn))


@given(programs_with_ways())
def test_edges_that_rest_on_ldgsts_would_be_gone_without_its_reads(drawn):
    graph = graph_of(drawn)
    whole = naive.dependences(with_all_reads(drawn))
    without = naive.dependences(
        with_all_reads(
            [{b: (*sets[:3], set()) for b, sets in operation.items()} for operation in drawn]
        )
    )
    assert edges_of(graph) == sorted(whole)
    found = naive.expand(graph)
    assert {edge for edge in found if found[edge] == Basis.LDGSTS} == whole - without
    assert sum(pair.ldgsts for pair in graph.pairs()) == len(whole - without)


@given(programs_with_ways())
def test_shared_bytes_do_not_depend_on_how_bytes_are_read(drawn):
    _, shared = find_dependences(*footprints_of(drawn))
    assert shared.tolist() == [naive.shared_bytes(o) for o in with_all_reads(drawn)]


@given(programs_with_ways())
def test_what_blocks_of_a_kernel_do_with_each_others_bytes(drawn):
    footprints, first_block, _ = footprints_of(drawn)
    found = sweep(footprints, list_of_each(first_block), len(drawn)).inside
    assert found.tolist() == [naive.inside(operation) for operation in drawn]


def test_a_block_that_reads_a_byte_both_ways_does_not_rest_on_ldgsts():
    footprints = join_footprints(
        np.array([0, 1, 1, 2], np.int32),
        np.array([WRITE, LDGSTS_READ, READ, LDGSTS_READ], np.uint8),
        np.array([0, 0, 4, 0], np.uint64),
        np.array([8, 8, 8, 8], np.uint64),
        3,
    )
    graph, _ = find_dependences(footprints, np.array([0, 1, 3]), np.array([0, 1], np.int32))
    assert edges_of(graph) == [(0, 1, "RAW"), (0, 2, "RAW")]
    (pair,) = graph.pairs()
    assert (pair.raw, pair.ldgsts) == (2, 1)


@given(programs())
def test_shared_bytes_are_those_that_another_block_of_the_kernel_touches(drawn):
    _, shared = find_dependences(*footprints_of(drawn))
    assert shared.tolist() == [naive.shared_bytes(operation) for operation in drawn]


@given(programs())
def test_the_graph_does_not_depend_on_where_memory_lies(drawn):
    high = find_dependences(*footprints_of(drawn, base=(1 << 57) - 4096))[0]
    low = find_dependences(*footprints_of(drawn, base=0))[0]
    assert edges_of(high) == edges_of(low)


@given(programs(), st.sampled_from([2, 4, 8]))
def test_rounding_is_the_same_as_touching_whole_sectors(drawn, granularity):
    coarse = naive.rounded(drawn, granularity)
    assert edges_of(graph_of(drawn, granularity)) == sorted(naive.dependences(coarse))


@given(programs(), st.sampled_from([2, 4, 8]))
def test_coarser_tracking_keeps_every_order_between_blocks(drawn, granularity):
    # Not every edge: where another kernel writes the rest of a sector in between, the edge to the
    # writer of the byte gives way to a path through that kernel.
    exact = naive.reachable(edges_of(graph_of(drawn)), n_blocks_of(drawn))
    coarse = naive.reachable(edges_of(graph_of(drawn, granularity)), n_blocks_of(drawn))
    assert exact <= coarse


def test_coarser_tracking_may_replace_an_edge_by_a_path():
    shadowed = program([writes(0)], [writes(1)], [reads(0)])
    assert edges_of(graph_of(shadowed)) == [(0, 2, "RAW")]
    assert edges_of(graph_of(shadowed, 2)) == [(0, 1, "WAW"), (1, 2, "RAW")]


@given(programs(), st.sampled_from([2, 4, 8]))
def test_coarser_tracking_keeps_every_edge_that_no_third_writer_shadows(drawn, granularity):
    operation_of = {b: k for k, operation in enumerate(drawn) for b in operation}
    coarse = naive.rounded(drawn, granularity)

    def shadowed(source, target, kind):
        how = {"RAW": (1, 0), "WAR": (0, 1), "WAW": (1, 1)}[kind]
        first, last = operation_of[source], operation_of[target]
        common = coarse[first][source][how[0]] & coarse[last][target][how[1]]
        between = [w for k in range(first + 1, last) for _, w in coarse[k].values()]
        return bool(common & set().union(*between))

    kept = {edge for edge in edges_of(graph_of(drawn)) if not shadowed(*edge)}
    assert kept <= set(edges_of(graph_of(drawn, granularity)))


@given(programs(), st.data())
def test_a_window_of_kernels_has_the_edges_inside_it(drawn, data):
    low = data.draw(st.integers(0, len(drawn) - 1))
    high = data.draw(st.integers(low + 1, len(drawn)))
    window = drawn[low:high]
    first = min(window[0])
    renumbered = [{b - first: touched for b, touched in k.items()} for k in window]
    inside = {b for k in window for b in k}
    assert edges_of(graph_of(renumbered)) == [
        (s - first, t - first, kind)
        for s, t, kind in edges_of(graph_of(drawn))
        if s in inside and t in inside
    ]


@given(programs(max_operations=4), st.sampled_from([1, 4]))
def test_the_factored_graph_is_in_order(drawn, granularity):
    graph = graph_of(drawn, granularity)
    assert (np.diff(graph.set_operation) >= 0).all()
    for low, high in zip(graph.set_offsets[:-1], graph.set_offsets[1:], strict=True):
        assert (np.diff(graph.set_blocks[low:high]) > 0).all()
    keys = list(
        zip(
            graph.join_target_operation.tolist(),
            graph.join_source_operation.tolist(),
            graph.join_kind.tolist(),
            strict=True,
        )
    )
    assert keys == sorted(keys)


def test_all_to_all_is_held_as_one_join():
    blocks = 1000
    split = program([updates(7)] * blocks, [updates(7)] * blocks)
    graph = graph_of(split)
    assert len(graph.join_kind) == 3
    assert len(graph.set_blocks) == 2 * blocks
    (pair,) = graph.pairs()
    assert pair.edges == blocks * blocks
