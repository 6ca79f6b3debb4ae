"""Accel-Sim kernel files: the fast reader against a slow one, on kernels of every version."""

import io
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_texts import (
    BLOCKS,
    GLOBAL,
    LOCAL,
    SHARED,
    Form,
    blocks_of,
    forms,
    header_text,
    kernel_text,
    merged,
)
from naive_accelsim import read_kernel
from scanned_kernels import body, bytes_of, only_block, scan

from depgraph.parsers.accelsim import text as accelsim_text
from depgraph.parsers.accelsim.header import parse_header, with_layout
from depgraph.parsers.accelsim.kernel_list import KernelList
from depgraph.parsers.accelsim.text import PartScanner
from depgraph.parsers.accelsim.trace import AccelSimTrace, KernelSection

FULL = 0xFFFFFFFF


@given(BLOCKS, forms())
def test_the_fast_reader_reads_what_the_slow_one_reads(blocks, form):
    text = kernel_text(blocks, form)
    part = scan(text)
    header, expected = read_kernel(text)
    assert blocks_of(part) == expected
    assert not part.damage
    assert part.damaged_lines == 0
    assert part.lines == text.count("\n")
    (launch,) = part.launches
    assert launch.mangled_name == header["kernel name"]
    assert launch.grid == (4, 3, 2)


@given(BLOCKS, forms(is_raw=False), st.integers(64, 600))
def test_any_size_of_buffer_gives_the_same(blocks, form, size):
    text = kernel_text(blocks, form).encode()
    header = parse_header(text)
    scanner = PartScanner(None)
    with mock.patch.object(accelsim_text, "BUFFER_BYTES", size):
        scanner.scan_kernel(
            io.BytesIO(text), 0, "kernel-7.traceg", header=with_layout(text, header)
        )
    part, whole = scanner.finish(), scan(text)
    assert blocks_of(part) == blocks_of(whole)
    assert (part.lines, part.opcodes, part.skipped) == (whole.lines, whole.opcodes, whole.skipped)


@given(BLOCKS, forms(), st.integers(100, 3000))
def test_any_cut_into_sections_gives_the_same(tmp_path_factory, blocks, form, size):
    path = tmp_path_factory.getbasetemp() / "kernel-7.traceg"
    text = kernel_text(blocks, form).encode()
    path.write_bytes(text)
    kernels = KernelList("a folder")
    kernels.add_kernel(path)
    tasks = list(AccelSimTrace(kernels, section_bytes=size).tasks())
    # The first buffer of a whole file must hold its header.
    buffer_bytes = 512 if isinstance(tasks[1], KernelSection) else accelsim_text.BUFFER_BYTES
    with mock.patch.object(accelsim_text, "BUFFER_BYTES", buffer_bytes):
        parts = [task.scan() for task in tasks[1:]]
    whole = scan(text)
    assert len(text) < 2 * size or all(isinstance(task, KernelSection) for task in tasks[1:])
    assert merged(parts) == blocks_of(whole)
    assert sum(part.bytes for part in parts) == len(text)
    assert sum(part.lines for part in parts) == whole.lines
    assert sum((part.opcodes for part in parts), start=whole.opcodes.__class__()) == whole.opcodes
    assert [launch for part in parts for launch in part.launches if launch] == whole.launches


@given(BLOCKS, forms(is_raw=False, versions=("4", "5", "6")))
def test_raw_and_grouped_text_of_one_kernel_give_the_same(blocks, form):
    raw = Form(form.version, is_raw=True, has_lines=form.has_lines, has_cores=form.has_cores)
    grouped_part, raw_part = scan(kernel_text(blocks, form)), scan(kernel_text(blocks, raw))
    assert blocks_of(raw_part) == blocks_of(grouped_part)
    assert raw_part.opcodes == grouped_part.opcodes
    assert raw_part.launches == grouped_part.launches


@given(BLOCKS)
def test_grouping_that_drops_the_shared_side_changes_nothing(blocks):
    """Since September 2023 the tracer's post-processing keeps one of the two LDGSTS lines."""
    form = Form("5")
    kept = {
        block: [[i for i in warp if not i.is_shared_side] for warp in warps]
        for block, warps in blocks.items()
    }
    assert blocks_of(scan(kernel_text(blocks, form))) == blocks_of(scan(kernel_text(kept, form)))


# One example of everything that FORMATS of the tracer differ in


def test_addresses_listed():
    line = "0090 00000005 1 R0 LDG.E.U8 1 R4 1 0 0x00007f6500000010 0x00007f6500000020 8"
    assert only_block(body(line)).read == {0x7F6500000010, 0x7F6500000020}


