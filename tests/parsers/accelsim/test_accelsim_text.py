"""Accel-Sim kernel files: the fast reader against a slow one, on kernels of every version."""

import io
import re

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
    Instruction,
    blocks_of,
    forms,
    header_text,
    instruction_line,
    kernel_text,
    merged,
)
from naive_accelsim import read_kernel

from depgraph.parsers.accelsim import text as accelsim_text
from depgraph.parsers.accelsim.header import find_layout, parse_header
from depgraph.parsers.accelsim.kernel_list import KernelList
from depgraph.parsers.accelsim.text import PartScanner
from depgraph.parsers.accelsim.trace import AccelSimTrace, KernelSection
from depgraph.parsers.scanning import text_jit as text_scanner
from depgraph.parsers.scanning.text_jit import PADDING, overlapping_words

FULL = 0xFFFFFFFF


def scan(text, **options):
    """Scan the text of one kernel as one part."""
    scanner = PartScanner()
    data = text if isinstance(text, bytes) else text.encode()
    scanner.scan_kernel(io.BytesIO(data), 0, "kernel-7.traceg", **options)
    return scanner.finish()


def body(*lines, form=None, block="0,0,0"):
    """Return a grouped kernel of one warp."""
    text = f"#BEGIN_TB\n\nthread block = {block}\n\nwarp = 0\ninsts = {len(lines)}\n"
    return header_text(form or Form()) + text + "".join(f"{x} \n" for x in lines) + "\n#END_TB\n"


def only_block(text):
    part = scan(text)
    assert not part.damage
    assert not part.warnings
    (block,) = blocks_of(part).values()
    return block


