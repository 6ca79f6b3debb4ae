"""Lists of Accel-Sim kernels: order, host copies, what is absent, and what a list may not do."""

import gzip
import os
import re
import shutil

import pytest
from kernel_folders import edges, kernel, opened, operations, store
from kernel_texts import GLOBAL
from programs import PACKERS

from depgraph.errors import ModelError, TraceError
from depgraph.extraction.pipeline import analyse, extract
from depgraph.parsers.accelsim import kernel_list as kernelslist
from depgraph.parsers.accelsim.kernel_list import list_folder
from depgraph.reports.tables.render import render
from depgraph.reports.tables.show_tables import block_report, pairs_report


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
    copies = store.graph().copies
    assert "memcpy HtoD" in render(pairs_report(store.pairs, store.kernels, copies), "table")
    with pytest.raises(ModelError, match="-1 is memcpy HtoD 0: name a block of a kernel"):
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
    assert kernels.part.skipped == {
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


@pytest.mark.parametrize("pack", [PACKERS[form] for form in ("xz", "gz", "bz2", "zst")])
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
