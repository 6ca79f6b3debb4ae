"""The first run after an installation: compile side by side what would be compiled in turn.

Numba compiles a function when it is first called and keeps the result on disk. Until then, other
processes compile what this one will need next, while it reads its input.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.jobs import available_jobs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from depgraph.footprint import Footprints


def _dependences() -> None:
    from depgraph.dependence import sweep

    sweep(_toy_footprints(), np.array([0, 1], np.int32), 2)


def _graph() -> None:
    from depgraph.dependence import SetPairs, build_graph
    from depgraph.jit.ranges import cut_ranges

    toy = _toy_footprints()
    cut_ranges(toy.block, toy.kind, toy.start, toy.end, np.array([4], np.uint64))
    swept = SetPairs(
        np.array([0, 1], np.int32),
        np.zeros(2, np.bool_),
        np.array([0, 1, 2], np.int64),
        np.array([0, 1], np.int32),
        np.array([[1, 1], [2, 2]], np.uint64),
        np.array([1 << 2], np.uint64),
        np.zeros(2, np.int64),
        np.zeros(2, np.uint8),
    )
    build_graph([swept], np.array([0, 1, 2], np.int64), np.array([0, 1], np.int32)).pairs()


def _toy_footprints() -> Footprints:
    from depgraph.footprint import Footprints, concatenate_footprints

    toy = Footprints(
        np.array([0, 1], np.int32),
        np.array([1, 0], np.uint8),
        np.array([0, 0], np.uint64),
        np.array([8, 8], np.uint64),
    )
    return concatenate_footprints([toy], 2)


def _jobs() -> dict[str, tuple[Any, Callable[[], None]]]:
    from depgraph.jit.graph import describe_pair
    from depgraph.jit.sweep import sweep_addresses

    return {"dependences": (sweep_addresses, _dependences), "graph": (describe_pair, _graph)}


class CompileAhead:
    """Compiles in other processes what an extraction needs, where no earlier run has.

    Attributes
    ----------
    needed : bool
        Whether anything had to be compiled.
    """

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[bytes]] = []
        self.needed = False
        missing = [
            name
            for name, (function, _) in _jobs().items()
            if not getattr(function, "is_kept", True)
        ]
        self.needed = bool(missing)
        helpers = max(1, min(len(missing), available_jobs() - 1))
        for i in range(helpers if missing else 0):
            self._running.append(_start(missing[i::helpers]))

    def wait(self) -> None:
        """Wait until all is compiled."""
        for process in self._running:
            process.wait()
        self._running = []

    def stop(self) -> None:
        """Give up: what is not compiled by now will be when it is called."""
        for process in self._running:
            process.kill()
            process.wait()
        self._running = []


def _start(names: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - this interpreter, and names from this module
        [sys.executable, "-m", "depgraph.warm", *names],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


if __name__ == "__main__":
    for _name in sys.argv[1:]:
        _jobs()[_name][1]()
