"""What each policy does, by programs small enough to work out by hand."""

from dataclasses import replace

import naive_schedule
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_programs import graphs, one_column, one_row, programs
from small_graphs import graph_of, scenario_of

from depgraph.analysis.compare_mechanisms import Swept, anomaly_notes
from depgraph.errors import DeadlockError, ModelError, NotApplicableError
from depgraph.footprint.footprints import Footprints
from depgraph.graph.builder import GraphBuilder
from depgraph.mechanisms import MECHANISMS, Charges, Quantity, find_mechanisms
from depgraph.mechanisms.acs import check_time, kernel_segments, segment_conflicts
from depgraph.mechanisms.base import run_mechanism, serial
from depgraph.mechanisms.bloom import ask_filters
from depgraph.mechanisms.cusync import waits_per_block
from depgraph.timing.program_times import LaunchModel, LaunchTime
from depgraph.trace.records import READ, WRITE

RULE_ALONE = {"sync": Quantity(0, "share")}


def program_of(graph, durations, sms, **facts):
    """Return a program whose blocks take an SM each."""
    return scenario_of(graph, durations, sms=sms, **{"grid": one_row(graph), **facts})


def run(name, program, costs=None, launches=None):
    (mechanism,) = find_mechanisms([name])
    known = {c.name for c in mechanism.costs}
    changed = {n: q for n, q in {**RULE_ALONE, **(costs or {})}.items() if n in known}
    extra = {} if launches is None else {"launches": launches}
    return run_mechanism(mechanism, program, Charges(mechanism.costs, changed, **extra))


def makespan(name, program, costs=None, launches=None):
    return run(name, program, costs, launches)[0].makespan


def launches_of(host=0.0, gap=0.0, **others):
    times = {"host": host, "gap": gap, **others}
    return LaunchModel(**{name: LaunchTime(time, "given") for name, time in times.items()})


def chain(n, duration, sms=2):
    """Return kernels of one block, each waiting for the one before it."""
    graph = graph_of([1] * n, [((k, 0), (k + 1, 0)) for k in range(n - 1)])
    return program_of(graph, [duration] * n, sms)


# Launches.


def test_serial_is_held_up_by_the_host_or_by_the_gpu():
    long, short = chain(4, 10), chain(4, 1)
    model = launches_of(host=5, gap=2)
    # The host is ahead of long kernels: its first launch alone is seen.
    assert makespan("serial", long, launches=model) == 5 + 4 * (2 + 10)
    # Short ones wait for the host: the last is issued at 20.
    assert makespan("serial", short, launches=model) == 4 * 5 + 2 + 1


def test_a_cuda_graph_beats_serial_where_the_host_is_the_limit():
    model = launches_of(host=39, gap=2, node=0.25, path=1, fork=1.5, graph=8)
    program = chain(10, 1)
    assert makespan("serial", program, launches=model) == 10 * 39 + 2 + 1
    assert makespan("cuda-graph", program, launches=model) == pytest.approx(8 + 0.25 + 10 + 9)
    # Blocks that are released by counters still wait for the host to issue their kernel.
    assert makespan("dataflow", program, launches=model) == 10 * 39 + 2 + 1


def test_a_fork_of_a_cuda_graph_with_several_roots_takes_longer_than_a_path():
    graph = graph_of([1, 1, 1], [((0, 0), (1, 0)), ((0, 0), (2, 0))])
    model = launches_of(path=1, fork=2.5)
    assert makespan("cuda-graph", program_of(graph, [1, 1, 1], 2), launches=model) == 3
    # Out of one of several roots it takes longer.
    graph = graph_of([1, 1, 1, 1], [((0, 0), (1, 0)), ((0, 0), (2, 0))])
    assert makespan("cuda-graph", program_of(graph, [1] * 4, 3), launches=model) == 4.5


def test_nodes_of_a_cuda_graph_start_one_after_another():
    graph = graph_of([1] * 8, [])
    model = launches_of(node=0.25, graph=8)
    assert makespan("cuda-graph", program_of(graph, [1] * 8, 8), launches=model) == 8 + 2 + 1
    # They do once what they wait for has ended, however late they were launched.
    graph = graph_of([1] * 5, [((0, 0), (1 + i, 0)) for i in range(4)])
    model = launches_of(node=0.25)
    assert makespan("cuda-graph", program_of(graph, [3] + [1] * 4, 4), launches=model) == 5


