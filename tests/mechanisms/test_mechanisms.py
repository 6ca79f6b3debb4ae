"""Laws between mechanisms, on random programs, and what single ones do."""

from dataclasses import replace

import naive_schedule
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from programs import edges_of
from random_programs import graphs, one_row, programs
from small_graphs import graph_of, kernels_of, scenario_of

from depgraph.analysis.bound import limits_of
from depgraph.errors import ModelError
from depgraph.footprint.footprints import Footprints
from depgraph.graph.builder import GraphBuilder
from depgraph.mechanisms import (
    MECHANISMS,
    Availability,
    Charges,
    Quantity,
    find_mechanisms,
    parse_cost,
    split_names,
)
from depgraph.mechanisms.base import run_mechanism
from depgraph.mechanisms.bloom import ask_filters, reported_graph
from depgraph.mechanisms.dataflow_learned import learned_kernels
from depgraph.mechanisms.filters_jit import filter_bit
from depgraph.mechanisms.stream_k import is_gemm, peers
from depgraph.schedule.policy import Against

FREE = {
    "launch": Quantity(0, "us"), "check": Quantity(0, "us"), "sync": Quantity(0, "share"),
    "task": Quantity(0, "us"), "start": Quantity(0, "us"), "quantum": Quantity(1, "us"),
}  # fmt: skip
# What needs no collectives, which random programs lack.
GENERAL = [name for name, kind in MECHANISMS.items() if not kind.needs_collectives]
# What has no false dependences, and no durations of its own.
FILTERS = {"dataflow-bloom", "dataflow-hints"}
SPECIAL = {*FILTERS, "stream-k", "ideal", "green-contexts"}  # the last needs many SMs
PLAIN = [name for name in GENERAL if name not in SPECIAL and not MECHANISMS[name].needs_launches]
CLOSE = 1 + 1e-9


def charges(mechanism, changed=None):
    free = {name: q for name, q in FREE.items() if name in {c.name for c in mechanism.costs}}
    return Charges(mechanism.costs, {**free, **(changed or {})})


def makespan(name, program, changed=None):
    (mechanism,) = find_mechanisms([name])
    return run_mechanism(mechanism, program, charges(mechanism, changed))[0].makespan


def ends_before_starts(program, schedule):
    """Tell whether no block starts before a block that it depends on has ended."""
    return all(schedule.end[s] <= schedule.start[t] * CLOSE for s, t, _ in edges_of(program.graph))


@given(programs(), st.sampled_from(PLAIN))
def test_no_mechanism_is_below_the_block_bound(program, name):
    assume(not name.startswith("cusync-") or name == "cusync-row")
    assert makespan(name, program) * CLOSE >= limits_of(program).lower_bound


@given(programs(positions=True), st.sampled_from(PLAIN))
def test_no_mechanism_beats_the_intra_block_bound(program, name):
    assert makespan(name, program) * CLOSE >= limits_of(program).intra_block_bound


@given(graphs(positions=True))
def test_the_intra_block_path_is_that_of_the_slow_twin_and_no_longer_than_the_critical_path(graph):
    durations = 1.0 + np.arange(graph.n_blocks) % 5
    fine = graph.intra_block_path(durations)
    assert fine == pytest.approx(max(naive_schedule.intra_block_finish(graph, durations)))
    assert fine <= graph.earliest_finish(durations)[0].max() * CLOSE


@given(programs(), st.sampled_from(["dataflow", "wireframe", "blockmaestro", "dataflow-learned"]))
def test_blocks_without_a_slot_start_after_all_they_depend_on(program, name):
    (mechanism,) = find_mechanisms([name])
    schedule, _ = run_mechanism(mechanism, program, charges(mechanism))
    assert ends_before_starts(program, schedule)
    assert schedule.waiting == 0


@given(programs())
def test_ideal_is_the_critical_path(program):
    assert makespan("ideal", program) == limits_of(program).critical_path


@st.composite
def two_kernels(draw):
    """Return two dependent kernels in rows: each row of the second waits for one of the first."""
    rows, width, other = (draw(st.integers(1, 4)) for _ in range(3))
    builder = GraphBuilder([0, 1], [rows * width, rows * other])
    for row in range(rows):
        builder.add(
            "RAW", row * width + np.arange(width), rows * width + row * other + np.arange(other)
        )
    times = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    graph = builder.build()
    return scenario_of(
        graph=graph,
        durations=np.repeat(np.array(times, float), [rows * width, rows * other]),
        occupancy=np.ones(2, np.int64),
        sms=draw(st.integers(1, 6)),
        grid=np.array([[width, rows, 1], [other, rows, 1]]),
    )


