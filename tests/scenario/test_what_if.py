"""What if: scaled kernels, renamed buffers, merged kernels, another gap."""

from collections import defaultdict
from dataclasses import fields, replace

import hypothesis.strategies as st
import naive
import numpy as np
import pytest
from hypothesis import assume, given
from programs import BASE, edges_of, footprints_of, graphs, n_blocks_of, programs
from programs import graph_of as graph_of_program
from small_graphs import chain_edges, graph_of, kernels_of, scenario_of

from depgraph.analysis.bound import bound
from depgraph.errors import ModelError
from depgraph.graph.fuse import merge_kernels
from depgraph.scenario.build_scenario import build_scenario
from depgraph.scenario.what_if import Drop, Gap, Merge, Scale, apply_what_ifs, parse_what_if
from depgraph.timing.program_times import NO_COSTS, LaunchChoice, LaunchModel, LaunchTime

SIZES = [2, 2, 3]
NAMES = ["gemm", "relu", "void gemm<float>(int)"]


def program(edges=(), names=None, gap=5.0):
    graph = graph_of(SIZES, list(edges))
    launch = LaunchModel(gap=LaunchTime(gap))
    return scenario_of(
        graph, np.arange(1.0, 8), kernels=kernels_of(SIZES, names or NAMES), launch=launch,
        read_footprints=no_footprints,
    )  # fmt: skip


def no_footprints():
    pytest.fail("nothing here needs footprints")


def changed(*statements, before=None):
    return apply_what_ifs(before or program(), [parse_what_if(s) for s in statements])


@pytest.mark.parametrize(
    ("kernels", "expected"),
    [
        ("1", [1, 2, 6, 8, 5, 6, 7]),
        ("0:2", [2, 4, 6, 8, 5, 6, 7]),
        ("1:", [1, 2, 6, 8, 10, 12, 14]),
        ("0,2", [2, 4, 3, 4, 10, 12, 14]),
        ("gemm", [2, 4, 3, 4, 10, 12, 14]),
        ("*mm", [2, 4, 3, 4, 10, 12, 14]),
        ("void*", [1, 2, 3, 4, 10, 12, 14]),
    ],
)
def test_a_kernel_is_scaled_by_number_range_or_name(kernels, expected):
    after = changed(f"kernel={kernels} duration*=2")
    assert after.durations.tolist() == expected
    assert after.timing.assumptions[-1].startswith(
        f"what if kernel={kernels} duration*=2: durations of"
    )


def test_statements_add_up_in_their_order():
    after = changed("kernel=1 duration*=10", "kernel=0:2 duration/=2", "gap*=3", "gap/=5")
    assert after.durations.tolist() == [0.5, 1, 15, 20, 5, 6, 7]
    assert after.launch.gap.value == 3
    assert sum(note.startswith("what if ") for note in after.assumptions) == 4


def test_a_multiple_of_what_costs_nothing_changes_nothing():
    after = changed("gap*=3", before=program(gap=0.0).with_launch(NO_COSTS))
    assert after.launch == NO_COSTS
    assert any(note.startswith("what if gap*=3: changes nothing") for note in after.assumptions)


def test_the_gap_is_removed():
    assert changed("gap=0").launch.is_off


