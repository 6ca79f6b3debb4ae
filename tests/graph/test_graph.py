"""The factored block graph answers as its expanded edges would."""

from dataclasses import replace

import naive
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import (
    edges_of,
    graph_of,
    graphs,
    graphs_with_durations,
    list_arrays,
    programs,
    to_lists,
)

from depgraph.errors import ModelError
from depgraph.graph import graph_jit
from depgraph.graph.builder import GraphBuilder
from depgraph.graph.dependences import (
    Basis,
    PairSummary,
    Pattern,
    group_targets,
    labelled_edges,
    pair_joins,
)
from depgraph.graph.graph_jit import mix64
from depgraph.graph.regroup import graph_of_pair
from depgraph.system import arrays
from depgraph.system.arrays import concatenate_lists, gather_lists, list_of_each, lists_of

KINDS = st.sets(st.sampled_from(["RAW", "WAR", "WAW"]), min_size=1)


def pair_between(sources, targets, edges):
    """Return the pairs of a program whose only edges are RAW, each through a byte of its own."""
    byte_of = {edge: 2 * number for number, edge in enumerate(sorted(edges))}
    writers = {s: (set(), {byte_of[e] for e in edges if e[0] == s}) for s in range(sources)}
    readers = {
        sources + t: ({byte_of[e] for e in edges if e[1] == t}, set()) for t in range(targets)
    }
    return graph_of([writers, readers]).pairs()


