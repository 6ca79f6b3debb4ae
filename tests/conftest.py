"""What every test may ask for: real traces, and markers that skip what cannot run here."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import hypothesis
import numba
import pytest
from compiling import compile_in_turn
from stores import write_times

import depgraph
from depgraph import parsers
from depgraph.cli import main
from depgraph.cli.progress import FIRST_RUN
from depgraph.samples import RECORDING, sample_path
from depgraph.system.compiled import compile_always

compile_always()  # what the tests call little is to be compiled as well
compile_in_turn()
if "PYTEST_XDIST_WORKER" in os.environ:
    gc.disable()  # until all tests are collected: their trees of syntax are no garbage yet
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each process that a test starts would parse all

ROOT = Path(__file__).resolve().parents[1]
SHARED_DATA = ROOT.parent / "shared" / "data"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Compilation is slow once, and without it, or on a busy machine, everything is: no example has a
# deadline, and none is drawn too slowly.
for name, compiled, interpreted in (("default", 20, 10), ("ci", 30, 10), ("thorough", 2000, 100)):
    hypothesis.settings.register_profile(
        name,
        deadline=None,
        max_examples=interpreted if numba.config.DISABLE_JIT else compiled,
        derandomize=name == "ci",
        print_blob=True,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default")
)


def pytest_addoption(parser):
    parser.addoption(
        "--seeds", type=int, metavar="N", help="hundreds of cases in tests/faults, and not a few"
    )
    parser.addoption(
        "--first-seed", type=int, default=0, metavar="N", help="hundreds of cases to leave out"
    )


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(items):
    no_shared_data = pytest.mark.skip(reason=f"no folder {SHARED_DATA}")
    not_compiled = pytest.mark.skip(reason="not with NUMBA_DISABLE_JIT=1")
    for item in items:
        if "shared_data" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.shared)
        if item.get_closest_marker("shared") and not SHARED_DATA.is_dir():
            item.add_marker(no_shared_data)
        if "sample_trace" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.jit_only)  # reads all of that text
        if item.get_closest_marker("jit_only") and numba.config.DISABLE_JIT:
            item.add_marker(not_compiled)


@hypothesis.settings(max_examples=1, database=None)
@hypothesis.given(hypothesis.strategies.none())
def _make_one_example(_):
    """Have hypothesis register its source of chance, which it asks the collector about."""


def pytest_collection_finish():
    """Keep the collector of garbage from what was imported: a tenth of the time of all tests.

    Not beside PyTorch, whose functions are guarded by what the collector says refers to them.
    """
    if "torch" not in sys.modules:
        _make_one_example()
        gc.collect()
        gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def shared_data():
    """Return the folder of real traces beside the checkout."""
    return SHARED_DATA


@pytest.fixture(scope="session")
def sample_trace():
    """Return the packaged NVBit trace: 25 kernels, 189 thread blocks, 41 MB of text."""
    return sample_path()


@pytest.fixture(scope="session")
def sample_store(tmp_path_factory):
    """Return the store of the packaged trace, always made by compiled code; tests only read it."""
    path = tmp_path_factory.mktemp("sample") / "sample.out"
    if numba.config.DISABLE_JIT:
        command = [sys.executable, "-m", "depgraph", "extract", sample_path(), "-o", path, "-q"]
        # Nothing is said to numba, or what it has kept for those who say nothing would not count.
        others = {k: v for k, v in os.environ.items() if k != "NUMBA_DISABLE_JIT"}
        subprocess.run(command, check=True, env=others | {"PYTHONPATH": str(ROOT)})
        return depgraph.Store(path)
    return depgraph.extract(parsers.open_trace(sample_path()), path)


@pytest.fixture(scope="session")
def recorded_store(tmp_path_factory):
    """Return the folder of the packaged recording's store; tests only read it."""
    path = tmp_path_factory.mktemp("recorded") / "it.out"
    depgraph.extract(parsers.open_trace(sample_path(RECORDING)), path)
    return path


@pytest.fixture
def timed_store(recorded_store, tmp_path):
    """Return a store of the packaged recording with its times beside it."""
    store = depgraph.Store(shutil.copytree(recorded_store, tmp_path / "it.out"))
    write_times(store, store.identity)
    return store


@pytest.fixture(autouse=True)
def _process_as_before():
    """Undo what running the program in this process does to signals and where imports look."""
    path = sys.path[:]
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    handlers = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)
    sys.path[:] = path


class Outcome(NamedTuple):
    """How a run of the program ended, and what it said."""

    code: int
    out: str
    err: str


@pytest.fixture
def program(capsys, tmp_path, monkeypatch):
    """Return a function that runs the program in an empty folder and returns an `Outcome`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DEPGRAPH_STORE", raising=False)
    log = logging.getLogger("depgraph")
    log_handlers, log_level = log.handlers[:], log.level

    def run(*words):
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        return Outcome(end.value.code or 0, out, err.replace(f"{FIRST_RUN}\n", ""))

    yield run
    log.handlers[:] = log_handlers
    log.setLevel(log_level)


@pytest.fixture
def undrawn(monkeypatch):
    """Leave the pictures of a report empty: drawing them is most of its time."""

    def save(plot, folder, *, png):
        for form in ("svg", "png")[: 1 + png]:
            (folder / f"{plot.name}.{form}").write_bytes(b"")

    monkeypatch.setattr("depgraph.reports.plots.save", save)