def bytes_of(*ranges):
    return {byte for start, size in ranges for byte in range(start, start + size)}


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
    scanner = PartScanner(size)
    scanner.scan_kernel(
        io.BytesIO(text), 0, "kernel-7.traceg", header=header, layout=find_layout(text, header)
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
    tasks = list(AccelSimTrace(kernels, section_bytes=size, buffer_bytes=512).tasks())
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
    assert part.unseen == {0: "reaches global memory at addresses the trace does not hold"}


def test_textures_are_not_seen():
    part = scan(body("0100 ffffffff 1 R0 TEX.B.LL 1 R4 0 0"))
    assert part.unseen == {0: "uses texture memory, which the trace does not show"}


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


# Damage


def test_a_damaged_line_is_counted_and_placed():
    good = f"0090 00000001 1 R0 LDG.E 1 R4 4 1 0x{GLOBAL:x} 0 0"
    text = body(good, "0090 0000z001 1 R0 LDG.E 1 R4 4 1 0x10 0 0", good)
    part = scan(text)
    assert part.damaged_lines == 1
    assert part.access_lines == 3
    assert part.damaged_line.line == text[: text.index("0000z001")].count("\n") + 1
    assert part.damaged_line.path == "kernel-7.traceg"
    assert part.warnings == part.skipped == {"damaged instruction lines": 1}


def test_an_address_that_no_gpu_has_is_counted_once_under_its_name():
    good = f"0090 00000001 1 R0 LDG.E 1 R4 4 1 0x{GLOBAL:x} 0 0"
    part = scan(body(good, good.replace(f"{GLOBAL:x}", "0200000000000000")))
    left_out = {"instruction lines with an address that no GPU has": 1}
    assert (part.warnings, part.skipped) == (left_out, left_out)
    assert (part.access_lines, part.damaged_lines, part.opcodes) == (2, 1, {"LDG.E": 1})


def test_a_list_of_more_than_32_addresses_is_damaged():
    many = " ".join(f"0x{GLOBAL + 4 * lane:016x}" for lane in range(33))
    part = scan(body(f"0090 ffffffff 1 R0 LDG.E 1 R4 4 0 {many} 0"))
    assert part.skipped == {"damaged instruction lines": 1}
    assert part.touches.accesses.tolist() == [0]


@pytest.mark.parametrize(
    "line",
    [
        "0090 00000001 1 R0 LDG.E 1 R4 4 1 0x7f650000000g 0",
        "0090 00000003 1 R0 LDG.E 1 R4 4 0 0x7f6500000000",
        "0090 00000007 1 R0 LDG.E 1 R4 4 2 0x7f6500000000 4",
        "0090 00000007 1 R0 LDG.E 1 R4 4 2 0x7f6500000000 4 x",
        "0090 00000001 1 R0 LDG.E 1 R4 4 9 0x7f6500000000 0",
        "0090 00000001 1 R0 LDG.E 1 R4 4 1 0xffffffffffffffff 0",
        "0090 00000003 1 R0 LDG.E 1 R4 4 1 0x10 -32",
        "0090 00000001 1 R0 LDG.E 1 R4 four 1 0x10 0",
        "0090 00000001 99 R0 LDG.E 1 R4 4 1 0x10 0",
        "0090 00000001 1 R0 LDG.E 99 R4 4 1 0x10 0",
        "0090 00000001 1 R0 " + "LDG." * 20 + " 1 R4 4 1 0x10 0",
        "0090 00000001 1 R0 LDG.E",
        "0090 00000001",
        "0090",
    ],
)
def test_damaged_lines(line):
    part = scan(body(line, f"00a0 00000001 1 R0 LDG.E 1 R4 4 1 0x{GLOBAL:x} 0 0"))
    assert part.damaged_lines == 1
    assert part.access_lines == 2
    (block,) = blocks_of(part).values()
    assert (block.instructions, block.read) == (1, bytes_of((GLOBAL, 4)))


@pytest.mark.parametrize("count", ["1000000000", "6", "-1", "x"])
def test_absurd_bulk_copies_are_not_seen(count):
    line = f"0100 00000001 0 UTMALDG.2D 1 UR6 16 0x400 0 256 0 3 {count} 0x{GLOBAL:x} 0x10"
    part = scan(body(line, form=Form("6")))
    assert not len(part.touches.row)


def test_instructions_without_a_thread_block():
    text = header_text(Form()) + "#BEGIN_TB\nwarp = 0\n0090 ffffffff 0 NOP 0 0 0 \n#END_TB\n"
    part = scan(text)
    assert part.skipped["instructions that belong to no thread block"] == 1
    assert part.damaged_lines == 1


def test_a_file_cut_within_a_warp():
    text = body("0090 ffffffff 0 NOP 0 0 0", "00a0 ffffffff 0 EXIT 0 0 0")
    part = scan(text[: text.index("00a0")])
    (damage,) = part.damage
    assert damage.found == "the file ends in the middle of a warp, after 1 of 2 instructions"
    assert damage.path == "kernel-7.traceg"


def test_a_file_cut_within_a_line():
    text = body("0090 ffffffff 0 NOP 0 0 0", "00a0 ffffffff 0 EXIT 0 0 0")
    part = scan(text[: text.index("EXIT") + 6])
    assert [damage.found for damage in part.damage] == ["the last line is cut"]


def test_a_missing_last_end_tb_is_only_noted():
    text = body("0090 ffffffff 0 NOP 0 0 0")
    part = scan(text[: text.index("\n#END_TB")])
    assert not part.damage
    assert part.warnings == {"kernel files that do not end with #END_TB": 1}


def test_a_wrong_number_of_instructions_is_only_noted():
    text = body("0090 ffffffff 0 NOP 0 0 0").replace("insts = 1\n", "insts = 1000000000\n")
    part = scan(text.replace("\n#END_TB", "\n#END_TB\n#BEGIN_TB\nthread block = 1,0,0\n#END_TB"))
    assert not part.damage
    assert part.warnings == {"warps with more or fewer instructions than they declare": 1}


def test_an_empty_warp():
    text = header_text(Form()) + "#BEGIN_TB\nthread block = 0,0,0\nwarp = 0\ninsts = 0\n\n#END_TB\n"
    part = scan(text)
    assert not part.damage
    assert not part.warnings
    assert blocks_of(part) == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"", "the file is empty"),
        (b"0090 ffffffff 0 NOP 0 0 0 \n", "no kernel header"),
        (b"-kernel name = a\n-grid dim = (0,1,1)\n-block dim = (1,1,1)\n", "grid of 0,1,1 blocks"),
        (b"-kernel name = a\n-grid dim = (2147483648,1,1)\n-block dim = (1,1,1)\n", "grid of 2147"),
        (b"-kernel name = a\n-grid dim = (1,1,1)\n-block dim = (2048,1,1)\n", "block of 2048,1,1"),
        (b"-kernel name = a\n-grid dim = (1,1,1)\n", "the header has no usable block dim"),
        (
            header_text(Form()).encode() + b"0090 ffffffff 0 NOP 0 0 0 \n",
            "its instructions belong to no thread block",
        ),
    ],
)
def test_files_that_are_refused(text, found):
    part = scan(text)
    (damage,) = part.damage
    assert damage.found.startswith(found)
    assert part.launches == [None]


@pytest.mark.parametrize("times", [300_000, 3_000_000])
def test_a_line_of_more_than_a_megabyte_is_left_out(times):
    good = f"0090 00000001 1 R0 LDG.E 1 R4 4 1 0x{GLOBAL:x} 0 0"
    long = good + " 0x1" * times
    text = body(good, long, good)
    part = scan(text)
    assert part.damaged_line.line == text[: text.index(long)].count("\n") + 1
    assert part.skipped["lines of more than 1 MiB"] == 1
    (block,) = blocks_of(part).values()
    assert block.instructions == 2