def test_what_waits_last_for_a_node_starts_late_if_more_than_six_wait_for_it():
    def graph(width):
        return graph_of(
            [1] * (2 + width), [((i, 0), (2 + j, 0)) for i in (0, 1) for j in range(width)]
        )

    model = launches_of(wide=0.5)
    edges = [((i, 0), (j, 0)) for j in range(9) for i in {0, j - 1} if 0 <= i < j]
    chain = program_of(graph_of([1] * 9, edges), [1] * 9, 9)
    assert makespan("cuda-graph", chain, launches=model) == 9.5  # the second alone is late

    times = [
        makespan("cuda-graph", program_of(graph(w), [1] * (2 + w), 9), launches=model)
        for w in (6, 7)
    ]
    assert times == [2, 2.5]


def on_streams(sizes, durations, streams, edges=()):
    """Return a program in several streams."""
    graph = graph_of(sizes, list(edges))
    graph = replace(graph, resources=graph.resources._replace(stream=np.array(streams)))
    return program_of(graph, durations, 8)


def test_the_gpu_takes_kernels_of_streams_in_turn():
    # Launched a stream after the other, and taken as 0 2 1 3, 1 us each; 4 us, as two streams are
    # two pairs with each other and themselves, before their first kernels.
    program = on_streams([1] * 4, [1, 10, 1, 10], [7, 7, 8, 8])
    model = launches_of(streamed=1, turn=1)
    schedule = run("streams", program, launches=model)[0]
    assert schedule.start.tolist() == [5, 6, 6, 7]
    # A host that takes longer issues them in its own order.
    slow = run("streams", program, launches=model._replace(host=LaunchTime(3, "given")))[0]
    assert slow.start.tolist() == [7, 8, 13, 14]


@pytest.mark.parametrize("name", ["streams", "pdl(1)"])
def test_blocks_of_what_comes_first_are_placed_first_whatever_its_number(name):
    # Three kernels of one block, one after another, beside one of three: two slots.
    program = replace(on_streams([1, 1, 1, 3], [1] * 6, [7, 7, 7, 8]), sms=2)
    assert makespan(name, program) == 4


def test_no_more_than_16_streams_make_a_turn_longer():
    n = 20
    program = on_streams([1] * n, [1] * n, list(range(n)))
    assert makespan("streams", program, launches=launches_of(turn=1)) == 16 * n + 3


def test_a_kernel_waits_longer_for_another_stream_than_for_its_own():
    edges = [((0, 0), (1, 0)), ((1, 0), (2, 0))]
    program = on_streams([1] * 3, [10] * 3, [7, 7, 8], edges)
    assert makespan("streams", program, launches=launches_of(gap=2, event=3)) == 3 * 12 + 3


def test_one_stream_takes_no_turns():
    program = on_streams([1] * 3, [10] * 3, [7, 7, 7])
    model = launches_of(gap=2, streamed=1, turn=1, event=3)
    assert makespan("streams", program, launches=model) == 3 * 12


def test_pdl_pays_its_launches():
    program = chain(2, 10)
    model = launches_of(gap=2)
    preamble = {
        "preamble": Quantity(3, "us"),
        "slot": Quantity(2, "us"),
        "release": Quantity(0, "us"),
    }
    assert makespan("serial", program, launches=model) == 24
    # The second launch is hidden behind the first kernel, 3 of the second's 10 as well.
    assert makespan("pdl", program, preamble, model) == 19
    # Without an early trigger nothing is.
    assert makespan("pdl(end)", program, preamble, model) == 24


def test_launch_costs_are_off_unless_asked_for():
    program = chain(3, 10)
    for name in ("acs-sw", "acs-hw", "blockmaestro", "cusync-row", "cuda-graph", "pdl"):
        assert makespan(name, program, {"check": Quantity(0, "us")}) == 30


