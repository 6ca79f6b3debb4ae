"""The way from a trace to a store, and one line for every failure."""

import errno
import json
import lzma
import resource
import shutil
import signal
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from program_runs import LOG, files, is_one_line, wrote
from programs import BASE, PACKERS, access_line, edges_of, launch_line
from stores import make_version

from depgraph.store.store import Store

# From a trace to a store


def test_extract_writes_a_store_and_says_so(program, log):
    outcome = program("extract", log)
    assert outcome.code == 0
    assert outcome.out.startswith("2 kernels, 8 thread blocks, 2 global-memory accesses\n")
    assert wrote(outcome.err, "depgraph.out")
    assert files(log.parent) == ["depgraph.out", "some.log"]
    assert edges_of(Store("depgraph.out").graph()) == [(1, 6, "RAW")]


def test_quiet_says_nothing_but_the_result(program, log):
    outcome = program("extract", log, "-q")
    assert outcome.err == ""
    assert outcome.out


def test_verbose_says_what_takes_how_long(program, log):
    assert len(program("extract", log, "-v").err.splitlines()) > 1


def test_the_store_may_be_named_in_three_ways(program, log, monkeypatch):
    assert program("extract", log, "-o", "one").code == 0
    monkeypatch.setenv("DEPGRAPH_STORE", "two")
    assert program("extract", log).code == 0
    assert files(log.parent) == ["one", "some.log", "two"]
    assert program("extract", log, "-o", "three").code == 0
    assert program("bound", "--sms", "4").code == 0
    assert program("show", "kernels").code == 0
    assert program("bound", "one", "--sms", "4").code == 0
    monkeypatch.setenv("DEPGRAPH_STORE", "")
    is_one_line(program("bound", "--sms", "4"), "depgraph.out: no such store")


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        *((f"log.{form}", pack) for form, pack in PACKERS.items()),
        ("misnamed.txt", lzma.compress),
    ],
)
def test_compressed_logs(program, tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack(LOG))
    assert program("extract", name).code == 0
    assert edges_of(Store("depgraph.out").graph()) == [(1, 6, "RAW")]


@pytest.mark.parametrize(
    ("options", "edges"),
    [
        (["--kernels", "0:1"], []),
        (["--kernels", "1:"], []),
        (["--kernels", ":2"], [(1, 6, "RAW")]),
        (["--deps", "raw"], [(1, 6, "RAW")]),
        (["--deps", "WAR, WAW"], []),
        (["--granularity", "128"], [(1, 6, "RAW")]),
        (["--jobs", "1"], [(1, 6, "RAW")]),
        (["--memory-limit", "64MiB"], [(1, 6, "RAW")]),
    ],
)
def test_options_of_extract(program, log, options, edges):
    outcome = program("extract", log, *options)
    assert outcome.code == 0, outcome.err
    assert edges_of(Store("depgraph.out").graph()) == edges


def test_granularity_tells_how_many_edges_are_false_sharing(program, tmp_path):
    lines = [access_line(0, 1, "STG.E", [BASE + 4]), access_line(0, 2, "STG.E", [BASE + 64])]
    (tmp_path / "some.log").write_bytes(LOG + b"".join(lines))
    outcome = program("extract", "some.log", "--granularity", "32", "--format", "json")
    assert json.loads(outcome.out)["false_edges"] == 0
    outcome = program("extract", "some.log", "--granularity", "128", "--format", "json", "--force")
    assert json.loads(outcome.out)["false_edges"] == 1


# One line for every failure


def test_no_such_file(program):
    outcome = program("extract", "none.log")
    assert outcome.code == 1
    assert is_one_line(outcome, "none.log: no such file")


def test_an_empty_file(program, tmp_path):
    (tmp_path / "empty.log").touch()
    outcome = program("extract", "empty.log")
    assert outcome.code == 1
    assert is_one_line(outcome, "empty.log", "empty", "trace the program again")


