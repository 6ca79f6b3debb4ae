"""The compiled scanners of NVBit text, compared with regular expressions and plain Python."""

import naive
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from programs import BASE, FOREIGN_LINES, access_line, launch_line, log_records

from depgraph.errors import TraceError
from depgraph.parsers.nvbit import scanner_jit as scanner
from depgraph.parsers.nvbit.text import scan_text
from depgraph.parsers.scanning.scanning_jit import PADDING, overlapping_words
from depgraph.trace.records import Damage

TEXT = st.lists(
    st.sampled_from([b"M", b"MEMTRACE: CTX 0x", b"MEMTRACE", b" ", b"\n", b"0x", b"a7", b"\xff"])
).map(b"".join)


def buffer(text):
    """Return bytes as the scanners take them: padded, and as overlapping words."""
    padded = np.frombuffer(bytearray(text + bytes(PADDING)), np.uint8)
    return padded, overlapping_words(padded)


def scan(text):
    return scan_text(buffer(text)[0], len(text), "some.log")


KEYS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2**62)), max_size=20, unique=True)


@given(KEYS)
def test_find_launch_finds_what_was_entered(keys):
    launches = scanner.Launches(
        np.zeros(64, np.uint64), np.zeros(64, np.int64), np.full(64, -1, np.int32)
    )
    slots = {}
    with np.errstate(over="ignore"):
        for number, (c, i) in enumerate(keys):
            slot = scanner.find_launch(launches, np.uint64(c), i)
            assert slot < 0
            for column, value in zip(launches, (c, i, number), strict=True):
                column[-1 - slot] = value
            slots[c, i] = -1 - slot
        for c, i in keys:
            assert scanner.find_launch(launches, np.uint64(c), i) == slots[c, i]


@given(TEXT, st.data())
def test_find_memtrace(text, data):
    position = data.draw(st.integers(0, len(text)))
    found = text.find(b"MEMTRACE: CTX 0x", position)
    with np.errstate(over="ignore"):
        at = scanner.find_memtrace(buffer(text)[1], position, len(text))
    assert at == (found if found >= 0 else len(text))


WORDS = [
    b"0x00007f0000000010 ",
    b"0x00007f0000000010",
    b"0x00007f00",
    b"0x7F00000000000000 ",
    b" ",
    b"done",
]


@given(st.lists(st.sampled_from(WORDS), max_size=40).map(b"".join))
def test_parse_lanes(tail):
    lanes = np.zeros(32, np.uint64)
    text, words = buffer(tail)
    with np.errstate(over="ignore"):
        count, position = scanner.parse_lanes(text, words, 0, len(tail), lanes)
    expected = naive.lane_addresses(tail)
    assert lanes[:count].tolist() == expected
    assert tail[:position].split() == [b"%#018x" % address for address in expected]


NUMBERS = st.integers(0, 70_000)


@given(NUMBERS, st.tuples(NUMBERS, NUMBERS, NUMBERS), NUMBERS, st.booleans())
def test_parse_access_head(identifier, block, warp, has_sm):
    sm = b" - SM_id 17" if has_sm else b""
    x, y, z = block
    head = b"%b - grid_launch_id %d - CTA %d,%d,%d - warp %d - " % (sm, identifier, x, y, z, warp)
    text, words = buffer(head + b"LDG.E - ")
    found = scanner.parse_access_head(text, words, 0, len(head) + 8)
    if y < 65_536 and z < 65_536:
        assert found == (identifier, x | y << 31 | z << 47, warp, len(head))
    else:
        assert found[3] == -1


@given(st.data())
def test_parse_access_head_refuses_a_cut_one(data):
    head = b" - grid_launch_id 3 - CTA 1,2,3 - warp 0 - "
    cut = data.draw(st.integers(0, len(head) - 4))
    text, words = buffer(head[:cut])
    assert scanner.parse_access_head(text, words, 0, cut)[3] == -1


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"MEMTRACE: CTX 0x555bc14decf0, Inspecting CUfunction 0x1 name f at address 0x2", True),
        (b"MEMTRACE: CTX 0x5, Inspecting CUfunction 0x1", True),
        (b"MEMTRACE: CTX 0x555bc14decf0 - grid_launch_id 1", False),
        (b"MEMTRACE: CTX 0x555bc14decf0", False),
    ],
)
def test_verbose_lines(line, expected):
    assert scanner.is_verbose(buffer(line)[1], 16, len(line)) == expected


# Whole texts


def touched(part):
    """Return what each (launch, block) touches: bytes read, written, read in order, by LDGSTS."""
    touches = part.touches
    blocks = list(
        zip(*(a.tolist() for a in (touches.launch, touches.x, touches.y, touches.z)), strict=True)
    )
    assert len(set(blocks)) == len(blocks)
    found = {block: (set(), set(), set(), set()) for block in blocks}
    columns = touches.row, touches.kind, touches.start, touches.end
    for row, kind, start, end in zip(*(a.tolist() for a in columns), strict=True):
        found[blocks[row]][kind].update(range(start, end))
    counted = zip(blocks, touches.accesses.tolist(), touches.instructions.tolist(), strict=True)
    return found, {block: (accesses, instructions) for block, accesses, instructions in counted}


