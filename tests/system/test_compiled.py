"""When numeric code is compiled, and when it is interpreted instead."""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import depgraph.system.compiled as compiled_module
from depgraph.graph import graph_jit
from depgraph.schedule import simulate_jit as schedule
from depgraph.system.compiled import (
    CompiledFunction,
    compiled,
    compiled_helper,
    compiled_if_large,
    compiled_in_place,
    compiled_within,
)


@compiled_if_large
def total(values):
    """Add up some numbers."""
    result = 0.0
    for value in values:
        result += value
    return result


@compiled_if_large
def mean(values):
    """Divide what another function has added up."""
    return total(values) / len(values)


@compiled_if_large
def twofold(values):
    """Double some numbers."""
    return 2 * values


def uncompiled(function):
    return getattr(function, "py_func", function)


def run(script):
    """Run a script that has not loaded numba yet; return the lines it prints."""
    kept_beside_the_source = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-B", "-c", script],
        check=False,
        capture_output=True,
        text=True,
        env=kept_beside_the_source,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_compiled_function_calls_another():
    assert mean(np.array([1.0, 2.0, 6.0])) == 3.0


@pytest.mark.jit_only
def test_what_compiles_keeps_the_name_and_the_text_of_the_function():
    assert mean.__name__ == "mean"
    assert mean.__doc__ == "Divide what another function has added up."
    assert isinstance(mean, CompiledFunction)


CALLS = """
import numpy as np
from depgraph.{module} import {function}

def loaded_after(*arguments):
    {function}(*arguments)
    return any({function}._code.values())

print({calls})
"""
INVERT_LISTS = CALLS.format(
    module="graph.graph_jit",
    function="invert_lists",
    calls="*(loaded_after(np.arange(n + 1), np.zeros(n, np.int32), 1) for n in {sizes})",
)


@pytest.mark.jit_only
def test_machine_code_that_is_kept_is_loaded_however_small_the_input_is():
    assert run(INVERT_LISTS.format(sizes=[100_000])) == ["True"]
    assert run(INVERT_LISTS.format(sizes=[10])) == ["True"]


AFTER_ANOTHER = """
import subprocess, sys
from pathlib import Path
import numpy as np
from depgraph.system.compiled import before_compiling

sys.path.insert(0, {folder!r})
from inverted import inverted

inverted(np.arange(3))
again = "import numpy as np; from inverted import inverted; inverted(np.arange(100_000))"
subprocess.run([sys.executable, "-c", again], cwd={folder!r}, check=True)
before_compiling(lambda: print("compiles"))
inverted(np.arange(100_000))
print("numba" in sys.modules)
"""


@pytest.mark.jit_only
def test_what_another_process_has_compiled_meanwhile_is_loaded(tmp_path):
    (tmp_path / "inverted.py").write_text(
        "from depgraph.system.compiled import compiled_if_large\n\n\n"
        "@compiled_if_large\ndef inverted(values):\n    return -values\n"
    )
    assert run(AFTER_ANOTHER.format(folder=str(tmp_path))) == ["False"]


@pytest.mark.jit_only
def test_a_small_call_waits_for_nothing_that_is_compiled(monkeypatch):
    monkeypatch.setattr(compiled_module._Interpreter, "is_off", False)  # as it is for users
    monkeypatch.setattr(compiled_module, "_one_at_a_time", None)  # nobody can take it
    assert twofold(np.arange(3.0)).tolist() == [0.0, 2.0, 4.0]


OVERLAY_RANGES = CALLS.format(
    module="dependence.positions_jit",
    function="overlay_ranges",
    calls="loaded_after(np.zeros(0, np.int64), *np.zeros((2, 0), np.uint64),"
    " *np.zeros((2, 0), np.uint8), np.zeros(0, np.int64), 16)",
)


@pytest.mark.jit_only
def test_a_function_that_takes_longer_than_its_arguments_say_is_compiled_at_once():
    assert run(OVERLAY_RANGES) == ["True"]


ANNOUNCED = """
import sys
import numpy as np
from depgraph.system.compiled import before_compiling
sys.path.insert(0, {folder!r})
from fresh import double, triple

before_compiling(lambda: print("compiling"))
print(double(np.ones(1))[0])
print(triple(np.ones(1))[0])
"""

FRESH = """
from depgraph.system.compiled import compiled

@compiled
def double(values):
    return values * 2

@compiled
def triple(values):
    return values * 3
"""


