"""Accel-Sim traces as they lie on disk: lists, folders, packed files, host copies, real runs."""

import bz2
import gzip
import lzma
import os
import re
import shutil
import struct
import sys

import numpy as np
import pytest
from kernel_texts import GLOBAL, Form, as_tracez, header_text

from depgraph import parsers
from depgraph.errors import ModelError, TraceError
from depgraph.extraction.check import check_trace
from depgraph.extraction.pipeline import analyse, extract
from depgraph.parsers.accelsim import kernel_list as kernelslist
from depgraph.parsers.accelsim import trace as accelsim
from depgraph.parsers.accelsim import tracez
from depgraph.parsers.accelsim.kernel_list import list_folder
from depgraph.reports.tables.render import render
from depgraph.reports.tables.show_tables import block_report, pairs_report
from depgraph.trace.records import HostCopy

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SAMPLES = "gru_train", "streams4"
KINDS = "RAW", "WAR", "WAW"


def kernel(number, *lines, form=None):
    """Return a kernel of one block and one warp."""
    text = f"#BEGIN_TB\n\nthread block = 0,0,0\n\nwarp = 0\ninsts = {len(lines)}\n"
    header = header_text(form or Form(), grid=(1, 1, 1), name=f"k{number}")
    header = header.replace("-kernel id = 7", f"-kernel id = {number}")
    return header + text + "".join(f"{line} \n" for line in lines) + "\n#END_TB\n"


def load(offset):
    return f"0090 00000001 1 R0 LDG.E 1 R4 4 1 0x{GLOBAL + offset:x} 0 0"


def store(offset):
    return f"00a0 00000001 0 STG.E 2 R4 R6 4 1 0x{GLOBAL + offset:x} 0 0"


@pytest.fixture
def folder(tmp_path):
    """Return a trace of three kernels, each of which reads what the one before wrote."""
    for number, lines in enumerate(
        [(store(0),), (load(0), store(64)), (load(64), store(128))], start=1
    ):
        (tmp_path / f"kernel-{number}.traceg").write_text(kernel(number, *lines))
    (tmp_path / "kernelslist.g").write_text("kernel-1.traceg\nkernel-2.traceg\nkernel-3.traceg\n")
    return tmp_path


def operations(trace):
    order = trace.program_order()
    for task in trace.tasks():
        order.add(task.scan())
    return [f"copy {o.size}" if isinstance(o, HostCopy) else o.name for o in order.operations]


def edges(extraction):
    kernel_of, block_of = extraction.graph.block_names()
    found = set()
    for source, target, kind in extraction.graph.certain().edges():
        found |= set(
            zip(
                kernel_of[source].tolist(), block_of[source].tolist(),
                kernel_of[target].tolist(), block_of[target].tolist(),
                [KINDS[k] for k in kind.tolist()],
                strict=True,
            )
        )  # fmt: skip
    return found


def golden_edges(path):
    pandas = pytest.importorskip("pandas")
    return set(pandas.read_parquet(path).itertuples(index=False, name=None))


def opened(path, **options):
    return parsers.open_trace(path, **options)


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


def test_host_copies_stand_where_the_list_has_them(folder):
    (folder / "kernelslist.g").write_text(
        f"MemcpyHtoD,0x{GLOBAL:016x},4\n"
        "kernel-1.traceg\n"
        f"MemcpyHtoD,0x{GLOBAL:016x},2,memcpy_htod_0_ctx_0x1_addr_0x2_size_2.bin\n"
        "kernel-2.traceg\nkernel-3.traceg\n"
        f"MemcpyHtoD,0x{GLOBAL + 128:016x},8\n"
    )
    trace = opened(folder)
    assert operations(trace) == ["copy 4", "k1", "copy 2", "k2", "k3", "copy 8"]
    assert edges(analyse(opened(folder))) == {
        (-1, 0, 0, 0, "WAW"),
        (0, 0, -2, 0, "WAW"),
        (0, 0, 1, 0, "RAW"),
        (-2, 0, 1, 0, "RAW"),
        (1, 0, 2, 0, "RAW"),
        (2, 0, -3, 0, "WAW"),
    }