def test_a_file_that_is_no_trace(program, tmp_path):
    (tmp_path / "notes.txt").write_text("kernel 1 was slow\n" * 10)
    outcome = program("extract", "notes.txt")
    assert outcome.code == 1
    assert is_one_line(outcome, "notes.txt")
    assert files(tmp_path) == ["notes.txt"]


@pytest.mark.parametrize("pack", [bytes, lzma.compress])
def test_a_trace_cut_in_the_middle_of_a_line(program, tmp_path, pack):
    (tmp_path / "cut.log").write_bytes(pack(LOG[:-200]))
    outcome = program("extract", "cut.log")
    assert outcome.code == 1
    assert is_one_line(outcome, "cut.log:4: the last line is cut", "--allow-damaged")
    assert files(tmp_path) == ["cut.log"]
    outcome = program("extract", "cut.log", "--allow-damaged")
    assert outcome.code == 0
    assert "the last line is cut" in outcome.out


def test_a_compressed_trace_cut_anywhere(program, tmp_path):
    (tmp_path / "cut.log.xz").write_bytes(lzma.compress(LOG)[:-20])
    outcome = program("extract", "cut.log.xz")
    assert outcome.code == 1
    assert is_one_line(outcome, "cut.log.xz", "the xz stream ends early")


def test_a_store_that_exists(program, log):
    program("extract", log)
    outcome = program("extract", log)
    assert outcome.code == 1
    assert is_one_line(outcome, "depgraph.out: already exists; pass --force")
    assert program("extract", log, "--force").code == 0


def test_an_existing_store_is_seen_before_the_trace_is_read(program, log):
    program("extract", log)
    assert "already exists" in program("extract", "none.log").err


def test_force_does_not_delete_what_is_no_store(program, log):
    Path("mine").mkdir()
    Path("mine", "thesis.tex").touch()
    outcome = program("extract", log, "-o", "mine", "--force")
    assert outcome.code == 1
    assert is_one_line(outcome, "mine: exists and was not written by depgraph")
    assert files(Path("mine")) == ["thesis.tex"]


def test_force_does_not_delete_what_stands_beside_the_tables(program, log):
    program("extract", log)
    inside = log.rename(Path("depgraph.out", "some.log"))
    outcome = program("extract", inside, "--force")
    assert outcome.code == 1
    assert is_one_line(outcome, "depgraph.out: exists and holds some.log, which depgraph did not")
    assert inside.read_bytes() == LOG


@pytest.mark.jit_only
def test_a_store_may_stand_in_the_folder_of_its_trace(program, shared_data, tmp_path):
    for file in (shared_data / "accelsim/streams4").rglob("*"):
        if file.is_file():
            shutil.copyfile(file, tmp_path / file.name)
    before = files(tmp_path)
    for words in (["extract", "."], ["extract", ".", "--force"]):
        outcome = program(*words)
        assert outcome.code == 0, outcome.err
    assert files(tmp_path) == sorted([*before, "depgraph.out"])


