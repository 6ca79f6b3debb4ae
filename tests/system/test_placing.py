"""Results take their place when they are whole, and only where nothing stands that is not ours."""

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from programs import BASE, access_line, launch_line

import depgraph
from depgraph.errors import OutputError, OutputExistsError
from depgraph.parsers import open_trace
from depgraph.store.tables import not_a_store
from depgraph.system import output
from depgraph.system.output import WorkFolder


@pytest.fixture(params=["renameat2", "plain renames"], autouse=True)
def renames(request, monkeypatch):
    """Run every test as on Linux, and as where the system or the file system knows less."""
    if request.param == "renameat2":
        if output._renameat2_function() is None:
            pytest.skip("no renameat2 here")
    else:
        monkeypatch.setattr(output, "_renameat2_function", lambda: None)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def has_mark(folder):
    return "" if (folder / "mark").exists() else "was not written by depgraph"


def make_folder(path, content="mine", **files):
    path.mkdir()
    for name, text in {"mark": content, **files}.items():
        (path / name).write_text(text)


def write_folder(path, content="new", *, force=False, meanwhile=lambda: None):
    with output.new_folder(path, force=force, not_ours=has_mark) as folder:
        (folder / "mark").write_text(content)
        meanwhile()


def write_file(path, content="new", *, force=False, meanwhile=lambda: None):
    with output.new_file(path, force=force) as file:
        file.write_text(content)
        meanwhile()


# The place is taken while a result is made


@pytest.mark.parametrize("write", [write_folder, write_file])
@pytest.mark.parametrize(
    "take",
    [
        lambda path: make_folder(path, thesis="years of work"),
        lambda path: path.write_text("precious"),
        lambda path: path.symlink_to("elsewhere"),
        os.mkfifo,
    ],
    ids=["folder", "file", "link", "pipe"],
)
def test_what_came_meanwhile_is_left_alone(tmp_path, write, take):
    path = tmp_path / "out"
    with pytest.raises(OutputError) as error:
        write(path, meanwhile=lambda: take(path))
    assert str(error.value) == (
        f"{path}: was made by something else while this ran, and is left as it is; "
        f"the result is {path}.1"
    )
    assert names(tmp_path) == ["out", "out.1"]
    taken = tmp_path / "expected"
    take(taken)
    assert path.lstat().st_mode == taken.lstat().st_mode
    if taken.is_dir():
        assert names(path) == names(taken)
    elif taken.is_file():
        assert path.read_text() == "precious"
    result = tmp_path / "out.1"
    assert (result / "mark" if result.is_dir() else result).read_text() == "new"


@pytest.mark.parametrize("write", [write_folder, write_file])
def test_of_two_runs_to_one_place_both_results_are_kept(tmp_path, write):
    path = tmp_path / "out"
    with pytest.raises(OutputError, match=r"the result is .*out\.1$"):
        write(path, "first to begin", meanwhile=lambda: write(path, "first to end"))
    texts = [p / "mark" if p.is_dir() else p for p in (path, tmp_path / "out.1")]
    assert [text.read_text() for text in texts] == ["first to end", "first to begin"]


def test_a_result_is_not_lost_if_the_place_was_taken_before_it_was_written(tmp_path):
    path = tmp_path / "out"
    output.refuse_existing(path, force=False)
    path.mkdir()

    def write():
        with output.new_folder(path, place_checked=True) as folder:
            (folder / "mark").touch()

    with pytest.raises(OutputError, match=r"the result is .*out\.1$"):
        write()
    assert names(path) == []
    assert names(tmp_path / "out.1") == ["mark"]


def test_names_beside_that_are_taken_are_passed_over(tmp_path):
    path = tmp_path / "out"
    (tmp_path / "out.1").write_text("other")
    with pytest.raises(OutputError, match=r"the result is .*out\.2$"):
        write_folder(path, meanwhile=path.mkdir)
    assert names(tmp_path) == ["out", "out.1", "out.2"]


