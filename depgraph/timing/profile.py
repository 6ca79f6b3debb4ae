"""Measured times as plain data: what a profiler said about kernels, or about thread blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import ProfileError

Integers = NDArray[np.int64]

UNKNOWN = -1
"""Stands in an integer column for a value that the file does not give."""

KernelUnit = Literal["ns", "cycles"]
BlockUnit = Literal["us", "cycles"]


class Site(NamedTuple):
    """Where in the code a kernel was launched; empty where the profile does not say."""

    op: str = ""  # the innermost operator, such as "aten::addmm"
    module: str = ""  # from the outermost to the innermost, such as "Block_0/Linear_3"
    line: str = ""  # the innermost of the program itself, such as "model.py(12): forward"
    range: str = ""  # annotations and NVTX ranges, the outermost first, such as "step/loss"


NOWHERE = Site()
SITE_COLUMNS = Site._fields


class Step(NamedTuple):
    """A step of a training loop, as the host named it; `process` is -1 where it is not known."""

    name: str
    start: int
    end: int
    process: int


class Where(NamedTuple):
    """Which kernels of a profile count; None for all.

    Attributes
    ----------
    iteration : str
        Of several iterations the "median" of each kernel, its "mean" or "min", the "last", or that
        of a number from 0.
    """

    device: int | None = None
    process: int | None = None
    context: int | None = None
    stream: int | None = None
    iteration: str = "median"


@dataclass(frozen=True, slots=True, eq=False)
class KernelProfile:
    """The times of n kernels, one row per launch, in launch order.

    A column is None where the file says nothing about it for any kernel; where it does for
    some, the other rows hold `UNKNOWN`.
    """

    source: Path
    format: str  # such as "kineto" or "nsys-sqlite"
    unit: KernelUnit  # of durations and starts; cycles are those of a simulated core clock
    name: tuple[str, ...]  # as the file spells it; "" where it gives none
    duration: NDArray[np.float64]  # never negative, always finite
    start: Integers | None = None  # from an origin of the file's choice
    kernel: Integers | None = None  # launch number from 0, ascending; gaps have no time
    grid: NDArray[np.int32] | None = None  # [n, 3], blocks: x, y, z
    block: NDArray[np.int32] | None = None  # [n, 3], threads: x, y, z
    registers: Integers | None = None  # of a thread
    static_shared_bytes: Integers | None = None  # of a block, where a file tells the two apart
    dynamic_shared_bytes: Integers | None = None
    shared_bytes: Integers | None = None  # of a block, static and dynamic together
    device: Integers | None = None  # as the file numbers them, and so the next three
    process: Integers | None = None
    context: Integers | None = None
    stream: Integers | None = None  # unique within a context only
    correlation: Integers | None = None  # of the launch call; all kernels of a CUDA graph share it
    issued: Integers | None = None  # when the host called for it, on the clock of `start`
    measured_sms: Integers | None = None  # of the GPU, or part of it, that it was measured on
    alu_utilization: Integers | None = None  # how busy arithmetic was, in hundredths of a percent
    alu_counter: str = ""  # what says so, as the file calls it
    block_spans: NDArray[np.object_] | None = None  # `BlockSpans` of each launch that has them
    site: Integers | None = None  # where in the code it was launched, as an index into `sites`
    sites: tuple[Site, ...] = ()
    clock_mhz: float | None = None  # of the core, which turns cycles into time
    launch_latency: float = 0.0  # part of every duration that is the launch; in `unit`
    device_names: Mapping[int, str] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()  # that the host marked, on the clock of `start`
    rank: int | None = None  # of this process among those that ran together
    store: str | None = None  # id of the store they were taken for, "" for none; None if not said
    memory: KernelProfile | None = None  # memsets and copies of the same run
    notes: tuple[str, ...] = ()  # what the user should know, one sentence each
    skipped: Mapping[str, int] = field(default_factory=dict)  # kernels and rows left out, by reason

    def __len__(self) -> int:
        return len(self.duration)

    @property
    def is_eager(self) -> bool:
        """Whether most kernels are known to have been launched one by one, not as a graph's nodes.

        All nodes of a CUDA graph share the call that launched it.
        """
        calls = self.filled("correlation")
        _, counts = np.unique(calls[calls != UNKNOWN], return_counts=True)
        return bool((counts == 1).sum() * 2 > len(self))

    def filled(self, name: str) -> Integers:
        """Return a column of whole numbers; `UNKNOWN` throughout where the file does not say."""
        column: Integers | None = getattr(self, name)
        return np.full(len(self), UNKNOWN) if column is None else column

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices that kernels ran on, increasing; empty where the file does not say."""
        return _distinct(self.device)

    @property
    def processes(self) -> tuple[int, ...]:
        """The processes that launched kernels, increasing; empty where the file does not say."""
        return _distinct(self.process)

    @property
    def contexts(self) -> tuple[int, ...]:
        """The contexts that kernels ran in, increasing; empty where the file does not say."""
        return _distinct(self.context)

    @property
    def streams(self) -> tuple[int, ...]:
        """The streams that kernels ran on, increasing; empty where the file does not say."""
        return _distinct(self.stream)

    @property
    def block_shared_bytes(self) -> Integers | None:
        """Static and dynamic shared memory of a block, as far as the file tells: int64[n]."""
        if self.shared_bytes is not None:
            return self.shared_bytes
        static, dynamic = self.static_shared_bytes, self.dynamic_shared_bytes
        if static is None or dynamic is None:
            return static if dynamic is None else dynamic
        return np.where((static >= 0) & (dynamic >= 0), static + dynamic, UNKNOWN)

    def take(self, rows: NDArray[np.bool_ | np.integer[Any]]) -> KernelProfile:
        """Return the kernels that a mask or an array of indices picks, in that order."""
        picked: dict[str, Any] = {
            column.name: value[rows]
            for column in fields(self)
            if isinstance(value := getattr(self, column.name), np.ndarray)
        }
        picked["name"] = tuple(self.name[row] for row in np.arange(len(self))[rows])
        return replace(self, **picked)

    def only(
        self,
        *,
        device: int | None = None,
        process: int | None = None,
        context: int | None = None,
        stream: int | None = None,
    ) -> KernelProfile:
        """Return the kernels of one device, process, context or stream, or of several of them.

        Memsets and copies that the file says ran elsewhere go too.

        Raises
        ------
        ProfileError
            If the file does not say where its kernels ran, or if none ran there.
        """
        places = {"device": device, "process": process, "context": context, "stream": stream}
        wanted = {what: number for what, number in places.items() if number is not None}
        for what, number in wanted.items():
            column: Integers | None = getattr(self, what)
            if column is None:
                found = f"does not say on which {what} a kernel ran"
                raise ProfileError(self.source, found, f"leave out {what}")
            if not np.any(column == number):
                there = ", ".join(map(str, _distinct(column)))
                raise ProfileError(self.source, f"has no kernel of {what} {number}", f"has {there}")
        found_there = _ran_there(self, wanted)
        if not len(found_there):
            asked = ", ".join(f"{what} {number}" for what, number in wanted.items())
            raise ProfileError(self.source, f"has no kernel of {asked} at once")
        memory = None if self.memory is None else _ran_there(self.memory, wanted)
        return replace(found_there, memory=memory)


