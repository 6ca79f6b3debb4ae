"""Accel-Sim kernel files with damage: what is left out is counted, or the file is refused."""

import pytest
from kernel_texts import (
    GLOBAL,
    Form,
    blocks_of,
    header_text,
)
from scanned_kernels import body, bytes_of, scan

FULL = 0xFFFFFFFF


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
