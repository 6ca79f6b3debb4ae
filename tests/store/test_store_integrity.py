"""A store is what was written, or it is refused by the name of the file at fault."""

import os
import shutil
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from launching import launches_of
from stores import flip_bit, rewrite, set_metadata, set_values

from depgraph.errors import StoreError
from depgraph.footprint.footprints import Footprints
from depgraph.graph import graph_jit as compiled
from depgraph.graph.builder import GraphBuilder
from depgraph.graph.program import BlockCounts, Copy, Extraction, Kernel
from depgraph.store.schema import STORED_TABLES
from depgraph.store.store import Store, write_store

FILES = [*(f"{table}.parquet" for table in STORED_TABLES), "SHA256SUMS"]
# More bits are flipped where this is set, in a lane of CI or by hand.
FLIPS_PER_FILE = int(os.environ.get("DEPGRAPH_TEST_FLIPS", "16"))


def kernel(number, operation, grid, first_block, accesses):
    blocks = grid[0] * grid[1] * grid[2]
    return Kernel(
        kernel=number, operation=operation, name=f"kernel_{number}(float*)", mangled_name=None,
        trace_id=None, grid_x=grid[0], grid_y=grid[1], grid_z=grid[2], block_x=128, block_y=1,
        block_z=1, registers=32, shared_bytes=None, architecture=90, stream=0, context=1,
        first_block=first_block, blocks=blocks, active_blocks=blocks, accesses=accesses,
        instructions=3 * accesses, read_bytes=64, written_bytes=64, shared_written_bytes=0,
        untraced=None, occupancy=2,
    )  # fmt: skip


def small_extraction():
    """Return a copy, kernel 0 of 2 x 2 blocks that reads it, kernel 1 of 3 that follows."""
    builder = GraphBuilder([-1, 0, 1], [1, 4, 3], positions=True)
    builder.add("RAW", [0], [1, 2, 3, 4], needed_at=0.25)
    builder.add("RAW", [1, 2], [5], done_at=0.5)
    builder.add("RAW", [2, 3, 4], [6, 7], needed_at=0.125)
    builder.add("WAR", [4], [7])
    durations = np.array([np.nan, 4.0, 3.0, 2.0, 1.0, 5.0, 6.0, 7.0])
    launches = launches_of([{"block": 1, "child_grid": 2}, {"block": 5, "join": "kernel"}])
    graph = replace(builder.build(), duration=durations, launches=launches)
    accesses = np.array([0, 4, 3, 2, 1, 5, 6, 7])
    block = np.repeat(np.arange(1, 8, dtype=np.int32), 3)
    start = 0x7F0000000000 + np.arange(21, dtype=np.uint64) * 16
    return Extraction(
        kernels=[kernel(0, 1, (2, 2, 1), 1, 10), kernel(1, 2, (3, 1, 1), 5, 18)],
        copies=[Copy(0, 0, 0, 0x7F0000000000, 64, None, "memset")],
        counts=BlockCounts(accesses, 3 * accesses, 16 * accesses, 16 * accesses),
        footprints=Footprints(block, np.tile(np.uint8([0, 0, 1]), 7), start, start + np.uint64(8)),
        graph=graph,
        metadata={"sources": [], "options": {"granularity": 1, "kinds": ["RAW", "WAR", "WAW"]}},
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write_store(small_extraction(), tmp_path_factory.mktemp("small") / "out").path


@pytest.fixture
def folder(written, tmp_path):
    return shutil.copytree(written, tmp_path / "out")


def content_of(folder):
    """Read all that a store has."""
    store = Store(folder)
    graph = store.graph()
    finish, _ = graph.earliest_finish(graph.duration)
    return repr(
        (
            store.metadata, store.kernels, store.copies, store.counts, store.pairs, graph,
            store.footprints(), finish, graph.pairs(),
            [store.table(table).to_pylist() for table in STORED_TABLES],
        )
    )  # fmt: skip


def refusal(folder):
    with pytest.raises(StoreError) as error:
        content_of(folder)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_small_store_is_read_in_all_its_parts(written):
    assert content_of(written) == content_of(written)
    graph = Store(written).graph()
    assert graph.first_use is not None
    assert sum(pair.edges for pair in graph.pairs()) == 12


# Files that have changed


@pytest.mark.jit_only
@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_refused_by_the_name_of_its_file(folder, name):
    file = folder / name
    content = file.read_bytes()
    bits = 8 * len(content)
    chosen = np.random.default_rng(5).choice(bits, min(bits, FLIPS_PER_FILE), replace=False)
    for bit in chosen.tolist():
        file.write_bytes(flip_bit(content, bit))
        assert str(file) in refusal(folder), bit


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "change",
    [
        lambda _: b"",
        lambda content: content[: len(content) // 2],
        lambda content: content[:-1],
        lambda content: content + b"\0",
        lambda content: content + content,
        lambda content: bytes(len(content)),
    ],
    ids=["empty", "half", "one byte less", "one byte more", "twice", "zeros"],
)
def test_a_file_of_another_length_or_of_nothing_is_refused(folder, name, change):
    (folder / name).write_bytes(change((folder / name).read_bytes()))
    assert str(folder / name) in refusal(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_refused(folder, name):
    (folder / name).unlink()
    assert f"{folder}: lacks {name}" in refusal(folder)


@pytest.mark.jit_only
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 13])
def test_every_mixture_of_two_stores_is_refused_by_name(written, tmp_path, step):
    extraction = small_extraction()
    other = tmp_path / "other"
    write_store(replace(extraction, metadata={**extraction.metadata, "lines": 7}), other)
    mixed, of_other = shutil.copytree(written, tmp_path / "mixed"), set()
    assert content_of(mixed) == content_of(written)
    for number in range(1, 2 ** len(FILES)):  # in the order of Gray: one file after another changes
        name = FILES[(number & -number).bit_length() - 1]
        of_other ^= {name}
        (mixed / name).unlink()  # to write over a file may wait for the disk
        shutil.copyfile((other if name in of_other else written) / name, mixed / name)
        if of_other == {*FILES}:
            assert content_of(mixed) == content_of(other)
            continue
        if number % step:
            continue
        with pytest.raises(StoreError, match="is not of the store that SHA256SUMS describes") as e:
            Store(mixed)
        assert any(str(mixed / name) in str(e.value) for name in FILES)