@pytest.fixture
def small_disk(tmp_path):
    """Return a folder on a file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = [shutil.which("mount"), "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder]
    if (
        shutil.which("mount") is None
        or subprocess.run(mount, check=False, capture_output=True).returncode
    ):
        pytest.skip("no right to mount a small file system")
    yield folder
    subprocess.run([shutil.which("umount"), "--lazy", folder], check=True)


@pytest.mark.jit_only
@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "out: no space is left on the disk"),
        (["--resume"], ": no space is left on the disk"),
        (["--memory-limit", "64MiB"], ": no space is left on the disk"),
    ],
    ids=["store", "resume", "scratch"],
)
def test_a_disk_that_is_full_is_named(program, shared_data, small_disk, words, named):
    trace = shared_data / "nvbit/lstm_h128.log.xz"
    outcome = program("extract", trace, "-o", small_disk / "out", "-q", *words)
    assert outcome.code == 1
    assert outcome.err.count("\n") == 1
    assert f"depgraph: error: {small_disk}" in outcome.err
    assert named in outcome.err
    assert [name for name in files(small_disk) if name != "out.partial"] == []


@pytest.mark.parametrize(
    "words",
    [["bound", "--sms", "8"], ["show", "kernels"], ["export", "--what", "edges", "-o", "e.csv"]],
)
def test_a_store_of_another_schema_version(program, log, words):
    program("extract", log)
    make_version(Path("depgraph.out"), 1)
    outcome = program(*words)
    assert outcome.code == 1
    assert is_one_line(
        outcome, "depgraph.out: has schema version 1", "extract the trace again with --force"
    )


@pytest.mark.parametrize(
    "words",
    [["bound", "--sms", "8"], ["show", "pairs"], ["export", "--what", "blocks", "-o", "b.csv"]],
)
def test_no_store(program, words):
    outcome = program(*words)
    assert outcome.code == 1
    assert is_one_line(outcome, "depgraph.out: no such store", "depgraph extract TRACE")


def test_a_full_disk(program, log, monkeypatch):
    def write_table(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", write_table)
    outcome = program("extract", log)
    assert outcome.code == 1
    assert is_one_line(outcome, "depgraph.out: no space is left on the disk")
    assert files(log.parent) == ["some.log"]


def test_a_file_that_may_not_grow(program, log):
    # What a quota does, too: writing fails after the first bytes.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        outcome = program("extract", log)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert outcome.code == 1
    assert is_one_line(outcome, "depgraph.out: cannot be written", "File too large")
    assert files(log.parent) == ["some.log"]


def test_a_fault_of_the_program_is_one_line_too(program, log, monkeypatch):
    monkeypatch.setattr("depgraph.extraction.pipeline.analyse", lambda *_, **__: 1 / 0)
    outcome = program("extract", log)
    assert outcome.code == 1
    assert is_one_line(outcome, "ZeroDivisionError", "this is a bug in depgraph (see --debug)")


def test_debug_shows_the_traceback(log, monkeypatch):
    from depgraph.cli import main
    from depgraph.errors import TraceError

    monkeypatch.chdir(log.parent)
    with pytest.raises(TraceError):
        main(["extract", "none.log", "--debug"])


def test_a_kernel_name_cannot_steer_the_terminal(program, tmp_path):
    name = "evil\x1b[2J\x07(int)"
    (tmp_path / "some.log").write_bytes(
        launch_line(0, name=name) + access_line(0, 0, "STG.E", [BASE])
        + launch_line(1, name=name) + access_line(1, 0, "LDG.E", [BASE])
    )  # fmt: skip
    for words in (["extract", "some.log"], ["show", "kernels"], ["show", "block", "0:0"]):
        outcome = program(*words)
        assert outcome.code == 0
        assert "evil" in outcome.out
        assert not {"\x1b", "\x07"} & set(outcome.out + outcome.err)


def test_one_kernel_without_an_access_may_be_picked_from_a_trace_that_has_some(program, log):
    log.write_bytes(LOG + launch_line(2, name="silent()"))
    outcome = program("extract", log, "--kernels", "2:3", "-q")
    assert outcome.code == 0
    (kernel,) = Store("depgraph.out").kernels
    assert kernel.accesses == 0


def test_the_current_folder_can_be_the_result_of_a_run_that_is_resumed(program, log, monkeypatch):
    program("extract", log, "-o", "here")
    monkeypatch.chdir("here")
    outcome = program("extract", log, "-o", ".", "--force", "--resume")
    assert outcome.code == 0
    assert files(log.parent) == ["here", "some.log"]


def test_a_file_in_the_place_of_kept_parts_is_named(program, log):
    Path("depgraph.out.partial").touch()
    outcome = program("extract", log, "--resume")
    assert is_one_line(outcome, "depgraph.out.partial: is not a folder; move it away")


def test_a_kernel_that_writes_nothing_is_remarked(program, log):
    program("extract", log)
    remarks = Store("depgraph.out").metadata["remarks"]
    assert remarks["writes nothing to global memory in the trace"] == [1]
