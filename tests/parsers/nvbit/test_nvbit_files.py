"""NVBit logs as files: packed or not, cut anywhere, damaged."""

import gzip
import hashlib
import io
import lzma
import sys

import pytest
from programs import BASE, PACKERS, edges_of, launch_line
from small_logs import CONSUMER, EXPECTED, PRODUCER, edges_in, read, write

from depgraph.errors import TraceError
from depgraph.extraction.pipeline import analyse
from depgraph.parsers import open_trace
from depgraph.parsers.nvbit.log import NvbitTrace


@pytest.mark.parametrize("form", PACKERS)
def test_compression_is_told_by_content(log_file, form):
    assert edges_in(log_file(*PRODUCER, *CONSUMER, pack=PACKERS[form])) == EXPECTED


@pytest.mark.parametrize("form", PACKERS)
def test_standard_input(monkeypatch, form):
    packed = PACKERS[form](b"".join([*PRODUCER, *CONSUMER]))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(packed)))
    assert edges_in("-") == EXPECTED


@pytest.mark.parametrize("form", ["xz", "gz", "bz2", "zst"])
def test_two_streams_in_one_file_are_one_log(log_file, form):
    pack = PACKERS[form]
    both = log_file(b"", pack=lambda _: pack(b"".join(PRODUCER)) + pack(b"".join(CONSUMER)))
    assert edges_in(both) == EXPECTED


@pytest.mark.parametrize("form", ["xz", "gz", "bz2", "zst"])
def test_a_compressed_log_that_was_cut(log_file, form):
    def packed_and_cut(text):
        packed = PACKERS[form](text)
        return packed[: len(packed) - 12]

    trace = log_file(*PRODUCER, *CONSUMER, pack=packed_and_cut)
    with pytest.raises(TraceError, match=rf"some\.log.*the {form} stream ends early") as error:
        analyse(open_trace(trace))
    assert "\n" not in str(error.value)


def test_a_compressed_log_with_other_bytes_in_it(log_file):
    def packed_and_damaged(text):
        packed = bytearray(lzma.compress(text))
        packed[len(packed) // 2] ^= 0xFF
        return packed

    trace = log_file(*PRODUCER, *CONSUMER, pack=packed_and_damaged)
    with pytest.raises(TraceError, match=r"some\.log.*the xz stream is damaged"):
        analyse(open_trace(trace))


def test_no_such_file(tmp_path):
    with pytest.raises(TraceError, match=r"none\.log: no such file"):
        analyse(open_trace(tmp_path / "none.log"))


def test_a_folder(tmp_path):
    with pytest.raises(TraceError, match="folder"):
        analyse(open_trace(tmp_path))


@pytest.mark.parametrize("pack", PACKERS.values())
def test_an_empty_file(log_file, pack):
    with pytest.raises(TraceError, match=r"some\.log: the file is empty"):
        analyse(open_trace(log_file(pack=pack)))


@pytest.mark.parametrize("text", [b"hello\nworld\n", b"\x7fELF\x00\x01" * 50, b"\0" * 500])
def test_a_file_that_is_no_trace(log_file, text):
    with pytest.raises(TraceError, match=r"some\.log: .*NVBit"):
        analyse(open_trace(log_file(text)))


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("last", [CONSUMER[0], CONSUMER[1]])
@pytest.mark.parametrize("part_bytes", [300, 16 << 20])
def test_a_log_cut_in_its_last_line(log_file, last, is_packed, part_bytes):
    whole = [*PRODUCER, CONSUMER[0], last]
    pack = lzma.compress if is_packed else bytes
    for lost in range(3, len(last), 19):
        trace = log_file(*whole[:-1], last[:-lost], pack=pack)
        with pytest.raises(TraceError, match=r"some\.log:4: .*(cut|damaged)"):
            analyse(NvbitTrace(trace, part_bytes=part_bytes), jobs=1)


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("part_bytes", [300, 700, 16 << 20])
def test_a_whole_last_line_needs_no_newline(log_file, is_packed, part_bytes):
    pack = lzma.compress if is_packed else bytes
    for lost in (1, 2):
        trace = log_file(*PRODUCER, *CONSUMER[:-1], CONSUMER[-1][:-lost], pack=pack)
        extraction = analyse(NvbitTrace(trace, part_bytes=part_bytes), jobs=1)
        assert edges_of(extraction.graph) == EXPECTED


def test_a_cut_log_may_be_used_on_demand(log_file):
    trace = log_file(*PRODUCER, *CONSUMER, write(1, 3, BASE + 64)[:-40])
    extraction = analyse(open_trace(trace), allow_damaged=True)
    assert edges_of(extraction.graph) == EXPECTED
    assert extraction.metadata["warnings"]["the last line is cut"] == 1


@pytest.mark.parametrize("size", [70_000, 900_000])
@pytest.mark.parametrize("is_packed", [False, True])
def test_long_lines_of_the_program_do_no_harm(log_file, size, is_packed):
    pack = gzip.compress if is_packed else bytes
    trace = log_file(*PRODUCER, b"x" * size + b"\n", *CONSUMER, pack=pack)
    for part_bytes in (1_000, 50_000, 1 << 20):
        extraction = analyse(NvbitTrace(trace, part_bytes=part_bytes), jobs=1)
        assert edges_of(extraction.graph) == EXPECTED
        assert extraction.metadata["lines"] == 5


def test_an_access_without_a_launch(log_file):
    trace = log_file(*PRODUCER, read(5, 0, BASE))
    with pytest.raises(TraceError, match="launch id 5, which no launch line announces"):
        analyse(open_trace(trace))


def test_an_access_outside_the_grid(log_file):
    trace = log_file(*PRODUCER, launch_line(1, (2, 1, 1)), read(1, 2, BASE))
    with pytest.raises(
        TraceError, match=r"block \(2,0,0\) is outside the grid \(2, 1, 1\) of kernel 1"
    ):
        analyse(open_trace(trace))


def test_a_few_lines_with_other_output_in_them_are_warned_of(log_file):
    many = [write(0, 1, BASE + 4 * n) for n in range(300)]
    split = read(1, 2, BASE)
    at = split.find(b"0x0000000000000000")
    trace = log_file(*PRODUCER, *many, launch_line(1), split[:at], b"loss 0.5\n", split[at:])
    extraction = analyse(open_trace(trace))
    assert edges_of(extraction.graph) == EXPECTED
    assert extraction.metadata["warnings"] == {
        "access lines with fewer than 32 addresses (cut by other output)": 1
    }


def test_many_damaged_lines_are_refused(log_file):
    trace = log_file(*PRODUCER, *CONSUMER, read(1, 2, BASE)[:120] + b"\n")
    with pytest.raises(TraceError, match=r"some\.log:5: access line .* 1 of 3 access lines"):
        analyse(open_trace(trace))


def test_provenance(log_file):
    trace = log_file(*PRODUCER, *CONSUMER)
    metadata = analyse(open_trace(trace), granularity=32, kinds={"RAW"}, kernels=(0, 2)).metadata
    text = trace.read_bytes()
    assert metadata["format"] == "nvbit"
    (source,) = metadata["sources"]
    assert (source["path"], source["size"]) == (str(trace), len(text))
    assert source["sha256"] == hashlib.sha256(text).hexdigest()
    assert metadata["options"] == {
        "granularity": 32,
        "kinds": ["RAW"],
        "kernels": [0, 2],
        "allow_damaged": False,
    }
    assert metadata["lines"] == 4
    assert metadata["opcodes"] == {"LDG.E": 1, "STG.E": 1}
    assert metadata["false_edges"] == 0
