"""What the byte scanners share, against regular expressions and plain Python."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import BASE

from depgraph.parsers.scanning import scanning_jit as text_scanner
from depgraph.parsers.scanning.inputs import find_text
from depgraph.parsers.scanning.scanning_jit import (
    ASYNC_COPY,
    GLOBAL_READ,
    GLOBAL_UPDATE,
    GLOBAL_WRITE,
    OPCODE_WORDS,
    ORDERED_READ,
    PADDING,
    Rows,
    add_lanes,
    enter_rows,
    find_opcode,
    find_row,
    overlapping_words,
    take_row,
)
from depgraph.parsers.scanning.tables import pack_block
from depgraph.trace.records import LDGSTS_READ, READ, SYNC_READ, WRITE, Ranges


def buffer(text):
    """Return bytes as the scanners take them: padded, and as overlapping words."""
    padded = np.frombuffer(bytearray(text + bytes(PADDING)), np.uint8)
    return padded, overlapping_words(padded)


TOKENS = st.lists(
    st.sampled_from([b"0x7f65", b"7F", b"-12", b"12", b"999999999999999999", b"R12", b"", b"0x"])
    | st.binary(min_size=1, max_size=20).filter(lambda token: b" " not in token),
    min_size=1,
    max_size=4,
).map(b" ".join)


@given(TOKENS)
def test_skip_token(line):
    padded, words = buffer(line)
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
    padded, _ = buffer(line)
    with np.errstate(over="ignore"):
        value, at = getattr(text_scanner, read)(padded, 0, len(line))
    match = re.match(pattern, line)
    if match:
        assert (int(value), int(at)) == (int(match[1], base), match.end())
    else:
        assert -1 in (int(value), int(at))


TEXT = st.lists(
    st.sampled_from([b"M", b"MEMTRACE: CTX 0x", b"MEMTRACE", b" ", b"\n", b"0x", b"a7", b"\xff"])
).map(b"".join)


@given(st.binary(min_size=8, max_size=40))
def test_words_overlap(text):
    _, words = buffer(text)
    for at in range(len(text)):
        assert int(words[at]) == int.from_bytes((text + bytes(8))[at : at + 8], "little")


@given(st.integers(0, 7), st.lists(st.booleans(), min_size=8, max_size=8))
def test_bytes_below_the_lowest_mark(lowest, marks):
    hit = sum(0x80 << 8 * i for i in range(8) if i == lowest or (i > lowest and marks[i]))
    with np.errstate(over="ignore"):
        assert text_scanner.bytes_below(np.uint64(hit)) == lowest


@given(TEXT, st.data())
def test_find_line_end(text, data):
    position = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(position, len(text)))
    found = text.find(b"\n", position, end)
    with np.errstate(over="ignore"):
        at = text_scanner.find_line_end(buffer(text)[1], position, end)
    assert at == (found if found >= 0 else end)


@given(st.text("0123456789abcdef", min_size=8, max_size=8))
def test_parse_hex8(digits):
    value, bad = text_scanner.parse_hex8(buffer(digits.encode())[1][0])
    assert (int(value), int(bad)) == (int(digits, 16), 0)


@given(st.binary(min_size=8, max_size=8))
def test_parse_hex8_refuses_all_but_lower_case_digits(text):
    with np.errstate(over="ignore"):
        _, bad = text_scanner.parse_hex8(buffer(text)[1][0])
    assert (bad == 0) == bool(re.fullmatch(rb"[0-9a-f]{8}", text))


def test_parse_hex8_knows_every_byte():
    with np.errstate(over="ignore"):
        for byte in range(256):
            _, bad = text_scanner.parse_hex8(buffer(b"000" + bytes([byte]) + b"0000")[1][0])
            assert (bad == 0) == (byte in b"0123456789abcdef")


@given(st.from_regex(rb"[0-9]{0,20}[ ,x]", fullmatch=True))
def test_parse_decimal(text):
    digits = re.match(rb"[0-9]*", text)[0]
    value, position = text_scanner.parse_decimal(buffer(text)[0], 0)
    assert value == (int(digits) if 1 <= len(digits) <= 18 else -1)
    if value >= 0:
        assert position == len(digits)


def ranges(size):
    return Ranges(
        np.full(size, -1, np.int32),
        np.full(size, 9, np.uint8),
        np.zeros(size, np.uint64),
        np.zeros(size, np.uint64),
    )


KINDS_OF = {  # of an opcode's meaning: what it leaves ranges of
    GLOBAL_READ: {READ},
    GLOBAL_WRITE: {WRITE},
    GLOBAL_UPDATE: {SYNC_READ, WRITE},
    ASYNC_COPY: {LDGSTS_READ},
    ORDERED_READ: {SYNC_READ},
}


@given(
    st.lists(st.integers(0, 40), max_size=32),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.sampled_from(sorted(KINDS_OF)),
)
def test_add_lanes_covers_what_the_lanes_touch(addresses, width, meaning):
    lanes = np.zeros(32, np.uint64)
    lanes[: len(addresses)] = addresses
    out = ranges(70)
    n = add_lanes(out, 3, 5, meaning, lanes, len(addresses), width)
    assert n - 3 <= len(KINDS_OF[meaning]) * len(addresses)
    assert out.row.tolist() == [-1] * 3 + [5] * (n - 3) + [-1] * (70 - n)
    covered = {}
    for kind, start, end in zip(out.kind[3:n], out.start[3:n], out.end[3:n], strict=True):
        covered.setdefault(int(kind), set()).update(range(start, end))
    touched = {b for a in addresses if a for b in range(a, a + width)}
    assert covered == dict.fromkeys(KINDS_OF[meaning] if touched else (), touched)


def test_add_lanes_joins_a_warp_that_reads_on():
    lanes = np.arange(BASE, BASE + 128, 4, dtype=np.uint64)
    out = ranges(8)
    assert add_lanes(out, 0, 0, GLOBAL_READ, lanes, 32, 4) == 1
    assert (out.start[0], out.end[0]) == (BASE, BASE + 128)


@given(st.lists(st.text("ABCDEFG.128", min_size=1, max_size=47), max_size=20, unique=True))
def test_find_opcode_finds_what_was_entered(opcodes):
    table = np.zeros((64, OPCODE_WORDS), np.uint64)
    slots = {}
    with np.errstate(over="ignore"):
        for opcode in opcodes:
            _, words = buffer(opcode.encode() + b" - 0x00")
            slot, length = find_opcode(words, 0, table)
            assert (slot < 0, length) == (True, len(opcode))
            padded = opcode.encode().ljust(8 * OPCODE_WORDS, b"\0")
            table[-1 - slot] = np.frombuffer(padded, "<u8")
            slots[opcode] = -1 - slot
        for opcode in opcodes:
            _, words = buffer(b"?" + opcode.encode() + b" ")
            assert find_opcode(words, 1, table) == (slots[opcode], len(opcode))
    assert len(set(slots.values())) == len(opcodes)


def test_find_opcode_gives_up_after_48_bytes():
    table = np.zeros((64, OPCODE_WORDS), np.uint64)
    with np.errstate(over="ignore"):
        assert find_opcode(buffer(b"A" * 48 + b" ")[1], 0, table)[1] == 0


KEYS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2**62)), max_size=20, unique=True)


def rows(size, slots=64):
    return Rows(
        np.zeros(size, np.int32),
        np.zeros(size, np.int64),
        np.ones(size, np.int64),
        np.ones(size, np.int64),
        np.full(slots, -1, np.int32),
    )


@given(KEYS)
def test_take_row_finds_what_was_entered(keys):
    table, sizes = rows(20), np.zeros(2, np.int64)
    with np.errstate(over="ignore"):
        for row, key in enumerate(keys):
            assert find_row(table, *key) < 0
            assert take_row(table, sizes, *key) == row
        for row, key in enumerate(keys):
            assert take_row(table, sizes, *key) == find_row(table, *key) == row
    assert sizes.tolist() == [len(keys), 0]
    assert list(zip(table.launch, table.cta, strict=True))[: len(keys)] == keys
    assert not table.accesses[: len(keys)].any()
    assert not table.instructions[: len(keys)].any()


def test_take_row_has_no_room():
    table, sizes = rows(1), np.zeros(2, np.int64)
    with np.errstate(over="ignore"):
        assert [take_row(table, sizes, 0, cta) for cta in (7, 8, 7)] == [0, -1, 0]


@given(KEYS)
def test_enter_rows_makes_them_found(keys):
    table = rows(20)
    for row, key in enumerate(keys):
        table.launch[row], table.cta[row] = key
    with np.errstate(over="ignore"):
        enter_rows(table, len(keys))
        assert [find_row(table, *key) for key in keys] == list(range(len(keys)))


COORDINATES = st.tuples(st.integers(0, 2**32), st.integers(0, 70_000), st.integers(0, 70_000))


@given(COORDINATES, st.sampled_from([b",", b" "]))
def test_read_coordinates(block, separator):
    x, y, z = block
    text = separator.join(b"%d" % n for n in block)
    packed, at = text_scanner.read_coordinates(buffer(text)[0], 0, len(text), separator[0])
    if x < 1 << 31 and max(y, z) < 1 << 16:
        assert (packed, at) == (pack_block(*block), len(text))
    else:
        assert packed == -1


@given(st.binary(max_size=2000), st.binary(min_size=1, max_size=2), st.data())
def test_find_text(text, wanted, data):
    position = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(position, len(text)))
    found = text.find(wanted, position, end)
    at = find_text(np.frombuffer(text + b"?", np.uint8), wanted, position, end)
    assert at == (found if found >= 0 else end)


@pytest.mark.parametrize("at", [0, 510, 511, 512, 513, 1535, 1536, 9000])
def test_find_text_across_its_windows(at):
    text = np.frombuffer(b"." * at + b"ab" + b"." * 10, np.uint8)
    assert find_text(text, b"ab", 0, len(text)) == at
    assert find_text(text, b"ab", 0, at + 1) == at + 1
    assert find_text(text, b"\n", 0, len(text)) == len(text)
