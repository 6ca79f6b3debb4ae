"""What others may have written is neither unpickled nor loaded into a program."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from depgraph.recorder.build import Builder
from depgraph.recorder.toolkit import Toolkit
from depgraph.system.loading import _is_own, is_ours, read_ours
from depgraph.system.machine_code import digest_of

pytestmark = pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owners here")


def test_files_that_others_may_write_are_not_ours(tmp_path):
    path = tmp_path / "it"
    path.write_text("")
    path.chmod(0o644)
    assert is_ours(path)
    path.chmod(0o646)
    assert not is_ours(path)
    assert not is_ours(tmp_path / "missing")


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="needs root")
def test_files_of_others_are_not_ours(tmp_path):
    path = tmp_path / "it"
    path.write_text("")
    os.chown(path, 12345, 12345)
    assert not is_ours(path)


@pytest.mark.parametrize("step", ["folder", "its parent", "where a link leads", "a link's folder"])
def test_each_step_to_a_file_is_looked_at(tmp_path, step):
    real, linked = tmp_path / "real" / "cache", tmp_path / "linked"
    real.mkdir(parents=True)
    linked.mkdir()
    (linked / "cache").symlink_to(Path("..") / "linked" / ".." / "real" / "cache")
    file = real / "it"
    file.write_text("mine")
    through = linked / "cache" / "it"
    assert is_ours(file)
    assert is_ours(through)
    assert read_ours(through) == b"mine"
    open_to_others = {
        "folder": real, "its parent": real.parent, "where a link leads": real.parent,
        "a link's folder": linked,
    }[step]  # fmt: skip
    open_to_others.chmod(0o777)
    assert not is_ours(through)
    with pytest.raises(PermissionError):
        read_ours(through)
    if open_to_others == real.parent:
        open_to_others.chmod(0o1777)  # where nobody takes away what others own, as in /tmp
        assert is_ours(through)


def test_links_that_lead_nowhere_are_nobodys(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert not is_ours(tmp_path / "a")


def test_what_is_read_is_what_was_looked_at(tmp_path, monkeypatch):
    path, other = tmp_path / "it", tmp_path / "other"
    path.write_text("mine")
    other.write_text("theirs")
    other.chmod(0o666)

    def replaced(number):
        status = fstat(number)
        other.replace(path)  # after it was opened
        return status

    fstat = os.fstat
    monkeypatch.setattr("depgraph.system.loading.os.fstat", replaced)
    assert read_ours(path) == b"mine"
    monkeypatch.undo()
    with pytest.raises(PermissionError):
        read_ours(path)


@pytest.mark.parametrize(
    ("name", "members", "is_mine"),
    [
        ("me", [], True),  # as systems have it that make a group for each user
        ("me", ["me"], True),
        ("me", ["me", "you"], False),
        ("staff", [], False),  # whose members a directory does not list
        (None, [], False),
    ],
)
def test_a_group_of_the_user_alone_is_the_user(tmp_path, monkeypatch, name, members, is_mine):
    path = tmp_path / "it"
    path.write_text("")
    path.chmod(0o664)
    monkeypatch.setattr("depgraph.system.loading._ROOT", -1)
    monkeypatch.setattr("depgraph.system.loading.os.getuid", lambda: path.stat().st_uid)
    _is_own.cache_clear()

    def group_of(number):
        if name is None:
            raise KeyError(number)
        return SimpleNamespace(gr_name=name, gr_mem=members)

    monkeypatch.setattr("grp.getgrgid", group_of)
    monkeypatch.setattr("pwd.getpwuid", lambda _: SimpleNamespace(pw_name="me"))
    assert is_ours(path) == is_mine
    _is_own.cache_clear()


def test_where_files_have_no_owners_all_are_ours(tmp_path, monkeypatch):
    monkeypatch.delattr("os.getuid")
    assert is_ours(tmp_path)


STEPS = """
from depgraph.system.compiled import compiled

@compiled
def step(x):
    return x + 1