@pytest.mark.jit_only
def test_compiling_is_announced_once_and_only_where_nothing_of_this_source_is_kept(tmp_path):
    first, copy = tmp_path / "first", tmp_path / "copy"
    first.mkdir()
    (first / "fresh.py").write_text(FRESH)
    script = ANNOUNCED.format(folder=str(first))
    assert run(script) == ["compiling", "2.0", "3.0"]
    assert run(script) == ["2.0", "3.0"]
    shutil.copytree(first, copy)
    assert run(ANNOUNCED.format(folder=str(copy))) == ["2.0", "3.0"]
    (first / "fresh.py").write_text(FRESH.replace("* 3", "* 4"))
    assert run(script) == ["compiling", "2.0", "4.0"]


FILES = {
    "fresh": """
from depgraph.system.compiled import compiled
from helper import first_of
from number import FACTOR
from pair import Pair

@compiled
def double(values):
    return first_of(Pair(values, 10 * values)) * FACTOR

triple = double
""",
    "helper": """
from depgraph.system.compiled import compiled

@compiled
def first_of(pair):
    return pair.first
""",
    "number": "FACTOR = 2.0",
    "pair": """
from typing import NamedTuple
import numpy as np

class Pair(NamedTuple):
    first: np.ndarray
    second: np.ndarray
""",
}


CHANGES = [
    ("helper", "pair.first", "pair.first + 1", "4.0"),
    pytest.param("number", "2.0", "3.0", "3.0", marks=pytest.mark.slow),
    pytest.param(
        "pair", "first: np.ndarray\n    second", "second: np.ndarray\n    first", "20.0",
        marks=pytest.mark.slow,
    ),
]  # fmt: skip


@pytest.mark.jit_only
@pytest.mark.parametrize(("file", "before", "after", "expected"), CHANGES)
def test_what_was_kept_does_not_count_once_a_file_that_is_imported_has_changed(
    tmp_path, file, before, after, expected
):
    for name, text in FILES.items():
        (tmp_path / f"{name}.py").write_text(text)
    script = ANNOUNCED.format(folder=str(tmp_path))
    assert run(script) == ["compiling", "2.0", "2.0"]
    (tmp_path / f"{file}.py").write_text(FILES[file].replace(before, after))
    assert run(script) == ["compiling", expected, expected]


@pytest.mark.slow
@pytest.mark.jit_only
def test_what_was_kept_does_not_count_once_a_tuple_that_it_takes_is_gone(tmp_path):
    for name, text in FILES.items():
        (tmp_path / f"{name}.py").write_text(text)
    taken = """
import sys
sys.path.insert(0, {folder!r})
import numpy as np
from fresh import first
from pair import {pair}

print(first({pair}(np.ones(1), np.zeros(1))))
"""
    for pair in ("Pair", "Couple"):
        (tmp_path / "pair.py").write_text(FILES["pair"].replace("Pair", pair))
        (tmp_path / "fresh.py").write_text(FRESH.replace("double(values)", "first(pair)").replace(
            "values * 2", "pair.first[0]"
        ))  # fmt: skip
        assert run(taken.format(folder=str(tmp_path), pair=pair)) == ["1.0"]


COMPILED_ONCE_LARGE = """
import sys
from pathlib import Path
import numba
import numpy as np
sys.path.insert(0, {folder!r})
from fresh import total

kept = lambda: any(Path({folder!r}).rglob("*.code"))
print(total(np.ones(10)), kept(), total(np.ones(100_000)), kept())
"""

FRESH_TOTAL = (
    f"from depgraph.system.compiled import compiled_if_large\n\n{inspect.getsource(total)}"
)


@pytest.mark.jit_only
def test_small_inputs_are_not_worth_compiling_for(tmp_path):
    (tmp_path / "fresh.py").write_text(FRESH_TOTAL)
    script = COMPILED_ONCE_LARGE.format(folder=str(tmp_path))
    assert run(script) == ["10.0 False 100000.0 True"]


ANNOUNCED_ON_THREADS = """
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from depgraph.system.compiled import before_compiling
sys.path.insert(0, {folder!r})
from fresh import double, triple

before_compiling(lambda: print("compiling"))
ready = threading.Barrier(4)

def call(function):
    ready.wait()
    return function(np.ones(1))[0]

with ThreadPoolExecutor(4) as pool:
    print(*pool.map(call, [double, triple, double, triple]))
"""