@pytest.mark.parametrize(
    ("sources", "targets", "edges", "pattern"),
    [
        (2, 2, {(0, 0), (1, 1)}, Pattern.ONE_TO_ONE),
        (2, 4, {(0, 0), (0, 1), (1, 2), (1, 3)}, Pattern.ONE_TO_N),
        (4, 2, {(0, 0), (1, 0), (2, 1), (3, 1)}, Pattern.N_TO_ONE),
        (4, 4, {(s, t) for s in range(4) for t in range(4) if s // 2 == t // 2}, Pattern.GROUPED),
        (4, 4, {(s, t) for s in range(4) for t in range(4) if abs(s - t) < 2}, Pattern.OVERLAPPED),
        (3, 3, {(s, t) for s in range(3) for t in range(3)}, Pattern.ALL_TO_ALL),
    ],
)
def test_patterns(sources, targets, edges, pattern):
    (pair,) = pair_between(sources, targets, edges)
    assert pair.pattern is pattern
    assert pair.edges == pair.raw == len(edges)


def test_kernels_without_a_common_byte_are_no_pair():
    assert pair_between(2, 2, set()) == []


@given(graphs())
def test_edges_are_the_expanded_joins_once_each(graph):
    assert edges_of(graph) == sorted(naive.expand(graph))


@given(graphs(), st.integers(1, 7))
def test_edges_come_in_batches_of_any_size(graph, batch):
    assert edges_of(graph, batch=batch) == edges_of(graph)


@given(graphs())
def test_pairs_count_the_expanded_edges(graph):
    edges = naive.expand(graph)
    expected = []
    for target in range(graph.n_operations):
        for source in range(target):
            blocks = [
                range(graph.first_block[k], graph.first_block[k + 1]) for k in (source, target)
            ]
            counts = naive.pair_counts(edges, *blocks)
            if counts["edges"] or counts["possible"]:
                counts["pattern"] = Pattern(counts["pattern"])
                expected.append(PairSummary(source=source, target=target, **counts))
    assert graph.pairs() == expected


@given(graphs())
def test_the_graph_of_a_pair_has_the_edges_between_them(graph):
    ends, numbers = graph.first_block, graph.kernel.tolist()
    for pair in graph.pairs():
        source, target = numbers.index(pair.source), numbers.index(pair.target)
        alone = graph_of_pair(graph, source, target)
        moved = ends[target] - (ends[source + 1] - ends[source])
        assert edges_of(alone) == [
            (s - ends[source], t - moved, kind)
            for s, t, kind in edges_of(graph)
            if ends[source] <= s < ends[source + 1] and ends[target] <= t < ends[target + 1]
        ]
        (same,) = alone.pairs()
        assert same == pair


@given(graphs(), KINDS)
def test_with_kinds_keeps_the_edges_of_those_kinds(graph, kinds):
    kept = graph.with_kinds(kinds)
    assert edges_of(kept) == [edge for edge in edges_of(graph) if edge[2] in kinds]
    assert kept.kinds == kinds
    assert kept.with_kinds(kinds) is kept


@pytest.mark.parametrize("kinds", [[], ["raw", "rar"]])
def test_with_kinds_knows_three_kinds(kinds):
    graph = graph_of([{0: ({1}, set())}])
    with pytest.raises(ModelError, match="give some of raw, war, waw"):
        graph.with_kinds(kinds)


@given(graphs(), st.integers(1, 7))
def test_labelled_edges_say_what_each_rests_on(graph, batch):
    found = {
        (s, t, naive.KINDS[kind]): (certain, ldgsts)
        for columns in labelled_edges(graph.arrays, batch)
        for s, t, kind, certain, ldgsts in zip(*(c.tolist() for c in columns), strict=True)
    }
    assert found == {
        edge: (basis < Basis.OPAQUE, basis == Basis.LDGSTS)
        for edge, basis in naive.expand(graph).items()
    }


@given(graphs_with_durations(), KINDS)
def test_certain_edges_are_those_of_certain_joins(drawn, kinds):
    graph, durations = drawn
    certain = graph.certain()
    expected = naive.expand(graph)
    assert edges_of(certain) == sorted(e for e, basis in expected.items() if basis < Basis.OPAQUE)
    assert certain.certain() is certain
    assert edges_of(certain.with_kinds(kinds)) == edges_of(graph.with_kinds(kinds).certain())
    assert certain.join_certain.all()
    assert (certain.earliest_finish(durations)[0] <= graph.earliest_finish(durations)[0]).all()


@given(graphs())
def test_without_units_leaves_the_rest(graph):
    free = graph.without_units()
    assert free.without_units() is free
    assert edges_of(free.certain()) == edges_of(graph.certain())
    assert set(edges_of(free)) <= set(edges_of(graph))
    assert Basis.UNIT not in free.join_basis


def test_a_graph_without_possible_joins_is_certain():
    graph = graph_of([{0: (set(), {1})}, {1: ({1}, {1})}])
    assert graph.certain() is graph
    assert graph.without_units() is graph


def test_a_pair_with_nothing_but_possible_edges_has_their_pattern():
    builder = GraphBuilder([0, 1], [3, 2])
    builder.add("RAW", [0, 1, 2], [3, 4], basis=Basis.OPAQUE)
    (pair,) = builder.build().pairs()
    assert (pair.raw, pair.edges, pair.possible, pair.pattern) == (0, 0, 6, Pattern.ALL_TO_ALL)


def test_possible_edges_of_a_pair_are_those_beside_the_certain():
    builder = GraphBuilder([0, 1], [3, 3])
    builder.add("RAW", [0], [3])
    builder.add("RAW", [1], [4], basis=Basis.LDGSTS)
    builder.add("RAW", [0, 1, 2], [3, 4], basis=Basis.UNIT)
    (pair,) = builder.build().pairs()
    assert (pair.raw, pair.edges, pair.ldgsts, pair.possible) == (2, 2, 1, 4)
    assert pair.pattern is Pattern.ONE_TO_ONE


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        (range(1, 4), [1, 2, 3]),
        (range(5, 6), [5]),
        (range(0, 6, 2), [0, 2, 4]),
        (range(5, -1, -1), [0, 1, 2, 3, 4, 5]),
        (range(4, 0, -3), [1, 4]),
        ([3, 1, 3, 2], [1, 2, 3]),
    ],
)
def test_blocks_are_given_as_a_range_or_as_a_list(blocks, expected):
    builder = GraphBuilder([0, 1], [6, 2])
    builder.add("RAW", blocks, range(6, 8))
    builder.add("WAR", list(blocks), np.array([7, 6]))
    graph = builder.build()
    assert edges_of(graph) == sorted(
        (s, t, kind) for s in expected for t in (6, 7) for kind in ("RAW", "WAR")
    )
    assert len(graph.set_operation) == 2  # equal blocks are one set, however they are given


def test_with_kinds_takes_any_case():
    graph = graph_of([{0: (set(), {1})}, {1: ({1}, {1})}])
    assert edges_of(graph.with_kinds(["raw"])) == [(0, 1, "RAW")]


@given(programs(sizes=(2, 3, 2, 1)), programs(sizes=(2, 3, 2, 1)))
def test_edges_not_in_another_graph_are_a_difference_of_sets(program, other):
    one, two = graph_of(program), graph_of(other)
    assert one.count_edges_not_in(two) == len(naive.expand(one).keys() - naive.expand(two).keys())
    assert one.count_edges_not_in(one) == 0


def test_a_block_may_wait_for_more_than_255_others():
    n = 300
    # Block t of the second kernel reads what all of the first have written, and a byte of its own.
    first = {s: (set(), {s, 1000}) for s in range(n)}
    second = {n + t: ({1000, *range(n)}, {2000 + t}) for t in range(n)}
    one, none = (
        graph_of([first, second]),
        graph_of([first, {n + t: (set(), set()) for t in range(n)}]),
    )
    assert one.count_edges_not_in(none) == n * n
    assert sum(len(sources) for sources, _, _ in one.edges()) == n * n


