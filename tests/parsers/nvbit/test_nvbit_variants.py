"""The wordings of mem_trace: NVBit 1.0 to 1.4, 1.5, 1.7, and tools that were made from it."""

import io
import lzma
import re
import sys

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from programs import BASE, FOREIGN_LINES, access_line, edges_of, launch_line, log_records

from depgraph.errors import TraceError
from depgraph.extraction.pipeline import analyse
from depgraph.parsers import open_trace
from depgraph.parsers.nvbit import text as mem_trace
from depgraph.parsers.nvbit.log import IdOffset, NvbitTrace
from depgraph.parsers.nvbit.text import dialect_of, start_of_cut_launch

LAUNCH = re.compile(
    rb"MEMTRACE: CTX (0x\w+) - LAUNCH - Kernel pc (0x\w+) - Kernel name (.*) - grid launch id (\d+)"
    rb"( - grid size ([\d,]+) - block size ([\d,]+) - nregs (\d+) - shmem (\d+) - cuda stream id"
    rb" (\d+))\n"
)
ACCESS = re.compile(
    rb"MEMTRACE: (CTX 0x\w+ - grid_launch_id (\d+) - (CTA .* - ([A-Z][\w.]+)) - )(.*)"
)


def in_order(records):
    """Put every access behind its launch, as the tracer of NVBit 1.0 to 1.4 prints it."""
    launches = {int(m[4]): r for r in records if (m := LAUNCH.match(r))}
    accesses = [(int(m[2]), r) for r in records if (m := ACCESS.match(r))]
    return [
        line
        for number, launch in launches.items()
        for line in (launch, *(access for owner, access in accesses if owner == number))
    ]


def without_ids(record, *, pc=b""):
    """Write a record in the words of NVBit 1.0 to 1.4."""
    if match := LAUNCH.match(record):
        return b"Kernel %b%b%b\n" % (match[3], pc, match[5])
    match = ACCESS.match(record)
    return b"%b - %b\n" % (match[3], match[5])


def one_ahead(record):
    """Write a record in the words of NVBit 1.5, whose launch lines count one ahead."""
    number = rb"grid launch id (\d+)"
    return re.sub(number, lambda match: b"grid launch id %d" % (int(match[1]) + 1), record)


def with_data(record):
    """Write a record as the tool that prints the values that were loaded and stored."""
    if match := ACCESS.match(record):
        threads = b"".join(
            b"Thread%d,0x%x,%b " % (lane, 3 * lane, address)
            for lane, address in enumerate(match[5].split())
        )
        tail = b"pc 144 - Size 4 - MREF per threads(threadidx,data,address) : " + threads
        return b"MEMTRACE: %b%b\n" % (match[1], tail)
    return record


def typed(record):
    """Write a record as CUProf does: launches in three lines, typed accesses."""
    if match := LAUNCH.match(record):
        context, pc, name, number, _, grid, block, registers, shared, stream = match.groups()
        return (
            b"LAUNCH KERNEL: %b - grid launch id %b\n"
            b" - grid size (%b) - block size (%b) - nregs %b - shmem %b\n"
            b" - CTX %b - stream id %b - Kernel pc %b\n"
        ) % (name, number, grid, block, registers, shared, context, stream, pc)
    if match := ACCESS.match(record):
        return b"MEMTRACE: %bREAD - size 4 - mem_type 4 - addrs: %b\n" % (match[1], match[5])
    return record


