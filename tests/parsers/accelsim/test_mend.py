"""Copies of traces for Accel-Sim: what is mended, and that nothing else is."""

import gzip
import lzma

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depgraph.errors import TraceError
from depgraph.parsers.accelsim.mend import mend_trace

HEADER = """\
-kernel name = k
-kernel id = 3
-grid dim = (1,1,1)
-block dim = (32,1,1)
-shmem = {shmem}
-nregs = {nregs}
-binary version = {version}
-cuda stream id = 5
-shmem base_addr = 0x00007f0000000000
-local mem base_addr = 0x00007e0000000000
-nvbit version = 1.7.6
-accelsim tracer version = 5
-enable lineinfo = 0

#traces format = [line_num] PC mask dest_num [reg_dests] opcode src_num [reg_srcs] mem_width

#BEGIN_TB

thread block = 0,0,0

"""


def trace(*warps, shmem=0, nregs=8, version=80):
    text = HEADER.format(shmem=shmem, nregs=nregs, version=version)
    for number, lines in enumerate(warps):
        text += f"warp = {number}\ninsts = {len(lines)}\n" + "".join(f"{x} \n" for x in lines)
        text += "\n"
    return text + "#END_TB\n"


@pytest.fixture
def mend(tmp_path):
    def mended(text, stream=5):
        (tmp_path / "kernel-3.traceg").write_text(text)
        counts = mend_trace(tmp_path / "kernel-3.traceg", tmp_path / "out.traceg", stream)
        return (tmp_path / "out.traceg").read_text(), dict(counts)

    return mended


ENDS = "0010 ffffffff 0 EXIT 0 0"


def test_what_needs_no_mending_is_copied_to_the_byte(mend):
    text = trace(["0000 ffffffff 1 R7 IADD3.X 2 R1 R255 0 0", ENDS])
    assert mend(text) == (text, {})


def test_the_stream_is_set_and_is_no_mending(mend):
    text = trace([ENDS])
    assert mend(text, 2) == (text.replace("stream id = 5", "stream id = 2"), {})


@pytest.mark.parametrize("version", ["88", "90", "2960", "-1", "x"])
def test_versions_that_the_simulator_lacks_become_ampere(mend, version):
    text, counts = mend(trace([ENDS], version=version))
    assert "-binary version = 80\n" in text
    assert counts == {"headers -binary version": 1}


@pytest.mark.parametrize(
    ("nregs", "expected"), [(0, 48), (40, 48), (41, 41), (32740, 48), (-1, 48)]
)
def test_registers_are_those_that_instructions_name(mend, nregs, expected):
    lines = ["0000 ffffffff 1 R40 IMAD 2 R255 R3 0 0", ENDS]
    assert f"-nregs = {expected}\n" in mend(trace(lines, nregs=nregs))[0]


@pytest.mark.parametrize(
    ("access", "end"),
    [
        ("LDS 1 R2 4 1 0x100 4 0", 0x100 + 4 * 31 + 4),
        ("STS.128 2 R2 R4 16 1 0x100 0 0", 0x110),
        ("LDS 1 R2 4 2 0x100 4 4 -8 0", 0x10C),
        ("LDS 1 R2 8 0 0x100 0x500 0x20 0", 0x508),
        ("LDS 1 R2 4 1 0x7f0000000200 0 0", 0x204),
        ("LDG.E 1 R2 4 1 0x7f6000000200 4 0", 0),
    ],
)
def test_shared_memory_reaches_to_the_highest_address(mend, access, end):
    text, counts = mend(trace([f"0000 ffffffff 1 R4 {access}", ENDS], shmem=-7))
    assert f"-shmem = {-(-end // 128) * 128}\n" in text
    assert counts == {"headers -shmem": 1}


def test_a_plausible_size_stays(mend):
    text, counts = mend(trace(["0000 ffffffff 1 R4 LDS 1 R2 4 1 0x100 0 0", ENDS], shmem=6145))
    assert "-shmem = 6145\n" in text
    assert not counts


@pytest.mark.parametrize(
    ("opcode", "expected"),
    [
        ("VIADD", "IADD3"), ("VIMNMX.U32", "IMNMX.U32"), ("VIADDMNMX", "IMNMX"),
        ("ACQBULK", "NOP"), ("PREEXIT", "NOP"), ("IADD3", "IADD3"),
    ],
)  # fmt: skip
def test_opcodes_of_hopper_become_those_that_take_as_long(mend, opcode, expected):
    text, counts = mend(trace([f"0000 ffffffff 1 R4 {opcode} 1 R2 0 1", ENDS]))
    assert f"0000 ffffffff 1 R4 {expected} 1 R2 0 1 \n" in text
    assert sum(counts.values()) == (opcode != expected)


MASKS = st.integers(0, (1 << 32) - 1)


@given(st.lists(st.tuples(MASKS, st.booleans()), min_size=1, max_size=12))
def test_no_thread_runs_on_after_it_has_ended(tmp_path_factory, instructions):
    folder = tmp_path_factory.mktemp("trace")
    lines = [
        f"{16 * i:04x} {mask:08x} 0 {'EXIT' if ends else 'NOP'} 0 0"
        for i, (mask, ends) in enumerate(instructions)
    ]
    (folder / "in.traceg").write_text(trace(lines, lines[:1]))
    counts = mend_trace(folder / "in.traceg", folder / "out.traceg", 5)
    text = (folder / "out.traceg").read_text()
    own = text.partition("warp = 0\n")[2].partition("warp = 1\n")[0].splitlines()
    gone, narrowed = 0, 0
    for line, (mask, ends) in zip(own[1:], instructions, strict=False):
        kept = int(line.split()[1], 16)
        assert kept & ~gone == kept
        assert ends or kept == mask
        gone |= kept if ends else 0
        narrowed += kept != mask
    assert counts["EXIT masks"] == narrowed


@pytest.mark.parametrize("pack", [lzma, gzip])
def test_copies_are_packed_as_they_are_named(tmp_path, pack):
    end = {lzma: ".xz", gzip: ".gz"}[pack]
    text = trace([ENDS])
    with pack.open(tmp_path / f"k.traceg{end}", "wt") as file:
        file.write(text)
    mend_trace(tmp_path / f"k.traceg{end}", tmp_path / f"out{end}", 5)
    with pack.open(tmp_path / f"out{end}", "rt") as file:
        assert file.read() == text


@pytest.mark.parametrize("text", ["", "rubbish\n", "-kernel name = k\n-grid dim = (1,1,1)\n"])
def test_what_is_no_trace_is_refused_in_a_line(mend, text):
    with pytest.raises(TraceError, match="--as-is"):
        mend(text)
