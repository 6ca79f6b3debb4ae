"""Buffers: which ranges belong together, what rests on them, and which are worth renaming."""

from dataclasses import replace
from itertools import combinations

import hypothesis.strategies as st
import naive
import numpy as np
import pytest
from hypothesis import given
from programs import BASE, footprints_of, frees_in, graph_of, n_blocks_of, programs
from reused_buffers import SPREAD, address, overwriting, traced
from small_graphs import kernels_of, scenario_of

import depgraph
from depgraph import parsers
from depgraph.analysis.bound import limits_of
from depgraph.analysis.buffers import find_buffers
from depgraph.analysis.renaming import study_renaming
from depgraph.errors import NotApplicableError
from depgraph.parsers.profiles import read_profile
from depgraph.scenario.build_scenario import build_scenario
from depgraph.scenario.scenario import Scenario
from depgraph.scenario.what_if import apply_what_ifs, parse_what_if


def test_neighbours_that_the_same_kernels_write_are_one_buffer():
    program = [{0: (set(), {0, 1}), 1: (set(), {2})}, {2: ({0}, {3, 8})}]
    found = find_buffers(traced(program)).buffers
    assert [(b.start, b.end, b.writers, b.readers) for b in found] == [
        (address(0), address(3), (0,), (1,)),
        (address(3), address(4), (1,), ()),
        (address(8), address(9), (1,), ()),
    ]
    assert not any(b.is_reused for b in found)


def test_a_kernel_that_writes_a_part_splits_a_buffer():
    program = [{0: (set(), {0, 1, 2})}, {1: (set(), {1})}]
    found = find_buffers(traced(program)).buffers
    assert [(b.size, b.writers) for b in found] == [
        (SPREAD, (0,)), (SPREAD, (0, 1)), (SPREAD, (0,)),
    ]  # fmt: skip
    assert [(b.pairs, b.war, b.waw, b.more_bytes) for b in found] == [
        (0, 0, 0, 0), (1, 0, 1, SPREAD), (0, 0, 0, 0),
    ]  # fmt: skip


def test_bytes_of_one_block_of_the_allocator_are_one_buffer():
    footprints, first_block, _ = footprints_of([{0: (set(), {0, 9})}, {1: (set(), {5})}])
    scenario = scenario_of(
        graph_of([{0: (set(), {0, 9})}, {1: (set(), {5})}]), [1, 1],
        kernels=kernels_of(np.diff(first_block).tolist()), read_footprints=lambda: footprints,
    )  # fmt: skip
    (buffer,) = find_buffers(scenario).buffers
    assert (buffer.start, buffer.end, buffer.writers) == (BASE, BASE + 10, (0, 1))
    assert buffer.more_bytes == 0


def test_two_buffers_that_help_together():
    found = study_renaming(traced(overwriting(4), sms=100))
    assert found.upper_bound == 1
    # Without the one, three of the four kernels wait for one another through the other.
    assert found.upper_bound_alone == (pytest.approx(4 / 3), 1)
    (best,) = found.sets
    assert best.upper_bound == found.renamed_upper_bound == 4
    assert best.buffers == (0, 1)
    # Side by side, they are one range.
    assert best.what_ifs == (f"buffer={address(0):#x}:{address(2):#x} drop=war,waw",)
    assert best.more_bytes == (3 + 2) * SPREAD


def restricted(program, low, high):
    """Return a program that touches nothing but the bytes from `low` to `high`."""
    return [
        {b: tuple({x for x in t if low <= x < high} for t in both) for b, both in op.items()}
        for op in program
    ]