@given(graphs_with_durations())
def test_earliest_finish(drawn):
    graph, durations = drawn
    edges = naive.expand(graph)
    finish, critical = graph.earliest_finish(durations)
    assert finish.tolist() == naive.earliest_finish(edges, durations)
    for block, waits_for in enumerate(critical.tolist()):
        sources = {source for source, target, _ in edges if target == block}
        assert waits_for in (sources or {-1})
        start = finish[block] - durations[block]
        assert start == (finish[waits_for] if sources else 0)


@given(graphs_with_durations())
def test_longest_tail(drawn):
    graph, durations = drawn
    tail = graph.longest_tail(durations)
    assert tail.tolist() == naive.longest_tail(naive.expand(graph), durations)


@given(graphs_with_durations())
def test_the_critical_path_is_the_same_from_both_ends(drawn):
    graph, durations = drawn
    finish, _ = graph.earliest_finish(durations)
    assert finish.max() == graph.longest_tail(durations).max()


@given(graphs_with_durations(), KINDS)
def test_an_edge_less_never_makes_the_critical_path_longer(drawn, kinds):
    graph, durations = drawn
    with_all = graph.earliest_finish(durations)[0]
    with_some = graph.with_kinds(kinds).earliest_finish(durations)[0]
    assert (with_some <= with_all).all()


@given(programs(), st.data())
def test_a_byte_more_never_makes_the_critical_path_shorter(program, data):
    # A byte that no block has touched yet can only add edges.
    n_blocks = sum(map(len, program))
    durations = np.array(
        data.draw(st.lists(st.integers(0, 9), min_size=n_blocks, max_size=n_blocks)), np.float64
    )
    writers = data.draw(st.sets(st.integers(0, n_blocks - 1)))
    readers = data.draw(st.sets(st.integers(0, n_blocks - 1)))
    more = [
        {
            b: (
                reads | ({1000} if b in readers else set()),
                wr | ({1000} if b in writers else set()),
            )
            for b, (reads, wr) in operation.items()
        }
        for operation in program
    ]
    before = graph_of(program)
    after = graph_of(more)
    assert set(edges_of(before)) <= set(edges_of(after))
    assert (after.earliest_finish(durations)[0] >= before.earliest_finish(durations)[0]).all()


@given(graphs(), KINDS)
def test_pairs_that_are_known_are_not_counted_again_and_not_kept_for_other_edges(graph, kinds):
    assert replace(graph, counted=()).pairs() == []
    known = replace(graph, counted=tuple(graph.pairs()))
    assert known.with_kinds(kinds).pairs() == graph.with_kinds(kinds).pairs()
    assert known.certain().pairs() == graph.certain().pairs()


@given(graphs())
def test_networkx_at_kernel_level_has_a_node_a_kernel_and_an_edge_a_pair(graph):
    drawn = graph.to_networkx(level="kernel")
    assert dict(drawn.nodes(data="blocks")) == dict(enumerate(np.diff(graph.first_block).tolist()))
    assert {
        (s, t, d["raw"], d["war"], d["waw"], d["edges"], d["pattern"])
        for s, t, d in drawn.edges(data=True)
    } == {
        (p.source, p.target, p.raw, p.war, p.waw, p.edges, p.pattern.value) for p in graph.pairs()
    }


@given(graphs())
def test_networkx_at_block_level_has_the_expanded_edges(graph):
    kernel, index = graph.block_names()
    names = list(zip(kernel.tolist(), index.tolist(), strict=True))
    drawn = graph.to_networkx(level="block")
    assert list(drawn.nodes) == names
    found = {(s, t, k) for s, t, d in drawn.edges(data=True) for k in d["kinds"].split(",")}
    assert found == {(names[s], names[t], kind) for s, t, kind in naive.expand(graph)}


def test_networkx_has_two_levels():
    with pytest.raises(ModelError, match="level 'warp': give 'kernel' or 'block'"):
        graph_of([{0: ({1}, set())}]).to_networkx(level="warp")


@given(graphs())
def test_pandas_has_a_row_a_pair(graph):
    frame = graph.to_pandas()
    assert len(frame) == len(graph.pairs())
    for row, pair in zip(frame.to_dict("records"), graph.pairs(), strict=True):
        assert PairSummary(**{**row, "pattern": Pattern(row["pattern"])}) == pair


# What it is made of, one by one


SMALL = st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=8)


