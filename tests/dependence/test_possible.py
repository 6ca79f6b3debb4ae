"""What a trace leaves open: opaque kernels, kernels that wait inside, reads by LDGSTS."""

from dataclasses import replace

import naive
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import edges_of, graph_of, programs
from small_graphs import chain_edges, kernels_of, scenario_of
from small_graphs import graph_of as graph_of_edges

import depgraph
from depgraph import parsers
from depgraph.analysis.bound import bound_one
from depgraph.dependence.possible import opaque_pairs, with_possible_joins
from depgraph.graph.builder import GraphBuilder, with_possible_joins_of
from depgraph.graph.dependences import FOUND, KIND_NAMES, SUSPECTED, Basis, uncertainty
from depgraph.graph.fuse import merge_kernels
from depgraph.mechanisms import Charges
from depgraph.mechanisms.base import Dataflow, run_mechanism
from depgraph.store.store import write_store

WHY = "reaches global memory at addresses the trace does not hold"


def possible_edges(graph):
    return {edge: basis for edge, basis in naive.expand(graph).items() if basis >= Basis.OPAQUE}


# Opaque kernels


def test_an_opaque_kernel_stands_between_all_before_and_all_after():
    graph = graph_of_edges([2, 1, 2], [((0, 0), (2, 0))])
    opened = with_possible_joins(graph, kernels_of([2, 1, 2], untraced={1: WHY}))
    assert set(edges_of(opened.certain())) == {(0, 3, "RAW")}
    assert possible_edges(opened) == {
        (source, target, kind): Basis.OPAQUE
        for source, target in [(0, 2), (1, 2), (2, 3), (2, 4)]
        for kind in ("RAW", "WAR", "WAW")
    }
    finish, _ = opened.earliest_finish(np.ones(5))
    assert finish.tolist() == [1, 1, 2, 3, 3]
    assert opened.certain().earliest_finish(np.ones(5))[0].tolist() == [1, 1, 1, 2, 1]


def test_what_only_reads_or_only_writes_waits_for_less():
    kernels = kernels_of([1, 1, 1], untraced={1: WHY})
    kernels = [
        replace(kernels[0], written_bytes=0),
        kernels[1],
        replace(kernels[2], read_bytes=0),
    ]
    opened = with_possible_joins(graph_of_edges([1, 1, 1], []), kernels)
    assert edges_of(opened) == [(0, 1, "WAR"), (1, 2, "WAR"), (1, 2, "WAW")]


def test_a_kernel_that_touches_nothing_waits_for_no_opaque_one():
    kernels = kernels_of([1, 1], untraced={0: WHY})
    kernels[1] = replace(kernels[1], read_bytes=0, written_bytes=0)
    graph = graph_of_edges([1, 1], [])
    assert with_possible_joins(graph, kernels) is graph


def test_a_host_copy_is_waited_for():
    graph = GraphBuilder([-1, 0], [1, 2]).build()
    kernel = replace(kernels_of([2], untraced={0: WHY})[0], operation=1, first_block=1)
    opened = with_possible_joins(graph, [kernel])
    assert [e for e in edges_of(opened) if e[2] == "RAW"] == [(0, 1, "RAW"), (0, 2, "RAW")]


def test_address_spaces_stay_apart():
    graph = replace(graph_of_edges([1, 1, 1], []), space=np.array([0, 1, 0], np.int32))
    opened = with_possible_joins(graph, kernels_of([1, 1, 1], untraced={0: WHY, 1: WHY}))
    assert {edge[:2] for edge in edges_of(opened)} == {(0, 2)}


def test_many_opaque_kernels_cost_no_more_than_others():
    sizes = [40] * 400
    graph = graph_of_edges(sizes, chain_edges(sizes))
    opened = with_possible_joins(graph, kernels_of(sizes, untraced=dict.fromkeys(range(400), WHY)))
    assert len(opened.join_kind) == len(graph.join_kind) + 3 * 399
    assert len(opened.set_blocks) == len(graph.set_blocks) + 40 * 400
    assert sum(p.possible for p in opened.pairs()) == 399 * (40 * 40 - 40)