def _ran_there(profile: KernelProfile, wanted: Mapping[str, int]) -> KernelProfile:
    """Return the rows that ran in a place, as far as the file says."""
    keep = np.ones(len(profile), np.bool_)
    for what, number in wanted.items():
        column = getattr(profile, what)
        if column is not None:
            keep &= column == number
    return profile.take(keep)


@dataclass(frozen=True, slots=True, eq=False)
class BlockProfile:
    """The times of n thread blocks, one row per block, ordered by kernel and block."""

    source: Path
    format: str  # such as "blocks-csv" or "simlog"
    unit: BlockUnit  # of durations and starts; cycles are those of a simulated core clock
    kernel: Integers  # launch number from 0
    block: Integers  # within the kernel: x + gx*(y + gy*z); a pair (kernel, block) occurs once
    duration: NDArray[np.float64]  # never negative, always finite
    start: NDArray[np.float64] | None = None  # from an origin of the file's choice
    measured_sms: int | None = None  # of the GPU that was measured or simulated
    clock_mhz: float | None = None  # of the core, which turns cycles into time
    kernels: KernelProfile | None = None  # their names, grids and times, where the file has them
    notes: tuple[str, ...] = ()  # what the user should know, one sentence each
    skipped: Mapping[str, int] = field(default_factory=dict)  # what was left out, by reason

    def __len__(self) -> int:
        return len(self.duration)


def _distinct(column: Integers | None) -> tuple[int, ...]:
    if column is None:
        return ()
    return tuple(value for value in sorted(set(column.tolist())) if value != UNKNOWN)
