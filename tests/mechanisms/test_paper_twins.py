"""Rows beside slow twins that were written from the papers, over random programs."""

from dataclasses import replace

import numpy as np
import paper_twins as twin
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from programs import BASE, footprints_of
from programs import programs as touching_programs
from small_graphs import graph_of, kernels_of, scenario_of, shares_of

from depgraph.analysis.compare_mechanisms import compare_mechanisms, schedule_of
from depgraph.errors import ModelError, NotApplicableError
from depgraph.graph.builder import GraphBuilder
from depgraph.mechanisms import Quantity, find_mechanisms
from depgraph.mechanisms.wireframe import most_levels
from depgraph.scenario.scenario import Scenario
from depgraph.scenario.what_if import apply_what_ifs, parse_what_if
from depgraph.timing.program_times import Durations


@st.composite
def small(draw, most_kernels=4, most_blocks=5, most_edges=6):
    """Draw kernels as lists of durations, and edges from their blocks to those of later kernels."""
    lengths = st.lists(st.integers(1, 6), min_size=1, max_size=most_blocks)
    kernels = draw(st.lists(lengths, min_size=1, max_size=most_kernels))
    edges = set()
    if len(kernels) > 1:
        for _ in range(draw(st.integers(0, most_edges))):
            target = draw(st.integers(1, len(kernels) - 1))
            source = draw(st.integers(0, target - 1))
            blocks = [draw(st.integers(0, len(kernels[k]) - 1)) for k in (source, target)]
            edges.add(((source, blocks[0]), (target, blocks[1])))
    return [[float(d) for d in kernel] for kernel in kernels], sorted(edges)


def scenario(kernels, edges, sms, occupancy=1, *, streams=None):
    """Return the same program as the product takes it, for a GPU that states no GPCs."""
    sizes = [len(kernel) for kernel in kernels]
    graph = graph_of(sizes, edges)
    if streams is not None:
        resources = graph.resources._replace(stream=np.array(streams, np.int64))
        graph = replace(graph, resources=resources)
    return Scenario(
        graph=graph,
        timing=Durations(np.array([d for own in kernels for d in own]), "us", "made up"),
        resources_of=lambda graph: shares_of(graph, occupancy, "V100"),
        kernels=kernels_of(sizes),
        sms=sms,
    )


def makespan(name, program, **costs):
    (mechanism,) = find_mechanisms([name])
    changed = {mechanism.name: {cost: Quantity(value, "") for cost, value in costs.items()}}
    return schedule_of(program, mechanism, changed).makespan


SIZES = st.tuples(st.integers(1, 4), st.integers(1, 2))


@given(small(), SIZES)
def test_horizontal_fusion(program, size):
    sms, occupancy = size
    expected = twin.horizontal_fusion(*program, sms * occupancy)
    assert makespan("horizontal-fusion", scenario(*program, sms, occupancy)) == expected


@given(small(), SIZES, st.integers(1, 3), st.integers(1, 3))
def test_ios(program, size, kernels, streams):
    sms, occupancy = size
    expected = twin.ios(*program, sms * occupancy, kernels, streams)
    found = makespan(f"ios({kernels},{streams})", scenario(*program, sms, occupancy))
    assert any(found == pytest.approx(time) for time in expected)


@given(
    st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=3), min_size=1, max_size=5),
    st.integers(1, 4), st.integers(3, 20),
)  # fmt: skip
def test_queues_of_chains(chains, at_once, quantum):
    kernels = [[float(time)] for chain in chains for time in chain]
    edges, at = [], 0
    for chain in chains:
        edges += [((k, 0), (k + 1, 0)) for k in range(at, at + len(chain) - 1)]
        at += len(chain)
    program = scenario(kernels, edges, sms=len(kernels))
    found = makespan(f"hsa-queues({at_once})", program, packet=0, quantum=quantum)
    assert found == max(twin.queues(chains, at_once, quantum))