flags = st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=7)


@given(flags, st.data())
def test_what_an_opaque_kernel_may_depend_on_is_ordered_and_nothing_else(drawn, data):
    opaque, reads, writes = (np.array([d[i] for d in drawn], bool) for i in range(3))
    places = st.lists(st.integers(0, 1), min_size=len(drawn), max_size=len(drawn))
    space = data.draw(st.none() | places.map(lambda s: np.array(s, np.int32)))
    found = list(opaque_pairs(opaque, reads, writes, space))
    direct = naive.opaque_pairs(opaque, reads, writes, space)
    assert len({pair[:2] for pair in found}) == len(found) <= 2 * len(drawn)
    for source, target, kinds in found:
        assert kinds
        assert {(source, target, KIND_NAMES[kind]) for kind in kinds} <= direct
    # Of each kind by itself: a chain of RAW may stand for one, but not RAW and WAR in turn.
    for name in KIND_NAMES:
        edges = [(s, t, name) for s, t, kinds in found if KIND_NAMES.index(name) in kinds]
        ordered = naive.reachable(edges, len(drawn))
        assert {(s, t) for s, t, kind in direct if kind == name} <= ordered


@st.composite
def opened_programs(draw):
    """Draw the graph of a program, and its kernels with some opaque and some that wait inside."""
    program = draw(programs())
    sizes = [len(operation) for operation in program]
    kernels = [
        replace(
            kernel,
            untraced=draw(st.sampled_from([None, WHY])),
            waits_inside=draw(st.sampled_from([None, FOUND, SUSPECTED])),
            read_bytes=len(set().union(*(touched[0] for touched in operation.values()))),
            written_bytes=len(set().union(*(touched[1] for touched in operation.values()))),
        )
        for kernel, operation in zip(kernels_of(sizes), program, strict=True)
    ]
    return graph_of(program), kernels


@given(opened_programs())
def test_possible_joins_leave_certain_ones_as_they_are(drawn):
    graph, kernels = drawn
    opened = with_possible_joins(graph, kernels)
    assert edges_of(opened.certain()) == edges_of(graph)
    durations = np.ones(graph.n_blocks)
    assert (opened.earliest_finish(durations)[0] >= graph.earliest_finish(durations)[0]).all()


@given(opened_programs(), st.sets(st.sampled_from(KIND_NAMES), min_size=1))
def test_kinds_may_be_chosen_before_or_after(drawn, kinds):
    graph, kernels = drawn
    after = with_possible_joins(graph, kernels).with_kinds(kinds)
    before = with_possible_joins(graph.with_kinds(kinds), kernels)
    assert naive.expand(after) == naive.expand(before)


@given(opened_programs(), st.integers(1, 3))
def test_schedules_obey_what_is_possible(drawn, sms):
    graph, kernels = drawn
    opened = with_possible_joins(graph, kernels)
    schedule = run_mechanism(
        Dataflow(), scenario_of(opened, np.ones(graph.n_blocks), sms=sms), Charges(())
    )[0]
    for source, target, _ in edges_of(opened):
        assert schedule.start[target] >= schedule.end[source]


# Kernels that wait inside


def test_whole_kernels_are_waited_for_where_blocks_wait_inside():
    edges = [((0, 0), (1, 0)), ((0, 1), (1, 1), "WAR")]
    graph = graph_of_edges([3, 3], edges)
    opened = with_possible_joins(graph, kernels_of([3, 3], waits_inside={0: FOUND}))
    assert edges_of(opened.certain()) == edges_of(graph)
    assert possible_edges(opened) == {
        (1, 3, "RAW"): Basis.UNIT, (2, 3, "RAW"): Basis.UNIT,
        (0, 4, "WAR"): Basis.UNIT, (2, 4, "WAR"): Basis.UNIT,
    }  # fmt: skip
    assert edges_of(opened.without_units()) == edges_of(graph)
    assert {e[:2] for e in edges_of(opened.with_kinds(["raw"]))} == {(0, 3), (1, 3), (2, 3)}