def test_a_kernel_that_is_invoked_while_its_producers_run_costs_nothing():
    program = chain(2, 150)
    invocation = {"launch": Quantity(6, "us")}
    assert makespan("cusync-row", program, invocation) == 306
    assert makespan("blockmaestro", program, invocation) == 306
    # Two waves of the first kernel: the second may take the slots that the last wave leaves.
    graph = graph_of([3, 1], [((0, 0), (1, 0))])
    program = program_of(graph, [100] * 4, 2, grid=one_column(graph))
    assert makespan("cusync-row", program, invocation) == 6 + 200


def test_acs_in_software_launches_and_synchronises_each_kernel():
    model = launches_of(host=2, gap=1, sync=5)
    free = {"check": Quantity(0, "us")}
    assert makespan("acs-sw", chain(3, 10), free, model) == 2 + 3 * (1 + 5 + 10)
    assert makespan("acs-sw", chain(3, 10), {**free, "launch": Quantity(8, "us")}) == 54
    # In hardware the host issues ahead, and 50 ns take the place of the gap.
    assert makespan("acs-hw", chain(3, 10), {}, model) == pytest.approx(2 + 3 * (0.05 + 10))


def test_a_graph_that_begins_with_a_memset_is_launched_before_it():
    builder = GraphBuilder([-1, 0, 1], [1, 1, 1])
    builder.add("WAW", [0], [1])
    builder.add("WAW", [0], [2])
    program = program_of(builder.build(), [2, 5, 5], 2)
    assert makespan("cuda-graph", program, launches=launches_of(graph=3)) == 3 + 2 + 5


@given(programs(), st.sampled_from(["serial", "streams", "cuda-graph", "dataflow"]))
def test_launches_only_add_to_what_runs_in_order(program, name):
    free = makespan(name, replace(program, sms=64))
    model = launches_of(host=1, gap=1, node=1, path=1, fork=1, graph=1, streamed=1, turn=1, event=1)
    assert makespan(name, replace(program, sms=64), launches=model) >= free


@given(programs(), st.integers(0, 5), st.integers(0, 3))
def test_serial_is_the_same_in_both_schedules(program, host, gap):
    model = launches_of(host=host, gap=gap)
    assert (
        makespan("serial", program, launches=model) == serial(program.with_launch(model)).makespan
    )


# cuSync.


def steps_program():
    """Return four producers of 1, 2, 3 and 4, and a consumer of 4 that needs one a step."""
    builder = GraphBuilder([0, 1], [4, 1], positions=True)
    for step in range(4):
        builder.add("RAW", [step], [4], needed_at=step / 4)
    return program_of(builder.build(), [1, 2, 3, 4, 4], 5)


def test_a_strided_step_waits_for_all_that_share_its_semaphore():
    program = steps_program()
    assert makespan("cusync-tile", program) == 5
    assert makespan("cusync-strided(2)", program) == 7
    assert makespan("cusync-strided(4)", program) == 8
    assert makespan("cusync-row", program) == 8


def test_a_convolution_waits_once_in_all_steps_of_its_filter():
    builder = GraphBuilder([0, 1], [1, 1], positions=True)
    builder.add("RAW", [0], [1], needed_at=0.0)
    program = program_of(builder.build(), [1, 4], 2)
    wait = {"wait": Quantity(0.4, "us")}
    assert makespan("cusync-conv2d(3,3)", program, wait) == pytest.approx(5.4)
    rules = run("cusync-conv2d(3,3)", program)[1]
    assert "one wait in 9 steps, where cusync-tile would wait in each" in rules.assumptions


def test_synchronising_costs_three_percent_of_the_consumer():
    (mechanism,) = find_mechanisms(["cusync-row"])
    found, _ = run_mechanism(mechanism, chain(2, 100), Charges(mechanism.costs))
    assert found.makespan == pytest.approx(100 + 103)


def test_consumers_that_are_placed_first_may_wait_for_ever():
    graph = graph_of([2, 2], [((0, b), (1, b)) for b in range(2)])
    program = program_of(graph, [1] * 4, 2, grid=one_column(graph))
    assert makespan("cusync-row", program) == 2
    with pytest.raises(DeadlockError, match=r"block 0 of kernel 0 waits forever, as do 3 more"):
        run("cusync-row(nowait)", program)
    # With a slot to spare the producers run through it.
    assert makespan("cusync-row(nowait)", replace(program, sms=3)) == 3


