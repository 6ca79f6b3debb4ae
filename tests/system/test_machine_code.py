"""Machine code that is kept: what goes in and comes out, and when it does not count."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest

from depgraph.system import machine_code
from depgraph.system.compiled import compiled
from depgraph.system.loading import NotLinkableError
from depgraph.system.machine_code import (
    CodeCache,
    MachineCode,
    NotPortableError,
    folder_of,
    makers,
    of_numba,
    types_of,
)

pytestmark = pytest.mark.jit_only


class Pair(NamedTuple):
    left: np.ndarray
    right: tuple[np.ndarray, int]


@compiled
def everything(pair, scale, nothing, offset):
    """Return results of every sort, made of arguments of every sort."""
    total = 0.0
    for value in pair.left:
        total += value
    made = np.zeros((2, len(pair.left)), np.float64)
    for i in range(len(pair.left)):
        made[0, i] = pair.left[i] * scale
        made[1, i] = pair.right[0][i] + pair.right[1]
    if nothing is None:
        total += 1
    return total, len(pair.left), total > 5, made, Pair(made[1], (pair.right[0], offset)), scale


def plain(pair, scale, nothing, offset):
    return everything.py_func(pair, scale, nothing, offset)


def same(ours, theirs):
    if isinstance(theirs, tuple):
        return type(ours) is type(theirs) and all(map(same, ours, theirs))
    if isinstance(theirs, np.ndarray):
        return ours.dtype == theirs.dtype and ours.tolist() == theirs.tolist()
    return ours == theirs


@pytest.mark.parametrize(
    "left", [np.arange(4.0), np.arange(8.0)[::2], np.arange(0.0), np.arange(4.0)[::-1]]
)
@pytest.mark.parametrize("scale", [2, 2.5, np.float32(0.5), np.int8(-3), np.uint64(7), True])
def test_what_goes_in_and_comes_out_is_what_python_says(left, scale):
    right = np.arange(10, 10 + len(left), dtype=np.int32)
    given = Pair(left, (right, -4)), scale, None, np.int64(-1)
    assert same(everything(*given), plain(*given))


def test_results_outlive_arguments_and_one_another():
    pair = Pair(np.arange(4.0), (np.arange(4, dtype=np.int32), 1))
    made = everything(pair, 2.0, None, np.int64(0))
    view, (argument, _) = made[4]
    expected = view.tolist(), argument.tolist()
    del made, pair
    gc.collect()
    for _ in range(100):
        everything(Pair(np.ones(4), (np.ones(4, np.int32), 9)), 2.0, None, np.int64(0))
    assert (view.tolist(), argument.tolist()) == expected


def test_memory_is_given_back_once_all_that_refers_to_it_is_gone(monkeypatch):
    freed = []
    monkeypatch.setattr(machine_code, "_free", freed.append)
    made = everything(Pair(np.ones(2), (np.ones(2, np.int32), 0)), 1.0, None, np.int64(0))
    array, view = made[3], made[4][0]
    del made, array
    assert freed == []
    del view
    assert len(freed) == 1


def test_what_is_left_as_the_interpreter_ends_is_no_trouble(tmp_path):
    (tmp_path / "steps.py").write_text(
        "import numpy as np\n"
        "from depgraph.system.compiled import compiled\n\n"
        "@compiled\ndef made(n):\n    return np.ones(n)\n\n"
        "kept = [made(3), made(4)]\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", "import steps; print(steps.kept[1].sum())"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("4.0\n", "")


@compiled
def twice(values):
    return 2 * values


@compiled
def tail(values):
    return values[1:]


@compiled
def itself(value):
    return value


def test_what_may_not_be_written_may_not_be_written_in_a_result():
    frozen = np.arange(3)
    frozen.flags.writeable = False
    for values, may in ((np.arange(3), True), (frozen, False), (np.arange(3), True)):
        assert tail(values).flags.writeable is may


@pytest.mark.parametrize("value", [1 << 64, -(1 << 63) - 1, 1 << 70])
def test_a_number_of_more_than_64_bits_is_not_cut(value):
    assert itself(1) == 1
    assert itself((1 << 64) - 1) == (1 << 64) - 1
    with pytest.raises(OverflowError):
        itself(value)


def test_a_masked_array_is_not_taken_for_a_plain_one():
    assert itself(np.arange(2)).tolist() == [0, 1]
    with pytest.raises(Exception, match="MaskedArray"):
        itself(np.ma.array([0, 1], mask=[True, False]))


class Around:
    class Inner(NamedTuple):
        a: int


def test_a_tuple_whose_class_is_not_found_by_name_comes_back():
    class Local(NamedTuple):
        a: int

    for made in (Around.Inner(3), Local(4)):
        assert same(itself(made), made)


def plus(number):
    @compiled
    def sum_of(x):
        return x + number

    return sum_of


@pytest.mark.usefixtures("_own_cache")
def test_functions_of_one_text_that_differ_in_what_is_around_them_are_not_mixed_up():
    assert [plus(number)(1) for number in (1, 2, 1)] == [2, 3, 2]
    arrays = [np.zeros(2000, np.int64) for _ in range(2)]
    arrays[1][1000] = 1
    assert [int(plus(array)(1).sum()) for array in arrays] == [2000, 2001]


@pytest.fixture
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))


STATED = (
    "from depgraph.system.compiled import compiled, compiled_helper\n"
    "import os\n\n"
    "@compiled_helper\ndef check(x):\n    assert x < 3\n    return x\n\n"
    "if os.environ.get('OTHER'):\n"
    "    @compiled\n    def step(x):\n        return check(x) + 1\n"
    "else:\n"
    "    @compiled\n    def step(x):\n        return check(x) + 2\n"
)


@pytest.mark.slow
def test_what_was_made_of_another_function_of_the_same_file_does_not_count(tmp_path):
    (tmp_path / "steps.py").write_text(STATED)

    def run(number, *options, **variables):
        done = subprocess.run(
            [sys.executable, *options, "-c", f"import steps; print(steps.step({number}))"],
            cwd=tmp_path, capture_output=True, text=True, check=False,
            env={**os.environ, **variables},
        )  # fmt: skip
        return done.stdout.strip()

    assert (run(1), run(1, OTHER="1"), run(1)) == ("3", "2", "3")
    assert (run(5, "-O"), run(5)) == ("7", "")


def test_a_file_that_changes_after_its_import_is_not_taken_for_what_was_imported(tmp_path):
    (tmp_path / "steps.py").write_text(STATED)
    edit = (
        "import steps, pathlib; p = pathlib.Path('steps.py')\n"
        "p.write_text(p.read_text().replace('+ 2', '+ 3')); print(steps.step(1))"
    )
    found = [
        subprocess.run(
            [sys.executable, "-B", "-c", script],
            cwd=tmp_path, capture_output=True, text=True, check=True,
        ).stdout.strip()
        for script in (edit, "import steps; print(steps.step(1))")
    ]  # fmt: skip
    assert found == ["3", "4"]


class Switch(NamedTuple):
    is_on: bool
    values: np.ndarray


@compiled
def chosen(switch, otherwise):
    return switch.values[0] if switch.is_on and not otherwise else switch.values[1]


@pytest.mark.parametrize(("is_on", "otherwise"), [(1, 0), (0, 0), (1, 1)])
def test_a_truth_value_in_a_bundle_is_passed_without_numba(is_on, otherwise):
    given = Switch(bool(is_on), np.array([3.0, 4.0])), bool(otherwise)
    assert chosen(*given) == chosen.py_func(*given)
    assert isinstance(chosen.code_for(given), MachineCode)


@compiled
def checked(x, y, size):
    if x < 0:
        raise ValueError("x is below 0")
    return np.zeros(size)[0] + x // y


@pytest.mark.parametrize(
    ("given", "kind", "details"),
    [
        ((-1, 1, 1), ValueError, ("x is below 0",)),
        ((1, 0, 1), ZeroDivisionError, ("integer division by zero",)),
    ],
)
def test_what_compiled_code_raises_is_raised(given, kind, details):
    assert isinstance(checked.code_for(given), MachineCode)
    with pytest.raises(kind) as raised:
        checked(*given)
    assert raised.value.args == details


def test_memory_that_cannot_be_had_is_said_to_be_missing():
    with pytest.raises(MemoryError):
        checked(1, 1, 1 << 55)


@compiled
def logarithm(value):
    return np.log(value)


def test_what_code_needs_of_others_is_known(monkeypatch):
    made = logarithm.code_for((2.0,))
    assert made.about["needs"] == ["log"]
    monkeypatch.setattr(machine_code, "address_in_libc", lambda _: None)
    with pytest.raises(NotPortableError):
        of_numba(logarithm._uncallable, (np.float32(2),))


def refuse(*_):
    raise NotLinkableError


@pytest.mark.parametrize("left", [np.arange(4.0), np.arange(0.0)])
def test_what_only_llvm_can_link_computes_the_same(kept, left, monkeypatch):
    given = Pair(left, (np.arange(len(left), dtype=np.int32), -4)), 2.5, None, np.int64(-1)
    monkeypatch.setattr(machine_code, "link", refuse)
    monkeypatch.setattr(machine_code, "load", refuse)
    kept.save(types_of(given), of_numba(everything._uncallable, given))
    assert same(kept.load(types_of(given))(*given), plain(*given))


def test_what_is_no_object_file_is_called_by_numba(monkeypatch):
    monkeypatch.setattr(machine_code, "names_outside", refuse)
    with pytest.raises(NotPortableError):
        of_numba(logarithm._uncallable, (np.float32(3),))


def test_what_only_numba_can_call_is_called_by_numba():
    @compiled
    def lists(n):
        return [n, n + 1]

    assert lists(3) == [3, 4]
    assert not isinstance(lists.code_for((3,)), MachineCode)


@pytest.fixture
def kept(tmp_path):
    folder = CodeCache(tmp_path, "twice", b"a source")
    made = twice.code_for((np.ones(3),))
    assert isinstance(made, MachineCode)
    folder.save(types_of((np.ones(3),)), made)
    return folder


def test_what_is_kept_is_loaded_for_the_same_types_alone(kept):
    loaded = kept.load(types_of((np.arange(3.0),)))
    assert loaded(np.arange(3.0)).tolist() == [0, 2, 4]
    frozen = np.ones(3)
    frozen.flags.writeable = False
    for other in (np.ones(3, np.int64), np.ones((3, 1)), np.ones(6)[::2], frozen, 1.0):
        assert kept.load(types_of((other,))) is None
    assert CodeCache(kept.folder, "twice", b"another").load(types_of((np.ones(3),))) is None


def test_what_was_made_for_another_processor_or_by_another_numba_does_not_count(kept, monkeypatch):
    types = types_of((np.ones(3),))
    monkeypatch.setattr(machine_code, "_processor", lambda: "another")
    assert CodeCache(kept.folder, "twice", b"a source").load(types) is None
    monkeypatch.undo()
    assert CodeCache(kept.folder, "twice", b"a source").load(types) is not None
    ours = twice._made_of()
    assert twice._kept._stamp == CodeCache(kept.folder, "twice", ours + makers())._stamp
    monkeypatch.setattr(machine_code.np, "__version__", "99")
    assert machine_code.makers.__wrapped__() != makers()


def test_where_no_memory_may_be_run_nothing_is_loaded(kept, monkeypatch):
    def forbidden(_):
        raise PermissionError

    monkeypatch.setattr(machine_code, "load", forbidden)
    assert kept.load(types_of((np.ones(3),))) is None


@pytest.mark.parametrize("at", [0.0, 0.1, 0.5, 0.999])
@pytest.mark.parametrize("damage", ["changed", "cut"])
def test_a_damaged_file_does_not_count(kept, at, damage):
    (path,) = kept.folder.glob("*.code")
    text = bytearray(path.read_bytes())
    byte = int(at * len(text))
    text[byte] ^= 1
    path.write_bytes(text[:byte] if damage == "cut" else text)
    assert kept.load(types_of((np.ones(3),))) is None


def test_a_file_under_the_name_of_another_does_not_count(kept):
    integers = np.arange(3)
    made = twice.code_for((integers,))
    kept.save(types_of((integers,)), made)
    assert kept.load(types_of((integers,)))(integers).tolist() == [0, 2, 4]
    ours, theirs = (kept._path(types_of((array,))) for array in (integers, np.ones(3)))
    ours.write_bytes(theirs.read_bytes())
    assert kept.load(types_of((integers,))) is None


def test_what_was_made_of_an_earlier_source_is_dropped(kept):
    later = CodeCache(kept.folder, "twice", b"another")
    later.save(types_of((np.ones(3),)), twice.code_for((np.ones(3),)))
    assert not kept.is_any or kept.load(types_of((np.ones(3),))) is None
    assert later.load(types_of((np.ones(3),))) is not None


def test_a_folder_that_has_gone_holds_nothing(kept):
    later = CodeCache(kept.folder, "twice", b"another")
    (kept.folder / "x").touch()
    for path in kept.folder.iterdir():
        path.unlink()
    kept.folder.rmdir()
    assert not later.is_any


def test_a_full_disk_leaves_nothing_behind(tmp_path):
    (tmp_path / "steps.py").write_text(STATED)
    script = (
        "import resource, signal, steps\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))\n"
        "print(steps.step(1), *steps.step._kept.folder.iterdir())"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", script],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["3"]


def test_code_is_kept_where_that_is_said_else_beside_the_file_else_nowhere(tmp_path, monkeypatch):
    source = tmp_path / "module.py"
    assert folder_of(source) is None
    source.write_text("")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "named"))
    assert folder_of(source).parent == tmp_path / "named"
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    assert folder_of(source) == tmp_path / "__pycache__"