def test_addresses_listed_without_0x():
    line = "0090 00000003 1 R0 LDG.E.U8 1 R4 1 0 00007f6500000010 00007f6500000020"
    assert only_block(body(line)).read == {0x7F6500000010, 0x7F6500000020}


@pytest.mark.parametrize("stride", [0, 1, 4, 7, 128, -4, -128])
def test_base_and_stride(stride):
    line = f"0090 00000ff0 1 R0 LDG.E 1 R4 4 1 0x{GLOBAL:x} {stride} 8"
    expected = bytes_of(*((GLOBAL + i * stride, 4) for i in range(8)))
    assert only_block(body(line)).read == expected


def test_base_and_delta_counts_from_the_lane_before_and_leaves_the_immediate():
    line = f"0090 80000101 0 STG.E.64 2 R4 R6 8 2 0x{GLOBAL:x} 100 -60 3024"
    expected = bytes_of((GLOBAL, 8), (GLOBAL + 100, 8), (GLOBAL + 40, 8))
    assert only_block(body(line)).written == expected


def test_base_and_delta_of_a_single_lane():
    line = f"0090 00010000 0 STG.E 2 R4 R6 4 2 0x{GLOBAL:x} 4096"
    assert only_block(body(line)).written == bytes_of((GLOBAL, 4))


def test_no_active_lane_is_no_access():
    block = only_block(body("0070 00000000 1 R62 LDG.E 1 R62 4 1 0x0 0 0"))
    assert (block.instructions, block.accesses, block.read) == (1, 0, set())


@pytest.mark.parametrize(
    ("opcode", "printed", "width"),
    [
        ("LDG.E.S8", 4, 1),
        ("LDG.E.S16", 4, 2),
        ("LDG.E.U8", 1, 1),
        ("LDG.E", 4, 4),
        ("LDG.E.128.STRONG.GPU", 16, 16),
        ("ATOMG.E.ADD.F64.RN.STRONG.GPU", 4, 8),
    ],
)
def test_widths_come_from_the_opcode_not_from_the_column(opcode, printed, width):
    line = f"0090 00000001 1 R0 {opcode} 1 R4 {printed} 1 0x{GLOBAL:x} 0 0"
    assert only_block(body(line)).read == bytes_of((GLOBAL, width))


@pytest.mark.parametrize("form", ["LD.E", "ST.E", "ATOM.E.ADD", "RED.E.ADD"])
def test_generic_addresses_in_the_shared_and_local_window_do_not_count(form):
    addresses = (SHARED, SHARED + (16 << 20) - 4, LOCAL + 64, GLOBAL, SHARED + (16 << 20))
    listed = " ".join(f"0x{a:016x}" for a in addresses)
    block = only_block(body(f"0090 0000001f 1 R0 {form} 1 R4 4 0 {listed} 0"))
    expected = bytes_of((GLOBAL, 4), (SHARED + (16 << 20), 4))
    assert block.read | block.written == expected
    assert block.accesses == 1


def test_generic_addresses_all_in_windows_are_no_access():
    part = scan(body(f"0090 00000003 1 R0 LD.E 1 R4 4 1 0x{SHARED:x} 4 0"))
    (block,) = blocks_of(part).values()
    assert (block.instructions, block.accesses) == (1, 0)
    assert part.skipped["generic accesses to shared or local memory"] == 1


def test_global_instructions_know_no_windows():
    line = f"0090 00000001 1 R0 LDG.E 1 R4 4 1 0x{SHARED:x} 0 0"
    assert only_block(body(line)).read == bytes_of((SHARED, 4))


def test_without_window_bases_all_generic_addresses_are_global():
    text = body(f"0090 00000001 1 R0 LD.E 1 R4 4 1 0x{SHARED:x} 0 0", form=Form(None))
    assert only_block(text).read == bytes_of((SHARED, 4))


def test_both_sides_of_an_asynchronous_copy():
    lines = (
        "0100 00000003 0 LDGSTS.E.BYPASS.LTC128B.128 2 R1 R2 16 1 0x400 16 0",
        f"0100 00000003 0 LDGSTS.E.BYPASS.LTC128B.128 2 R1 R2 16 1 0x{GLOBAL:x} 16 0",
    )
    block = only_block(body(*lines))
    assert block.read == bytes_of((GLOBAL, 32))
    assert (block.instructions, block.accesses) == (1, 1)


def test_the_shared_side_may_be_in_the_shared_window():
    line = f"0100 00000001 0 LDGSTS.E 2 R1 R2 4 1 0x{SHARED + 64:x} 0 0"
    part = scan(body(line))
    assert part.skipped["shared-memory side of asynchronous copies (LDGSTS)"] == 1