def test_a_semaphore_is_waited_for_once():
    program = steps_program()
    wait = {"wait": Quantity(0.5, "us")}
    # The waits make the consumer longer: four, two, one of them.
    for name, longer in (("tile", 2), ("strided(2)", 1), ("strided(4)", 0.5), ("row", 0.5)):
        rules = run(f"cusync-{name}", program, wait)[1]
        assert rules.durations[4] == 4 + longer


@given(graphs(positions=True), st.sampled_from([1, 2, np.inf]))
def test_waits_are_counted_as_by_the_slow_twin(graph, tiles):
    semaphores = {}
    for j in range(len(graph.join_kind)):
        for s in naive_schedule.join_sets(graph, j, "source"):
            size = len(naive_schedule.members(graph, s))
            for t in naive_schedule.join_sets(graph, j, "target"):
                for block in naive_schedule.members(graph, t):
                    semaphores.setdefault(block, {})[s] = int(np.ceil(size / tiles)) or 1
    expected = [sum(semaphores.get(b, {}).values()) for b in range(graph.n_blocks)]
    assert waits_per_block(graph, tiles).tolist() == expected


# ACS.


def test_the_check_takes_as_long_as_the_window_is_large():
    assert check_time(16) == pytest.approx(0.41)
    assert check_time(32) == pytest.approx(0.51)
    assert makespan("acs-sw(16)", chain(1, 10)) == pytest.approx(10.41)


def ranges(*touched):
    """Return footprints of (block, kind, start, end)."""
    block, kind, start, end = (np.array(column) for column in zip(*touched, strict=True))
    return Footprints(
        block.astype(np.int32), kind.astype(np.uint8), start.astype(np.uint64),
        end.astype(np.uint64),
    )  # fmt: skip


def test_a_kernel_is_known_by_a_few_byte_ranges():
    graph = graph_of([2], [])
    footprints = ranges(
        (0, WRITE, 0, 4), (0, WRITE, 100, 104), (0, READ, 7, 9), (1, WRITE, 4, 8),
        (1, WRITE, 40, 44),
    )  # fmt: skip
    for most, expected in [
        (1, [(0, 104)]), (2, [(0, 44), (100, 104)]), (3, [(0, 8), (40, 44), (100, 104)]),
        (9, [(0, 8), (40, 44), (100, 104)]),
    ]:  # fmt: skip
        operation, start, end = kernel_segments(graph, footprints, WRITE, most)
        assert list(zip(start.tolist(), end.tolist(), strict=True)) == expected
        assert set(operation.tolist()) == {0}


def test_byte_ranges_make_conflicts_that_are_none():
    # The first kernel writes the ends of a buffer, the second its middle.
    graph = graph_of([1, 1], [])
    footprints = ranges((0, WRITE, 0, 4), (0, WRITE, 96, 100), (1, WRITE, 48, 52))
    program = program_of(graph, [10, 10], 2, read_footprints=lambda: footprints)
    free = {"check": Quantity(0, "us")}
    assert makespan("acs-sw", program, free) == 10
    one = {**free, "segments": Quantity(1, "count")}
    assert makespan("acs-sw", program, one) == 20
    assert any(": 1 pair, 1 not dependent" in n for n in run("acs-sw", program, one)[1].assumptions)
    assert makespan("acs-sw", program, {**free, "segments": Quantity(0, "count")}) == 10


touches = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 1), st.integers(0, 40), st.integers(1, 6)),
    min_size=1, max_size=20,
)  # fmt: skip