def test_the_program_before_is_left_as_it_is():
    before = program()
    changed("kernel=* duration*=0", before=before)
    assert before.durations.tolist() == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kernel=3 duration*=0.5", Scale("kernel=3 duration*=0.5", "3", 0.5)),
        ("duration/=4 kernel=a*", Scale("duration/=4 kernel=a*", "a*", 0.25)),
        ("merge=5,4", Merge("merge=5,4", 4, 5)),
        ("gap=2.5", Gap("gap=2.5", 0.0, 2.5)),
        ("buffer=0x10:32 drop=war", Drop("buffer=0x10:32 drop=war", 16, 32, frozenset({"WAR"}))),
        (
            "buffer=16+0x10 drop=war,waw",
            Drop("buffer=16+0x10 drop=war,waw", 16, 32, frozenset({"WAR", "WAW"})),
        ),
    ],
)
def test_statements_are_read(text, expected):
    assert parse_what_if(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "nothing is not a statement"),
        ("kernel=3", "kernel is not a statement"),
        ("kernel=3 gap=0", "kernel and gap is not a statement"),
        ("kernel 3", "'kernel' is not WORD=VALUE"),
        ("speed=3", "there is no word 'speed'"),
        ("gap=0 gap=1", "gap stands there twice"),
        ("kernel*=3 duration*=2", "kernel takes '='"),
        ("kernel=3 duration=2", r"duration takes '\*=' or '/='"),
        ("kernel=3 duration/=0", "cannot be divided by 0"),
        ("kernel=3 duration*=-1", "'-1' is not a number from 0"),
        ("gap=inf", "'inf' is not a number from 0"),
        ("merge=1", "merge takes two kernel numbers"),
        ("merge=1,2,3", "merge takes two kernel numbers"),
        ("buffer=1:9 drop=raw", "a RAW dependence carries data"),
        ("buffer=9:1 drop=war", "the buffer is empty"),
        ("buffer=9 drop=war", "buffer takes FROM:TO or FROM"),
    ],
)
def test_a_wrong_statement_is_told_which_words_there_are(text, message):
    with pytest.raises(ModelError, match=rf"{message}.*; give kernel=N\|A:B\|NAME\* duration\*=F"):
        parse_what_if(text)


def test_a_kernel_that_is_not_there():
    with pytest.raises(ModelError, match="no kernel is '9'; give a number or a range in 0:3"):
        changed("kernel=9 duration*=2")
    with pytest.raises(ModelError, match=r"no kernel is 'conv\*'.* a name such as 'gemm'"):
        changed("kernel=conv* duration*=2")


# Buffers


def traced(random_program):
    """Return the scenario of a program that touches bytes."""
    footprints, first_block, _ = footprints_of(random_program)
    return scenario_of(
        graph_of_program(random_program), np.ones(n_blocks_of(random_program)),
        kernels=kernels_of(np.diff(first_block).tolist()), read_footprints=lambda: footprints,
    )  # fmt: skip


def without(program, low, high, kinds):
    """Take the definition at its word: the bytes of the buffer have no such dependences."""

    def of(chosen):
        return [
            {b: tuple({x for x in touched if chosen(x)} for touched in both)
             for b, both in operation.items()}
            for operation in program
        ]  # fmt: skip

    inside = naive.dependences(of(lambda x: low <= x < high))
    outside = naive.dependences(of(lambda x: not low <= x < high))
    return outside | {edge for edge in inside if edge[2] not in kinds}


@given(
    programs(), st.integers(0, 28), st.integers(1, 28), st.sampled_from(["war", "waw", "war,waw"])
)
def test_a_renamed_buffer_carries_data_alone(random_program, low, size, kinds):
    _, first_block, _ = footprints_of(random_program)
    before = traced(random_program)
    statement = parse_what_if(f"buffer={BASE + low}+{size} drop={kinds}")
    touched = {b for o in random_program for both in o.values() for t in both for b in t}
    if not touched & set(range(low, low + size)):
        with pytest.raises(ModelError, match="no block touches a byte"):
            apply_what_ifs(before, [statement])
        return
    after = apply_what_ifs(before, [statement])
    expected = without(random_program, low, low + size, set(kinds.upper().split(",")))
    assert edges_of(after.graph) == sorted(expected)
    assert after.graph.first_block.tolist() == first_block.tolist()