def expected_of(log):
    found, counted = {}, {}
    for number, launch in enumerate(log.launches):
        gx, gy, _ = launch["grid"]
        for block, sets in launch["touched"].items():
            key = (number, block % gx, block // gx % gy, block // gx // gy)
            reads, writes, sync, by_ldgsts = sets
            found[key] = reads, writes, sync - reads, by_ldgsts - reads - sync
            counted[key] = (log.accesses[number, block], log.instructions[number, block])
    return found, counted


def same_as_naive(text):
    part, log = scan(text), naive.Log(text)
    found, counted = touched(part)
    assert (found, counted) == expected_of(log)
    assert part.lines == log.counts["lines"]
    assert part.access_lines == log.counts["access"]
    assert part.opcodes == log.opcodes
    skipped = {
        "foreign": "lines that are not the tracer's",
        "verbose": "verbose lines of the tracer",
        "malformed": "damaged access lines",
        "empty": "access lines without addresses (cut, or printed by a modified tool)",
        "out of range": "access lines with an address that no GPU has",
        "overlong": "lines of more than 1 MiB",
        "shared side": "shared-memory side of asynchronous copies (LDGSTS)",
    }
    for key, reason in skipped.items():
        assert part.skipped[reason] == log.counts[key], reason
    assert [launch and launch.name for launch in part.launches] == [
        launch["name"] for launch in log.launches
    ]
    for launch, said in zip(part.launches, log.launches, strict=True):
        for name in ("grid", "block", "registers", "shared_bytes", "stream", "context", "trace_id"):
            assert getattr(launch, name) == said[name], name
    return part


@given(log_records().map(b"".join))
def test_whole_logs(text):
    assert same_as_naive(text).damage == []


@given(log_records(), st.data())
def test_logs_damaged_by_other_output(records, data):
    junk = st.sampled_from([b"h_out[0] = ", b"loss 0.5\n", b"MEM", b"MEMTRACE: CTX ", b"0x00"])
    for _ in range(data.draw(st.integers(1, 3))):
        accesses = [i for i, record in enumerate(records) if b" - CTA " in record]
        assume(accesses)
        at = data.draw(st.sampled_from(accesses))
        record = records[at]
        cut = data.draw(st.integers(0, len(record)))
        # Junk in an opcode makes another one, of which the slow reader knows nothing.
        warp = record.find(b" - warp ")
        assume(not warp < cut < record.find(b"0x", warp))
        records[at] = record[:cut] + data.draw(junk) + record[cut:]
    same_as_naive(b"".join(records))


@given(log_records(), st.data())
def test_records_that_run_together(records, data):
    glued = [data.draw(st.sampled_from([record, record.rstrip(b"\n")])) for record in records]
    same_as_naive(b"".join(glued))


@given(log_records(), st.data())
def test_any_bytes_are_survived(records, data):
    text = bytearray(b"".join(records))
    places = st.integers(0, len(text) - 1)
    for at, byte in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=8)):
        if b"\n" not in (bytes([byte]), text[at : at + 1]):
            text[at] = byte
    part = scan(bytes(text))
    assert part.lines == len(records)
    assert part.touches.accesses.sum() <= part.access_lines


@pytest.mark.parametrize("foreign", FOREIGN_LINES)
def test_foreign_lines_are_counted(foreign):
    part = same_as_naive(launch_line(0) + foreign + access_line(0, 1, "LDG.E", [BASE]))
    assert part.skipped["lines that are not the tracer's"] == 1


def test_a_launch_line_may_hold_anything_in_its_name():
    name = "void f<(int)-1, g - grid launch id 7>(float const*)::{lambda()#1}::operator- - x"
    part = same_as_naive(launch_line(3, name=name))
    assert part.launches[0].name == name
    assert part.launches[0].trace_id == 3


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (launch_line(0, (0, 1, 1)), "grid of 0,1,1 blocks is not possible"),
        (launch_line(0, (1, 70_000, 1)), "grid of 1,70000,1 blocks is not possible"),
        (launch_line(0, block=(1024, 2, 1)), "block of 1024,2,1 threads is not possible"),
        (launch_line(0)[:150] + b"\n", "launch line is damaged"),
    ],
)
def test_damaged_launch_lines(line, found):
    part = scan(b"\n" + line)
    assert [(damage.line, damage.found) for damage in part.damage] == [(2, found)]


def test_registers_of_0_are_unknown():
    part = scan(launch_line(0, registers=0) + launch_line(1, registers=40))
    assert [launch.registers for launch in part.launches] == [None, 40]