def test_force_replaces_what_is_ours_whenever_it_came(tmp_path):
    path = tmp_path / "out"
    make_folder(path, "old")
    write_folder(path, force=True)
    assert (path / "mark").read_text() == "new"
    (path / "mark").unlink()
    write_folder(path, "newer", force=True)  # it was empty
    write_folder(tmp_path / "two", force=True, meanwhile=lambda: make_folder(tmp_path / "two"))
    assert (path / "mark").read_text() == "newer"
    assert (tmp_path / "two" / "mark").read_text() == "new"
    assert names(tmp_path) == ["out", "two"]


def test_force_leaves_alone_what_is_not_ours_any_more(tmp_path):
    path = tmp_path / "out"
    make_folder(path)

    def become_the_users():
        (path / "mark").rename(path / "thesis.tex")

    with pytest.raises(OutputError, match="was made by something else while this ran"):
        write_folder(path, force=True, meanwhile=become_the_users)
    assert names(path) == ["thesis.tex"]
    assert names(tmp_path) == ["out", "out.1"]


def test_what_is_not_ours_goes_back_if_it_came_in_the_last_moment(tmp_path, monkeypatch):
    path = tmp_path / "out"
    make_folder(path)
    exchange = output.exchange

    def just_before(new, old):
        monkeypatch.setattr(output, "exchange", exchange)
        (old / "mark").rename(old / "thesis.tex")
        exchange(new, old)

    monkeypatch.setattr(output, "exchange", just_before)
    with pytest.raises(OutputError, match=r"the result is .*out\.1$"):
        write_folder(path, force=True)
    assert names(path) == ["thesis.tex"]
    assert names(tmp_path / "out.1") == ["mark"]


def test_force_replaces_no_folder_by_a_file(tmp_path):
    path = tmp_path / "out.csv"
    path.write_text("old")

    def become_a_folder():
        path.unlink()
        path.mkdir()

    with pytest.raises(OutputError, match="was made by something else"):
        write_file(path, force=True, meanwhile=become_a_folder)
    assert path.is_dir()
    assert (tmp_path / "out.csv.1").read_text() == "new"


def test_a_file_system_without_links_is_no_obstacle(tmp_path, monkeypatch):
    def no_links(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "hardlink_to", no_links)
    write_file(tmp_path / "out")
    assert (tmp_path / "out").read_text() == "new"
    with pytest.raises(OutputError, match=r"the result is .*two\.1$"):
        write_file(tmp_path / "two", meanwhile=(tmp_path / "two").touch)
    assert names(tmp_path) == ["out", "two", "two.1"]


# The place is looked at before any work


def test_a_place_that_cannot_be_taken_is_refused_before_any_work(tmp_path):
    for path, what in (
        (tmp_path / "no" / "store", "there is no folder"),
        (tmp_path / os.fsdecode(b"st\xff"), "is not a UTF-8 name"),
    ):
        with pytest.raises(OutputError, match=what):
            output.refuse_existing(path, force=False)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    with pytest.raises(OutputError, match="was not written by depgraph"):
        output.refuse_existing(tmp_path / "mine", force=True, not_ours=has_mark)
    output.refuse_existing(tmp_path / "mine", force=True)
    for target in ("mine", "nowhere"):
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(target)
        with pytest.raises(OutputExistsError):
            output.refuse_existing(tmp_path / "link", force=False)
        with pytest.raises(OutputError, match="link: is a link; remove it or name what it points"):
            output.refuse_existing(tmp_path / "link", force=True)


def test_files_of_the_user_in_a_result_of_ours_are_named():
    def reason(*files, tmp):
        for file in files:
            (tmp / file).touch()
        return output.foreign_file_in(tmp, lambda entry: entry.suffix == ".parquet")

    with output.tempfile.TemporaryDirectory() as folder:
        tmp = Path(folder)
        assert not reason("a.parquet", ".DS_Store", ".nfs0001", tmp=tmp)
        assert reason("trace.log", "b.txt", tmp=tmp) == "holds b.txt, which depgraph did not write"


def test_the_folder_one_stands_in_can_be_replaced(tmp_path, monkeypatch):
    make_folder(tmp_path / "out")
    monkeypatch.chdir(tmp_path / "out")
    write_folder(Path(), force=True)
    monkeypatch.chdir(tmp_path)
    assert names(tmp_path) == ["out"]
    assert (tmp_path / "out" / "mark").read_text() == "new"


# One file