def test_buffers_are_renamed_before_kernels_are_merged():
    # Kernel 1 overwrites what block 1 of kernel 0 reads: together they would need a barrier.
    random_program = [{0: ({9}, {0}), 1: ({0, 1}, {2})}, {2: ({2}, {1, 9})}]
    before = traced(random_program)
    merge, drop = parse_what_if("merge=0,1"), parse_what_if(f"buffer={BASE + 9}+1 drop=war")
    with pytest.raises(ModelError, match="several blocks of kernel 0"):
        apply_what_ifs(before, [merge])
    after = apply_what_ifs(before, [merge, drop])
    assert after.durations.tolist() == [1, 2]


# Merged kernels


def test_blocks_that_wait_for_one_block_become_part_of_it():
    # Kernel 1 works on what kernel 0 wrote, block by block; kernel 2 on what kernel 1 wrote.
    edges = chain_edges(SIZES)
    after = changed("merge=0,1", before=program(edges))
    assert np.diff(after.graph.first_block).tolist() == [2, 3]
    assert after.durations.tolist() == [1 + 3, 2 + 4, 5, 6, 7]
    assert after.graph.kernel.tolist() == [0, 2]
    assert edges_of(after.graph) == [(0, 2, "RAW"), (1, 3, "RAW")]
    assert [(k.kernel, k.operation, k.first_block, k.blocks) for k in after.kernels] == [
        (0, 0, 0, 2), (2, 1, 2, 3),
    ]  # fmt: skip
    assert after.kernels[0].name == "gemm + relu"


def test_blocks_that_wait_for_none_run_beside_the_others():
    after = changed("merge=0,1")
    assert np.diff(after.graph.first_block).tolist() == [4, 3]
    assert after.durations.tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_a_merged_kernel_takes_the_larger_resources():
    graph = graph_of(SIZES, [])
    graph.resources.registers[:] = [32, 64, 16]
    merged, _, _ = merge_kernels(graph, kernels_of(SIZES), 0, 1)
    assert merged.resources.registers.tolist() == [64, 16]


def test_kernels_that_need_a_barrier_are_not_merged():
    edges = [((0, 0), (1, 0)), ((0, 1), (1, 0))]
    with pytest.raises(ModelError, match="'merge=0,1': blocks of kernel 1 wait for several"):
        changed("merge=0,1", before=program(edges))


def test_only_neighbours_are_merged():
    with pytest.raises(ModelError, match="kernel 2 is not launched right after kernel 0"):
        changed("merge=0,2")
    with pytest.raises(ModelError, match="there is no kernel 7"):
        changed("merge=2,7")


def in_two_contexts(graph):
    return replace(graph, space=np.array([0, 1, 0], np.int32))


def test_a_renamed_buffer_brings_no_dependence_between_contexts():
    everywhere = [{0: (set(), {0})}, {1: ({0}, set())}, {2: ({0}, set())}]
    graph = in_two_contexts(graph_of_program(everywhere))
    before = replace(traced(everywhere), graph=graph)
    statement = parse_what_if(f"buffer={BASE}+1 drop=war,waw")
    after = apply_what_ifs(before, [statement])
    assert edges_of(after.graph) == [(0, 2, "RAW")]


def test_kernels_of_different_contexts_are_not_merged():
    before = replace(program(), graph=in_two_contexts(program().graph))
    with pytest.raises(ModelError, match="of different CUDA contexts"):
        changed("merge=0,1", before=before)


def test_a_merged_graph_keeps_the_contexts_of_the_others():
    before = replace(program(), graph=replace(program().graph, space=np.array([1, 1, 0])))
    assert changed("merge=0,1", before=before).graph.space.tolist() == [1, 0]


def test_it_is_said_that_positions_are_lost():
    graph = program().graph
    n = len(graph.set_blocks)
    before = replace(program(), graph=replace(graph, first_use=np.zeros(n), last_use=np.ones(n)))
    said = "where inside blocks dependences are needed is unknown"
    assert any(said in note for note in changed("merge=0,1", before=before).assumptions)
    assert not any(said in note for note in changed("gap=0", before=before).assumptions)
    assert not any(said in note for note in changed("merge=0,1").assumptions)