@given(two_kernels())
def test_order_of_cusync_between_the_bounds_and_serial(program):
    limits = limits_of(program)
    tile, row = makespan("cusync-tile", program), makespan("cusync-row", program)
    assert limits.work <= tile * CLOSE
    assert tile <= row * CLOSE
    assert row <= limits.serial * CLOSE
    assert limits.critical_path <= row * CLOSE
    assert makespan("dataflow", program) <= row * CLOSE


@given(programs(), st.data())
def test_another_edge_never_shortens_the_critical_path(program, data):
    graph = program.graph
    assume(graph.n_operations > 1)
    target = data.draw(st.integers(1, graph.n_operations - 1))
    source = data.draw(st.integers(0, target - 1))
    builder = GraphBuilder(graph.kernel.tolist(), np.diff(graph.first_block).tolist())
    for s, t, _ in edges_of(graph):
        builder.add("RAW", [s], [t])
    builder.add("RAW", [graph.first_block[source]], [graph.first_block[target]])
    before, _ = graph.earliest_finish(program.durations)
    after, _ = builder.build().earliest_finish(program.durations)
    assert after.max() >= before.max()


@given(st.lists(st.integers(2, 9), min_size=1, max_size=6), st.integers(1, 3))
def test_acs_on_a_chain_is_serial_and_its_costs(durations, launch):
    n = len(durations)
    graph = graph_of([1] * n, [((k, 0), (k + 1, 0)) for k in range(n - 1)])
    program = scenario_of(graph, durations, sms=2)
    cost = {"launch": Quantity(launch, "us"), "check": Quantity(1, "us")}
    serial = sum(durations)
    # In a window of many, all checks but the first are hidden behind running kernels.
    assert makespan("acs-sw", program, cost) == serial + n * launch + 1
    assert makespan("acs-sw(1)", program, cost) == serial + n * (launch + 1)


@given(programs())
def test_stream_k_fills_every_wave_where_all_can_be_cut_anywhere(program):
    everything = marked(program, [True] * program.graph.n_operations)
    blocks = np.diff(program.graph.first_block)
    cut = blocks % (program.sms * program.occupancy) > 0
    assume(cut.all())
    free = {"steps": Quantity(1e9, "count"), "fixup": Quantity(0, "count")}
    found = makespan("stream-k", everything, free)
    per_slot = program.durations / program.occupancy[program.graph.operation_of_block]
    assert found == pytest.approx(per_slot.sum() / program.sms)


def marked(program, cuttable):
    """Return the program with kernels that may be cut, may not, or of which nothing is said."""
    kernels = [replace(k, cuttable=c) for k, c in zip(program.kernels, cuttable, strict=True)]
    return replace(program, kernels=kernels)


def gemms(sizes, durations, sms, *, cuttable=None):
    """Return independent kernels, one block per SM, that are matrix products."""
    graph = graph_of(sizes, [])
    names = tuple(f"kernel_{k}" for k in range(len(sizes)))
    program = scenario_of(graph, np.repeat(durations, sizes), sms=sms, functions=names)
    return marked(program, cuttable or [True] * len(sizes))


def test_whole_waves_are_not_cut():
    # 4 waves of 362.2 us on the 108 SMs of an A100: fixed durations give 1448.8 us, 1443.7 were
    # measured, so that nothing is to be added for fixing up.
    program = gemms([432], [362.2], 108)
    assert makespan("stream-k", program, {"fixup": Quantity(10, "count")}) == pytest.approx(1448.8)


@pytest.mark.parametrize(
    ("tiles", "sms", "time"),
    [
        # Steps of 1/8 us: each of two peers takes two steps more.
        (9, 4, 9 + 2 * 2 / 8),
        (3, 2, 6 + 2 * 2 / 8),
        # Two tiles on five SMs: three peers of 1.6 us each, rather than two aligned ones of 2 us.
        (2, 5, 1.6 + 3 * 2 / 8),
        (2, 4, 2 + 2 * 2 / 8),
    ],
)
def test_each_peer_of_a_tile_costs_a_fix_up(tiles, sms, time):
    assert makespan("stream-k", gemms([tiles], [4], sms)) == pytest.approx(time)


