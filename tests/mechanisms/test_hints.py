"""Filters over software hints: slow twins, and the laws that none of them may break."""

from dataclasses import replace
from itertools import pairwise

import naive_hints
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_programs import one_column, one_row
from small_graphs import graph_of, scenario_of
from touching import program_of

from depgraph.analysis.compare_mechanisms import compare_mechanisms
from depgraph.errors import ModelError, NotApplicableError
from depgraph.mechanisms import Charges, Quantity, bloom, dataflow_hints, find_mechanisms
from depgraph.mechanisms.base import run_mechanism
from depgraph.mechanisms.dataflow_hints import hinted_waits
from depgraph.mechanisms.hints import GRAINS, KEY_BYTES, hints_of
from depgraph.reports.tables.mechanism_tables import comparison_report
from depgraph.trace.records import READ, WRITE, Allocation

FREE = {"lookup": Quantity(0, "cycles")}
grains = st.sampled_from(GRAINS)
sorts = st.sampled_from(["ring", "counting"])


@st.composite
def programs(draw, most_sms=4):
    """Draw a program that touches a few pages, and allocations that need not fit."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    n_blocks = sum(sizes)
    place, size = st.integers(0, 200).map(lambda n: 96 * n), st.integers(1, 3000)
    ranges = st.tuples(st.integers(0, n_blocks - 1), st.sampled_from([READ, WRITE]), place, size)
    touched = draw(st.lists(ranges, min_size=1, max_size=12))
    # A few of several pages: what lies between the first and the last of a row counts as touched.
    large = st.sampled_from([3 << 12, 5 << 12])
    lives = st.tuples(place, size | large, st.integers(0, 4), st.none() | st.integers(4, 6))
    allocations = [Allocation(*life) for life in draw(st.lists(lives, max_size=4))]
    return program_of(
        [(b, kind, at, at + n) for b, kind, at, n in touched],
        sizes,
        allocations=allocations,
        shape=draw(st.sampled_from([one_row, one_column])),
        durations=draw(st.lists(st.integers(1, 6), min_size=n_blocks, max_size=n_blocks)),
        sms=draw(st.sampled_from([np.inf, *range(1, most_sms)])),
    )


def run(name, program, costs=None):
    (mechanism,) = find_mechanisms([name])
    known = {cost.name for cost in mechanism.costs}
    changed = {n: q for n, q in (FREE | (costs or {})).items() if n in known}
    return run_mechanism(mechanism, program, Charges(mechanism.costs, changed, clock_mhz=1000))


def makespan(name, program):
    return run(name, program)[0].makespan


# Laws.


@given(
    programs(), grains, st.sampled_from([0, 1, 16, 64]), st.integers(1, 3), st.integers(1, 6), sorts
)
def test_no_dependence_is_missed(program, grain, bits, hashes, window, sort):
    name = f"dataflow-hints({grain},{bits},{hashes},{window},{sort})"
    schedule, rules = run(name, program)
    for sources, targets, _ in program.graph.edges():
        assert (schedule.start[targets] >= schedule.end[sources]).all()
    assert rules.figures["missed"] == 0


@given(programs(), st.sampled_from(["ring", "counting"]))
def test_finer_hints_are_no_slower_where_no_block_waits_for_room(program, sort):
    # With SMs for all blocks a list schedule is its longest path: no anomaly. All kernels are in
    # the window, so that all are unfinished at every look-up, which takes no time.
    program = program.on(np.inf)
    names = [f"dataflow-hints({grain},0,1,100,{sort})" for grain in ("block", "row", "tensor")]
    times = [makespan(name, program) for name in ("dataflow", *names, "serial")]
    assert all(finer <= coarser for finer, coarser in pairwise(times))


@given(programs(), st.integers(1, 6))
def test_finer_hints_are_no_slower_in_a_ring_of_any_size(program, window):
    program = program.on(np.inf)
    names = [f"dataflow-hints({grain},0,1,{window},ring)" for grain in ("block", "row", "tensor")]
    times = [makespan(name, program) for name in ("dataflow", *names, "serial")]
    assert all(finer <= coarser for finer, coarser in pairwise(times))


@given(programs(), grains, st.integers(1, 6), sorts)
def test_a_filter_of_enough_bits_says_what_the_hints_do(program, grain, window, sort):
    # A few hundred keys in 2 ** 20 bits: that all four hashes of one collide will not happen.
    exact, large = (
        run(f"dataflow-hints({grain},{bits},4,{window},{sort})", program) for bits in (0, 1 << 20)
    )
    assert (large[0].start == exact[0].start).all()
    sizes = [{**rules.figures, "bits": None} for _, rules in (exact, large)]
    assert sizes[0] == sizes[1]
    if sort == "ring":
        assert exact[1].figures["by_filter"] == 0


@given(programs(), grains)
def test_hints_cover_what_is_touched_and_coarser_ones_cover_finer_ones(program, grain):
    hints = hints_of(program, grain)
    keys = naive_hints.keys_of(hints)
    footprints = program.read_footprints()
    rows = list(zip(*footprints.columns, strict=True))
    for block, kind, start, end in rows:
        for other, its_kind, its_start, its_end in rows:
            if start < its_end and its_start < end:
                shared = (
                    keys[hints.unit_of_block[block]][kind]
                    & (keys[hints.unit_of_block[other]][its_kind])
                )
                assert shared
    if grain != "block":
        finer = hinted_waits(program, GRAINS[GRAINS.index(grain) + 1])
        coarser = hinted_waits(program, grain)
        fine, coarse = (a.shared[a.hints.unit_of_block] for a in (finer, coarser))
        assert not (fine & ~coarse).any()


# Slow twins.


@given(
    programs(), grains, st.sampled_from([0, 1, 16, 64]), st.integers(1, 3), st.integers(1, 6), sorts
)
def test_blocks_wait_as_in_the_slow_twin(program, grain, bits, hashes, window, sort):
    program = program.on(np.inf)
    schedule, _ = run(f"dataflow-hints({grain},{bits},{hashes},{window},{sort})", program)
    expected = naive_hints.end_times(
        hints_of(program, grain), program.durations, program.graph.kinds, bits=bits,
        hashes=hashes if bits else 0, window=window, counting=sort == "counting",
    )  # fmt: skip
    assert schedule.end.tolist() == expected


@given(programs(), grains)
def test_keys_are_those_of_the_slow_twin(program, grain):
    graph, footprints = program.graph, program.read_footprints()
    hints = hints_of(program, grain)
    expected = naive_hints.keys_by_hand(
        [
            tuple(map(int, row))
            for row in zip(
                footprints.block, footprints.access, footprints.start, footprints.end, strict=True
            )
        ],
        graph.operation_of_block, hints.unit_of_block, program.allocations, graph.n_operations,
        KEY_BYTES.get(grain),
    )  # fmt: skip
    if grain == "row":
        expected = [tuple(map(naive_hints.spanned, unit)) for unit in expected]
    found = naive_hints.keys_of(hints)
    assert len(found) == len(expected)
    # Keys have other names, so what they have in common is compared.
    flat = [keys for unit in found for keys in unit], [keys for unit in expected for keys in unit]
    shared = [[len(one & other) for one in keys for other in keys] for keys in flat]
    assert shared[0] == shared[1]


# By hand.


def test_a_row_waits_for_pages_and_a_block_for_lines():
    # Two blocks of the first kernel write two lines of a page; the second kernel reads one each.
    touched = [(0, WRITE, 0, 4), (1, WRITE, 128, 132), (2, READ, 256, 260), (3, READ, 128, 132)]
    program = program_of(touched, [2, 2], durations=[3, 3, 1, 1])
    block, row, tensor = (
        run(f"dataflow-hints({grain},0)", program)[0].start[2:].tolist()
        for grain in ("block", "row", "tensor")
    )
    assert block == [0, 3]
    assert row == tensor == [3, 3]


def test_a_row_reaches_over_the_pages_between_what_it_touches():
    # The first block writes to two ends of what both kernels touch without a gap.
    touched = [(0, WRITE, 0, 4), (0, WRITE, 8192, 8196), (1, READ, 0, 12288), (2, READ, 4096, 8192),
               (3, READ, 0, 4096), (3, READ, 8192, 12288)]  # fmt: skip
    program = program_of(touched, [2, 2], shape=one_column, durations=[3, 3, 1, 1])
    block, row = (run(f"dataflow-hints({grain},0)", program)[0] for grain in ("block", "row"))
    assert (block.start[2], row.start[2]) == (0, 3)


def test_a_tensor_is_an_allocation_while_it_stands():
    # The kernels touch two ends of one allocation; then another's, which takes its memory or not.
    touched = [(0, WRITE, 0, 4), (1, READ, 4096, 4100)]
    for address, start in ((4096, 5), (8192, 0)):
        lives = [Allocation(0, 8192, 0, 2), Allocation(address, 4096, 2)]
        own = [*touched, (2, READ, address, address + 4)]
        program = program_of(own, [1, 1, 1], allocations=lives, durations=[5, 1, 1])
        assert run("dataflow-hints(tensor,0)", program)[0].start.tolist() == [0, 5, start]


def test_what_was_freed_is_no_tensor_of_later_kernels():
    # The first kernel's allocation spanned what is two when the others are launched.
    touched = [(0, READ, 65536, 65540), (1, WRITE, 0, 4), (2, READ, 4096, 4100)]
    spanning, *own = Allocation(0, 8192, 0, 1), Allocation(0, 4096, 1), Allocation(4096, 4096, 1)
    for freed, start in ((1, 0), (3, 5)):
        lives = [replace(spanning, freed=freed), *own]
        program = program_of(touched, [1, 1, 1], allocations=lives, durations=[1, 5, 1])
        assert run("dataflow-hints(tensor,0)", program)[0].start[2] == start


def test_of_a_segment_with_many_tensors_a_launch_names_what_it_touches():
    touched = [(0, WRITE, 0, 512), (1, READ, 4096, 4100), (2, READ, 0, 4)]
    for size, starts in ((2 << 20, [0, 0, 5]), (1 << 20, [0, 5, 5])):
        lives = [Allocation(0, size, 0)]
        program = program_of(touched, [1, 1, 1], allocations=lives, durations=[5, 1, 1])
        assert run("dataflow-hints(tensor,0)", program)[0].start.tolist() == starts


def test_a_counting_filter_does_not_tell_whom_to_wait_for():
    touched = [(0, WRITE, 0, 4), (1, WRITE, 8192, 8196), (2, READ, 0, 4)]
    program = program_of(touched, [1, 1, 1], durations=[2, 9, 1])
    ring, counting = (
        run(f"dataflow-hints(tensor,0,1,32,{sort})", program) for sort in ("ring", "counting")
    )
    assert (ring[0].start[2], counting[0].start[2]) == (2, 9)
    assert ring[1].figures == {
        "lookups": 3, "true": 1, "by_grain": 0, "by_filter": 0, "missed": 0
    }  # fmt: skip
    assert counting[1].figures["by_filter"] == 1


def test_kernels_that_have_ended_are_in_no_filter():
    # A window of two: the third kernel is admitted as the first ends, and finds the second alone.
    touched = [(0, WRITE, 0, 4), (1, WRITE, 8192, 8196), (2, READ, 0, 4)]
    program = program_of(touched, [1, 1, 1], durations=[2, 9, 1])
    schedule, rules = run("dataflow-hints(tensor,0,1,2,counting)", program)
    assert schedule.start.tolist() == [0, 0, 2]
    assert rules.figures["true"] == rules.figures["by_filter"] == 0


def test_a_look_up_takes_its_time():
    # Two keys a kernel at 1000 MHz and 500 cycles each: a kernel is admitted every microsecond.
    touched = [(0, WRITE, 0, 4), (0, READ, 8192, 8196), (1, WRITE, 16384, 16388),
               (1, READ, 8192, 8196)]  # fmt: skip
    program = program_of(touched, [1, 1])
    cost = {"lookup": Quantity(500, "cycles")}
    assert run("dataflow-hints(tensor)", program, cost)[0].start.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("dataflow-hints(tensor,1024,4,32,ring)", 2 * 1024 * 32),
        ("dataflow-hints(tensor,1024,4,32,counting)", 2 * 1024 * (6 + 1)),
        ("dataflow-hints(tensor,0)", None),
    ],
)
def test_bits_in_all_are_those_of_reads_and_of_writes(name, bits):
    (mechanism,) = find_mechanisms([name])
    assert mechanism.filter_bits() == bits


def test_figures_are_a_table_of_their_own():
    program = program_of([(0, WRITE, 0, 4), (1, READ, 0, 4)], [1, 1], sms=2)
    mechanisms = find_mechanisms(["serial", "dataflow-hints(tensor)"])
    report = comparison_report(compare_mechanisms(program, [2], mechanisms))
    (table,) = (table for table in report.tables if table.key == "filters")
    ((sms, label, makespan, bits, *counted),) = table.rows
    assert (sms, label, makespan) == (2, "dataflow-hints(tensor)", pytest.approx(2, rel=1e-3))
    assert (bits, counted) == (2 * 4096 * 32, [2, 1, 0, 0, 0])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dataflow-hints(warp)", "grain 'warp': give one of tensor, row, block"),
        ("dataflow-hints(tensor,-1)", "'-1' is not a whole number from 0"),
        ("dataflow-hints(tensor,64,0)", "'0' is not a whole number from 1"),
        ("dataflow-hints(tensor,64,4,32,heap)", "filter 'heap': give one of counting, ring"),
    ],
)
def test_a_parameter_that_makes_no_sense_is_one_line(name, message):
    with pytest.raises(ModelError, match=message):
        find_mechanisms([name])


def test_without_footprints_there_are_no_hints():
    with pytest.raises(NotApplicableError, match="needs footprints"):
        run("dataflow-hints(tensor)", scenario_of(graph_of([1, 1], []), [1, 1], sms=1))


def test_rounds_that_do_not_settle_are_taken_as_if_nothing_had_ended(monkeypatch):
    monkeypatch.setattr(dataflow_hints, "_MOST_ROUNDS", 0)
    touched = [(0, WRITE, 0, 4), (1, WRITE, 8192, 8196), (2, READ, 0, 4)]
    program = program_of(touched, [1, 1, 1], durations=[2, 9, 1])
    schedule, rules = run("dataflow-hints(tensor,0,1,2,counting)", program)
    assert schedule.start.tolist() == [0, 0, 9]
    assert rules.assumptions[0].endswith("as the rounds did not settle")


def test_a_program_that_is_too_large_is_told_so(monkeypatch):
    monkeypatch.setattr(bloom, "MOST_WORK", 1)
    program = program_of([(0, WRITE, 0, 4), (1, READ, 0, 4)], [1, 1])
    with pytest.raises(NotApplicableError, match="2 keys with those of 2 kernels and copies"):
        run("dataflow-hints(tensor)", program)