@pytest.mark.jit_only
def test_compiling_is_announced_once_however_many_threads_compile(tmp_path):
    (tmp_path / "fresh.py").write_text(FRESH)
    script = ANNOUNCED_ON_THREADS.format(folder=str(tmp_path))
    assert run(script) == ["compiling", "2.0 3.0 2.0 3.0"]
    assert run(READ_SLOWLY + script) == ["2.0 3.0 2.0 3.0"]


# What is kept is read so slowly that every thread asks for it before the first knows.
READ_SLOWLY = """
import time
from depgraph.system import machine_code

def read_slowly(kept, types, read=machine_code.CodeCache.load):
    time.sleep(0.5)
    return read(kept, types)

machine_code.CodeCache.load = read_slowly
"""


KEPT_AFTER = """
import sys
from pathlib import Path
import numba
import numpy as np
sys.path.insert(0, {folder!r})
from depgraph.system import compiled
from fresh import total

for seconds in (9e9, -1):
    compiled._SECONDS_BEFORE_COMPILING = seconds
    print(*(total(np.ones(10)) for _ in range(3)), any(Path({folder!r}).rglob("*.code")))
"""


@pytest.mark.jit_only
def test_small_inputs_are_interpreted_until_that_takes_as_long_as_compiling(tmp_path):
    (tmp_path / "fresh.py").write_text(FRESH_TOTAL)
    lines = run(KEPT_AFTER.format(folder=str(tmp_path)))
    assert lines == ["10.0 10.0 10.0 False", "10.0 10.0 10.0 True"]


@pytest.mark.jit_only
def test_hashes_wrap_around_without_a_warning_where_they_are_interpreted():
    lines = run(
        "import warnings; warnings.simplefilter('error')\n"
        "import numpy as np\n"
        "from depgraph.graph.graph_jit import intern_lists\n"
        "number, first = intern_lists(np.array([0, 1, 2, 3]), np.array([5, 6, 5], np.int32),"
        " np.zeros(3, np.int64))\n"
        "print(*number, *first)"
    )
    assert lines == ["0 1 0 0 1"]


LISTS = st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=8)


@given(LISTS)
def test_interpreted_lists_are_those_of_compiled_code(lists):
    offsets = np.cumsum([0, *map(len, lists)])
    values = np.array([value for one in lists for value in one], np.int32)
    label = np.zeros(len(lists), np.int64)
    for function, arguments in (
        (graph_jit.invert_lists, (offsets, values, 10)),
        (graph_jit.intern_lists, (offsets, values, label)),
    ):
        with np.errstate(over="ignore"):
            interpreted = uncompiled(function)(*arguments)
            made = function(*arguments)
        for ours, theirs in zip(interpreted, made, strict=True):
            assert ours.dtype == theirs.dtype
            assert ours.tolist() == theirs.tolist()


@given(st.lists(st.floats(0.1, 9), min_size=1, max_size=12), st.integers(1, 4))
def test_an_interpreted_schedule_is_that_of_compiled_code(times, slots):
    arguments = (
        np.array(times),
        np.array([0, len(times) // 2, len(times)]),
        np.array([slots, 1]),
        np.array([0.5, 4.0]),
        np.array([0.0, 0.25]),
    )
    interpreted = uncompiled(schedule.serial_schedule)(*arguments)
    for ours, theirs in zip(interpreted, schedule.serial_schedule(*arguments), strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.tolist() == theirs.tolist()


def test_compiled_is_a_function_of_arrays():
    @compiled
    def first(values):
        return values[0]

    assert first(np.array([7])) == 7


class Sums(NamedTuple):
    sum: np.ndarray


@compiled_helper
def _twice(value):
    return 2 * value


@compiled_within
def _add_twice(values, value):
    values.sum[0] += _twice(value)
    return values.sum[0]


@compiled_in_place
def _add_all(values, sums):
    for value in values:
        _add_twice(sums, value)


@pytest.mark.jit_only
def test_parts_of_compiled_functions_are_compiled_with_them():
    sums = Sums(np.zeros(1))
    _add_all.code_for((np.array([1.0, 2.0]), sums))(np.array([1.0, 2.0]), sums)
    assert sums.sum[0] == 6
    _add_all._compile((), (np.array([1.0, 2.0]), sums))  # an earlier run may have kept it whole
    assert _twice.dispatcher.signatures  # compiled for itself
    assert not _add_twice.dispatcher.signatures  # only in line


def test_parts_of_compiled_functions_are_interpreted_when_python_calls_them():
    assert _add_twice(Sums(np.ones(1)), 3.0) == 7
    assert _twice(3) == 6