"""


@pytest.mark.jit_only
@pytest.mark.parametrize(("mode", "is_kept"), [(0o755, True), (0o777, False)])
def test_compiled_code_is_kept_only_where_nobody_else_writes(tmp_path, mode, is_kept):
    module = tmp_path / "steps.py"
    module.write_text(STEPS)
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from depgraph.cli.progress import announce_first_run\n"
        "announce_first_run(quiet=False)\n"
        "import steps\n"
        "print(steps.step(1), steps.step._kept is not None)\n"
    )
    kept = tmp_path / "__pycache__"
    kept.mkdir()
    kept.chmod(mode)
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.stdout.split() == ["2", str(is_kept)], done.stderr
    assert bool(list(kept.glob("*.code"))) == is_kept
    assert ("others may write there" in done.stderr) == (not is_kept)


@pytest.mark.jit_only
def test_code_that_others_may_have_written_is_not_run(tmp_path):
    script = "import sys; sys.path.insert(0, sys.argv[1]); import steps; print(steps.step(1))"
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}

    def kept_by(folder, source):
        (folder / "__pycache__").mkdir(parents=True, mode=0o755, exist_ok=True)
        (folder / "steps.py").write_text(source)
        done = subprocess.run(
            [sys.executable, "-c", script, str(folder)],
            capture_output=True, text=True, check=False, env=environment,
        )  # fmt: skip
        (kept,) = (folder / "__pycache__").glob("*.code")
        return done.stdout.split(), kept

    _, another = kept_by(tmp_path / "another", STEPS.replace("x + 1", "x + 2"))
    _, kept = kept_by(tmp_path, STEPS)
    head, _, code = another.read_bytes().split(b"\n", 2)
    kept.write_bytes(b"\n".join([head, digest_of(kept, head + code), code]))
    assert kept_by(tmp_path, STEPS) == (["3"], kept)  # as our own it would be run
    kept.chmod(0o666)
    assert kept_by(tmp_path, STEPS) == (["2"], kept)


@pytest.mark.jit_only
def test_what_is_damaged_is_compiled_again(tmp_path):
    module = tmp_path / "steps.py"
    module.write_text(STEPS)
    script = "import sys; sys.path.insert(0, sys.argv[1]); import steps; print(steps.step(1))"
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}

    def run():
        return subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)],
            capture_output=True, text=True, check=False, env=environment,
        ).stdout.split()  # fmt: skip

    (tmp_path / "__pycache__").mkdir(mode=0o755)
    assert run() == ["2"]
    (kept,) = (tmp_path / "__pycache__").glob("*.code")
    whole = kept.read_bytes()
    kept.write_bytes(whole[:20])
    assert run() == ["2"]
    assert len(kept.read_bytes()) == len(whole)


@pytest.fixture
def built(tmp_path, monkeypatch):
    """Return a function that builds the recorder, and says where it is and what was said."""
    monkeypatch.setattr(
        "depgraph.recorder.build._compile", lambda _, target: target.write_text("new")
    )
    for name in ("compiler", "sanitizer", "headers", "nvcc"):
        monkeypatch.setattr(Toolkit, name, Path("/opt/it"), raising=False)
    monkeypatch.setattr("depgraph.recorder.build.sees_tiles", lambda _: True)

    def build():
        said = []
        return Builder(Toolkit(), tmp_path / "kept", said.append).recorder(), said

    return build


def test_native_code_is_compiled_once_with_a_line(built, tmp_path):
    path, said = built()
    assert path.parent == tmp_path / "kept"
    assert said == ["compiling recorder.cpp of the recorder, for this machine, once"]
    assert built() == (path, [])


@pytest.mark.parametrize("which", ["folder", "file"])
def test_native_code_that_others_may_have_written_is_not_loaded(built, which):
    kept, _ = built()
    stranger = kept.parent if which == "folder" else kept
    stranger.chmod(0o777)
    path, said = built()
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.read_text() == "new"
    assert said[0] == f"{kept.parent}: others may write {stranger}; what is compiled is not kept"


def test_without_a_cache_native_code_is_compiled_for_the_process(built, tmp_path):
    (tmp_path / "kept").write_text("a file, no folder")
    path, said = built()
    assert path.is_file()
    assert said[0] == f"{tmp_path / 'kept'}: File exists; what is compiled is not kept"