@given(touches, st.integers(1, 4))
def test_conflicts_are_those_of_all_pairs_of_ranges(touched, most):
    graph = graph_of([2, 2, 2], [])
    footprints = ranges(*((b, k, low, low + n) for b, k, low, n in touched))
    found = {
        (int(s), int(t))
        for s, t in zip(*segment_conflicts(graph, footprints, most, {"RAW", "WAW"}), strict=True)
    }
    covered = {}
    for kind in (READ, WRITE):
        for o, s, e in zip(*kernel_segments(graph, footprints, kind, most), strict=True):
            covered.setdefault((int(o), kind), set()).update(range(int(s), int(e)))
    for b, k, low, n in touched:
        assert set(range(low, low + n)) <= covered[b // 2, k]
    assert found == {
        (i, j)
        for i in range(3)
        for j in range(i + 1, 3)
        for kind in (READ, WRITE)
        if covered.get((i, WRITE), set()) & covered.get((j, kind), set())
    }


def test_without_addresses_conflicts_are_the_dependences_that_are_known():
    def renamed():
        raise NotApplicableError("which addresses renamed buffers would have is not known")

    program = program_of(graph_of([1, 1], [((0, 0), (1, 0))]), [10, 10], 2, read_footprints=renamed)
    found, rules = run("acs-sw", program, {"check": Quantity(0, "us")})
    assert found.makespan == 20
    assert any("which addresses renamed buffers would have" in n for n in rules.assumptions)


def test_left_out_kinds_are_no_conflicts():
    graph = graph_of([1, 1], [((0, 0), (1, 0), "WAR")])
    program = program_of(graph, [10, 10], 2)
    free = {"check": Quantity(0, "us")}
    assert makespan("acs-sw", program, free) == 20
    assert makespan("acs-sw", replace(program, graph=graph.with_kinds({"RAW"})), free) == 10


# BlockMaestro.


def test_blockmaestro_says_how_large_its_buffers_are():
    graph = graph_of([3, 2], [((0, 0), (1, 0)), ((0, 1), (1, 0)), ((0, 1), (1, 1))])
    program = program_of(graph, [1, 1, 9, 1, 1], 8)
    rules = run("blockmaestro", program)[1]
    assert "buffers in use at once, at most: edges 3, counters of 6 bits 2" in rules.assumptions
    assert makespan("blockmaestro", program) == 9
    small = {"edges": Quantity(2, "count")}
    assert makespan("blockmaestro", program, small) == 10
    assert "kernels with more than 2 edges: 1" in run("blockmaestro", program, small)[1].assumptions


# Bloom filters.


def test_hashes_of_a_filter_are_independent():
    # Two lines that agree in one bit agree in others no more often than any two.
    bits, n = 64, 4000
    lines = np.arange(n)
    first, second, third = (
        np.array([naive_schedule.bloom_bit(int(line), h, bits) for line in lines]) for h in range(3)
    )
    for one, other in ((first, second), (second, third), (first, third)):
        same_sum = np.bincount((one + other) % bits, minlength=bits)
        assert same_sum.max() < 2 * n / bits
    # With double hashing the third follows from the first two.
    assert len(set(((third - second) - (second - first)) % bits)) == bits


def test_false_positives_are_as_many_as_the_formula_expects():
    rng = np.random.default_rng(7)
    n_blocks, lines = 60, 100
    graph = graph_of([n_blocks // 2] * 2, [])
    line = rng.permutation(n_blocks * lines).reshape(n_blocks, lines)
    rows = [
        (b, WRITE if b < n_blocks // 2 else READ, 128 * at, 128 * at + 4)
        for b in range(n_blocks) for at in np.sort(line[b])
    ]  # fmt: skip
    for bits, hashes in ((512, 4), (1024, 4), (2048, 2)):
        found = ask_filters(graph, ranges(*rows), bits, hashes)
        rate = (1 - np.exp(-hashes * lines / bits)) ** hashes
        pairs = (n_blocks // 2) ** 2
        chance = 1 - (1 - rate) ** lines
        assert found.expected == pytest.approx(pairs * chance)
        assert (found.true, found.implied, found.sharing) == (0, 0, 0)
        assert found.false == found.collisions
        spread = np.sqrt(pairs * chance * (1 - chance)) + 0.2 * pairs * chance
        assert abs(found.collisions - found.expected) < 4 * spread


def test_reported_pairs_are_counted_by_what_they_are():
    # 0 writes for 1, 1 for 2; 0 and 3 share a line but no byte.
    graph = graph_of([1, 1, 1, 1], [((0, 0), (1, 0)), ((1, 0), (2, 0))])
    footprints = ranges(
        (0, WRITE, 0, 4), (1, READ, 0, 4), (1, WRITE, 256, 260), (2, READ, 0, 4),
        (2, READ, 256, 260), (3, READ, 64, 68),
    )  # fmt: skip
    found = ask_filters(graph, footprints, 1 << 14, 4)
    assert (found.true, found.implied, found.false, found.sharing) == (2, 1, 1, 1)
    assert found.collisions == 0
    assert "pairs of blocks reported: 4, 2 true, 1 implied by others, 1 false" in found.describe()


@given(touches, st.sets(st.sampled_from(["RAW", "WAR", "WAW"]), min_size=1))
def test_shared_lines_are_those_of_the_slow_twin(touched, kinds):
    graph = graph_of([2, 2, 2], []).with_kinds(kinds)
    found = ask_filters(
        graph, ranges(*sorted({(b, k, 64 * at, 64 * at + 4) for b, k, at, _ in touched})), 64, 2
    )
    lines = {(b, k, at // 2) for b, k, at, _ in touched}
    pairs = {(READ, WRITE): "RAW", (WRITE, READ): "WAR", (WRITE, WRITE): "WAW"}
    shared = {
        (other, b)
        for b, k, line in lines
        for other, kind, same in lines
        if line == same and other // 2 < b // 2 and pairs.get((k, kind)) in kinds
    }
    # Without edges all that filters report is false; what shares a line they never miss.
    assert (found.true, found.implied) == (0, 0)
    assert found.sharing == len(shared)
    assert found.collisions == found.false - found.sharing


# Dataflow, and parameters.


def test_the_best_priority_is_the_best_of_three():
    # The long chain is last in program order.
    graph = graph_of([2, 2, 1, 1], [((2, 0), (3, 0))])
    program = program_of(graph, [4, 4, 4, 4, 4, 8], 2)
    each = {
        name: makespan(f"dataflow({name})", program)
        for name in ("oldest-first", "newest-first", "longest-path-first")
    }
    found, rules = run("dataflow (best priority)", program)
    assert found.makespan == min(each.values()) < each["oldest-first"]
    assert found.name == "dataflow (best priority)"
    assert any("longest-path-first" in n or "newest-first" in n for n in rules.assumptions)


def test_former_names_are_still_known():
    assert [m.label for m in find_mechanisms(["kernel-graph", "dataflow"])] == [
        "cuda-graph", "dataflow (oldest-first)",
    ]  # fmt: skip


@pytest.mark.parametrize("number", [str(10**24), "9" * 5000, str(2**31), "-1", "1e3", "٣"])
@pytest.mark.parametrize("name", ["wireframe({})", "acs-sw({})", "blockmaestro({})"])
def test_a_parameter_out_of_range_is_one_line(name, number):
    with pytest.raises(ModelError, match="is not a whole number from 1 to 2147483647") as error:
        find_mechanisms([name.format(number)])
    assert len(str(error.value)) < 200


def test_a_parameter_that_is_allowed_works():
    program = chain(3, 10)
    for name in ("wireframe", "acs-sw", "blockmaestro"):
        assert makespan(f"{name}({2**31 - 1})", program, {"check": Quantity(0, "us")}) == 30


# Anomalies.


def test_a_sweep_says_where_more_is_slower():
    points = [
        Swept("acs-sw(16)", ("acs-sw", 16), 8, 21.6), Swept("acs-sw", ("acs-sw", 32), 8, 26.0),
        Swept("acs-sw", ("acs-sw", 32), 16, 27.0), Swept("pdl", ("pdl", 1), 8, 17.0),
        Swept("serial", None, 8, 40.0), Swept("serial", None, 16, 40.0),
    ]  # fmt: skip
    notes = anomaly_notes(points, "us")
    assert notes[0] == notes[3] == notes[4] == notes[5] == ()
    assert notes[1] == ("slower than acs-sw(16) (21.6 us): an anomaly of list schedules",)
    assert notes[2] == ("slower than on 8 SMs (26 us): an anomaly of list schedules",)


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_every_mechanism_that_is_swept_says_how_free_it_is(name):
    for mechanism in MECHANISMS[name].variants():
        freedom = mechanism.freedom
        assert freedom is None or (freedom[0].startswith(name) and freedom[1] >= 0)