def test_a_tile_is_cut_into_as_many_pieces_as_pay():
    # One tile of 32 steps of 2 us on 132 SMs: n peers take 64 / n + n * 2 * 2 us.
    tile, few = gemms([1], [64], 132), {"steps": Quantity(8, "count")}
    assert makespan("stream-k", tile) == pytest.approx(64 / 4 + 4 * 4)
    free = {"fixup": Quantity(0, "count")}
    assert makespan("stream-k", tile, free) == pytest.approx(2)
    assert makespan("stream-k", tile, free | few) == 8
    # Of eight steps, two pieces would cost 4 of 8 steps more each: it stays whole.
    assert makespan("stream-k", tile, few) == 64


@given(st.integers(1, 40), st.integers(1, 40))
def test_peers_are_those_whose_shares_overlap_a_block(blocks, workers):
    def share(block):
        """Return the workers of a block: their shares and it, in units of 1 / workers."""
        return [
            w for w in range(workers) if w * blocks < (block + 1) * workers
            and (w + 1) * blocks > block * workers
        ]  # fmt: skip

    most = max(len(share(block)) for block in range(blocks))
    assert peers(blocks, np.array([workers])).tolist() == [most]


def test_only_matrix_products_are_cut():
    program = gemms([1, 1], [64, 64], 132, cuttable=[True, False])
    assert makespan("stream-k", program) == pytest.approx(32 + 64)
    assert makespan("stream-k", marked(program, [None, None])) == 128
    assert makespan("stream-k(kernel_[01])", program) == pytest.approx(32 + 32)
    (mechanism,) = find_mechanisms(["stream-k"])
    rules = mechanism.rules(program, charges(mechanism))
    assert rules.against is Against.WORK
    assert rules.assumptions == (
        (
            "kernels cut: 1 of 2; of 1 matrix product 0 in whole waves, 0 too short to be worth "
            "the fix-up"
        ),
    )


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8_stage3_execute_kernel__5x", True),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_tn_align1>(Params)", True),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT", True),
        ("volta_sgemm_128x64_nn", True),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>(cublasLt::Params)", False),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_execute_split_k_kernel", False),
        ("void gemmSN_TN_kernel<float, 128, 16, 2, 4, 8, 9, false>(Params)", False),
        ("void at::native::elementwise_kernel<128, 2, GemmEpilogue>(int)", False),
        ("gru_cell_forward", False),
    ],
)
def test_matrix_products_are_known_by_name(name, is_one):
    assert is_gemm(name) is is_one


def test_pdl_overlaps_preambles_only():
    graph = graph_of([2, 2], [((0, 0), (1, 0))])
    program = scenario_of(graph, [4.0, 2, 3, 3], sms=3)
    assert makespan("serial", program) == 7
    assert makespan("pdl", program) == 7
    assert makespan("pdl", program, {"preamble": Quantity(2, "us")}) == 5
    assert makespan("pdl(end)", program, {"preamble": Quantity(2, "us")}) == 7


def test_streams_overlap_what_kernels_do_not_need():
    graph = graph_of([1, 1, 1], [((0, 0), (2, 0))])
    streams = graph.resources._replace(stream=np.array([0, 1, 1]))
    graph = replace(graph, resources=streams)
    program = scenario_of(graph, [4.0, 3, 2], sms=2)
    assert makespan("streams", program) == 6
    assert makespan("serial", program) == 9


def test_blockmaestro_waits_for_a_kernel_with_too_many_parents():
    graph = graph_of([3, 1], [((0, 0), (1, 0)), ((0, 1), (1, 0))])
    program = scenario_of(graph, [1.0, 1, 9, 1], sms=4)
    assert makespan("blockmaestro", program) == 9
    assert makespan("blockmaestro", program, {"parents": Quantity(1, "count")}) == 10


def launches_of(functions, edges):
    """Return launches of two blocks each, of functions with names of one letter."""
    n = len(functions)
    graph = graph_of([2] * n, edges)
    return scenario_of(
        graph, np.ones(2 * n), sms=4, functions=tuple(functions), grid=one_row(graph),
        block=np.ones((n, 3), np.int64),
    )  # fmt: skip


