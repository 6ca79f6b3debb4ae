"""Footprints that are learned relative to buffers, and what becomes of launches that differ."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from touching import program_of

import depgraph
from depgraph.errors import ModelError, NotApplicableError
from depgraph.mechanisms import Charges, Quantity, find_mechanisms
from depgraph.mechanisms.base import run_mechanism
from depgraph.mechanisms.dataflow_learned import learned_kernels, touched_by
from depgraph.trace.records import READ, WRITE, Allocation

FAR = 1 << 20


def learned(program, redo=1.0):
    (mechanism,) = find_mechanisms(["dataflow-learned(relative)"])
    changed = {"redo": Quantity(redo, "share")}
    return run_mechanism(mechanism, program, Charges(mechanism.costs, changed))


def launches(*touched, names=None, durations=None, **more):
    """Return kernels of two blocks; each touches (block of the kernel, kind, first, last byte)."""
    rows = [(2 * k + b, *rest) for k, own in enumerate(touched) for b, *rest in own]
    n = len(touched)
    return program_of(
        rows, [2] * n, functions=names or ["f"] * n, block=np.ones((n, 3), np.int64),
        durations=np.ones(2 * n) if durations is None else durations, sms=8, **more,
    )  # fmt: skip


def copy(source, target, size=4):
    """Return what two blocks touch that copy half of a buffer each."""
    return [
        row
        for b in range(2)
        for row in (
            (b, READ, source + b * size, source + (b + 1) * size),
            (b, WRITE, target + b * size, target + (b + 1) * size),
        )
    ]


def test_a_launch_on_other_buffers_is_known():
    # The second copies on what the first wrote, the third from and to elsewhere: no edge is alike.
    program = launches(copy(0, FAR), copy(FAR, 2 * FAR), copy(3 * FAR, 4 * FAR))
    schedule, rules = learned(program)
    assert rules.waits_for_all.tolist() == [True, False, False]
    assert schedule.start.tolist() == [0, 0, 1, 1, 1, 1]


def test_all_that_follows_waits_for_a_launch_that_is_not_known():
    program = launches(
        copy(0, FAR), copy(2 * FAR, 3 * FAR), copy(4 * FAR, 5 * FAR), names=["f", "g", "f"]
    )
    assert learned(program)[0].start.tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        # Larger buffers are seen as the launch comes.
        (copy(2 * FAR, 3 * FAR, size=8), "1 were found to be others by the sizes"),
        # The blocks have changed places.
        ([(1 - b, *rest) for b, *rest in copy(2 * FAR, 3 * FAR)], "1 by a block that touched"),
        (
            [*copy(2 * FAR, 3 * FAR)[:2], (1, READ, 2 * FAR + 6, 2 * FAR + 8),
             (1, WRITE, 3 * FAR + 6, 3 * FAR + 8)],
            "1 by a block that touched other bytes",
        ),
    ],
)  # fmt: skip
def test_a_launch_that_touches_something_else_keeps_its_barrier(other, said):
    program = launches(copy(0, FAR), other)
    schedule, rules = learned(program)
    assert schedule.start[2:].tolist() == [1, 1]
    assert said in rules.assumptions[0]


def test_a_launch_whose_accesses_are_not_all_seen_keeps_its_barrier():
    program = launches(copy(0, FAR), copy(2 * FAR, 3 * FAR), copy(4 * FAR, 5 * FAR))
    kernels = list(program.kernels)
    kernels[1] = replace(kernels[1], untraced="TMA")
    unseen = replace(program, kernels=kernels)
    assert learned(unseen)[1].waits_for_all.tolist() == [True, True, False]


def test_what_is_found_late_is_done_again():
    swapped = [(1 - b, *rest) for b, *rest in copy(2 * FAR, 3 * FAR)]
    program = launches(copy(0, FAR), swapped, durations=[1, 1, 4, 4])
    assert learned(program)[0].makespan == 1 + 4 + 4
    assert learned(program, redo=0.5)[0].makespan == 1 + 4 + 2


def test_buffers_side_by_side_are_told_apart_by_their_allocations():
    # Without allocations the second launch seems to touch one buffer, the first two.
    program = launches(copy(0, FAR), copy(2 * FAR, 2 * FAR + 512))
    assert learned(program)[1].waits_for_all.tolist() == [True, True]
    lives = [Allocation(at, 512, 0) for at in (0, FAR, 2 * FAR, 2 * FAR + 512)]
    program = launches(copy(0, FAR), copy(2 * FAR, 2 * FAR + 512), allocations=lives)
    assert learned(program)[1].waits_for_all.tolist() == [True, False]


touches = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from([READ, WRITE]), st.integers(0, 2),
              st.integers(0, 40)),
    min_size=1, max_size=6,
)  # fmt: skip


@given(touches, st.permutations(range(3)), st.lists(st.integers(0, 99), min_size=3, max_size=3))
def test_what_is_learned_does_not_depend_on_where_buffers_are(touched, places, shifts):
    def at(buffers):
        rows = [(b, kind, buffers[i] + n, buffers[i] + n + 4) for b, kind, i, n in touched]
        return touched_by(program_of(rows, [2]).read_footprints(), 0, [])

    here = at([FAR, 2 * FAR, 3 * FAR])
    there = at(
        [(4 + place) * FAR + 512 * shift for place, shift in zip(places, shifts, strict=True)]
    )
    assert here == there


@given(st.lists(touches, min_size=1, max_size=4), st.data())
def test_no_dependence_is_missed(all_touched, data):
    names = data.draw(
        st.lists(st.sampled_from("fg"), min_size=len(all_touched), max_size=len(all_touched))
    )
    program = launches(
        *(
            [(b, kind, FAR * i + n, FAR * i + n + 4) for b, kind, i, n in own]
            for own in all_touched
        ),
        names=names,
    )
    schedule, _ = learned(program)
    for sources, targets, _ in program.graph.edges():
        assert (schedule.start[targets] >= schedule.end[sources]).all()


@given(st.lists(touches, min_size=1, max_size=4), st.integers(3, 4))
def test_iterations_are_learned_from_the_first_by_footprints_and_from_the_second_by_edges(
    all_touched, iterations
):
    step = [[(b, kind, FAR * i + n, FAR * i + n + 4) for b, kind, i, n in own]
            for own in all_touched]  # fmt: skip
    names = [f"k{i}" for i in range(len(step))] * iterations
    program = launches(*step * iterations, names=names)
    (edges,) = find_mechanisms(["dataflow-learned"])
    by_edges = run_mechanism(edges, program, Charges(edges.costs))[1].waits_for_all
    by_footprints = learned(program)[1].waits_for_all
    assert by_footprints[: len(step)].all()
    assert not by_footprints[len(step) :].any()
    assert not by_edges[2 * len(step) :].any()


def test_without_footprints_or_with_another_word_it_is_one_line():
    program = launches(copy(0, FAR))
    with pytest.raises(ModelError, match="'all': give edges or relative"):
        find_mechanisms(["dataflow-learned(all)"])
    object.__setattr__(program, "read_footprints", None)
    with pytest.raises(NotApplicableError, match="needs footprints"):
        learned(program)


@pytest.mark.jit_only
def test_of_the_packaged_trace_most_launches_that_moved_are_learned(sample_store):
    program = depgraph.Scenario.of_store(sample_store).on(8)
    rules = learned(program)[1]
    assert rules.assumptions[0].startswith(
        "launches that touch, relative to their buffers, what an earlier one did: 10 of 25; 12 "
        "came first; 3 were found to be others by the sizes of their buffers as they came, 0 by "
    )


def test_the_page_says_how_many_launches_are_learned(sample_store):
    program = depgraph.Scenario.of_store(sample_store)
    edges = learned_kernels(program)
    relative = learned(program.on(8))[1].waits_for_all
    with_an_earlier_one = int(edges.learned.sum()) + edges.mistaken
    text = (
        f"step's {with_an_earlier_one} launches with an earlier one like them, "
        f"{int(edges.learned.sum())} have the edges that were learned and "
        f"{int((~relative & program.is_kernel).sum())} the footprints."
    )
    page = Path(__file__).resolve().parents[2] / "docs" / "mechanisms.md"
    assert text in " ".join(page.read_text(encoding="utf-8").split())