def test_the_word_ldgsts_inside_another_opcode_means_nothing():
    assert only_block(body("0100 ffffffff 0 ARRIVES.LDGSTSBAR.64 1 R1 0 0")).instructions == 1


@pytest.mark.parametrize(
    ("columns", "read", "written"),
    [
        (f"UTMALDG.2D 2 R4 UR6 16 0x400 0 256 0 3 2 0x{GLOBAL:x} 0x{GLOBAL + 1024:x}", 1, 0),
        (f"UTMALDG.2D 2 R4 UR6 16 0x400 1 3 256 0 4 0x{GLOBAL:x} 2 1024", 1, 0),
        (f"UTMASTG.2D 2 R4 UR6 16 0x400 0 256 0 4 0x{GLOBAL:x} 2 1024", 0, 1),
        (f"UTMAREDG.2D.ADD 2 R4 UR6 16 0x0 0 512 256 4 0x{GLOBAL:x} 2 1024", 1, 1),
        (f"UBLKCP.S.G 2 R4 UR6 16 0x400 0 256 0 4 0x{GLOBAL:x} 2 1024", 1, 0),
        (f"UBLKCP.G.S 2 R4 UR6 16 0x400 0 256 0 4 0x{GLOBAL:x} 2 1024", 0, 1),
        (f"UTMAPF.L2.2D 2 R4 UR6 16 0x400 0 256 0 4 0x{GLOBAL:x} 2 1024", 0, 0),
    ],
)
def test_the_bytes_of_a_bulk_copy_are_spread_over_its_addresses(columns, read, written):
    block = only_block(body(f"0100 00000001 0 {columns} 0 0 NoVal", form=Form("6")))
    expected = bytes_of((GLOBAL, 128), (GLOBAL + 1024, 128))
    assert block.read == (expected if read else set())
    assert block.written == (expected if written else set())


@pytest.mark.parametrize(("mask", "is_opaque"), [("1", False), ("8", False), ("3", True)])
def test_a_multicast_for_several_blocks_makes_the_kernel_opaque(mask, is_opaque):
    columns = f"UTMALDG.2D 2 R4 UR6 16 0x400 1 {mask} 256 0 4 0x{GLOBAL:x} 2 1024"
    part = scan(body(f"0100 00000001 0 {columns} 0 0 NoVal", form=Form("6")))
    assert (0 in part.untraced) is is_opaque
    assert part.touches.accesses.tolist() == [1]


def test_a_bulk_copy_of_nothing():
    line = "0100 00000001 0 UTMALDG.2D 1 UR6 16 0x400 0 128 128 4 0x0 0 0 0 NoVal"
    block = only_block(body(line, form=Form("6")))
    assert (block.instructions, block.accesses, block.read) == (1, 1, set())


BULK = f"0100 00000001 0 UBLKCP.S.G 2 R4 UR6 16 0x400 0 256 0 4 0x{GLOBAL:x}"


def test_more_bulk_copies_than_are_noted_at_a_time():
    lines = [f"{BULK} 2 {1024 * i} 0 0 NoVal" for i in range(1, 3000)]
    block = only_block(body(*lines, form=Form("6")))
    assert (block.instructions, block.accesses) == (2999, 2999)
    assert block.read == bytes_of(*((GLOBAL + 1024 * i, 128) for i in range(3000)))


def test_bulk_copies_between_more_opcodes_than_the_table_begins_with():
    lines = [f"{BULK} 2 1024 0 0 NoVal"]
    for i in range(600):
        lines += [f"0090 ffffffff 0 OP{i} 0 0 0", f"{BULK} 2 1024 0 0 NoVal"]
    part = scan(body(*lines, form=Form("6")))
    assert part.opcodes["UBLKCP.S.G"] == 601
    assert sum(part.opcodes.values()) == 1201


def test_bulk_copies_of_many_addresses_make_room():
    lines = [f"{BULK} 20000 {'512 ' * 19999}0 0 NoVal"] * 8
    block = only_block(body(*lines, form=Form("6")))
    assert block.accesses == 8
    assert len(block.read) == 20_000


@pytest.mark.parametrize("bad_first", [True, False])
def test_the_first_damaged_line_may_be_a_bulk_copy(bad_first):
    bulk, other = f"{BULK} 2 x", "0090 0000z001 1 R0 LDG.E 1 R4 4 1 0x10 0 0"
    text = body(*((bulk, other) if bad_first else (other, bulk)), form=Form("6"))
    part = scan(text)
    assert part.damaged_lines == 2
    first = bulk if bad_first else other
    assert part.damaged_line.line == text[: text.index(first)].count("\n") + 1