def test_a_store_that_is_replaced_while_it_is_read_is_refused(folder):
    store = Store(folder)
    extraction = small_extraction()
    other = replace(extraction, metadata={**extraction.metadata, "lines": 7})
    write_store(other, folder, force=True)
    with pytest.raises(StoreError, match=r"joins\.parquet: .* checksum is not the one"):
        store.table("joins")


def test_what_is_not_read_need_not_be_whole(folder):
    (folder / "footprints.parquet").write_bytes(
        flip_bit((folder / "footprints.parquet").read_bytes(), 200)
    )
    store = Store(folder)
    assert len(store.graph().pairs()) == 2
    with pytest.raises(StoreError, match=r"footprints\.parquet: is damaged"):
        store.footprints()


def test_a_command_says_which_file_is_damaged(program, written):
    shutil.copytree(written, "depgraph.out")
    with open("depgraph.out/joins.parquet", "r+b") as file:  # noqa: PTH123
        file.seek(40)
        file.write(b"?")
    outcome = program("bound", "--sms", "8")
    assert outcome.code == 1
    assert outcome.err == (
        "depgraph: error: depgraph.out/joins.parquet: is damaged (its checksum is not the one in "
        "SHA256SUMS); copy the store again, or extract the trace again\n"
    )


# Tables that make no sense, with checksums that are right


def first_is(value):
    return lambda values: [value, *values[1:]]


def last_is(value):
    return lambda values: [*values[:-1], value]


