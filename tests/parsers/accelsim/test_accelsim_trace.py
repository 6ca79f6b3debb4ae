"""Accel-Sim traces as they lie on disk: folders, packed and damaged files, real runs."""

import bz2
import gzip
import lzma
import re
import struct
import sys

import numpy as np
import pytest
from kernel_folders import edges, golden_edges, kernel, load, opened, operations, store
from kernel_texts import GLOBAL, as_tracez

from depgraph.errors import TraceError
from depgraph.extraction.check import check_trace
from depgraph.extraction.pipeline import analyse
from depgraph.parsers.accelsim import kernel_list as kernelslist
from depgraph.parsers.accelsim import trace as accelsim
from depgraph.parsers.accelsim import tracez

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


SAMPLES = "gru_train", "streams4"


def test_a_folder_its_list_and_its_files_are_the_same_trace(folder):
    files = sorted(folder.glob("kernel-*"))
    expected = {(0, 0, 1, 0, "RAW"), (1, 0, 2, 0, "RAW")}
    for given in (folder, folder / "kernelslist.g", files, [*files, folder / "kernelslist.g"]):
        assert edges(analyse(opened(given))) == expected


def test_a_single_kernel_file(folder):
    assert operations(opened(folder / "kernel-2.traceg")) == ["k2"]


def test_the_list_is_the_launch_order(folder):
    (folder / "kernelslist.g").write_text("kernel-3.traceg\nkernel-1.traceg\nkernel-2.traceg\n")
    assert operations(opened(folder)) == ["k3", "k1", "k2"]


def test_without_a_list_kernels_come_by_number(folder):
    (folder / "kernelslist.g").unlink()
    for number in (10, 11, 100):
        (folder / f"kernel-{number}.traceg").write_text(kernel(number, store(number)))
    trace = opened(folder)
    assert operations(trace) == ["k1", "k2", "k3", "k10", "k11", "k100"]
    warnings = analyse(trace).metadata["warnings"]
    assert warnings == {"no kernelslist: kernels in the order of their numbers, no host copies": 1}


# Kernel files that are packed or damaged