def test_a_block_that_waits_for_the_whole_kernel_already_needs_no_more():
    graph = graph_of_edges([2, 1], [((0, 0), (1, 0)), ((0, 1), (1, 0))])
    whole = GraphBuilder([0, 1], [2, 1])
    whole.add("RAW", [0, 1], [2])
    kernels = kernels_of([2, 1], waits_inside={0: FOUND})
    assert with_possible_joins(whole.build(), kernels).join_basis is None
    assert possible_edges(with_possible_joins(graph, kernels)) == {}


def test_kernels_that_are_only_suspected_stay_free():
    graph = graph_of_edges([2, 2], chain_edges([2, 2]))
    kernels = kernels_of([2, 2], waits_inside={0: SUSPECTED})
    assert with_possible_joins(graph, kernels) is graph


@given(opened_programs())
def test_every_block_that_waits_for_a_unit_waits_for_all_of_it(drawn):
    graph, kernels = drawn
    edges = edges_of(with_possible_joins(graph, kernels))
    ordered = naive.reachable(edges, graph.n_blocks)
    for unit in (k for k in kernels if k.waits_inside == FOUND):
        blocks = range(unit.first_block, unit.first_block + unit.blocks)
        for _, target, _ in [e for e in edges if e[0] in blocks]:
            assert {(block, target) for block in blocks} <= ordered


# What else is made of graphs


def test_positions_of_what_was_there_stay_and_whole_kernels_wait_at_the_start():
    builder = GraphBuilder([0, 1, 2], [1, 2, 1], positions=True)
    builder.add("RAW", [0], [1], needed_at=0.5, done_at=0.25)
    builder.add("RAW", [1], [3], needed_at=0.75, done_at=1.0)
    opened = with_possible_joins(builder.build(), kernels_of([1, 2, 1], untraced={2: WHY}))
    certain = opened.certain()
    assert certain.first_use.tolist() == builder.build().first_use.tolist()
    assert certain.last_use.tolist() == builder.build().last_use.tolist()
    whole = [1.0, 1.0, 1.0, 1.0]
    added = np.setdiff1d(
        opened.sources[~np.repeat(opened.join_certain, np.diff(opened.source_offsets))], []
    )
    members = np.concatenate(
        [opened.last_use[opened.set_offsets[s] : opened.set_offsets[s + 1]] for s in added]
    )
    assert members.tolist() == whole[: len(members)]


def test_an_opaque_kernel_cannot_be_merged_with_one_that_waits_for_all_of_it():
    sizes = [2, 2]
    kernels = kernels_of(sizes, untraced={0: WHY})
    graph = with_possible_joins(graph_of_edges(sizes, chain_edges(sizes)), kernels)
    with pytest.raises(depgraph.errors.ModelError, match="wait for several blocks"):
        merge_kernels(graph, kernels, 0, 1)


@given(opened_programs())
def test_the_possible_joins_of_another_graph(drawn):
    graph, kernels = drawn
    opened = with_possible_joins(graph, kernels)
    bare = GraphBuilder(graph.kernel.tolist(), np.diff(graph.first_block).tolist()).build()
    taken = with_possible_joins_of(bare, opened)
    assert edges_of(taken.certain()) == []
    rest = opened.certain()
    assert set(edges_of(taken)) | set(edges_of(rest)) == set(edges_of(opened))


# Words and stores