NONSENSE = [
    ("kernels", "kernel", first_is(-1), "row 0: kernel is below 0"),
    ("kernels", "kernel", last_is(0), "row 1: kernel does not ascend"),
    ("kernels", "operation", first_is(2), "row 1: operation does not ascend"),
    ("kernels", "operation", last_is(3), "3 kernels and copies are not numbered 0 to 2"),
    ("kernels", "grid_x", first_is(0), "row 0: grid_x is below 1"),
    ("kernels", "grid_x", first_is(3), "row 0: blocks are not those of the grid"),
    ("kernels", "block_x", first_is(-128), "row 0: block_x is below 1"),
    ("kernels", "registers", last_is(-32), "row 1: registers is below 0"),
    ("kernels", "shared_bytes", last_is(-1), "row 1: shared_bytes is below 0"),
    ("kernels", "occupancy", last_is(-2), "row 1: occupancy is below 0"),
    ("kernels", "blocks", first_is(2**40), "row 0: blocks are not those of the grid"),
    ("kernels", "active_blocks", first_is(5), "row 0: more blocks are active than there are"),
    ("kernels", "first_block", last_is(4), "blocks of a kernel or copy do not follow"),
    ("kernels", "accesses", first_is(11), "accesses do not add up to those of the kernels"),
    ("blocks", "block", first_is(1), "row 0: block is not that of the block"),
    ("blocks", "kernel", last_is(7), "row 7: kernel is not that of the block"),
    ("blocks", "index", last_is(7), "row 7: index is not that of the block"),
    ("blocks", "x", last_is(-1), "row 7: x is below 0"),
    ("blocks", "accesses", first_is(-1), "row 0: accesses is below 0"),
    ("blocks", "instructions", last_is(22), "instructions do not add up to those of the kernels"),
    ("blocks", "cost", last_is(float("nan")), "row 7: cost is not a number"),
    ("blocks", "duration", last_is(float("inf")), "row 7: duration is not a number"),
    ("blocks", "duration", last_is(-1.0), "row 7: duration is not a number"),
    ("copies", "copy", first_is(-1), "row 0: copy is below 0"),
    ("copies", "size", first_is(-1), "row 0: size is below 0"),
    ("copies", "address", first_is(2**64 - 1), "row 0: the copy goes past the last address"),
    ("copies", "block", first_is(1), "blocks of a kernel or copy do not follow"),
    ("sets", "set", first_is(1), "row 0: set is not the next number"),
    ("sets", "operation", first_is(-1), "row 0: operation is not among the kernels and copies"),
    ("sets", "operation", last_is(3), "row 7: operation is not among the kernels and copies"),
    ("sets", "operation", first_is(1), "row 0: a block is of another operation"),
    ("sets", "operation", last_is(0), "row 7: operation is below the one before"),
    ("sets", "blocks", last_is([]), "row 7: the set is empty"),
    ("sets", "blocks", last_is([8]), "row 7: a block is of another operation"),
    ("sets", "blocks", last_is([-1]), "row 7: a block is of another operation"),
    ("sets", "blocks", last_is([6, 5]), "row 7: blocks do not ascend"),
    ("sets", "blocks", last_is([6, 6]), "row 7: blocks do not ascend"),
    ("sets", "blocks", last_is([None]), "column blocks has nulls"),
    ("sets", "first_use", last_is(None), "some sets have positions and others have none"),
    ("sets", "first_use", lambda values: [None for _ in values], "some sets have positions"),
    ("sets", "first_use", last_is([0.5, 0.5]), "row 7: first_use is not one a block"),
    ("sets", "last_use", last_is([1.5]), "row 7: one of last_use is not between 0 and 1"),
    ("sets", "last_use", last_is([float("nan")]), "row 7: one of last_use is not between 0 and 1"),
    ("sets", "last_use", last_is([None]), "column last_use has nulls"),
    ("joins", "join", last_is(7), "row 3: join is not the next number"),
    ("joins", "kind", last_is("RAR"), "a kind is none of RAW, WAR, WAW"),
    ("joins", "kind", first_is(None), "column kind has nulls"),
    ("joins", "source_kernel", last_is(2), "row 3: source_kernel is not among the kernels"),
    ("joins", "source_kernel", last_is(-1), "row 3: the join does not follow the one before"),
    ("joins", "target_kernel", last_is(0), "row 3: the source does not come before the target"),
    ("joins", "sources", last_is([8]), "row 3: one of sources is not among the sets"),
    ("joins", "sources", last_is([-1]), "row 3: one of sources is not among the sets"),
    ("joins", "sources", last_is([0]), "sources are sets of another kernel"),
    ("joins", "sources", last_is([]), "row 3: sources are none"),
    ("joins", "targets", first_is([2**31 - 1]), "row 0: one of targets is not among the sets"),
    ("joins", "targets", first_is([7]), "targets are sets of another kernel"),
    ("launches", "launch", last_is(2), "row 1: launch is not the next number"),
    ("launches", "block", last_is(8), "row 1: block is not among the blocks"),
    ("launches", "block", first_is(0), "row 0: a copy launches nothing"),
    ("launches", "block", first_is(6), "row 0: kernel is not that of the block"),
    ("launches", "kernel", last_is(0), "row 1: kernel is not that of the block"),
    ("launches", "at", last_is(float("nan")), "row 1: at is not between 0 and 1"),
    ("launches", "lanes", last_is(0), "row 1: lanes is not from 1 to"),
    ("launches", "child_grid", first_is(-1), "row 0: child_grid is not from 1 to"),
    ("launches", "child_grid", first_is(2**62), "there are more child blocks than are taken"),
    ("launches", "child_duration", last_is(float("inf")), "row 1: child_duration is not from 0"),
    ("launches", "inline", last_is(float("nan")), "row 1: inline is not from 0 to"),
    ("launches", "join", last_is("some"), "a join is none of none, block, kernel"),
    ("launches", "join", first_is(None), "column join has nulls"),
    ("pairs", "source", last_is(3), "row 1: source is not among the kernels and copies"),
    ("pairs", "target", last_is(0), "row 1: the source does not come before the target"),
    ("pairs", "source", last_is(-1), "row 1: edges are not those of the kinds and blocks"),
    ("pairs", "pattern", first_is("spiral"), "a pattern is none of independent, one-to-one"),
    ("pairs", "raw", last_is(-1), "row 1: edges are not those of the kinds and blocks"),
    ("pairs", "edges", last_is(13), "row 1: edges are not those of the kinds and blocks"),
    ("pairs", "waiting", last_is(4), "row 1: waiting are more than there are"),
    ("pairs", "most_sources", last_is(5), "row 1: most_sources are more than there are"),
    ("footprints", "block", first_is(2), "row 1: the range does not follow the one before"),
    ("footprints", "block", last_is(8), "row 20: block is not among the blocks"),
    ("footprints", "block", first_is(-1), "row 0: block is not among the blocks"),
    ("footprints", "kind", first_is("write"), "row 1: the range does not follow the one before"),
    ("footprints", "kind", first_is("both"), "a kind is none of read, write"),
    ("footprints", "start", first_is(2**64 - 1), "row 0: the range is empty"),
    ("footprints", "end", first_is(0x7F0000000010), "row 1: the range does not follow"),
]