@given(small(most_blocks=12), st.integers(1, 40), st.integers(1, 2), st.integers(1, 4))
def test_clusters(program, sms, occupancy, size):
    kernels, edges = program
    n_gpcs = -(-sms // 18)
    gpcs = [sms * (i + 1) // n_gpcs - sms * i // n_gpcs for i in range(n_gpcs)]
    assume(size <= min(gpcs))
    found = makespan(f"clusters({size})", scenario(kernels, edges, sms, occupancy))
    assert found == twin.clusters(kernels, gpcs, occupancy, size)


@given(small(most_blocks=9), SIZES, st.integers(0, 2), st.booleans())
def test_cluster_launch_control(program, size, start, static):
    sms, occupancy = size
    name = "clc(static)" if static else "clc"
    found = makespan(name, scenario(*program, sms, occupancy), start=start)
    expected = twin.cluster_launch_control(program[0], sms * occupancy, float(start), static=static)
    assert found == pytest.approx(expected)


@given(small(), st.integers(2, 9), st.integers(1, 2), st.integers(2, 3), st.data())
def test_green_contexts(program, sms, occupancy, parts, data):
    kernels, edges = program
    assume(sms >= parts)
    one = st.integers(0, parts)
    streams = data.draw(st.lists(one, min_size=len(kernels), max_size=len(kernels)))
    assume(len(set(streams)) >= parts)
    even = sms // parts
    sizes = [even * occupancy] * (parts - 1) + [(sms - even * (parts - 1)) * occupancy]
    found = makespan(
        f"green-contexts({parts})", scenario(kernels, edges, sms, occupancy, streams=streams),
        granularity=1,
    )  # fmt: skip
    assert found == twin.green_contexts(kernels, edges, streams, sizes)


ENDS = st.lists(st.integers(1, 6).map(float), min_size=1, max_size=6)


@given(ENDS, ENDS, SIZES, st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_conv2d(producers, consumers, size, height, width, together):
    """Steps are those of the dependences, in however many joins they come."""
    sms, occupancy = size
    n, all_ = len(producers), len(producers) + len(consumers)
    builder = GraphBuilder(range(2), [n, len(consumers)])
    for awaited in [range(n)] if together else [[p] for p in range(n)]:
        builder.add("RAW", list(awaited), range(n, all_))
    graph = builder.build()
    program = scenario_of(
        graph, producers + consumers, resources=shares_of(graph, occupancy), sms=sms,
        kernels=kernels_of([n, len(consumers)]),
    )  # fmt: skip
    found = makespan(f"cusync-conv2d({height},{width})", program, sync=0)
    expected = twin.conv2d(producers, consumers, sms * occupancy, height * width)
    assert found == pytest.approx(expected)


@given(touching_programs(), st.data())
def test_a_bloom_filter_without_collisions_finds_lines_and_a_small_one_no_fewer(program, data):
    footprints, first, _ = footprints_of(program)
    n = int(first[-1])
    touched = [tuple({BASE + byte for byte in own} for own in o) for o in blocks_of(program, n)]
    assume(any(read or written for read, written in touched))
    durations = data.draw(st.lists(st.integers(1, 9), min_size=n, max_size=n))
    lines = twin.line_dependences(touched, first.tolist())
    graph = graph_of(np.diff(first).tolist(), [])
    scenario = scenario_of(
        graph, durations, kernels=kernels_of(np.diff(first).tolist()),
        read_footprints=lambda: footprints,
    )  # fmt: skip
    ends = {}
    for block in range(n):
        before = [ends[s] for s, t in lines if t == block]
        ends[block] = durations[block] + max(before, default=0)
    assert makespan("dataflow-bloom(1048576,4)", scenario) == max(ends.values())
    assert makespan("dataflow-bloom(64,2)", scenario) >= max(ends.values())


def blocks_of(program, n):
    """Return what each block reads and writes."""
    found = {block: sets for operation in program for block, sets in operation.items()}
    return [found.get(block, (set(), set())) for block in range(n)]


@given(small(most_kernels=2), SIZES)
def test_dependent_kernels_are_merged_block_by_block(program, size):
    kernels, edges = program
    assume(len(kernels) == 2)
    sms, occupancy = size
    before = {b: {s[1] for s, t in edges if t[1] == b} for b in range(len(kernels[1]))}
    merge = [parse_what_if("merge=0,1")]
    if any(len(own) > 1 for own in before.values()):
        with pytest.raises((ModelError, NotApplicableError)):
            apply_what_ifs(scenario(kernels, edges, sms, occupancy), merge)
        return
    merged = [
        d + sum(kernels[1][b] for b, own in before.items() if own == {at})
        for at, d in enumerate(kernels[0])
    ]
    merged += [kernels[1][b] for b, own in before.items() if not own]
    found = apply_what_ifs(scenario(kernels, edges, sms, occupancy), merge)
    assert sorted(found.durations.tolist()) == sorted(merged)
    assert makespan("serial", found) == twin.serial([merged], sms * occupancy)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 5), st.integers(1, 30))
def test_levels_that_fit_into_the_structures_of_wireframe(widths, levels, entries):
    def fits(together):
        return all(sum(widths[i : i + together]) <= entries for i in range(len(widths)))

    found = most_levels(np.array(widths), levels, entries)
    assert found == max((n for n in range(1, levels + 1) if fits(n)), default=0)


@pytest.mark.parametrize(
    ("width", "size", "time", "said"),
    [
        (100, 4096, 10, "levels at a time: 3"),
        (100, 2048, 10 + 1, "levels at a time: 2 (not published as such), as the str"),
        (300, 2048, 10 + 1 + 1 + 1, "a level is wider than the structures: 256 blocks at a time"),
        (300, 0, 10, "levels at a time: 3"),
    ],
)
def test_wireframe_holds_as_many_blocks_as_two_kilobytes(width, size, time, said):
    """Three levels, of which the first has a block of 10 that keeps its entry until it ends."""
    kernels = [[1.0] * width for _ in range(3)]
    edges = [((k, b), (k + 1, b)) for k in (0, 1) for b in range(1, width)]
    edges += [((k, 1), (k + 1, 0)) for k in (0, 1)]
    kernels[0][0] = 10.0
    program = scenario(kernels, edges, sms=1000)
    (row,) = compare_mechanisms(
        program, [1000], find_mechanisms(["wireframe"]),
        costs={"wireframe": {"bytes": Quantity(size, "count")}},
    ).outcomes  # fmt: skip
    assert any(note.startswith(said) for note in row.assumptions)
    assert row.makespan == time


@pytest.mark.parametrize(("tiles", "is_said"), [(2, False), (4, False), (5, True), (1000, True)])
def test_strides_longer_than_rows_say_so(tiles, is_said):
    program = scenario_of(
        graph_of([4, 2], [((0, p), (1, c)) for p in range(4) for c in range(2)]), np.ones(6),
        kernels=kernels_of([4, 2]), sms=2,
    )  # fmt: skip
    (row,) = compare_mechanisms(
        program, [2], find_mechanisms([f"cusync-strided({tiles})"])
    ).outcomes
    said = any("rows of 4 blocks are shorter" in note for note in row.assumptions)
    assert said == is_said
