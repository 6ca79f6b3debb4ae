"""Machine code that an installation brings: what it is made of, and when it does not count."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from checkout import copy_packages

from depgraph.graph.graph_jit import invert_lists
from depgraph.samples import KERNEL_TIMES, sample_path
from depgraph.system import compiled, machine_code
from depgraph.system.ahead_of_time import SIGNATURES, _found, argument_of
from depgraph.system.compiled import CompiledFunction
from depgraph.system.machine_code import MachineCode, types_of

pytestmark = pytest.mark.jit_only


class Bundle(NamedTuple):
    first: np.ndarray
    second: tuple[bool, np.ndarray]


RECORD = np.dtype([("is_on", np.bool_), ("value", np.float64)], align=True)
FROZEN = np.zeros(3, np.int32)
FROZEN.flags.writeable = False
DESCRIBED = [
    ("int", 1), ("float", 1.5), ("bool", True), ("NoneType", None), ("<i4", np.int32(1)),
    (["<f8", 2, "C", True], np.zeros((2, 3))), (["<f8", 2, "F", True], np.zeros((2, 3), order="F")),
    (["<i4", 1, "C", False], FROZEN),
    ([[True, ["is_on", "|b1"], ["value", "<f8"]], 1, "C", True], np.zeros(2, RECORD)),
    ([[False, ["a", "<i8"]], 1, "C", True], np.zeros(1, [("a", "<i8")])),
    (["<u8", 1, "A", True], np.ndarray((4,), np.uint64, bytearray(16), strides=(1,))),
    ({f"{__name__}:Bundle": [["|u1", 1, "C", True], {"": ["bool", ["<f8", 1, "C", True]]}]},
     Bundle(np.zeros(2, np.uint8), (False, np.zeros(1)))),
]  # fmt: skip


@pytest.mark.parametrize(("described", "value"), DESCRIBED, ids=repr)
def test_what_a_function_is_called_with_is_described(described, value):
    assert repr(types_of(argument_of(described))) == repr(types_of(value))


def test_what_is_listed_are_functions_and_what_they_take():
    for name, described in json.loads(SIGNATURES.read_text()):
        function = _found(name)
        assert isinstance(function, CompiledFunction)
        taken = function.py_func.__code__.co_varnames[: function.py_func.__code__.co_argcount]
        assert len(taken) == len([argument_of(item) for item in described]), name


GIVEN = np.array([0, 2]), np.array([1, 0], np.int32), 2


@pytest.fixture(scope="module")
def brought(tmp_path_factory):
    folder = tmp_path_factory.mktemp("package") / machine_code.COMMON
    folder.mkdir()
    invert_lists.ship(folder, GIVEN)
    return folder


@pytest.fixture
def load(brought, monkeypatch):
    """Return a function that loads what was brought, unless it does not count."""
    monkeypatch.setattr(machine_code, "SHIPPED", brought)
    for name in tuple(os.environ):
        if name.startswith("NUMBA_") and name != "NUMBA_CACHE_DIR":
            monkeypatch.delenv(name)
    machine_code.is_common_processor.cache_clear()

    def load(function=invert_lists, given=GIVEN):
        kept = CompiledFunction._shipped.func(function)
        return None if kept is None else kept.load(tuple(map(types_of, given)))

    yield load
    machine_code.is_common_processor.cache_clear()


def test_what_is_brought_computes_the_same(load):
    if not machine_code.is_common_processor():
        pytest.skip(f"this processor is not of {machine_code.COMMON}")
    found = load()
    assert isinstance(found, MachineCode)
    for ours, theirs in zip(found(*GIVEN), invert_lists.py_func(*GIVEN), strict=True):
        assert ours.tolist() == theirs.tolist()


def test_what_is_there_is_not_compiled_again(brought, monkeypatch):
    monkeypatch.setattr(machine_code, "of_numba", None)
    invert_lists.ship(brought, GIVEN)


def test_it_does_not_count_for_other_types(load):
    assert load(given=(*GIVEN[:2], np.int32(2))) is None


def test_it_does_not_count_on_a_processor_that_lacks_something(load, monkeypatch):
    monkeypatch.setattr(machine_code, "_HAS_COMMON", {*machine_code._HAS_COMMON, "avx1024"})
    assert load() is None


def test_it_does_not_count_on_another_machine(load, monkeypatch):
    monkeypatch.setattr(machine_code.platform, "machine", lambda: "aarch64")
    assert load() is None


def test_it_does_not_count_where_numba_is_told_something(load, monkeypatch):
    monkeypatch.setenv("NUMBA_BOUNDSCHECK", "1")
    assert load() is None


def test_it_does_not_count_once_a_source_has_changed_after_its_import(load, monkeypatch):
    (file,) = (file for file in compiled._imported if file.endswith("ranges_jit.py"))
    monkeypatch.setitem(compiled._imported, file, (1, 1))
    assert load() is None


def test_it_does_not_count_for_another_source(load, monkeypatch):
    read = Path.read_bytes
    changed = invert_lists.py_func.__code__.co_filename
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"#" * (str(path) == changed))
    assert load() is None


def test_it_does_not_count_where_numbers_that_it_imports_differ(load, monkeypatch):
    monkeypatch.setattr(sys.modules[invert_lists.__module__], "_A_NUMBER", 3, raising=False)
    compiled._imports.cache_clear()
    assert load() is None
    compiled._imports.cache_clear()


def test_it_does_not_count_where_others_may_write(load, brought):
    brought.chmod(0o777)
    assert load() is None
    brought.chmod(0o755)


@pytest.mark.parametrize("at", [0.01, 0.5, 0.99])
def test_it_does_not_count_if_a_byte_has_changed(load, brought, at):
    (file,) = brought.glob("*.code")
    text = file.read_bytes()
    damaged = bytearray(text)
    damaged[int(at * len(text))] ^= 1
    file.write_bytes(damaged)
    assert load() is None
    file.write_bytes(text)


COMMANDS = (
    "extract {trace} -o it.out -q",
    "bound it.out --sms 80 --mechanism all --format json",
    "bound it.out --timing {times} --mechanism all --format json",
    "show it.out path --format json",
    "export it.out --what schedule --sms 46 --to csv -o schedule.csv",
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_first_run_with_all_that_is_brought_compiles_nothing_and_answers_the_same(
    tmp_path, sample_trace
):
    checkout = copy_packages(tmp_path / "checkout")
    sample_times = sample_path(KERNEL_TIMES)
    plain = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA")}
    plain |= {"PYTHONPATH": str(checkout)}
    python = [sys.executable, "-m"]
    subprocess.run(
        [*python, "depgraph.system.ahead_of_time", checkout], check=True, cwd=checkout, env=plain
    )

    def answers(name, **variables):
        folder = tmp_path / name
        folder.mkdir()
        variables |= plain | {"NUMBA_CACHE_DIR": str(folder / "compiled")}
        printed = [
            subprocess.run(
                [*python, "depgraph", *line.format(trace=sample_trace, times=sample_times).split()],
                check=True, capture_output=True, text=True, cwd=folder, env=variables,
            ).stdout
            for line in COMMANDS
        ]  # fmt: skip
        kept = [file.name for file in folder.rglob("*.code")]
        answered = [text for text in printed if text.startswith("{")]  # no times taken
        return kept, answered, (folder / "schedule.csv").read_text()

    nothing, *brought = answers("brought")
    compiled_here, *ours = answers("compiled", NUMBA_OPT="3")
    assert (nothing, len(compiled_here) > 5) == ([], True)
    assert brought == ours