def test_a_new_file_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "some.csv"
    with output.new_file(path) as temporary:
        temporary.write_text("a,b\n")
        assert not path.exists()
    assert names(tmp_path) == ["some.csv"]
    assert path.read_text() == "a,b\n"
    (tmp_path / "plain").touch()
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


def fill_the_disk():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_that_could_not_be_finished_is_not_there(tmp_path):
    (tmp_path / "some.csv").write_text("old")
    with pytest.raises(OutputError, match=r"some\.csv: no space is left on the disk"):
        write_file(tmp_path / "some.csv", force=True, meanwhile=fill_the_disk)
    assert names(tmp_path) == ["some.csv"]
    assert (tmp_path / "some.csv").read_text() == "old"


def test_a_file_is_replaced_with_force_alone(tmp_path):
    (tmp_path / "some.csv").write_text("old")
    with pytest.raises(OutputExistsError):
        write_file(tmp_path / "some.csv")
    write_file(tmp_path / "some.csv", force=True)
    assert (tmp_path / "some.csv").read_text() == "new"


def test_what_is_no_file_is_not_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, what in (("folder", "is a folder"), ("pipe", "is not a plain file")):
        with pytest.raises(OutputError, match=f"{name}: {what}; give a file name"):
            write_file(tmp_path / name, force=True)
    assert names(tmp_path) == ["folder", "pipe"]
    assert (tmp_path / "pipe").is_fifo()


# A process is killed


def killed_in(what, folder, *, plain_renames):
    """Run a process that is killed as it comes to `what`."""
    script = textwrap.dedent(f"""
        import os, signal, sys
        from pathlib import Path
        from depgraph.system import output
        if {plain_renames}:
            output._renameat2_function = lambda: None
        def killed(*_): os.kill(os.getpid(), signal.SIGKILL)
        def kill_after(renames, killed, real=Path.rename):
            left = iter(range(renames))
            Path.rename = lambda *names: real(*names) if next(left, None) is not None else killed()
            output.WorkFolder.remove = killed
        path = Path(sys.argv[1])
        with output.new_folder(path, force=True, not_ours=lambda _: "") as folder:
            (folder / "mark").write_text("new")
            {what}
    """)
    result = subprocess.run([sys.executable, "-c", script, folder], check=False)
    assert result.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("what", "content"),
    [
        ("killed()", "old"),
        ("output.exchange = killed", "old"),
        ("output.WorkFolder.remove = killed", "new"),
    ],
    ids=["while writing", "before the exchange", "after it"],
)
def test_a_kill_leaves_the_old_result_or_the_new_one(tmp_path, what, content, renames, request):
    del renames
    path = tmp_path / "out"
    make_folder(path, "old")
    killed_in(what, path, plain_renames="plain" in request.node.name)
    assert (path / "mark").read_text() == content
    assert [name for name in names(tmp_path) if not name.startswith(".")] == ["out"]
    write_file(tmp_path / "other.csv")  # whoever writes there next takes away what was left
    assert names(tmp_path) == ["other.csv", "out"]


def test_a_kill_between_two_renames_is_made_good(tmp_path):
    contents = []
    for renames in range(4):
        path = tmp_path / str(renames) / "out"
        path.parent.mkdir()
        make_folder(path, "old")
        killed_in(f"kill_after({renames}, killed)", path, plain_renames=True)
        with pytest.raises(OutputExistsError):
            output.refuse_existing(path, force=False)
        contents.append((path / "mark").read_text())
        write_folder(path, force=True)
        assert [name for name in names(path.parent) if "replaced" not in name] == ["out"]
    assert contents == ["old", "old", "new", "new"]


def test_a_kill_after_the_renames_leaves_what_the_next_run_takes_away(tmp_path, monkeypatch):
    monkeypatch.setattr(output, "_renameat2_function", lambda: None)
    path = tmp_path / "out"
    make_folder(path)
    killed_in("kill_after(2, killed)", path, plain_renames=True)
    assert "out.depgraph-replaced" in names(tmp_path)
    write_folder(path, "newer", force=True)
    assert names(tmp_path) == ["out"]
    assert (path / "mark").read_text() == "newer"