def test_a_repeated_kernel_is_learned_whatever_its_place():
    program = launches_of("abbb", [((k, b), (k + 1, b)) for k in range(3) for b in range(2)])
    assert learned_kernels(program).learned.tolist() == [False, False, True, True]
    other = replace(program, kernels=kernels_of([2] * 4, ("a", "b", "c", "b")))
    assert learned_kernels(other).learned.tolist() == [False, False, False, True]


def test_another_pattern_is_not_learned():
    straight = [((k, b), (k + 1, b)) for k in range(2) for b in range(2)]
    lesson = learned_kernels(launches_of("abbb", [*straight, ((2, 0), (3, 1)), ((2, 1), (3, 0))]))
    assert lesson.learned.tolist() == [False, False, True, False]
    # Straight edges were learned where crossed ones are.
    assert (lesson.mistaken, lesson.missed, lesson.needless) == (1, 2, 2)


def test_a_launch_is_like_the_one_after_the_same_kernels():
    # b after a waits for one block, b after c for the other; each is learned apart.
    edges = [((k - 1, 0 if k in {1, 5} else 1), (k, 0)) for k in (1, 3, 5, 7)]
    lesson = learned_kernels(launches_of("abcbabcb", edges))
    assert lesson.learned.tolist() == [False] * 3 + [False] + [True] * 4
    # At its second launch b has only been seen after a.
    assert (lesson.mistaken, lesson.missed, lesson.needless) == (1, 1, 1)


def test_without_positions_tiles_are_taken_to_be_needed_one_after_another():
    builder = GraphBuilder([0, 1], [2, 1])
    builder.add("RAW", [0, 1], [2])
    graph = builder.build()
    program = scenario_of(graph, [1.0, 3, 2], sms=3, grid=one_row(graph))
    assert makespan("cusync-row", program) == 5
    # The second tile, there at 3, is needed at half of the consumer's work.
    assert makespan("cusync-tile", program) == 4


def test_a_late_wait_does_not_delay_what_was_done_before_it():
    builder = GraphBuilder([0, 1, 2], [1, 1, 1], positions=True)
    builder.add("RAW", [0], [1], needed_at=0.75)
    builder.add("RAW", [1], [2], done_at=0.25)
    assert builder.build().intra_block_path(np.full(3, 4.0)) == 5


def test_bloom_filters_tell_the_memory_of_two_contexts_apart():
    line = np.full(3, 1 << 40, np.uint64)
    footprints = Footprints(
        np.arange(3, dtype=np.int32), np.ones(3, np.uint8), line, line + np.uint64(4)
    )
    graph = replace(graph_of([1, 1, 1], []), space=np.array([0, 1, 0], np.int32))
    answers = ask_filters(graph, footprints, 1 << 14, 4)
    assert [(s, t) for s, t, _ in edges_of(reported_graph(graph, answers))] == [(0, 2)]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1), st.integers(0, 9)), min_size=1))
def test_bloom_filters_report_what_they_would_by_hand(touches):
    touches = sorted(set(touches))
    graph = graph_of([2, 2, 2], [])
    block, kind, line = (np.array(column) for column in zip(*touches, strict=True))
    start = line.astype(np.uint64) * np.uint64(128)
    footprints = Footprints(
        block.astype(np.int32), kind.astype(np.uint8), start, start + np.uint64(4)
    )
    answers = ask_filters(graph, footprints, 16, 2)
    reported = {(s, t) for s, t, _ in edges_of(reported_graph(graph, answers))}
    filters = {(b, k): set() for b in range(6) for k in (0, 1)}
    for b, k, at in touches:
        filters[b, k] |= naive_schedule.bloom_bits(at, 16, 2)
    expected = {
        (s, t)
        for t, k, at in touches
        for s in range(6)
        if s // 2 < t // 2
        and any(
            naive_schedule.bloom_bits(at, 16, 2) <= filters[s, other]
            for other in ((1,) if k == 0 else (0, 1))
        )
    }
    assert reported == expected


@given(st.integers(0, 2**50), st.integers(1, 8))
def test_filter_bits_are_those_of_the_slow_twin(line, hashes):
    with np.errstate(over="ignore"):
        bits = {int(filter_bit(np.uint64(line), h, 1000)) for h in range(hashes)}
    assert bits == naive_schedule.bloom_bits(line, 1000, hashes)


def test_every_mechanism_says_what_it_is():
    for name, kind in MECHANISMS.items():
        assert kind.name == name
        assert isinstance(kind.availability, Availability)
        assert len(kind.rule) > 20
        assert kind.source
        for cost in kind.costs:
            assert cost.meaning
            assert cost.source


