"""Where inside blocks dependences are needed: reading a log again, and the intra-block bound."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import edges_of

from depgraph.dependence.positions import STEPS, PositionedRanges, join_positioned, with_positions
from depgraph.dependence.positions_jit import overlay_ranges
from depgraph.errors import ModelError
from depgraph.extraction.pipeline import analyse
from depgraph.parsers import open_trace
from depgraph.parsers.nvbit.positions import read_positions
from depgraph.parsers.nvbit.text import LaunchTable
from depgraph.store.store import Store, write_store
from depgraph.system.machine_code import MachineCode

LAUNCH = (
    "MEMTRACE: CTX 0x000000000000abcd - LAUNCH - Kernel pc 0x0000000000000100 - Kernel name {name}"
    " - grid launch id {id} - grid size {blocks},1,1 - block size 64,1,1 - nregs 32 - shmem 0"
    " - cuda stream id 0\n"
)


def access(launch, block, warp, opcode, address):
    lanes = " ".join(f"0x{address + 4 * lane:016x}" for lane in range(32))
    return (
        f"MEMTRACE: CTX 0x000000000000abcd - grid_launch_id {launch} - CTA {block},0,0 - "
        f"warp {warp} - {opcode} - {lanes} \n"
    )


def read(tmp_path, text):
    log = tmp_path / "trace.log"
    log.write_text(text)
    trace = open_trace(log)
    extraction = analyse(trace, jobs=1)
    return extraction, read_positions(trace, extraction)


@pytest.mark.jit_only
def test_what_overlays_ranges_is_compiled_once_for_all_runs():
    long, byte = np.zeros(2, np.int64), np.zeros(2, np.uint8)
    address = np.arange(2, dtype=np.uint64)
    arguments = long, address, address + np.uint64(4), byte, byte, np.arange(2), STEPS
    assert isinstance(overlay_ranges.code_for(arguments), MachineCode)


def test_positions_are_counted_in_accesses_of_a_warp(tmp_path):
    text = LAUNCH.format(name="one", id=0, blocks=1)
    for i in range(4):
        text += access(0, 0, 1, "LDG.E", 0x7F0000001000 + 128 * i)
    text += access(0, 0, 0, "STG.E", 0x7F0000009000)
    _, ranges = read(tmp_path, text)
    found = list(zip(ranges.kind, ranges.start & np.uint64(0xFFFF), ranges.first, ranges.last,
                     strict=True))  # fmt: skip
    assert found == [
        (0, 0x1000, 0, 4), (0, 0x1080, 4, 8), (0, 0x1100, 8, 12), (0, 0x1180, 12, 16),
        (1, 0x9000, 0, 16),
    ]  # fmt: skip


def test_positions_are_rounded_so_that_the_bound_stays_a_bound(tmp_path):
    text = LAUNCH.format(name="one", id=0, blocks=1)
    text += "".join(access(0, 0, 0, "LDG.E", 0x7F0000001000 + 512 * i) for i in range(3))
    _, ranges = read(tmp_path, text)
    # Thirds in sixteenths: what is needed, later; what is done, earlier.
    assert ranges.first.tolist() == [0, 6, 11]
    assert ranges.last.tolist() == [5, 10, 16]


def test_a_consumer_that_reads_last_overlaps_with_its_producer(tmp_path):
    # Each block makes four accesses; the producer writes first, the consumer reads last.
    buffer, other = 0x7F0000001000, 0x7F0000100000
    text = LAUNCH.format(name="producer", id=0, blocks=1) + access(0, 0, 0, "STG.E", buffer)
    text += "".join(access(0, 0, 0, "LDG.E", other + 128 * i) for i in range(3))
    text += LAUNCH.format(name="consumer", id=1, blocks=1)
    text += "".join(access(1, 0, 0, "LDG.E", other + 128 * i) for i in range(3))
    text += access(1, 0, 0, "LDG.E", buffer)
    extraction, ranges = read(tmp_path, text)
    graph = with_positions(extraction, ranges).graph
    durations = np.array([4.0, 4.0])
    assert graph.earliest_finish(durations)[0].max() == 8
    assert graph.intra_block_path(durations) == 4
    # The producer is done with it at 1/4 of its time, the consumer needs it at 3/4 of its own.
    assert graph.intra_block_path(np.array([16.0, 4.0])) == 16
    assert graph.intra_block_path(np.array([32.0, 4.0])) == 32


@pytest.mark.jit_only
def test_edges_stay_as_they_are(sample_trace, tmp_path):
    trace = open_trace(sample_trace)
    extraction = analyse(trace)
    fine = with_positions(extraction, read_positions(trace, extraction))
    assert edges_of(fine.graph) == edges_of(extraction.graph)
    assert fine.pairs == extraction.pairs
    durations = extraction.counts.cost
    block = extraction.graph.earliest_finish(durations)[0].max()
    assert 0.5 * block < fine.graph.intra_block_path(durations) < block
    stored = write_store(fine, tmp_path / "out").graph()
    assert stored.position_step == 1 / STEPS
    np.testing.assert_array_equal(stored.first_use, fine.graph.first_use)
    assert stored.intra_block_path(durations) == fine.graph.intra_block_path(durations)
    assert Store(tmp_path / "out").graph({"RAW"}).first_use is not None


def test_positions_keep_the_memory_of_contexts_apart(tmp_path):
    kernels = [
        LAUNCH.format(name="a", id=number, blocks=1) + access(number, 0, 0, "STG.E", 0x7F0000001000)
        for number in range(3)
    ]
    kernels[1] = kernels[1].replace("abcd", "abce")
    extraction, ranges = read(tmp_path, "".join(kernels))
    fine = with_positions(extraction, ranges).graph
    assert edges_of(fine) == [(0, 2, "WAW")]
    assert fine.space.tolist() == extraction.graph.space.tolist() == [0, 1, 0]


def test_what_is_lost_on_the_first_reading_is_lost_on_the_second(tmp_path):
    lost, kept = (access(0, 0, 0, "LDG.E", 0x7F0000001000 + 4096 * i) for i in range(2))
    log = tmp_path / "trace.log"
    log.write_text(lost + LAUNCH.format(name="one", id=0, blocks=1) + kept)  # out of order
    trace = open_trace(log)
    ranges = read_positions(trace, analyse(trace, jobs=1, allow_damaged=True))
    assert (ranges.start.tolist(), ranges.last.tolist()) == ([0x7F0000002000], [STEPS])


def test_launches_may_be_numbered_from_below_0():
    table = LaunchTable()  # by ids of launch lines that count ahead of those of accesses
    assert table.enter(0xABCD, -1, 0)
    assert not table.enter(0xABCD, -1, 1)


def test_positions_of_several_processes_are_refused(tmp_path):
    text = LAUNCH.format(name="a", id=0, blocks=1) + access(0, 0, 0, "STG.E", 0x7F0000001000)
    with pytest.raises(ModelError, match="give the log of one process"):
        read(tmp_path, text + text)


def test_positions_need_a_log_that_can_be_read_twice(tmp_path):
    class Other:
        format = "other"

    extraction, _ = read(
        tmp_path,
        LAUNCH.format(name="a", id=0, blocks=1) + access(0, 0, 0, "STG.E", 0x7F0000001000),
    )
    with pytest.raises(ModelError, match="needs an NVBit log in a file"):
        read_positions(Other(), extraction)


ranges_lists = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(0, 3), st.integers(0, 12), st.integers(1, 6),
        st.integers(0, STEPS), st.integers(0, STEPS),
    ),
    max_size=12,
)  # fmt: skip


@given(ranges_lists, st.integers(0, 12))
def test_ranges_laid_over_one_another_keep_first_and_last(ranges, cut):
    expected = defaultdict(lambda: (STEPS, 0))
    for block, kind, start, size, first, last in ranges:
        for byte in range(start, start + size):
            low, high = expected[block, kind, byte]
            expected[block, kind, byte] = min(low, first), max(high, last)

    def piece(rows):
        columns = list(zip(*rows, strict=True)) if rows else [[]] * 6
        block, kind, start, size, first, last = (np.array(c, np.int64) for c in columns)
        return PositionedRanges(
            block.astype(np.int32), kind.astype(np.uint8), start.astype(np.uint64),
            (start + size).astype(np.uint64), first.astype(np.uint8), last.astype(np.uint8),
        )  # fmt: skip

    joined = join_positioned([join_positioned([piece(ranges[:cut])]), piece(ranges[cut:])])
    found = {}
    for block, kind, start, end, first, last in zip(
        *(getattr(joined, name).tolist() for name in PositionedRanges._fields), strict=True
    ):
        for byte in range(start, end):
            assert (block, kind, byte) not in found
            found[block, kind, byte] = first, last
    assert found == dict(expected)