def test_only_what_a_killed_process_left_is_brought_back(tmp_path):
    path = tmp_path / "out"
    make_folder(tmp_path / "out.depgraph-replaced", "old")
    path.mkdir()
    output.refuse_existing(path, force=True)
    assert names(path) == []
    path.rmdir()
    with pytest.raises(OutputExistsError):
        output.refuse_existing(path, force=False)
    assert names(tmp_path) == ["out"]
    assert names(path) == ["mark"]


# Work folders


def test_the_folder_of_a_running_process_stays(tmp_path):
    mine = WorkFolder(tmp_path, "out")
    (mine.path / "file").touch()
    script = textwrap.dedent("""
        import sys
        from pathlib import Path
        from depgraph.system.output import WorkFolder
        work = WorkFolder(Path(sys.argv[1]), "out")
        print(work.path.name, flush=True)
        sys.stdin.read()
    """)
    with subprocess.Popen(
        [sys.executable, "-c", script, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        theirs = other.stdout.readline().decode().strip()
        WorkFolder(tmp_path, "third").remove()
        assert names(tmp_path) == sorted([mine.path.name, theirs])
        assert names(mine.path) == ["file"]
        other.kill()
        other.wait()
        WorkFolder(tmp_path, "third").remove()
        assert names(tmp_path) == [mine.path.name]
    mine.remove()
    assert names(tmp_path) == []


def test_folders_that_only_look_alike_stay(tmp_path):
    for name in (".out.depgraph-notes", "out.depgraph-1234abcd-xy", ".depgraph.old"):
        (tmp_path / name).mkdir()
    before = names(tmp_path)
    WorkFolder(tmp_path, "out").remove()
    assert names(tmp_path) == before


def test_a_work_folder_goes_at_the_end_of_its_process(tmp_path):
    script = (
        "import sys; from pathlib import Path; from depgraph.system.output import WorkFolder\n"
        "work = WorkFolder(Path(sys.argv[1]), 'out'); (work.path / 'file').touch(); 1 / 0"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, tmp_path], check=False, capture_output=True
    )
    assert b"ZeroDivisionError" in result.stderr
    assert names(tmp_path) == []


def test_a_work_folder_goes_though_a_thread_still_writes(tmp_path):
    work = WorkFolder(tmp_path, "out")
    ended = threading.Event()

    def write():
        for i in range(200):
            if ended.is_set():
                break
            try:
                (work.path / str(i)).touch()
            except OSError:
                break
            time.sleep(0.0005)

    thread = threading.Thread(target=write)
    thread.start()
    work.remove()
    ended.set()
    thread.join()
    assert names(tmp_path) == []


def test_a_long_name_is_no_obstacle(tmp_path):
    write_file(tmp_path / ("x" * 250))
    assert names(tmp_path) == ["x" * 250]


# Threads


def test_any_thread_may_write(tmp_path):
    errors = []

    def write():
        try:
            write_file(tmp_path / "out")
        except BaseException as error:
            errors.append(error)
            raise

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert not errors
    assert (tmp_path / "out").read_text() == "new"


def test_the_old_result_is_replaced_from_within_it(tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").touch()
    monkeypatch.chdir(tmp_path / "out")
    with output.new_folder(Path("..", "out"), force=True, not_ours=lambda _: "") as folder:
        (folder / "new").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["new"]


def test_a_work_folder_is_removed_though_the_current_folder_is_another_by_then(
    tmp_path, monkeypatch
):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    work = WorkFolder(Path(), "out")
    monkeypatch.chdir("elsewhere")
    work.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]


@pytest.mark.parametrize("name", ["mine.parquet", ".notes", "kernels.parquet/deep"])
def test_what_a_user_put_into_a_store_is_not_deleted(tmp_path, name):
    (tmp_path / "some.log").write_bytes(launch_line(0) + access_line(0, 0, "STG.E", [BASE]))
    store = depgraph.extract(open_trace(tmp_path / "some.log"), tmp_path / "out")
    if "/" in name:
        (store.path / "kernels.parquet").unlink()
        (store.path / "kernels.parquet").mkdir()
    (store.path / name).touch()
    with pytest.raises(OutputError, match="which depgraph did not write"):
        output.refuse_existing(store.path, force=True, not_ours=not_a_store)