def test_bulk_copies_of_older_tracers_are_not_seen():
    part = scan(body("0100 00000001 0 UTMALDG.2D 2 R4 UR6 0 0"))
    assert part.untraced == {
        0: "reaches global memory at addresses, or for blocks, that the trace does not name"
    }


def test_textures_are_not_seen():
    part = scan(body("0100 ffffffff 1 R0 TEX.B.LL 1 R4 0 0"))
    assert part.untraced == {0: "uses texture memory, which the trace does not show"}


def test_the_flag_of_a_matrix_instruction_is_no_width():
    line = "0100 ffffffff 1 R24 HGMMA.64x16x16.F32 2 UR4 R24 1 0 0 0 NoVal"
    assert only_block(body(line, form=Form("6"))).accesses == 0


def test_tails_are_ignored():
    memory = f"0090 00000003 0 STG.E 2 R4 R6 4 1 0x{GLOBAL:x} 4"
    for tail in (
        "",
        "0",
        "-16 0",
        "0 0 NoVal",
        "0 0 Val 1 0x7 32 " + "0x1 " * 32,
        "STORE_DATA I32 1 REG0:T0:0x0 T1:0x1 ",
        "STORE_DATA F64 2 REG0:T0:0 T1:0  REG1:T0:34080 T1:34080",
    ):
        assert only_block(body(f"{memory} {tail}")).written == bytes_of((GLOBAL, 8))


def test_old_tracers_list_active_lanes_that_are_predicated_off():
    """Then the mask has fewer lanes than there are addresses: all are taken, and it is said."""
    listed = " ".join(f"0x{GLOBAL + 64 * i:016x}" for i in range(4))
    deltas = f"2 0x{GLOBAL:x} 64 64 64"
    for addresses in (f"0 {listed}", deltas):
        part = scan(body(f"0090 00000003 1 R0 LDG.E 1 R4 4 {addresses}", form=Form("3")))
        (block,) = blocks_of(part).values()
        assert block.read == bytes_of(*((GLOBAL + 64 * i, 4) for i in range(4)))
        assert part.warnings["accesses that list more lanes than took part (old tracer)"] == 1


def test_a_constant_stride_with_lanes_left_out():
    part = scan(body(f"0090 00000005 1 R0 LDG.E 1 R4 4 1 0x{GLOBAL:x} 8 0"))
    (block,) = blocks_of(part).values()
    assert block.read == bytes_of((GLOBAL, 4), (GLOBAL + 16, 4))
    assert part.warnings["accesses of a constant stride with lanes left out"] == 1


def test_addresses_that_are_all_zero_are_a_fault_of_the_tracer():
    part = scan(body("0090 ffffffff 1 R0 LDG.E 1 R4 4 1 0x0 0"))
    (damage,) = part.damage
    assert damage.found.startswith("1 of 1 global-memory accesses have address 0")


def test_a_memory_opcode_that_is_not_known_is_named():
    part = scan(body(f"0090 00000001 1 R0 LDQ.E.64 1 R4 8 1 0x{GLOBAL:x} 0 0", "00a0 1 FNEW 0 0 0"))
    assert part.warnings["memory opcode not known to depgraph (LDQ)"] == 1
    assert part.skipped["memory instructions with an opcode not known to depgraph"] == 1


def test_an_opcode_that_is_not_known_and_has_no_addresses_is_counted_only():
    part = scan(body("00a0 ffffffff 0 FNEW.X 0 0 0"))
    assert part.opcodes == {"FNEW.X": 1}
    assert not part.warnings


def test_many_opcodes_are_refused(monkeypatch):
    monkeypatch.setattr(accelsim_text._workspace, "opcodes", _table())
    lines = [f"0090 ffffffff 0 OP{i} 0 0 0" for i in range(5000)]
    part = scan(body(*lines))
    assert [damage.found for damage in part.damage] == ["more than 4096 different opcodes"]


def _table():
    return accelsim_text.OpcodeTable(accelsim_text._meaning)


def test_more_blocks_and_ranges_than_the_tables_begin_with():
    stride = 4096
    lines = [
        f"thread block = {i},0,0\nwarp = 0\n"
        f"0090 ffffffff 1 R0 LDG.E 1 R4 4 1 0x{GLOBAL + 64 * i:x} {stride} 0 \n"
        for i in range(5000)
    ]
    part = scan(header_text(Form("5"), grid=(5000, 1, 1)) + "".join(lines))
    assert len(part.touches.launch) == 5000
    assert len(part.touches.row) == 160_000
    starts = part.touches.start.reshape(5000, 32)
    assert (np.diff(starts.astype(np.int64), axis=1) == stride).all()