@given(programs(), st.data())
def test_each_written_byte_is_in_one_buffer_and_gives_its_edges(program, data):
    frees = data.draw(st.none() | frees_in(program))
    found = find_buffers(traced(program, frees=frees)).buffers
    written = sorted({x for op in program for _, writes in op.values() for x in writes})
    spans = [((b.start - BASE) // SPREAD, (b.end - BASE) // SPREAD) for b in found]
    assert [x for low, high in spans for x in range(low, high)] == written
    for buffer, (low, high) in zip(found, spans, strict=True):
        for x in range(low, high):
            who = tuple(k for k, op in enumerate(program) if any(x in w for _, w in op.values()))
            assert who == buffer.writers
        edges = naive.dependences(restricted(program, low, high), frees or ())
        kinds = [kind for *_, kind in edges]
        found_kinds = {"WAR": buffer.war, "WAW": buffer.waw, "REUSE": buffer.reuse}
        assert found_kinds == {kind: kinds.count(kind) for kind in found_kinds}
        copies = sum(len(set().union(*(w for _, w in op.values())) & set(range(low, high)))
                     for op in program)  # fmt: skip
        assert buffer.more_bytes == (copies - (high - low)) * SPREAD


def bound_without(scenario, buffers):
    """Return the bound as ``--what-if`` gives it."""
    texts = [f"buffer={b.start:#x}:{b.end:#x} drop=war,waw,reuse" for b in buffers]
    return limits_of(apply_what_ifs(scenario, [parse_what_if(t) for t in texts])).upper_bound


def check(scenario):
    """Compare a study with what-ifs about the same buffers; return it."""
    found = study_renaming(scenario)
    assert found.upper_bound == pytest.approx(limits_of(scenario).upper_bound)
    assert found.renamed_upper_bound == pytest.approx(
        limits_of(scenario.with_kinds({"RAW"})).upper_bound
    )
    for buffer in found.buffers:
        alone = found.upper_bound_alone[buffer.number]
        assert alone == pytest.approx(bound_without(scenario, [buffer]))
    for each in found.sets:
        statements = [parse_what_if(text) for text in each.what_ifs]
        assert limits_of(apply_what_ifs(scenario, statements)).upper_bound == pytest.approx(
            each.upper_bound
        )
    return found


@given(programs(max_operations=8, memory=8), st.sampled_from([1, 2, 100]), st.data())
def test_what_is_found_is_what_a_what_if_says(program, sms, data):
    durations = data.draw(
        st.lists(
            st.integers(1, 4), min_size=n_blocks_of(program), max_size=n_blocks_of(program)
        )
    )  # fmt: skip
    frees = data.draw(st.none() | frees_in(program, memory=8))
    scenario = traced(program, durations, sms, frees)
    found = check(scenario)
    if found.renamed_upper_bound <= found.upper_bound * (1 + 1e-9):
        assert found.sets == ()
        return
    # The last set does all that renaming can do, and none of it can be left out.
    best = found.sets[-1]
    assert best.upper_bound == pytest.approx(found.renamed_upper_bound)
    chosen = [found.buffers[n] for n in best.buffers]
    for fewer in combinations(chosen, len(chosen) - 1):
        assert bound_without(scenario, fewer) < best.upper_bound * (1 - 1e-9)
    speedups = [each.upper_bound for each in found.sets]
    assert speedups == sorted(speedups)
    assert found.ranked[0].number in found.sets[0].buffers


@given(programs(max_operations=5, memory=6))
def test_every_set_is_of_buffers_that_are_reused(program):
    found = study_renaming(traced(program))
    assert {b.number for b in found.ranked} == {b.number for b in found.buffers if b.is_reused}
    assert {n for each in found.sets for n in each.buffers} <= {b.number for b in found.ranked}


def test_contexts_share_no_buffer():
    program = [{0: (set(), {0})}, {1: (set(), {0})}]
    scenario = traced(program)
    apart = scenario.with_graph(replace(scenario.graph, space=np.array([0, 1], np.int32)))
    assert [(b.writers, b.pairs) for b in find_buffers(apart).buffers] == [((0, 1), 0)]
    assert [b.pairs for b in find_buffers(scenario).buffers] == [1]


def test_kinds_that_do_not_count_rest_on_nothing():
    scenario = traced(overwriting(3)).with_kinds({"RAW", "WAR"})
    found = check(scenario)
    assert all(buffer.waw == 0 for buffer in found.buffers)
    assert check(scenario.with_kinds({"RAW"})).sets == ()


def test_a_program_that_writes_nothing_has_no_buffers():
    found = study_renaming(traced([{0: ({0}, set())}, {1: ({0}, set())}]))
    assert (found.buffers, found.sets) == ((), ())


def test_it_is_said_where_the_addresses_are_not_known():
    scenario = traced(overwriting(2))
    with pytest.raises(NotApplicableError, match="need the footprints"):
        study_renaming(Scenario(graph=scenario.graph, timing=scenario.timing, sms=2))
    renamed = apply_what_ifs(scenario, [parse_what_if(f"buffer={BASE}+9 drop=war")])
    with pytest.raises(NotApplicableError, match="renamed buffers"):
        study_renaming(renamed)


@pytest.mark.jit_only
def test_real_buffers(sample_store):
    scenario = build_scenario(
        sample_store.graph(None), sample_store.kernels, footprints=sample_store.footprints
    )
    found = check(scenario.on(132))
    assert len(found.buffers) == 20
    assert sum(b.is_reused for b in found.buffers) == 9
    assert [len(each.buffers) for each in found.sets] == [1, 2]


@pytest.mark.jit_only
def test_two_buffers_hold_back_the_mixture_of_experts(shared_data, tmp_path):
    trace = parsers.open_trace(shared_data / "nvbit" / "dyn_moe.log.xz")
    store = depgraph.extract(trace, tmp_path / "dyn_moe")
    profile = read_profile(shared_data / "timing" / "dyn_moe.kineto.json")
    scenario = build_scenario(
        store.graph(None), store.kernels, profile=profile, footprints=store.footprints
    ).on(132)
    found = study_renaming(scenario)
    (best,) = found.sets
    first, second = (found.buffers[n] for n in best.buffers)
    assert (first.size, second.size) == (2048, 2048)
    assert len(first.writers) + len(second.writers) == 181
    assert found.upper_bound == pytest.approx(1.0)
    assert round(best.upper_bound, 2) == 17.66
    assert bound_without(scenario, [first, second]) == pytest.approx(best.upper_bound)