def test_more_blocks_than_the_tables_begin_with():
    blocks = 5_000
    text = launch_line(0, (blocks, 1, 1)) + b"".join(
        access_line(0, block, "STG.E", [BASE + 8 * block]) for block in range(blocks)
    )
    found, _ = touched(scan(text))
    assert len(found) == blocks
    assert found[0, 4_999, 0, 0] == (set(), set(range(BASE + 39_992, BASE + 39_996)), set(), set())


def test_more_ranges_than_the_tables_begin_with():
    lines = 2_100
    text = launch_line(0) + b"".join(
        access_line(0, 0, "RED.E.ADD.F32.FTZ.RN.STRONG.GPU", range(BASE + n, BASE + n + 992, 31))
        for n in range(0, 8 * lines, 8)
    )
    same_as_naive(text)


def test_more_launches_than_the_tables_begin_with():
    numbers = range(200)
    text = b"".join(launch_line(n) for n in numbers) + b"".join(
        access_line(n, 0, "STG.E", [BASE + n]) for n in numbers
    )
    assert len(same_as_naive(text).keys) == 200


def test_more_opcodes_than_the_tables_begin_with():
    text = launch_line(0) + b"".join(
        access_line(0, 0, f"LDG.E.X{n}", [BASE + 4 * n]) for n in range(600)
    )
    part = scan(text)
    assert sum(part.opcodes.values()) == len(part.opcodes) == 600
    assert part.touches.end.tolist() == [BASE + 2400]


def test_no_tracer_knows_so_many_opcodes():
    text = launch_line(0) + b"".join(access_line(0, 0, f"LDG.E.X{n}", [BASE]) for n in range(5000))
    with pytest.raises(TraceError, match=r"some\.log: more than 4096 different opcodes; the file"):
        scan(text)


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (b" - warp 0 - ", b" - wrap 0 - "),
        (b" - CTA 1,0,0", b" - CTA 1,0"),
        (b"LDG.E - ", b"LDG.E 0x"),
        (b"LDG.E - ", b" - "),
        (b"LDG.E", b"LDG.E" * 12),
        (b"CTX 0x0000000033c98dc0", b"CTX 0x0000000033c98dcg"),
    ],
)
def test_a_damaged_access_line_is_counted_and_placed(good, bad):
    line = access_line(0, 1, "LDG.E", [BASE])
    assert good in line
    part = scan(launch_line(0) + line + line.replace(good, bad) + line)
    assert (part.lines, part.access_lines, part.damaged_lines) == (4, 3, 1)
    assert (part.damaged_line.line, part.damaged_line.found) == (3, "access line is damaged")
    assert part.skipped["damaged access lines"] == 1


def test_an_address_that_no_gpu_has_is_damage():
    part = scan(launch_line(0) + access_line(0, 0, "LDG.E", [1 << 60]))
    # One count under one name, and not among those of the good lines.
    left_out = {"access lines with an address that no GPU has": 1}
    assert (part.warnings, part.skipped, part.opcodes) == (left_out, left_out, {})
    assert part.damaged_line == Damage(2, "access line has an address that no GPU has")
    assert (part.access_lines, part.damaged_lines) == (1, 1)
    assert len(part.touches.row) == 0


def test_a_line_of_a_modified_tool_is_named_and_is_no_access():
    line = access_line(0, 0, "LDG.E", [BASE])
    modified = line[: line.index(b"LDG.E")] + b"LDG.E - first address 0x00007f0000000000\n"
    part = same_as_naive(launch_line(0) + 63 * line + modified)
    warning = "access lines without addresses (cut, or printed by a modified tool)"
    assert (part.warnings, part.skipped) == ({warning: 1}, {warning: 1})
    found = "access line has no address where mem_trace prints them"
    assert part.damaged_line == Damage(65, found)
    assert (part.access_lines, part.damaged_lines) == (64, 1)
    assert part.touches.accesses.sum() == 63


def test_of_more_than_32_addresses_the_first_32_count():
    line = access_line(0, 0, "LDG.E", range(BASE, BASE + 128, 4))
    part = same_as_naive(launch_line(0) + line[:-1] + f"{BASE + 128:#018x} \n".encode() + line)
    assert part.warnings == {"access lines with more than 32 addresses, of which 32 count": 1}
    assert part.damaged_line == Damage(2, "access line has more than 32 addresses")
    assert (part.access_lines, part.damaged_lines) == (2, 1)
    assert part.touches.end.tolist() == [BASE + 128]


def test_a_short_line_without_a_blank_at_its_end_keeps_its_last_address():
    short = access_line(0, 0, "LDG.E", [BASE])
    short = short[: short.index(b" 0x0000000000000000", 60)] + b"\n"
    # The next line ends where a whole one would have ended.
    head = access_line(0, 0, "LDG.E", [])
    filler = len(head) - len(short) - 1
    same_as_naive(
        launch_line(0) + short + b"x" * filler + b"\n" + access_line(0, 1, "STG.E", [BASE])
    )