def test_a_copy_over_what_a_kernel_touched_can_be_stored_and_shown(folder, tmp_path_factory):
    (folder / "kernelslist.g").write_text(f"kernel-1.traceg\nMemcpyHtoD,0x{GLOBAL:016x},4\n")
    store = extract(opened(folder), tmp_path_factory.mktemp("out") / "store")
    (pair,) = store.pairs
    assert (pair.source, pair.target, pair.waw) == (0, -1, 1)
    assert "host copy" in render(pairs_report(store.pairs, store.kernels), "table")
    with pytest.raises(ModelError, match="-1 is host copy 0: name a block of a kernel"):
        block_report(store.graph(), store.footprints(), store.kernels, -1, 0)


def test_a_copy_that_no_gpu_could_hold_is_refused(folder):
    (folder / "kernelslist.g").write_text(
        f"MemcpyHtoD,0x{GLOBAL:016x},{1 << 50}\nkernel-1.traceg\n"
    )
    found = r"kernelslist\.g:1: host copy of 1125899906842624 bytes is more than a GPU holds"
    with pytest.raises(TraceError, match=found):
        analyse(opened(folder))


def test_other_entries_are_counted_by_what_they_are(folder):
    (folder / "kernelslist.g").write_text(
        "ncclCommInitAll\ncudaMalloc,0x00007fb50a800000,8000000\n\nkernel-1.traceg\n"
        "MemcpyDtoH,0x00007fb50a800000,16\nncclAllReduce\nkernel-2.traceg\nsomething else\n"
    )
    kernels = list_folder(folder)
    assert kernels.skipped == {
        "lines of the list: collective operations (NCCL)": 2,
        "lines of the list: allocations": 1,
        "lines of the list: device-to-host copies": 1,
        "lines of the list: not known to depgraph": 1,
    }
    assert operations(opened(folder)) == ["k1", "k2"]


@pytest.mark.parametrize("name", ["kernelslist.g", "my list.txt"])
@pytest.mark.parametrize("prefix", ["", "./"])
def test_a_list_of_files_in_subfolders_is_read(folder, name, prefix):
    entries = []
    for number in (1, 2):
        (folder / f"part{number}").mkdir()
        (folder / f"kernel-{number}.traceg").rename(folder / f"part{number}/kernel-{number}.traceg")
        entries.append(f"{prefix}part{number}/kernel-{number}.traceg\n")
    (folder / "kernelslist.g").unlink()
    (folder / name).write_text("".join(entries))
    assert operations(opened(folder / name)) == ["k1", "k2"]


def test_a_list_of_lists_is_refused(folder):
    (folder / "kernelslist.g").rename(folder / "kernelslist_ctx_0x1.g")
    (folder / "all.txt").write_text("kernelslist_ctx_0x1.g\n")
    with pytest.raises(
        TraceError, match=r"all\.txt:1: names kernelslist_ctx_0x1\.g, a kernelslist"
    ):
        opened(folder / "all.txt")


def test_the_folder_of_another_tracer_is_said_to_be_what_it_is(tmp_path):
    (tmp_path / "commands.json").write_text("[]")
    (tmp_path / "kernel-0.msgpack").write_bytes(b"x")
    with pytest.raises(TraceError, match="is a trace of gpucachesim"):
        opened(tmp_path)


def test_a_list_beyond_all_measure_is_refused_not_cut(folder, monkeypatch):
    monkeypatch.setattr(kernelslist, "_MAX_LIST_BYTES", 16)
    with pytest.raises(TraceError, match="is a list of more than 0 MiB"):
        opened(folder / "kernelslist.g")


