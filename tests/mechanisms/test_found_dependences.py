"""Whoever finds dependences while a program runs misses none, whatever its memory is used for."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from programs import find_dependences
from random_programs import one_column, one_row
from touching import program_of

from depgraph.dependence.possible import with_possible_joins
from depgraph.errors import ModelError
from depgraph.footprint.footprints import join_footprints
from depgraph.gpu.model import load_gpu
from depgraph.gpu.sm_resources import equal_shares
from depgraph.graph.block_graph import Resources
from depgraph.mechanisms import Charges, Quantity, find_mechanisms
from depgraph.mechanisms.base import charges_of, run_mechanism
from depgraph.scenario.what_if import apply_what_ifs, parse_what_if
from depgraph.timing.program_times import LaunchModel, LaunchTime
from depgraph.trace.records import READ, WRITE, Allocation

FOUND_BY = [
    "dataflow", "dataflow-learned", "dataflow-learned(relative)", "dataflow-bloom(64,2)",
    "dataflow-hints(tensor)", "dataflow-hints(row,64,2,2,counting)",
    "dataflow-hints(block,16,1,3,ring)", "dataflow-hints(block,0,1,2,counting)",
]  # fmt: skip
H100 = load_gpu("H100 SXM")
LAUNCHES = LaunchModel(host=LaunchTime(1.5, "given"), gap=LaunchTime(0.7, "given"))
UPDATE = (READ, WRITE)  # in place, or by atomics

patterns = st.lists(
    st.tuples(
        st.integers(0, 2), st.sampled_from([(READ,), (WRITE,), UPDATE]),
        st.integers(0, 8).map(lambda n: 64 * n), st.sampled_from([4, 64, 200]),
    ),
    min_size=1, max_size=4,
)  # fmt: skip
lives = st.builds(
    Allocation, st.integers(0, 3).map(lambda n: 512 * n), st.sampled_from([100, 512, 700, 1024]),
    st.integers(0, 5), st.none() | st.integers(1, 6),
)  # fmt: skip


@st.composite
def programs(draw, sms=(1, 2, 3, np.inf)):
    """Draw launches of two functions, on buffers that move, overlap and are used again.

    Streams are two, memory may be freed in between, and a kernel may be opaque.
    """
    functions = draw(st.tuples(patterns, patterns))
    which = draw(st.lists(st.integers(0, 1), min_size=1, max_size=6))
    n, sizes = len(which), [2 + w for w in which]
    first, touched = np.cumsum([0, *sizes]), []
    for k, w in enumerate(which):
        base = 512 * draw(st.integers(0, 3)) + draw(st.sampled_from([0, 0, 0, 64]))
        touched += [
            (int(first[k]) + block % sizes[k], kind, base + at, base + at + size)
            for block, kinds, at, size in functions[w]
            for kind in kinds
        ]
    n_blocks = int(first[-1])
    program = program_of(
        touched, sizes, allocations=draw(st.lists(lives, max_size=5)),
        shape=draw(st.sampled_from([one_row, one_column])), functions=["fg"[w] for w in which],
        block=np.ones((n, 3), np.int64), sms=draw(st.sampled_from(sms)),
        durations=draw(st.lists(st.integers(0, 5), min_size=n_blocks, max_size=n_blocks)),
    )  # fmt: skip
    graph = program.graph
    freed = draw(st.lists(st.tuples(st.integers(1, n), st.integers(0, 3)), max_size=3))
    if freed:
        at, place = np.array(freed, np.int32).T.copy()
        start = (512 * place).astype(np.uint64)
        frees = join_footprints(
            at, np.zeros(len(at), np.uint8), start, start + np.uint64(512), n + 1
        )
        graph, _ = find_dependences(program.read_footprints(), first, graph.kernel, frees)
    stream = np.array(draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)))
    graph = replace(
        graph, resources=Resources(np.full(n, 128), np.full(n, 32), np.zeros(n, int), stream, 90)
    )
    kernels = list(program.kernels)
    if draw(st.booleans()):
        k = draw(st.integers(0, n - 1))
        kernels[k] = replace(kernels[k], untraced="texture")
    graph = with_possible_joins(graph, kernels)
    return replace(program, graph=graph, kernels=kernels, resources_of=one_each)


def one_each(graph):
    """Let a block take a whole SM."""
    return equal_shares(graph.kernel >= 0, np.ones(graph.n_operations, np.int64), H100)


def run(name, program, **costs):
    (mechanism,) = find_mechanisms([name])
    if costs:
        changed = {n: Quantity(*costs[n]) for n in costs if n in {c.name for c in mechanism.costs}}
        return run_mechanism(mechanism, program, Charges(mechanism.costs, changed, clock_mhz=1000))
    return run_mechanism(mechanism, program, charges_of(mechanism, {}, program))


def assert_obeyed(schedule, graph):
    for sources, targets, _ in graph.edges():
        assert (schedule.start[targets] >= schedule.end[sources] - 1e-9).all()


@given(
    programs(), st.sampled_from(FOUND_BY), st.booleans(),
    st.sampled_from([None, {"RAW"}, {"RAW", "WAW"}, {"RAW", "WAR", "WAW"}]),
)  # fmt: skip
def test_no_dependence_is_missed(program, name, is_launched, kinds):
    if kinds:
        program = program.with_kinds(kinds)
    if is_launched:
        program = program.with_launch(LAUNCHES)
    schedule, rules = run(name, program)
    assert_obeyed(schedule, program.graph)
    assert rules.figures.get("missed", 0) == 0


@given(programs(), st.sampled_from(FOUND_BY), st.data())
def test_none_is_missed_of_a_changed_program(program, name, data):
    n = program.graph.n_operations
    k = data.draw(st.integers(0, max(n - 2, 0)))
    words = data.draw(st.sampled_from([f"kernel={k} duration*=0.5", f"merge={k},{k + 1}", "gap=2"]))
    if words.startswith("gap"):
        program = program.with_launch(LAUNCHES)
    try:
        changed = apply_what_ifs(program, [parse_what_if(words)])
    except ModelError:  # kernels that cannot be merged
        reject()
    schedule, rules = run(name, changed)
    assert_obeyed(schedule, changed.graph)
    assert rules.figures.get("missed", 0) == 0


@pytest.mark.parametrize("filters", ["0,1,100,ring", "0,1,100,counting"])
@given(program=programs(sms=(np.inf,)))
def test_who_knows_less_is_no_faster_where_no_block_waits_for_room(filters, program):
    # A list schedule with room for all is its longest path: no anomaly.
    free = {"lookup": (0, "cycles"), "redo": (0, "share")}
    hints = [f"dataflow-hints({grain},{filters})" for grain in ("block", "row", "tensor")]
    for names in (hints, ["dataflow-learned"], ["dataflow-learned(relative)"]):
        times = [run(name, program, **free)[0].makespan for name in ("dataflow", *names, "serial")]
        assert all(finer <= coarser for finer, coarser in pairwise(times))