def packed_forms(text):
    half = text[: len(text) // 2], text[len(text) // 2 :]
    return {
        ".xz": lzma.compress(text),
        ".two.xz": b"".join(map(lzma.compress, half)) + bytes(8),
        ".gz": b"".join(map(gzip.compress, half)),
        ".zst": b"".join(map(zstd.compress, half)),
        ".bz2": bz2.compress(text),
    }


def test_packed_files(folder):
    text = (folder / "kernel-1.traceg").read_bytes()
    expected = operations(opened(folder / "kernel-1.traceg"))
    for suffix, packed in packed_forms(text).items():
        path = folder / f"one.traceg{suffix}"
        path.write_bytes(packed)
        assert operations(opened(path)) == expected


def test_a_cut_packed_file_is_damage(folder):
    text = (folder / "kernel-1.traceg").read_text()
    rows = "".join(f"0{i:03x} 00000001 1 R0 FADD 2 R1 R{i % 200} 0 {i * i} \n" for i in range(3000))
    text = text.replace("insts = 1\n", f"insts = 3001\n{rows}")
    packed = lzma.compress(text.encode())
    (folder / "kernel-1.traceg.xz").write_bytes(packed[: len(packed) // 2])
    (folder / "kernel-1.traceg").unlink()
    with pytest.raises(TraceError, match=r"kernel-1\.traceg\.xz:\d+: the xz stream ends early"):
        analyse(opened(folder))
    extraction = analyse(opened(folder), allow_damaged=True)
    assert [k.name for k in extraction.kernels] == ["k1", "k2", "k3"]
    assert extraction.kernels[0].instructions > 0


def test_an_empty_packed_file_is_damage(folder):
    (folder / "kernel-2.traceg.xz").write_bytes(b"")
    (folder / "kernel-2.traceg").unlink()
    with pytest.raises(TraceError, match=r"kernel-2\.traceg\.xz:1: the file is empty"):
        analyse(opened(folder))
    extraction = analyse(opened(folder), allow_damaged=True)
    assert [k.name for k in extraction.kernels] == ["k1", "k3"]


def test_an_xz_file_that_would_take_too_much_memory(folder):
    large = {"id": lzma.FILTER_LZMA2, "dict_size": 300 << 20}
    quick = {"mode": lzma.MODE_FAST, "mf": lzma.MF_HC3}
    text = lzma.compress(b"-kernel name = a\n", filters=[large | quick])
    (folder / "kernel-1.traceg").write_bytes(text)
    with pytest.raises(TraceError, match="needs more than 256 MiB to unpack; compress it again"):
        analyse(opened(folder / "kernel-1.traceg"))


def test_the_line_of_a_fault_counts_from_the_start_of_the_file(folder):
    lines = [load(4 * i) for i in range(2000)]
    text = kernel(1, *lines)
    for i in range(1500, 1530):
        text = text.replace(f"0x{GLOBAL + 4 * i:x}", "0xzz")
    for i in range(100, 2000, 100):
        line = f"{load(4 * i)} \n"
        text = text.replace(line, f"#END_TB\n#BEGIN_TB\nthread block = 0,0,0\n{line}")
    path = folder / "kernel-1.traceg"
    path.write_text(text)
    kernels = kernelslist.KernelList("x")
    kernels.add_kernel(path)
    trace = accelsim.AccelSimTrace(kernels, section_bytes=8000)
    assert len(list(trace.tasks())) > 10
    (problem,) = [problem for problem in check_trace(trace).problems if problem.is_error]
    assert problem.place == f"{path}:{text[: text.index('0xzz')].count(chr(10)) + 1}"
    assert problem.found == "instruction line is damaged; 30 of 2000 access lines are damaged"


# .tracez


def unpacked(path):
    with tracez.TracezStream(path) as stream:
        text = bytearray(1 << 20)
        return bytes(text[: stream.readinto(memoryview(text))])


@pytest.mark.parametrize("dictionary", [b"", b"0090 ffffffff 1 R0 LDG.E 1 R4 4 1 0x7f65" * 4])
def test_tracez(folder, dictionary):
    lines = [load(4 * i) for i in range(10)]
    text = kernel(1, *lines)
    (folder / "kernel-1.tracez").write_bytes(as_tracez(text, dictionary=dictionary))
    grouped = unpacked(folder / "kernel-1.tracez").decode()
    assert [x for x in grouped.split("\n") if "LDG" in x] == [f"{line} " for line in lines]
    (folder / "kernelslist.g").write_text("kernel-1.tracez\nkernel-2.traceg\n")
    assert operations(opened(folder)) == ["k1", "k2"]
    plain = folder / "plain.traceg"
    plain.write_text(text)
    packed, unpacked_ = (analyse(opened(p)) for p in (folder / "kernel-1.tracez", plain))
    assert packed.kernels[0].read_bytes == unpacked_.kernels[0].read_bytes == 40
    assert packed.kernels[0].instructions == unpacked_.kernels[0].instructions == 10


def test_chunks_that_the_index_names_over_and_over_are_refused(folder):
    # A small file would unpack to any size.
    packed = as_tracez(kernel(1, *[load(4 * i) for i in range(300)]), chunk=300)
    (at,) = struct.unpack("<Q", packed[-8:])
    entry = packed[at + 4 : -8]
    index = struct.pack("<I", 100) + 100 * entry
    path = folder / "kernel-1.tracez"
    path.write_bytes(packed[:at] + index + packed[-8:])
    with pytest.raises(TraceError, match=r"the \.tracez file is damaged \(its chunks overlap\)"):
        analyse(opened(path))


def test_marks_of_replayed_loops_are_no_accesses(folder):
    """What Accel-Sim 2.0 puts around a loop that its tracer cut short."""
    marks = [f"0090 ffffffff 0 REPLAY_{end} 0 0 0" for end in ("START", "END")]
    looped = kernel(1, marks[0], load(0), marks[1], store(4))
    (folder / "kernel-1.tracez").write_bytes(as_tracez(looped))
    (folder / "kernel-2.traceg").write_text(kernel(2, load(4)))
    (folder / "kernelslist.g").write_text("kernel-1.tracez\nkernel-2.traceg\n")
    extraction = analyse(opened(folder))
    assert edges(extraction) == {(0, 0, 1, 0, "RAW")}
    assert extraction.counts.accesses.tolist() == [2, 1]


def test_a_cut_tracez_is_damage(folder):
    whole = as_tracez(kernel(1, *(load(4 * i) for i in range(10))))
    path = folder / "kernel-1.tracez"
    for size in range(whole.index(b"\0") + 1, len(whole), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(TraceError, match=r"the \.tracez file is damaged"):
            analyse(opened(path))


# Real traces


@pytest.mark.jit_only
@pytest.mark.parametrize("name", SAMPLES)
def test_accelsim_and_nvbit_give_the_same_edges(name, shared_data):
    extraction = analyse(opened(shared_data / "accelsim" / name))
    assert edges(extraction) == golden_edges(shared_data / "golden" / f"{name}.edges.parquet")
    assert extraction.metadata["warnings"] == {}


@pytest.mark.jit_only
@pytest.mark.parametrize(
    ("name", "kernels", "copies"), [("mgpusim_bfs_v3", 16, 14), ("mgpusim_backprop_v5_h100", 33, 5)]
)
def test_traces_of_others_with_host_copies(name, kernels, copies, shared_data):
    extraction = analyse(opened(shared_data / "public" / "accelsim" / name))
    assert edges(extraction) == golden_edges(shared_data / "golden" / f"{name}.edges.parquet")
    assert (len(extraction.kernels), len(extraction.copies)) == (kernels, copies)
    assert extraction.metadata["warnings"] == {}


@pytest.mark.jit_only
@pytest.mark.parametrize(
    ("path", "blocks", "read"),
    [
        ("matrixmul/traces/matrixmul-32-32-trace", 1, 8192),
        ("vectoradd/traces/vectoradd-100-32-trace", 1, 800),
    ],
)
def test_a_trace_of_version_4(path, blocks, read, shared_data):
    folder = shared_data / "public" / "accelsim" / "gpucachesim_v4" / "test-apps" / path
    (kernel_row,) = analyse(opened(folder)).kernels
    assert kernel_row.blocks == blocks
    assert kernel_row.read_bytes == read
    assert kernel_row.architecture == 61


def as_raw(text):
    """Write grouped text as the tracer does before grouping: warps mixed, both LDGSTS lines."""
    header, _, body = text.partition("#BEGIN_TB")
    queues = []
    for block in body.split("#BEGIN_TB"):
        coordinates = re.search(r"thread block = (\d+),(\d+),(\d+)", block).groups()
        for number, warp in re.findall(r"warp = (\d+)\n([^w#]*(?:w(?!arp = )[^w#]*)*)", block):
            prefix = " ".join((*coordinates, number))
            lines = []
            for line in warp.split("\n"):
                if not re.match("[0-9a-f]{4,} [0-9a-f]{8} ", line):
                    continue
                if " LDGSTS" in line:
                    shared = re.sub(r" 0x[0-9a-f]+ .*", " 0x400 4 0 ", line)
                    shared = re.sub(r" [012] 0x400", " 1 0x400", shared)
                    lines.append(f"{prefix} {shared}")
                lines.append(f"{prefix} {line}")
            queues.append(lines)
    generator = np.random.default_rng(1)
    out = []
    while queues:
        at = int(generator.integers(len(queues)))
        count = int(generator.integers(1, 200))
        out += queues[at][:count]
        queues[at] = queues[at][count:]
        if not queues[at]:
            queues.pop(at)
    return header + "\n".join(out) + "\n"


@pytest.mark.jit_only
@pytest.mark.parametrize("name", ["gru_train", pytest.param("streams4", marks=pytest.mark.slow)])
def test_the_raw_and_the_grouped_form_of_a_run_give_the_same(name, shared_data, tmp_path):
    source = shared_data / "accelsim" / name
    for path in source.glob("*.traceg.xz"):
        raw = as_raw(lzma.decompress(path.read_bytes()).decode())
        (tmp_path / path.name.replace(".traceg.xz", ".trace")).write_text(raw)
    entries = (source / "kernelslist.g").read_text()
    (tmp_path / "kernelslist").write_text(entries.replace(".traceg.xz", ".trace"))
    grouped, raw = analyse(opened(source)), analyse(opened(tmp_path))
    assert edges(raw) == edges(grouped)
    assert raw.kernels == grouped.kernels
    assert np.array_equal(raw.counts.accesses, grouped.counts.accesses)
    assert np.array_equal(raw.counts.instructions, grouped.counts.instructions)
    assert raw.metadata["opcodes"] == grouped.metadata["opcodes"]
