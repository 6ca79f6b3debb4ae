"""An interrupted extraction goes on where it stopped, and gives the same store."""

import lzma
import os

import pytest
from kernel_folders import kernel, load, store
from kernel_texts import GLOBAL
from stores import files_of, flip_bit

from depgraph import parsers
from depgraph.errors import OutputError
from depgraph.extraction.pipeline import extract
from depgraph.extraction.scan import fingerprint, open_folder
from depgraph.parsers.nvbit.log import LogRange, NvbitTrace

PART_BYTES = 4 << 20


@pytest.fixture
def log(tmp_path, sample_trace):
    path = tmp_path / "trace.log"
    path.write_bytes(lzma.decompress(sample_trace.read_bytes()))
    return path


@pytest.fixture
def scanned(monkeypatch):
    """Where the parts begin that are scanned, and not taken from an earlier run."""
    found = []
    scan = LogRange.scan

    def counted(self, overflow=None):
        found.append(self.begin)
        return scan(self, overflow)

    monkeypatch.setattr(LogRange, "scan", counted)
    return found


@pytest.mark.jit_only
def test_only_parts_that_are_missing_are_scanned_again(tmp_path, log, scanned, monkeypatch):
    trace = NvbitTrace(log, part_bytes=PART_BYTES)
    extract(trace, tmp_path / "whole", jobs=1)
    everything = scanned.copy()
    scanned.clear()

    with monkeypatch.context() as interrupted:
        counted = LogRange.scan

        def stop_at_third(self, overflow):
            if self.begin == everything[2]:
                raise KeyboardInterrupt
            return counted(self, overflow)

        interrupted.setattr(LogRange, "scan", stop_at_third)
        with pytest.raises(KeyboardInterrupt):
            extract(trace, tmp_path / "out", jobs=1, resume=tmp_path / "partial")
    assert scanned == everything[:2]
    assert not (tmp_path / "out").exists()

    scanned.clear()
    extract(trace, tmp_path / "out", jobs=1, resume=tmp_path / "partial")
    assert scanned == everything[2:]
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


@pytest.mark.jit_only
@pytest.mark.parametrize("ending", ["part", "parquet"])
def test_a_part_that_is_damaged_is_scanned_again(tmp_path, log, scanned, ending):
    trace = NvbitTrace(log, part_bytes=PART_BYTES)
    extract(trace, tmp_path / "whole", jobs=1, resume=tmp_path / "partial")
    everything = scanned.copy()
    scanned.clear()
    damaged = sorted((tmp_path / "partial").glob(f"*.{ending}"))[:2]
    for file in damaged:
        content = file.read_bytes()
        file.write_bytes(flip_bit(content, 4 * len(content)))
    extract(trace, tmp_path / "out", jobs=1, resume=tmp_path / "partial")
    assert len(scanned) == len(damaged) == 2
    assert set(scanned) < set(everything)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_a_folder_that_was_made_and_no_more_is_taken(tmp_path, log):
    (tmp_path / "partial").mkdir()
    extract(NvbitTrace(log), tmp_path / "out", resume=tmp_path / "partial")
    assert (tmp_path / "out").is_dir()


def test_two_runs_do_not_share_a_folder(tmp_path, log):
    held = open_folder(tmp_path / "partial")
    assert held is not None
    with pytest.raises(OutputError, match="partial: is in use by another run; wait for it"):
        extract(NvbitTrace(log), tmp_path / "out", resume=tmp_path / "partial")
    os.close(held)
    extract(NvbitTrace(log), tmp_path / "out", resume=tmp_path / "partial")


def test_a_part_whose_file_has_changed_is_another_part(log):
    part = next(NvbitTrace(log, part_bytes=PART_BYTES).tasks())
    before = fingerprint(part)
    assert fingerprint(next(NvbitTrace(log, part_bytes=PART_BYTES).tasks())) == before
    log.write_bytes(log.read_bytes().replace(b"STG", b"LDG", 1))
    assert fingerprint(next(NvbitTrace(log, part_bytes=PART_BYTES).tasks())) != before
    assert fingerprint(next(NvbitTrace(log, part_bytes=PART_BYTES // 2).tasks())) != before


def test_a_folder_of_the_users_is_left_alone(tmp_path, log):
    mine = tmp_path / "partial"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match="was not made by --resume"):
        extract(NvbitTrace(log), tmp_path / "out", resume=mine)
    assert [file.name for file in mine.iterdir()] == ["notes.txt"]


def test_copies_between_kernels_are_kept(tmp_path):
    folder = tmp_path / "trace"
    folder.mkdir()
    for number, line in ((1, store(0)), (2, load(0)), (3, load(128))):
        (folder / f"kernel-{number}.traceg").write_text(kernel(number, line))
    (folder / "kernelslist.g").write_text(
        f"MemcpyHtoD,0x{GLOBAL:016x},4\nkernel-1.traceg\nkernel-2.traceg\n"
        f"MemcpyHtoD,0x{GLOBAL + 128:016x},8\nkernel-3.traceg\nMemcpyHtoD,0x{GLOBAL:016x},2\n"
    )
    extract(parsers.open_trace(folder), tmp_path / "whole")
    extract(parsers.open_trace(folder), tmp_path / "first", resume=tmp_path / "partial")
    store_ = extract(parsers.open_trace(folder), tmp_path / "out", resume=tmp_path / "partial")
    assert [copy.operation for copy in store_.copies] == [0, 3, 5]
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")