def test_names_are_split_outside_parentheses():
    assert split_names("dataflow-bloom(64,2), serial") == ["dataflow-bloom(64,2)", "serial"]
    labels = [m.label for m in find_mechanisms(["dataflow-bloom(64,2)", "blockmaestro(3)"])]
    assert labels == ["dataflow-bloom(64,2)", "blockmaestro(3)"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("warp-drive", "there is no mechanism 'warp-drive'"),
        ("serial(3)", "serial takes no parameters"),
        ("wireframe(0)", "not a whole number from 1"),
        ("pdl(late)", r"pdl: 'late' is not a share from 0 to 1"),
        ("pdl(0,1)", r"give pdl\(early\|S\|end\)"),
        ("no_such_module:Rule", "cannot import 'no_such_module'"),
        ("math:pi", "no subclass of Mechanism"),
    ],
)
def test_a_wrong_name_is_explained(name, message):
    with pytest.raises(ModelError, match=message):
        find_mechanisms([name])


def test_a_users_own_rule_is_found_beside_them(tmp_path, monkeypatch):
    (tmp_path / "own_rules.py").write_text(
        "from depgraph.mechanisms import Availability, Mechanism, Rules\n"
        "class Pairs(Mechanism):\n"
        "    name = 'pairs'\n"
        "    rule = 'kernels run two at a time, in order'\n"
        "    availability = Availability.CODE\n"
        "    source = 'an example'\n"
        "    def rules(self, program, charges):\n"
        "        return Rules(window=2, in_order=True)\n"
    )
    monkeypatch.chdir(tmp_path)
    program = scenario_of(graph_of([1, 1, 1], []), np.ones(3), sms=3)
    assert makespan("own_rules:Pairs", program) == 2


def test_costs_are_converted_to_the_unit_of_the_durations():
    (acs,) = find_mechanisms(["acs-sw"])
    given_ = {"launch": Quantity(8, "us")}
    assert Charges(acs.costs, given_, unit="us").time("launch") == 8
    assert Charges(acs.costs, given_, unit="ns").time("launch") == pytest.approx(8000)
    cycles = Charges(acs.costs, given_, unit="cycles", clock_mhz=1500)
    assert cycles.time("launch") == 12_000
    counted = Charges(acs.costs, given_, unit="instructions")
    assert counted.time("launch") == 0
    assert counted.notes == ["launch 8 us left out: durations are instructions, no times"]


def test_a_cost_is_read_with_its_unit():
    assert parse_cost("acs-sw.launch=8us") == ("acs-sw", "launch", Quantity(8, "us"))
    assert parse_cost("cusync-row.sync=2.5%") == ("cusync-row", "sync", Quantity(0.025, "share"))
    with pytest.raises(ModelError, match=r"give MECHANISM\.COST=VALUE"):
        parse_cost("acs-sw=8us")
    with pytest.raises(ModelError, match="'9e999' is not a number"):
        parse_cost("acs-sw.launch=9e999us")
    assert parse_cost("acs-sw.launch=2launches") == ("acs-sw", "launch", Quantity(2, "launches"))
    with pytest.raises(ModelError, match="none of us, ns"):
        parse_cost("acs-sw.launch=8 parsecs")


def test_what_a_mechanism_is_held_against():
    graph = graph_of([1, 1], [((0, 0), (1, 0))])
    program = scenario_of(graph, np.ones(2), sms=1, grid=one_row(graph))
    against = {}
    for name in GENERAL:
        for mechanism in find_mechanisms([name]):
            if name in {*FILTERS, "dataflow-learned", "green-contexts"}:
                continue
            if mechanism.needs_launches:
                continue
            against[name] = run_mechanism(mechanism, program, charges(mechanism))[1].against
    fine = {"cusync-tile", "cusync-strided", "cusync-conv2d"}
    assert {name for name, a in against.items() if a is Against.INTRA_BLOCK} == fine
    assert {name for name, a in against.items() if a is Against.WORK} == {"stream-k"}


def test_unknown_costs_are_refused():
    (acs,) = find_mechanisms(["acs-sw"])
    with pytest.raises(ModelError, match="no cost 'lunch'; known: launch, check, segments"):
        Charges(acs.costs, {"lunch": Quantity(1, "us")})
