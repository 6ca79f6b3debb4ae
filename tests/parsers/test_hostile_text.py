"""Text made to be slow: whatever the bytes are, time grows with their number and not its square."""

import bz2
import gzip

import numpy as np
import pytest
from programs import BASE, access_line, launch_line

from depgraph.errors import TraceError
from depgraph.extraction.check import check_trace
from depgraph.extraction.pipeline import analyse
from depgraph.parsers import open_trace
from depgraph.parsers.nvbit import text as nvbit_text
from depgraph.parsers.nvbit.log import NvbitTrace
from depgraph.parsers.scanning.scanning_jit import MAX_LINE_BYTES, PADDING, overlapping_words
from depgraph.system import compiled

MARK = b"MEMTRACE: CTX 0x"
HEAD = MARK + b"0000000033c98dc0 - "


class CountedWords:
    """Words of a text that count how often one of them is looked at."""

    def __init__(self, words):
        self._words = words
        self.seen = 0

    def __getitem__(self, at):
        self.seen += 1
        return self._words[at]


def words_seen(monkeypatch, text):
    """Return how many words the scanner, interpreted, looks at."""
    counted = []

    def counting(buffer):
        counted.append(CountedWords(overlapping_words(buffer)))
        return counted[-1]

    padded = np.frombuffer(bytearray(text + bytes(PADDING)), np.uint8)
    with monkeypatch.context() as patched:
        patched.setattr(nvbit_text, "overlapping_words", counting)
        patched.setattr(compiled._interpreter, "is_running", True)
        nvbit_text.scan_text(padded, len(text), "some.log")
    return sum(words.seen for words in counted)


def one_access(number):
    return access_line(number, 0, "LDG.E", [BASE])[:200]


@pytest.mark.parametrize(
    "piece",
    [
        lambda _: MARK,
        lambda _: HEAD,
        lambda _: HEAD + b"LAUNCH - ",
        lambda _: launch_line(0)[:-1],
        lambda _: b"M" * 16,
        lambda _: MARK[:-1],
        lambda _: MARK + b"a, Inspecting ",
        one_access,  # every one of another launch
        lambda n: one_access(0).replace(b"LDG.E", b"LDG.E.X%d" % n),
    ],
    ids=["mark", "head", "launch", "whole launch", "letters", "almost", "verbose", "access", "op"],
)
def test_the_work_on_a_long_line_grows_with_its_length(monkeypatch, piece):
    def line(pieces):
        return b"".join(piece(n) for n in range(pieces)) + b"\n"

    few, many = (words_seen(monkeypatch, line(n)) for n in (100, 400))
    assert many < 4.5 * few


@pytest.mark.jit_only
@pytest.mark.parametrize("excess", [-1, 0, 1])
@pytest.mark.parametrize("part_bytes", [1 << 18, 1 << 20, 16 << 20])
@pytest.mark.parametrize("pack", [bytes, bz2.compress])
@pytest.mark.parametrize(
    "first", [b"x", access_line(1, 3, "LDG.E", [BASE])[:-1], launch_line(5)[:-1]]
)
def test_the_limit_of_a_line_holds_wherever_it_stands(tmp_path, excess, part_bytes, pack, first):
    long = first.ljust(MAX_LINE_BYTES + excess, b" ") + b"\n"
    text = launch_line(0) + access_line(0, 1, "STG.E", [BASE]) + launch_line(1) + long
    text += access_line(1, 2, "LDG.E", [BASE])
    path = tmp_path / "some.log"
    path.write_bytes(pack(text))
    extraction = analyse(NvbitTrace(path, part_bytes=part_bytes), jobs=1)
    is_left_out = excess > 0
    assert extraction.metadata["lines"] == 5
    assert extraction.metadata["skipped"].get("lines of more than 1 MiB", 0) == is_left_out
    accesses = extraction.counts.accesses
    assert accesses.sum() == 2 + (first.endswith(b"000 ") and not is_left_out)
    assert len(extraction.kernels) == 2 + (b"LAUNCH" in first and not is_left_out)


LONG_LINES = {
    "marks": MARK,
    "launches": HEAD + b"LAUNCH - ",
    "words of a launch": b" - LAUNCH - ",
    "ids of launches": b" - LAUNCH - x - grid launch id 7",
    "whole launches": launch_line(0)[:-1],
    "accesses": access_line(0, 0, "LDG.E", [BASE])[:-1],
    "old launches": b" - grid size 1,1,1 - block size 1,1,1 - nregs 1 - shmem 0 - cuda stream id 0",
    "old names": b"Kernel x - grid size 1,1,1 - block size 1,1,1 - nregs 1 - shmem 0 - cuda",
    "data values": b" - Size 4 - MREF per threads(",
    "types": b" - READ - size 4 - mem_type 4 - addr",
    "three lines": b"LAUNCH KERNEL: k - grid launch id ",
    "digits": b"1234567890",
    "CUTracer": b"CTX 0xa - CTA 0,0,0 - warp 0 - A",
    "requests": b"mf: uid=",
    "half requests": b"mf: uid=1 addr=0x10, load , size=32, GLOBAL_R cta=",
    "finished blocks": b"Finished CTA (1,1,1) #1 (1,1) ",
    "pushed kernels": b"pushing kernel '",
    "blanks": b" ",
    "dashes": b"-",
    "newlines": b"\n",
}
BEFORE = {
    "nvbit": launch_line(0) + access_line(0, 0, "LDG.E", [BASE]),
    "old": b"Kernel k - grid size 1,1,1 - block size 1,1,1 - nregs 1 - shmem 0"
    b" - cuda stream id 0\n",
    "mref": b"x - Size 4 - MREF per threads(t) : Thread0,0x1,0x2\n",
    "simlog": b"mf: uid=1 addr=0x10, load , size=32, GLOBAL_R cta=0,0,0 kernel=1\n",
    "accelsim": b"-kernel name = k\n-grid dim = (1,1,1)\n-block dim = (1,1,1)\n\n#traces\n",
    "list": b"kernel-1.traceg\n",
    "values": b"CTA 0,0,0 - warp 0 - A:",
    "nothing": b"",
}


def refusal_of(path):
    try:
        check_trace(open_trace(path))
    except TraceError as error:
        return str(error)
    return ""


@pytest.mark.slow
@pytest.mark.jit_only
@pytest.mark.parametrize("before", BEFORE)
def test_no_text_takes_the_square_of_its_length(tmp_path, before):
    # What is linear takes a fraction of a second a file; what is not takes many minutes.
    for name, piece in LONG_LINES.items():
        longest = piece * (MAX_LINE_BYTES // len(piece))
        path = tmp_path / f"{name}.gz"
        path.write_bytes(gzip.compress(BEFORE[before] + longest + b"\n" + 2 * longest + b"\n", 1))
        assert "\n" not in refusal_of(path)