@given(SMALL)
def test_lists_in_two_arrays(lists):
    offsets, values = lists_of(lists)
    assert to_lists(offsets, values) == lists
    assert list_of_each(offsets).tolist() == [i for i, one in enumerate(lists) for _ in one]


@given(st.lists(SMALL, min_size=1, max_size=3))
def test_concatenate_lists(pieces):
    joined = concatenate_lists([lists_of(lists) for lists in pieces])
    assert to_lists(*joined) == [one for lists in pieces for one in lists]


@given(SMALL, st.data())
def test_gather_lists(lists, data):
    chosen = data.draw(st.lists(st.integers(0, max(0, len(lists) - 1)), max_size=9))
    chosen = chosen if lists else []
    gathered = gather_lists(*list_arrays(lists), np.array(chosen, np.int64))
    assert to_lists(*gathered) == naive.gather_lists(lists, chosen)


@given(SMALL)
def test_invert_lists(lists):
    inverted = graph_jit.invert_lists(*list_arrays(lists), 6)
    assert to_lists(*inverted) == naive.invert_lists(lists, 6)


@given(SMALL, st.data())
def test_intern_lists(lists, data):
    labels = data.draw(st.lists(st.integers(0, 1), min_size=len(lists), max_size=len(lists)))
    with np.errstate(over="ignore"):
        number, first = graph_jit.intern_lists(*list_arrays(lists), np.array(labels, np.int64))
    expected = naive.intern_lists(lists, labels)
    assert number.tolist() == expected
    assert first.tolist() == [expected.index(n) for n in range(len(set(expected)))]


@given(st.lists(st.integers(-(2**62), 2**62), max_size=20))
def test_distinct_values_ascend(values):
    assert arrays.distinct(np.array(values, np.int64)).tolist() == sorted(set(values))


@given(graphs())
def test_the_joins_of_a_pair_are_neighbours(graph):
    operations = list(
        zip(graph.join_source_operation.tolist(), graph.join_target_operation.tolist(), strict=True)
    )
    for low, high, source, target in pair_joins(graph.arrays):
        assert [j for j, pair in enumerate(operations) if pair == (source, target)] == list(
            range(low, high)
        )
        assert graph.joins_between(source, target) == range(low, high)
    assert {tuple(pair[2:]) for pair in pair_joins(graph.arrays)} == set(operations)


@given(graphs())
def test_group_targets_puts_together_the_blocks_that_wait_for_the_same_joins(graph):
    targets = to_lists(*graph.target_lists)
    sets = to_lists(*graph.set_lists)
    for low, high, _, target in pair_joins(graph.arrays):
        groups = group_targets(graph.arrays, low, high, target)
        joins = to_lists(groups.join_offsets, groups.joins)
        members = to_lists(groups.member_offsets, groups.members)
        blocks = range(graph.first_block[target], graph.first_block[target + 1])
        assert sorted(b for group in members for b in group) == list(blocks)
        assert len({tuple(group) for group in joins}) == len(joins)
        for waits, group in zip(joins, members, strict=True):
            for block in group:
                assert groups.number[block - blocks[0]] == members.index(group)
                assert waits == [
                    j for j in range(low, high) if any(block in sets[t] for t in targets[j])
                ]


@given(graphs())
def test_union_sources_collects_each_source_once_with_its_kinds(graph):
    edges = naive.expand(graph)
    for low, high, source, target in pair_joins(graph.arrays):
        first, n = graph.span(source)
        groups = group_targets(graph.arrays, low, high, target)
        members = to_lists(groups.member_offsets, groups.members)
        for g, group in enumerate(members):
            masks, found = np.zeros(n, np.uint16), np.empty(n, np.int32)
            n_found = graph_jit.union_sources(
                graph.arrays, groups.join_offsets, groups.joins, g, source, masks, found
            )
            sources = found[:n_found].tolist()
            assert len(set(sources)) == n_found
            assert {
                (s, group[0], naive.KINDS[k])
                for s in sources
                for k in range(4)
                if int(graph_jit.kinds_of(masks[s - first])) >> k & 1
            } == {e for e in edges if e[1] == group[0] and first <= e[0] < first + n}


@given(st.integers(0, 2**12 - 1))
def test_strongest_codes_keep_what_says_most_of_each_kind(mask):
    order = {kind: (kind, kind + 4, kind + 8) for kind in range(4)}
    present = [[code for code in codes if mask >> code & 1] for codes in order.values()]
    assert graph_jit.strongest_codes(mask) == sum(1 << codes[0] for codes in present if codes)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_mix64(value, salt):
    with np.errstate(over="ignore"):
        assert int(mix64(np.uint64(value), np.uint64(salt))) == naive.mix64(value, salt)