WORDINGS = {
    "NVBit 1.0 to 1.4": without_ids,
    "NVBit 1.5": one_ahead,
    "with data values": with_data,
    "CUProf": typed,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("wordings")


def summary(path, **options):
    """Return what a log says, less what only the wording decides."""
    extraction = analyse(NvbitTrace(path, **options), jobs=1, allow_empty=True)
    kernels = [(k.name, k.grid_x, k.blocks, k.accesses, k.registers) for k in extraction.kernels]
    return kernels, edges_of(extraction.graph), extraction.metadata["opcodes"]


def is_whole(records):
    return any(ACCESS.match(record) for record in records)


@pytest.mark.jit_only
@pytest.mark.parametrize("wording", WORDINGS)
@given(records=log_records(), part_bytes=st.integers(700, 5000))
def test_every_wording_says_the_same(folder, wording, records, part_bytes):
    records = [r for r in records if r not in FOREIGN_LINES]
    assume(is_whole(records))
    lines = in_order(records)
    current, other = folder / "current.log", folder / "other.log"
    current.write_bytes(b"".join(lines))
    other.write_bytes(b"".join(map(WORDINGS[wording], lines)))
    assert summary(other, part_bytes=part_bytes) == summary(current)


@pytest.mark.parametrize("wording", WORDINGS)
def test_a_packed_log_of_every_wording(folder, wording):
    lines = [launch_line(0), access_line(0, 1, "STG.E", [BASE])]
    lines += [launch_line(1), access_line(1, 2, "LDG.E", [BASE])]
    path = folder / "packed.log"
    path.write_bytes(lzma.compress(b"".join(map(WORDINGS[wording], lines))))
    assert edges_of(analyse(open_trace(path)).graph) == [(1, 6, "RAW")]


@pytest.mark.parametrize("wording", WORDINGS)
def test_wordings_are_told_by_content(wording):
    text = b"".join(map(WORDINGS[wording], [launch_line(0), access_line(0, 0, "LDG.E", [BASE])]))
    name = "NVBit 1.5 to 1.7" if wording == "NVBit 1.5" else wording
    assert dialect_of(b"NVBit v9.9.9 banner\nprinted\n" + text).name == name


@pytest.mark.parametrize(
    "text",
    [b"", b"plain text\n", b"MEMTRACE: STARTING CONTEXT 0x555bc14decf0\n", b"CTA 0,0,0 - warp 0\n"],
)
def test_other_text_is_in_no_wording(text):
    assert dialect_of(text) is None


@pytest.mark.parametrize("wording", WORDINGS.values())
def test_rewriting_keeps_the_number_of_lines(wording):
    lines = [launch_line(0), b"printed\n", access_line(0, 0, "LDG.E", [BASE]), launch_line(1)]
    text = b"".join(line if line == b"printed\n" else wording(line) for line in lines)
    rewrite = dialect_of(text).rewrite or bytes
    assert rewrite(text).count(b"\n") == text.count(b"\n")


# NVBit 1.0 to 1.4


def test_old_accesses_belong_to_the_launch_above_them(folder):
    path = folder / "old.log"
    path.write_bytes(
        b"banner\n"
        b"Kernel void k<4>(int - 1) - PC 0x7f - grid size 4,1,1 - block size 32,1,1 - nregs 8"
        b" - shmem 0 - cuda stream id 0\n"
        + without_ids(access_line(0, 1, "STG.E", [BASE]))
        + b"Kernel void k<4>(int - 1) - grid size 4,1,1 - block size 32,1,1 - nregs 8"
        b" - shmem 0 - cuda stream id 5\n"
        b"printed by the program: " + without_ids(access_line(0, 2, "LDG.E.SYS", [BASE]))
    )
    extraction = analyse(open_trace(path))
    assert [k.name for k in extraction.kernels] == ["void k<4>(int - 1)"] * 2
    assert [k.trace_id for k in extraction.kernels] == [0, 1]
    assert [k.stream for k in extraction.kernels] == [0, 5]
    assert edges_of(extraction.graph) == [(1, 6, "RAW")]


def test_old_accesses_above_every_launch_are_damage(folder):
    path = folder / "headless.log"
    lines = [access_line(0, 1, "STG.E", [BASE]), launch_line(0), access_line(0, 1, "LDG.E", [BASE])]
    path.write_bytes(b"".join(map(without_ids, lines)))
    with pytest.raises(TraceError, match="no launch line announces"):
        analyse(open_trace(path))
    extraction = analyse(open_trace(path), allow_damaged=True)
    assert extraction.kernels[0].accesses == 1


def test_an_old_log_cut_in_its_last_line(folder):
    path = folder / "cut.log"
    lines = [launch_line(0), access_line(0, 1, "STG.E", [BASE]), access_line(0, 2, "STG.E", [BASE])]
    text = b"".join(map(without_ids, lines))
    path.write_bytes(text[:-100])
    with pytest.raises(TraceError, match="the last line is cut"):
        analyse(open_trace(path))


# NVBit 1.5: launch lines count one ahead


def offset_of(*lines):
    offset = IdOffset()
    offset.look_at(b"".join(lines))
    return offset.best()


def test_ids_from_0_are_no_offset():
    assert offset_of(launch_line(0)) == 0


def test_an_access_of_the_newest_launch_is_no_offset():
    log = [launch_line(57), access_line(56, 0, "LDG.E", []), access_line(57, 0, "LDG.E", [])]
    assert offset_of(*log) == 0


def test_accesses_below_all_launches_are_an_offset():
    assert offset_of(launch_line(1), access_line(0, 0, "LDG.E", [])) == 1


def test_a_first_kernel_without_accesses_leaves_the_offset():
    log = [launch_line(1), launch_line(2), access_line(1, 0, "LDG.E", []), launch_line(3)]
    assert offset_of(*log) == 1


def test_without_accesses_nothing_is_decided():
    assert offset_of(launch_line(1), launch_line(2)) is None
    assert offset_of(b"printed\n") is None


def test_the_offset_holds_for_the_whole_log(folder, monkeypatch):
    """Also where the first part has launches alone, and for standard input."""
    lines = [launch_line(1), access_line(0, 1, "STG.E", [BASE])]
    lines += [b"printed\n" * 400, launch_line(2), access_line(1, 2, "LDG.E", [BASE])]
    path = folder / "ahead.log"
    path.write_bytes(b"".join(lines))
    for part_bytes in (900, 2000, 1 << 20):
        graph = analyse(NvbitTrace(path, part_bytes=part_bytes)).graph
        assert edges_of(graph) == [(1, 6, "RAW")]
    standard_input = io.TextIOWrapper(io.BufferedReader(io.BytesIO(b"".join(lines))))
    monkeypatch.setattr(sys, "stdin", standard_input)
    assert edges_of(analyse(open_trace("-")).graph) == [(1, 6, "RAW")]


# Tools made from mem_trace


def test_a_launch_of_three_lines_is_not_torn(folder):
    lines = [b"x" * 40 + b"\n", typed(launch_line(0)), typed(access_line(0, 1, "STG.E", [BASE]))]
    lines += [typed(launch_line(1)), typed(access_line(1, 2, "LDG.E", [BASE]))]
    path = folder / "torn.log"
    path.write_bytes(b"".join(lines))
    for part_bytes in range(300, 900, 17):
        graph = analyse(NvbitTrace(path, part_bytes=part_bytes)).graph
        assert edges_of(graph) == [(1, 6, "RAW")]


def test_where_a_launch_of_three_lines_begins():
    text = b"printed\n" + typed(launch_line(0))
    first, second, third = text[8:].splitlines(keepends=True)
    assert start_of_cut_launch(b"printed\n" + first) == 8
    assert start_of_cut_launch(b"printed\n" + first + second) == 8
    assert start_of_cut_launch(b"printed\n" + first + second + third) == len(text)
    assert start_of_cut_launch(b"printed\n") == 8


def test_a_line_with_fewer_threads_is_counted(folder):
    path = folder / "short.log"
    short = with_data(access_line(0, 1, "STG.E", [BASE])).replace(b"Thread31,", b"Thread31;")
    good = [with_data(access_line(0, 1, "STG.E", [BASE]))] * 120
    path.write_bytes(b"".join([launch_line(0), short, *good]))
    extraction = analyse(open_trace(path))
    assert extraction.kernels[0].accesses == 121
    warning = "access lines with fewer than 32 addresses (cut by other output)"
    assert extraction.metadata["warnings"] == {warning: 1}


# Several logs of one run


def test_logs_of_several_processes_have_memory_of_their_own(folder):
    first, second = folder / "rank0.log", folder / "rank1.log"
    first.write_bytes(launch_line(0) + access_line(0, 1, "STG.E", [BASE]))
    second.write_bytes(launch_line(0) + access_line(0, 2, "LDG.E", [BASE]))
    trace = open_trace([first, second])
    extraction = analyse(trace, allow_empty=True)
    assert len(extraction.kernels) == 2
    assert edges_of(extraction.graph) == []
    assert trace.input_bytes == first.stat().st_size + second.stat().st_size
    assert trace.sources.paths == [first, second]


def test_a_log_that_was_split(folder):
    lines = [launch_line(0), access_line(0, 1, "STG.E", [BASE]), launch_line(1), b"printed\n"]
    text = b"".join([*lines, access_line(1, 2, "LDG.E", [BASE])])
    at = text.index(b"printed")
    first, second = folder / "x00", folder / "x01"
    first.write_bytes(text[:at])
    second.write_bytes(lzma.compress(text[at:]))
    assert edges_of(analyse(open_trace([first, second])).graph) == [(1, 6, "RAW")]


@pytest.mark.parametrize("pack", [bytes, lzma.compress])
def test_a_fault_names_its_log_and_line(folder, pack):
    first, second = folder / "good.log", folder / "bad.log"
    first.write_bytes(launch_line(0) + access_line(0, 1, "STG.E", [BASE]))
    bad = launch_line(1).replace(b"grid size 4,1,1", b"grid size 4,0,1")
    second.write_bytes(pack(b"printed\n" * 3 + bad))
    with pytest.raises(TraceError, match=r"bad\.log:4: grid of 4,0,1 blocks is not possible"):
        analyse(NvbitTrace(first, second))


@pytest.mark.parametrize("number", [2**62, 10**30])
def test_absurd_launch_ids_are_damage(folder, number):
    path = folder / "absurd.log"
    path.write_bytes(launch_line(number))
    with pytest.raises(TraceError, match=r":1: launch id \d+ is not possible"):
        analyse(open_trace(path))


def test_a_stream_of_64_bits(folder):
    path = folder / "stream.log"
    path.write_bytes(launch_line(0, stream=2**64 - 1) + access_line(0, 0, "LDG.E", [BASE]))
    assert analyse(open_trace(path)).kernels[0].stream == -1


def test_an_absurd_stream_is_damage(folder):
    path = folder / "stream.log"
    path.write_bytes(launch_line(0, stream=2**64))
    with pytest.raises(TraceError, match="has more than 64 bits"):
        analyse(open_trace(path))


def test_an_endless_line_of_the_word_kernel_takes_no_time():
    text = b"Kernel " * 200_000 + b"\n"
    assert mem_trace.DIALECTS[3].rewrite(text) == text
    assert dialect_of(text) is None
