"""The first run after an installation: compile side by side what would be compiled in turn.

Numba compiles a function when it is first called and keeps the result on disk. While a large input
is read, other processes compile what this one will need next. Small inputs are interpreted.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.system.compiled import announce_compiling, compile_always

if TYPE_CHECKING:
    from collections.abc import Callable

    from depgraph.footprint.footprints import Footprints

# With fewer ranges than that, looking for dependences takes less time than compiling.
_LARGE = 10_000


def _dependences() -> None:
    from depgraph.dependence.sweep import sweep
    from depgraph.footprint.ranges_jit import cut_ranges

    toy = _toy_footprints()
    cut_ranges(*toy.columns, np.array([4], np.uint64))
    toy.joined(2)
    sweep(toy, np.array([0, 1], np.int32), 2)


def _graph() -> None:
    from depgraph.dependence.sweep import SetPairs, build_graph

    swept = SetPairs(
        np.array([0, 2], np.int64),
        np.array([[1, 1], [2, 2]], np.uint64),
        (np.array([0, 1, 2], np.int64), np.array([0, 1], np.int32)),
        np.array([1 << 2], np.uint64),
        np.zeros(2, np.int64),
        np.zeros(2, np.uint8),
    )
    build_graph([swept], np.array([0, 1, 2], np.int64), np.array([0, 1], np.int32)).pairs()


def _toy_footprints() -> Footprints:
    from depgraph.footprint.footprints import Footprints

    return Footprints(
        np.array([0, 1], np.int32),
        np.array([1, 0], np.uint8),
        np.array([0, 0], np.uint64),
        np.array([8, 8], np.uint64),
    )


def _jobs() -> dict[str, tuple[Any, Callable[[], None]]]:
    from depgraph.dependence.sweep_jit import find_changes
    from depgraph.graph.edges_jit import describe_pair

    return {"dependences": (find_changes, _dependences), "graph": (describe_pair, _graph)}


class CompileAhead:
    """Compiles in other processes what an extraction needs, where no earlier run has."""

    def __init__(self) -> None:
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._is_decided = False

    def start_if_large(self, n_ranges: int) -> None:
        """Begin, unless there is nothing to do or too little, by the ranges read so far."""
        if self._is_decided or n_ranges < _LARGE:
            return
        self._is_decided = True
        for name, (function, _) in _jobs().items():
            if getattr(function, "can_be_kept", False) and not function.is_kept:
                announce_compiling()
                self._running[name] = _start(name)

    def wait(self, name: str) -> None:
        """Wait until the functions of a phase are compiled."""
        if name in self._running:
            self._running.pop(name).wait()

    def stop(self) -> None:
        """Give up: what is not compiled by now will be when it is called."""
        for process in self._running.values():
            process.kill()
            process.wait()
        self._running = {}


def _start(name: str) -> subprocess.Popen[bytes]:
    path = [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    # -P: nothing from the user's folder.
    return subprocess.Popen(  # noqa: S603 - this interpreter, and a name from this module
        [sys.executable, "-P", "-m", "depgraph.extraction.compile_ahead", name],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


if __name__ == "__main__":
    gc.disable()  # saves a sixth
    compile_always()
    _jobs()[sys.argv[1]][1]()
