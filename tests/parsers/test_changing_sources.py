"""A trace that changes while it is read is refused, whatever is read of it and by whom."""

import lzma
import os

import pytest
from kernel_texts import GLOBAL, Form, header_text
from programs import BASE, access_line, launch_line

from depgraph.errors import TraceError
from depgraph.extraction.check import check_trace
from depgraph.extraction.pipeline import analyse, extract
from depgraph.parsers import open_trace
from depgraph.parsers.nvbit.log import NvbitTrace

LOG = b"".join(
    launch_line(n, (64, 1, 1)) + b"".join(access_line(n, b, "STG.E", [BASE]) for b in range(64))
    for n in range(8)
)


def kernel_file(number):
    access = f"0090 00000001 1 R0 STG.E 1 R4 4 1 0x{GLOBAL + 4 * number:x} 0 0 \n"
    block = f"#BEGIN_TB\nthread block = 0,0,0\nwarp = 0\ninsts = 9\n{9 * access}#END_TB\n"
    return header_text(Form()) + block


def plain_log(folder):
    (folder / "some.log").write_bytes(LOG)
    return folder / "some.log", NvbitTrace(folder / "some.log", part_bytes=4096)


def packed_log(folder):
    (folder / "some.log.xz").write_bytes(lzma.compress(LOG))
    return folder / "some.log.xz", open_trace(folder / "some.log.xz")


def kernels(folder):
    for number in (1, 2, 3):
        (folder / f"kernel-{number}.traceg").write_text(kernel_file(number))
    names = "".join(f"kernel-{number}.traceg\n" for number in (1, 2, 3))
    (folder / "kernelslist.g").write_text(names)
    return folder / "kernel-2.traceg", open_trace(folder)


def kernels_list(folder):
    _, trace = kernels(folder)
    return folder / "kernelslist.g", trace


def shrink(path):
    os.truncate(path, path.stat().st_size // 2)


def grow(path):
    with path.open("ab") as file:
        file.write(b"more\n")


def rewrite(path):
    text = path.read_bytes()
    path.write_bytes(text)
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def replace(path):
    status = path.stat()
    path.with_name("new").write_bytes(path.read_bytes())
    path.with_name("new").replace(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


CHANGES = {
    shrink: r"changed while it was read, from \d+ to \d+ bytes; read it again once nothing writes",
    grow: "changed while it was read, from",
    rewrite: "changed while it was read; read it again",
    replace: "changed while it was read; read it again",
    os.unlink: "is gone, which was there when reading began",
}


def changing(trace, path, change, after):
    """Change a file when so many parts of a trace have been handed out."""
    tasks = trace.tasks

    def changed_on_the_way():
        parts = list(tasks())
        for number, task in enumerate(parts):
            if number == min(after, len(parts) - 1):
                change(path)
            yield task

    trace.tasks = changed_on_the_way  # type: ignore[method-assign]
    return trace


@pytest.mark.jit_only
@pytest.mark.parametrize("after", [0, 3, 1000])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("source", [plain_log, packed_log, kernels, kernels_list])
def test_a_change_while_reading_is_refused_and_nothing_is_written(tmp_path, source, change, after):
    (tmp_path / "in").mkdir()
    path, trace = source(tmp_path / "in")
    with pytest.raises(TraceError, match=CHANGES[change]) as caught:
        extract(changing(trace, path, change, after), tmp_path / "out", jobs=1, allow_damaged=True)
    assert str(caught.value).startswith(f"{path}: ")
    assert [item.name for item in tmp_path.iterdir()] == ["in"]


@pytest.mark.jit_only
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("source", [plain_log, packed_log, kernels])
def test_check_says_that_a_trace_changed(tmp_path, source, change):
    path, trace = source(tmp_path)
    checkup = check_trace(changing(trace, path, change, 0))
    assert any(
        problem.is_error and problem.place == str(path) and "read" in problem.found
        for problem in checkup.problems
    )


@pytest.mark.jit_only
def test_parts_of_a_changed_log_are_not_taken_up_again(tmp_path):
    path, trace = plain_log(tmp_path)
    partial = tmp_path / "partial"
    with pytest.raises(TraceError, match="changed while it was read"):
        extract(changing(trace, path, rewrite, 1000), tmp_path / "out", jobs=1, resume=partial)
    path.write_bytes(LOG.replace(b"STG", b"LDG"))
    again = extract(NvbitTrace(path, part_bytes=4096), tmp_path / "out", jobs=1, resume=partial)
    assert sum(kernel.written_bytes for kernel in again.kernels) == 0


def test_a_worker_refuses_a_part_of_another_file(tmp_path):
    path, trace = plain_log(tmp_path)
    part = list(trace.tasks())[-1]
    shrink(path)
    with pytest.raises(TraceError, match="changed while it was read"):
        part.scan()
    _, folder = kernels(tmp_path)
    part = list(folder.tasks())[-1]
    grow(tmp_path / "kernel-3.traceg")
    with pytest.raises(TraceError, match=r"kernel-3\.traceg: changed while it was read"):
        part.scan()


def test_a_file_that_shrinks_explains_what_is_missing(tmp_path):
    # What is left would be refused as well, for an access that no launch announces.
    path, trace = plain_log(tmp_path)
    with pytest.raises(TraceError, match="changed while it was read"):
        analyse(changing(trace, path, shrink, 0), jobs=1)


def test_reading_alone_changes_nothing(tmp_path):
    path, trace = plain_log(tmp_path)
    os.utime(path, ns=(0, path.stat().st_mtime_ns))
    assert len(analyse(trace, jobs=1).kernels) == 8