# The helpers that read tokens


def words_and(text):
    padded = np.frombuffer(text + bytes(PADDING), np.uint8)
    return padded, overlapping_words(padded)


TOKENS = st.lists(
    st.sampled_from([b"0x7f65", b"7F", b"-12", b"12", b"999999999999999999", b"R12", b"", b"0x"])
    | st.binary(min_size=1, max_size=20).filter(lambda token: b" " not in token),
    min_size=1,
    max_size=4,
).map(b" ".join)


@given(TOKENS)
def test_skip_token(line):
    padded, words = words_and(line)
    with np.errstate(over="ignore"):
        at = text_scanner.skip_token(padded, words, 0, len(line))
    assert line[:at].split(b" ")[0] == line.split(b" ")[0]
    assert line[at:] == line[len(line.split(b" ")[0]) :].lstrip(b" ")


@given(TOKENS)
@pytest.mark.parametrize(
    ("read", "pattern", "base"),
    [
        ("read_number", rb"(\d{1,18})(?: +|\Z)", 10),
        ("read_signed", rb"(-?\d{1,18})(?: +|\Z)", 10),
        ("read_hex", rb"((?:0x)?[0-9a-fA-F]{1,16})(?: +|\Z)", 16),
    ],
)
def test_readers_of_numbers(read, pattern, base, line):
    padded, _ = words_and(line)
    with np.errstate(over="ignore"):
        value, at = getattr(text_scanner, read)(padded, 0, len(line))
    match = re.match(pattern, line)
    if match:
        assert (int(value), int(at)) == (int(match[1], base), match.end())
    else:
        assert -1 in (int(value), int(at))


# Headers


def test_header():
    text = header_text(Form("5"), name="_Z9vectorAddPKfS0_Pfi").encode()
    launch = parse_header(text, context=0x2356C30).launch
    assert launch.name == "vectorAdd(float const*, float const*, float*, int)"
    assert launch.mangled_name == "_Z9vectorAddPKfS0_Pfi"
    assert (launch.grid, launch.block) == ((4, 3, 2), (96, 1, 1))
    assert (launch.registers, launch.shared_bytes, launch.architecture) == (40, 256, 80)
    assert (launch.trace_id, launch.stream, launch.context) == (7, 0, 0x2356C30)


@pytest.mark.parametrize(
    ("key", "value", "field", "expected"),
    [
        ("nregs", "-1", "registers", None),
        ("nregs", "0", "registers", None),
        ("nregs", "32740", "registers", None),
        ("nregs", "255", "registers", 255),
        ("shmem", "-693114968", "shared_bytes", None),
        ("shmem", "283873920", "shared_bytes", None),
        ("shmem", "0", "shared_bytes", 0),
        ("shmem", "233472", "shared_bytes", 233472),
        ("binary version", "-1104674816", "architecture", None),
        ("binary version", "2960", "architecture", None),
        ("binary version", "90", "architecture", 90),
        ("cuda stream id", "-1380908160", "stream", -1380908160),
        ("cuda stream id", "18446744073709551615", "stream", -1),
        ("kernel name", "a = b", "mangled_name", "a = b"),
        ("kernel name", "main_kernel", "name", "main_kernel"),
    ],
)
def test_numbers_of_the_header_that_are_rubbish(key, value, field, expected):
    lines = header_text(Form("5")).split("\n")
    text = "\n".join(f"-{key} = {value}" if x.startswith(f"-{key} = ") else x for x in lines)
    assert getattr(parse_header(text.encode()).launch, field) == expected


@pytest.mark.parametrize(
    ("version", "number"), [(None, 0), ("1.2", 1), ("3", 3), ("4", 4), ("5", 5), ("6", 6)]
)
def test_versions(version, number):
    assert parse_header(header_text(Form(version)).encode()).version == number


@given(forms())
def test_the_layout_is_told_by_the_content(form):
    line = Instruction("FFMA", FULL, [], destinations=["R1"], sources=["R2", "R3"])
    text = kernel_text({(0, 0, 0): [[line]]}, form).encode()
    layout = find_layout(text, parse_header(text))
    assert layout.is_grouped == (not form.is_raw)
    columns = instruction_line(line, (0, 0, 0), 0, form, with_block=form.is_raw or form.has_prefix)
    assert layout.columns == columns.split().index(form.counter)


def test_an_unknown_key_of_the_header_does_no_harm():
    text = header_text(Form("5"), extra="\n-cluster dim = (1,1,1)\n-rubbish").encode()
    assert parse_header(text).launch.grid == (4, 3, 2)


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
