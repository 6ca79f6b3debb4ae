"""The compiled readers of tokens against regular expressions."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depgraph.parsers.accelsim import scanner_jit as accelsim_scanner
from depgraph.parsers.scanning import text_jit as text_scanner
from depgraph.parsers.scanning.text_jit import PADDING, overlapping_words
from depgraph.parsers.scanning.touch_table import pack_block

FULL = 0xFFFFFFFF


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


@given(st.lists(st.integers(0, 1 << 18), min_size=3, max_size=3), st.sampled_from(" ,"))
def test_read_coordinates(numbers, separator):
    text = separator.join(map(str, numbers)).encode() + b" "
    packed, _ = accelsim_scanner.read_coordinates(words_and(text)[0], 0, len(text), ord(separator))
    fits = max(numbers[1:]) < 1 << 16
    assert packed == (pack_block(*numbers) if fits else -1)