def test_three_kernels_become_one():
    after = changed("merge=0,1", "merge=0,2", before=program(chain_edges(SIZES)))
    assert after.durations.tolist() == [1 + 3 + 5, 2 + 4 + 6, 7]
    assert edges_of(after.graph) == []


@given(graphs(), st.data())
def test_a_merged_graph_has_the_edges_of_the_old_one(graph, data):
    assume(graph.n_operations > 1)
    first = data.draw(st.integers(0, graph.n_operations - 2))
    edges = naive.expand(graph)
    operation = graph.operation_of_block
    sources = defaultdict(set)
    for s, t, _ in edges:
        if operation[s] == first and operation[t] == first + 1:
            sources[t].add(s)
    sizes = np.diff(graph.first_block).tolist()
    if any(len(found) > 1 for found in sources.values()):
        with pytest.raises(ModelError, match="without a barrier"):
            merge_kernels(graph, kernels_of(sizes), first, first + 1)
        return
    merged, kernels, block = merge_kernels(graph, kernels_of(sizes), first, first + 1)
    assert all(block[t] == block[s] for t, found in sources.items() for s in found)
    assert sorted(set(block.tolist())) == list(range(merged.n_blocks))
    expected = {
        (int(block[s]), int(block[t]), kind)
        for s, t, kind in edges
        if not (operation[s] == first and operation[t] == first + 1)
    }
    assert edges_of(merged) == sorted(expected)
    assert [k.blocks for k in kernels] == np.diff(merged.first_block).tolist()
    assert [k.first_block for k in kernels] == merged.first_block[:-1].tolist()


@given(graphs())
def test_merging_saves_no_work(graph):
    assume(graph.n_operations > 1)
    kernels = kernels_of(np.diff(graph.first_block).tolist())
    before = scenario_of(graph, np.ones(graph.n_blocks), kernels=kernels)
    try:
        after = changed("merge=0,1", before=before)
    except ModelError:
        assume(False)  # noqa: FBT003
    assert after.durations.sum() == before.durations.sum()


def test_every_statement_is_named_in_the_bound():
    graph = graph_of(SIZES, chain_edges(SIZES))
    statements = ["kernel=0 duration*=3", "merge=0,1", "gap=0"]
    scenario = build_scenario(
        graph,
        kernels_of(SIZES),
        launch=LaunchChoice("none", {"host": 7.0}),
        fixed_occupancy=1,
        what_ifs=[parse_what_if(s) for s in statements],
    )
    table = bound(scenario, 4)
    # Blocks of 3 + 1 and of 1: kernels 0 and 1 together, then kernel 2.
    assert table.bounds[0].serial == 5
    for statement in statements:
        assert sum(note.startswith(f"what if {statement}: ") for note in table.assumptions) == 1


def test_a_halved_kernel_halves_its_part_of_the_serial_time():
    graph = graph_of(SIZES, [])
    scenario = build_scenario(
        graph, kernels_of(SIZES), fixed_occupancy=1,
        what_ifs=[parse_what_if("kernel=1 duration*=0.5")],
    )  # fmt: skip
    assert bound(scenario, 4).bounds[0].serial == 2.5


def test_every_field_of_a_graph_is_thought_of_when_kernels_are_merged():
    # A new field has to be carried over, or left out on purpose, in depgraph/graph/fuse.py.
    assert {f.name for f in fields(graph_of([1], []))} == {
        "kernel", "first_block", "set_operation", "set_offsets", "set_blocks", "join_kind",
        "join_basis", "join_source_operation", "join_target_operation", "source_offsets", "sources",
        "target_offsets", "targets", "kinds", "cost", "resources", "first_use", "last_use",
        "position_step", "duration", "duration_unit", "occupancy", "space", "frees", "copies",
        "counted", "launches",
    }  # fmt: skip