def test_a_store_keeps_what_joins_rest_on(tmp_path, sample_trace):
    extraction = depgraph.analyse(parsers.open_trace(sample_trace))
    kernels = [
        replace(k, untraced=WHY) if k.kernel == 3 else
        replace(k, waits_inside=FOUND) if k.kernel == 5 else k for k in extraction.kernels
    ]  # fmt: skip
    graph = with_possible_joins(extraction.graph, kernels)
    store = write_store(replace(extraction, kernels=kernels, graph=graph), tmp_path / "out")
    assert store.graph().join_basis.tolist() == graph.join_basis.tolist()
    assert store.kernels == kernels
    assert store.to_pandas("joins")["certain"].tolist() == graph.join_certain.tolist()
    certain = {e[:2] for e in edges_of(graph.certain())}
    possible = {e[:2] for e in possible_edges(graph)} - certain
    assert sum(p.possible for p in store.pairs) == len(possible)


def test_notes_name_the_kernels_and_count_the_edges():
    builder = GraphBuilder([0, 1, 2, 3], [2, 2, 2, 2])
    builder.add("RAW", [0], [2])
    builder.add("RAW", [1], [3], basis=Basis.LDGSTS)
    kernels = kernels_of([2] * 4, untraced={3: WHY}, waits_inside={0: FOUND, 1: SUSPECTED})
    graph = with_possible_joins(builder.build(), kernels)
    found = uncertainty(kernels, graph.pairs())
    assert (found.opaque, found.units, found.suspected) == ((3,), (0,), (1,))
    assert (found.edges, found.ldgsts_edges) == (2, 1)
    assert found.possible_edges == 2 + 3 * 2 * 2
    opaque, inside, suspected, ldgsts = found.notes
    assert opaque.startswith("kernel 3 may touch memory that the trace does not show (opaque)")
    assert inside.startswith("blocks of kernel 0 wait for each other inside the kernel")
    assert suspected.startswith("blocks of kernel 1 share counters")
    assert ldgsts.startswith("1 of 2 edges (by kind) rest only on reads by LDGSTS (cp.async)")


def test_a_program_that_is_all_certain_has_no_notes():
    assert uncertainty(kernels_of([1, 1]), graph_of_edges([1, 1], []).pairs()).notes == ()


@pytest.mark.jit_only
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("command", ["bound", "report"])
def test_bound_and_report_say_what_rests_on_ldgsts(command, sample_store, tmp_path, program):
    extra = ["-o", str(tmp_path / "report")] if command == "report" else []
    words = [command, str(sample_store.path), "--sms", "8", "--format", "json", *extra]
    result = program(*words)
    assert "618 of 999 edges (by kind) rest only on reads by LDGSTS (cp.async)" in result.out


def test_a_possible_join_bounds_nothing_and_is_obeyed():
    graph = graph_of_edges([1, 1, 1], [])
    opened = with_possible_joins(graph, kernels_of([1, 1, 1], untraced={1: WHY}))
    for sms in (4, np.inf):
        found = bound_one(scenario_of(opened, np.ones(3), sms=sms))
        assert (found.critical_path, found.serial) == (1, 3)
        assert {achieved.makespan for achieved in found.schedules} == {3}


@pytest.mark.jit_only
@pytest.mark.parametrize(
    ("name", "units", "not_real"),
    [
        # Split-K GEMMs whose slices wait for one another; beside them elementwise kernels.
        ("lstm_h128", (0, 1, 3, 4, 6, 7, 9, 10), 0),
        # What a recording did not show of the edges of the trace.
        ("gru_train", (), 522),
        pytest.param("gpt2_d256", (), 2286, marks=pytest.mark.slow),
        ("streams4", (), 0),
    ],
)
def test_real_traces(name, units, not_real, shared_data, tmp_path):
    trace = parsers.open_trace(shared_data / "nvbit" / f"{name}.log.xz")
    store = depgraph.extract(trace, tmp_path / "out")
    found = uncertainty(store.kernels, store.pairs)
    assert (found.opaque, found.units, found.suspected) == ((), units, ())
    assert not_real <= found.ldgsts_edges < found.edges
    assert (found.possible_edges > 0) == bool(units)