@pytest.mark.parametrize("pack", [lzma.compress, gzip.compress, bz2.compress, zstd.compress])
def test_a_packed_list_that_is_cut_is_refused(folder, pack):
    path = folder / "kernelslist.g"
    whole = pack(path.read_bytes())
    path.write_bytes(whole)
    assert operations(opened(path)) == ["k1", "k2", "k3"]
    for size in range(20, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(TraceError, match=r"stream (ends early|is damaged)"):
            opened(path)


@pytest.mark.parametrize("listed", ["kernel-2.traceg.xz", "kernel-2.traceg.zst", "kernel-2.trace"])
def test_a_list_may_name_files_by_another_form(folder, listed):
    text = (folder / "kernelslist.g").read_text()
    (folder / "kernelslist.g").write_text(text.replace("kernel-2.traceg", listed))
    assert operations(opened(folder)) == ["k1", "k2", "k3"]


def test_a_cut_last_line_is_completed(folder):
    (folder / "kernelslist.g").write_text("kernel-1.traceg\nkernel-2.trace")
    assert operations(opened(folder)) == ["k1", "k2"]


def test_kernels_that_are_absent_at_the_end_are_noted(folder):
    text = (folder / "kernelslist.g").read_text()
    (folder / "kernelslist.g").write_text(text + "kernel-4.traceg\nkernel-5.tr")
    extraction = analyse(opened(folder))
    assert len(extraction.kernels) == 3
    warning = "kernel files at the end of the list that are absent"
    assert extraction.metadata["warnings"] == {warning: 2}


def test_a_kernel_that_is_absent_in_the_middle_is_damage(folder):
    (folder / "kernel-2.traceg").unlink()
    with pytest.raises(TraceError, match=r"kernelslist\.g:2: kernel file kernel-2\.traceg is"):
        analyse(opened(folder))
    extraction = analyse(opened(folder), allow_damaged=True)
    assert len(extraction.kernels) == 2
    assert list(extraction.metadata["warnings"]) == [
        "kernel file kernel-2.traceg is listed but absent"
    ]


def test_kernels_that_are_not_listed_are_noted(folder):
    shutil.copy(folder / "kernel-1.traceg", folder / "kernel-9.traceg")
    warning = "kernel files in the folder that the list does not name"
    assert analyse(opened(folder)).metadata["warnings"] == {warning: 1}


def test_the_raw_form_beside_the_grouped_one_is_no_other_kernel(folder):
    (folder / "kernel-1.trace").write_text("raw text, left over")
    (folder / "kernelslist").write_text("kernel-1.trace\nkernel-2.trace\nkernel-3.trace\n")
    assert analyse(opened(folder)).metadata["warnings"] == {}


def test_names_with_contexts(folder):
    for number in (1, 2, 3):
        name = f"kernel-{number}-ctx_0x6165bdd7ec90.traceg.gz"
        (folder / name).write_bytes(
            gzip.compress((folder / f"kernel-{number}.traceg").read_bytes())
        )
        (folder / f"kernel-{number}.traceg").unlink()
    (folder / "kernelslist.g").rename(folder / "kernelslist_ctx_0x6165bdd7ec90.g")
    names = [f"kernel-{number}-ctx_0x6165bdd7ec90.traceg" for number in (1, 2, 3)]
    (folder / "kernelslist_ctx_0x6165bdd7ec90.g").write_text("\n".join(names))
    assert {k.context for k in analyse(opened(folder)).kernels} == {0x6165BDD7EC90}


def test_lists_of_several_contexts_are_not_mixed(folder):
    for context in ("a", "b"):
        shutil.copy(folder / "kernelslist.g", folder / f"kernelslist_ctx_0x{context}.g")
    with pytest.raises(TraceError, match=r"holds 3 kernel lists .* give one of them"):
        opened(folder)


def test_files_of_several_contexts_have_no_order(folder):
    paths = [folder / f"kernel-1-ctx_0x{context}.traceg" for context in "ab"]
    for path in paths:
        shutil.copy(folder / "kernel-1.traceg", path)
    with pytest.raises(TraceError, match="kernel files of 2 CUDA contexts, in no known order"):
        opened(paths)


# What a list may not do


@pytest.mark.parametrize("entry", ["../kernel-1.traceg", "{outside}", "../../etc/passwd"])
def test_a_list_that_points_outside_its_folder_is_refused(folder, tmp_path_factory, entry):
    outside = tmp_path_factory.mktemp("outside") / "kernel-1.traceg"
    outside.write_text(kernel(1, store(0)))
    (folder.parent / "kernel-1.traceg").write_text(kernel(1, store(0)))
    (folder / "kernelslist.g").write_text(entry.format(outside=outside) + "\nkernel-2.traceg\n")
    with pytest.raises(TraceError, match=r"kernelslist\.g:1: names .*, which lies outside"):
        opened(folder)


def test_a_link_that_leads_outside_is_refused(folder, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "kernel-1.traceg"
    outside.write_text(kernel(1, store(0)))
    (folder / "kernel-1.traceg").unlink()
    (folder / "kernel-1.traceg").symlink_to(outside)
    for given in (folder, folder / "kernelslist.g"):
        with pytest.raises(TraceError, match=r"which lies outside .* pass --allow-outside"):
            opened(given)
        assert operations(opened(given, allow_outside=True)) == ["k1", "k2", "k3"]
    (folder / "kernelslist.g").unlink()
    with pytest.raises(TraceError, match="is a link to a file outside its folder"):
        opened(folder)


def test_a_list_that_is_a_link_outside_is_refused(folder, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "passwd"
    shutil.move(folder / "kernelslist.g", outside)
    (folder / "kernelslist.g").symlink_to(outside)
    with pytest.raises(TraceError, match="is a link to a file outside its folder"):
        opened(folder)


def test_links_within_the_folder_are_followed(folder):
    (folder / "kernel-1.traceg").rename(folder / "first")
    (folder / "kernel-1.traceg").symlink_to("first")
    assert operations(opened(folder)) == ["k1", "k2", "k3"]


def test_paths_within_the_folder_are_followed(folder):
    (folder / "traces").mkdir()
    (folder / "kernel-1.traceg").rename(folder / "traces" / "kernel-1.traceg")
    (folder / "kernelslist.g").write_text(f"traces/kernel-1.traceg\n{folder}/kernel-2.traceg\n")
    assert operations(opened(folder)) == ["k1", "k2"]


@pytest.mark.parametrize(
    "entry", ["kernel-1\0.traceg", "kernel-" + "9" * 5000, "kernel-4/", "kernel-\x1b[31m"]
)
def test_absurd_entries_are_absent_files(folder, entry):
    (folder / "kernelslist.g").write_text(f"{entry}\nkernel-2.traceg\n")
    with pytest.raises(TraceError):
        analyse(opened(folder))


def test_a_pipe_of_a_kernels_name_is_not_waited_for(folder):
    (folder / "kernel-1.traceg").unlink()
    os.mkfifo(folder / "kernel-1.traceg")
    with pytest.raises(TraceError, match="is listed but absent"):
        analyse(opened(folder))


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        ("MemcpyHtoD,0xfffffffffffffff0,4096", "is to an address that no GPU has"),
        ("MemcpyHtoD,0x00007f0000000000,9999999999999999999", "of 9999999999999999999 bytes is"),
        ("MemcpyHtoD,0x00007f0000000000,-5", "is damaged"),
        ("MemcpyHtoD,here,5", "is damaged"),
        ("MemcpyHtoD,0x00007f000000000,0,384", "is damaged"),
        ("MemcpyHtoD", "is damaged"),
    ],
)
def test_an_absurd_copy_is_damage(folder, entry, found):
    (folder / "kernelslist.g").write_text(f"{entry}\nkernel-1.traceg\n")
    with pytest.raises(TraceError, match=rf"kernelslist\.g:1: host copy {found}"):
        analyse(opened(folder))


def test_a_list_without_its_files(folder):
    for path in folder.glob("kernel-*"):
        path.unlink()
    with pytest.raises(TraceError, match=r":1: none of its 3 kernel files is here .* put the"):
        opened(folder / "kernelslist.g")


def test_an_empty_list(tmp_path):
    (tmp_path / "kernelslist").write_text("[]")
    with pytest.raises(TraceError, match="the list names no kernel file"):
        opened(tmp_path)


def test_a_folder_without_a_trace(tmp_path, folder):
    (tmp_path / "empty").mkdir()
    with pytest.raises(TraceError, match="the folder holds no Accel-Sim trace"):
        opened(tmp_path / "empty")
    (tmp_path / "run").mkdir()
    shutil.copytree(folder, tmp_path / "run" / "traces", ignore=shutil.ignore_patterns("run"))
    hint = f"give the folder of the kernelslist: {tmp_path / 'run' / 'traces'}"
    with pytest.raises(TraceError, match=re.escape(hint)):
        opened(tmp_path / "run")


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
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30, "mode": lzma.MODE_FAST}]
    (folder / "kernel-1.traceg").write_bytes(lzma.compress(b"-kernel name = a\n", filters=filters))
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


def test_a_cut_tracez_is_damage(folder):
    whole = as_tracez(kernel(1, *(load(4 * i) for i in range(10))))
    path = folder / "kernel-1.tracez"
    for size in range(whole.index(b"\0") + 1, len(whole), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(TraceError, match=r"the \.tracez file is damaged"):
            analyse(opened(path))


# Real traces


@pytest.mark.parametrize(
    "name", ["gru_train", pytest.param("streams4", marks=pytest.mark.jit_only)]
)
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
@pytest.mark.parametrize("name", SAMPLES)
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