@pytest.mark.parametrize(
    ("table", "column", "values", "what"),
    NONSENSE,
    ids=[f"{row[0]}.{row[1]}: {row[3]}" for row in NONSENSE],
)
def test_numbers_that_make_no_sense_are_refused_by_name(folder, table, column, values, what):
    set_values(folder, table, column, values)
    said = refusal(folder)
    assert what in said
    assert "extract the trace again" in said


def test_rows_that_are_missing_are_missed(folder):
    rewrite(folder, "blocks", lambda table: table.slice(0, 7))
    assert "blocks.parquet: makes no sense (it has 7 rows for 8 blocks)" in refusal(folder)


def test_sets_of_nothing_are_a_graph_without_edges(folder):
    for table in ("sets", "joins", "pairs"):
        rewrite(folder, table, lambda content: content.slice(0, 0))
    assert Store(folder).graph().pairs() == []


NUMBERS = {
    "kernels": ["kernel", "operation", "first_block", "blocks", "grid_x"],
    "copies": ["copy", "operation", "block"],
    "sets": ["set", "operation", "blocks"],
    "joins": ["join", "source_kernel", "target_kernel", "sources", "targets"],
}


@given(st.data())
def test_no_number_leads_compiled_code_out_of_its_arrays(written, tmp_path_factory, data):
    folder = shutil.copytree(written, tmp_path_factory.mktemp("drawn") / "out")
    table = data.draw(st.sampled_from(sorted(NUMBERS)))
    column = data.draw(st.sampled_from(NUMBERS[table]))
    number = data.draw(st.integers(-2, 9) | st.integers(-(2**31), 2**31 - 1))
    values = pq.read_table(folder / f"{table}.parquet")[column].to_pylist()
    row = data.draw(st.integers(0, len(values) - 1))
    if isinstance(values[row], list):
        values[row][data.draw(st.integers(0, len(values[row]) - 1))] = number
    else:
        values[row] = number
    set_values(folder, table, column, lambda _: values)
    try:
        graph = Store(folder).graph()
    except StoreError as error:
        assert "makes no sense" in str(error)  # noqa: PT017
    else:
        in_bounds(graph)
    shutil.rmtree(folder.parent)


def in_bounds(graph):
    """Walk the graph as compiled code does, with indices that are looked at."""
    for set_, operation in enumerate(graph.set_operation):
        members = graph.set_blocks[graph.set_offsets[set_] : graph.set_offsets[set_ + 1]]
        assert len(members) > 0
        assert (np.diff(members) > 0).all()
        assert graph.first_block[operation] <= members[0]
        assert members[-1] < graph.first_block[operation + 1]
    for join in range(len(graph.join_kind)):
        source, target = graph.join_source_operation[join], graph.join_target_operation[join]
        assert 0 <= source < target < graph.n_operations
        for offsets, sets, operation in (
            (graph.source_offsets, graph.sources, source),
            (graph.target_offsets, graph.targets, target),
        ):
            chosen = sets[offsets[join] : offsets[join + 1]]
            assert (chosen >= 0).all()
            assert (graph.set_operation[chosen] == operation).all()
    assert len(graph.pairs()) <= len(graph.join_kind)
    finish, _ = getattr(compiled.earliest_finish, "py_func", compiled.earliest_finish)(
        graph.arrays, np.ones(graph.n_blocks)
    )
    assert finish.max() <= graph.n_operations


OTHER_TYPES = [None, True, -1, 0.5, float("inf"), "a", [None], {"a": []}, [[1]], {"a": "b"}]
ENTRIES = [
    "format", "options", "tool_version", "sources", "lines", "input_bytes", "text_bytes", "opcodes",
    "skipped", "warnings", "blind_spots", "false_edges", "address_spaces", "remarks",
    "duration_unit", "position_step", "communication", "schema_version",
]  # fmt: skip


@pytest.mark.parametrize("entry", ENTRIES)
def test_metadata_of_other_types_are_refused_or_harmless(folder, entry):
    refused = 0
    for value in OTHER_TYPES:
        set_metadata(folder, **{entry: value})
        try:
            content_of(folder)
        except StoreError as error:
            refused += 1
            assert str(error).count("\n") == 0  # noqa: PT017 - some are no fault
    assert refused >= 4


@pytest.mark.parametrize(
    "options",
    [
        {"granularity": 1}, {"kinds": ["RAW"]}, {"granularity": "1", "kinds": []},
        {"granularity": 2, "kinds": []}, {"granularity": 1, "kinds": ["raw"]},
        {"granularity": 1, "kinds": "RAW"}, {"granularity": 1, "kinds": [["RAW"]]},
    ],
)  # fmt: skip
def test_options_that_no_extraction_has_are_refused(folder, options):
    set_metadata(folder, options=options)
    with pytest.raises(StoreError, match=r"its metadata says .* for 'options'"):
        Store(folder)


@pytest.mark.parametrize("text", ["[" * 100_000, "{" * 1000, "1", "[]", "null"])
def test_metadata_that_are_none_are_refused(folder, text):
    set_metadata(folder, text)
    with pytest.raises(StoreError) as caught:
        Store(folder)
    assert "\n" not in str(caught.value)
