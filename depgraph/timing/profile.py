"""Measured times as plain data: what a profiler said about kernels, or about thread blocks."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from depgraph.errors import ProfileError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from depgraph.timing.launch_sites import Site

UNKNOWN = -1
"""Stands in an integer column for a value that the file does not give."""

KernelUnit = Literal["ns", "cycles"]
BlockUnit = Literal["us", "cycles"]


class Step(NamedTuple):
    """A step of a training loop, as the host named it; `process` is -1 where it is not known."""

    name: str
    start: int
    end: int
    process: int


@dataclass(frozen=True, slots=True)
class Where:
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

    Attributes
    ----------
    source : Path
        The file that was read.
    format : str
        Its format, such as ``kineto`` or ``nsys-sqlite``.
    unit : {"ns", "cycles"}
        Unit of `duration` and `start`: nanoseconds, or core clock cycles of a simulator.
    name : tuple of str
        Function names as the file spells them; empty where it gives none.
    duration : float64[n]
        In `unit`, never negative, always finite.
    start : int64[n] or None
        In `unit`, from an origin of the file's choice.
    kernel : int64[n] or None
        Launch number from 0, where the file states it; increasing, gaps are kernels without
        a time. None means that the rows are simply in launch order.
    grid, block : int32[n, 3] or None
        Blocks in the grid, threads in a block: x, y, z.
    registers : int64[n] or None
        Per thread.
    static_shared_bytes, dynamic_shared_bytes : int64[n] or None
        Shared memory of a block, in bytes, where the file tells the two apart.
    shared_bytes : int64[n] or None
        Static and dynamic shared memory of a block together, in bytes.
    device, process, context, stream : int64[n] or None
        As the file numbers them. A stream number is unique within a context only.
    correlation : int64[n] or None
        Ties a kernel to the call that launched it; kernels of one CUDA graph launch share it.
    issued : int64[n] or None
        When the host called for the launch, on the clock of `start`.
    measured_sms : int64[n] or None
        SMs of the GPU (or part of it) that the kernel was measured on.
    site : int64[n] or None
        Where in the code a kernel was launched, as an index into `sites`.
    clock_mhz : float or None
        Core clock in MHz, which turns cycles into time, where the file states it.
    launch_latency : float
        Part of every duration that is the launch, not the kernel; in `unit`.
    device_names : mapping of int to str
        Name of each device, where the file gives it.
    steps : tuple of Step
        Steps that the host marked, on the clock of `start`.
    rank : int or None
        Of this process among those that ran together, where the file states it.
    memory : KernelProfile or None
        Memsets and copies of the same run, in the same columns; None where the file has none.
    notes : tuple of str
        What the user should know about these numbers, one sentence each.
    skipped : mapping of str to int
        How many kernels, rows or events were left out, by reason.
    """

    source: Path
    format: str
    unit: KernelUnit
    name: tuple[str, ...]
    duration: NDArray[np.float64]
    start: NDArray[np.int64] | None = None
    kernel: NDArray[np.int64] | None = None
    grid: NDArray[np.int32] | None = None
    block: NDArray[np.int32] | None = None
    registers: NDArray[np.int64] | None = None
    static_shared_bytes: NDArray[np.int64] | None = None
    dynamic_shared_bytes: NDArray[np.int64] | None = None
    shared_bytes: NDArray[np.int64] | None = None
    device: NDArray[np.int64] | None = None
    process: NDArray[np.int64] | None = None
    context: NDArray[np.int64] | None = None
    stream: NDArray[np.int64] | None = None
    correlation: NDArray[np.int64] | None = None
    issued: NDArray[np.int64] | None = None
    measured_sms: NDArray[np.int64] | None = None
    site: NDArray[np.int64] | None = None
    sites: tuple[Site, ...] = ()
    clock_mhz: float | None = None
    launch_latency: float = 0.0
    device_names: Mapping[int, str] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    rank: int | None = None
    memory: KernelProfile | None = None
    notes: tuple[str, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.duration)

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
    def block_shared_bytes(self) -> NDArray[np.int64] | None:
        """Static and dynamic shared memory of a block, as far as the file tells: int64[n]."""
        if self.shared_bytes is not None:
            return self.shared_bytes
        static, dynamic = self.static_shared_bytes, self.dynamic_shared_bytes
        if static is None or dynamic is None:
            return static if dynamic is None else dynamic
        return np.where((static >= 0) & (dynamic >= 0), static + dynamic, UNKNOWN)

    def take(self, rows: NDArray[np.bool_] | NDArray[np.integer[Any]]) -> KernelProfile:
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
        wanted = {"device": device, "process": process, "context": context, "stream": stream}
        for what, number in wanted.items():
            if number is None:
                continue
            column: NDArray[np.int64] | None = getattr(self, what)
            if column is None:
                raise ProfileError(
                    self.source, f"does not say on which {what} a kernel ran", f"leave out {what}"
                )
            if not np.any(column == number):
                there = ", ".join(map(str, _distinct(column)))
                raise ProfileError(self.source, f"has no kernel of {what} {number}", f"has {there}")
        keep = _is_there(self, wanted)
        if not keep.any():
            asked = ", ".join(f"{what} {n}" for what, n in wanted.items() if n is not None)
            raise ProfileError(self.source, f"has no kernel of {asked} at once")
        found = self.take(keep)
        if self.memory is None:
            return found
        return replace(found, memory=self.memory.take(_is_there(self.memory, wanted)))


def _is_there(profile: KernelProfile, wanted: Mapping[str, int | None]) -> NDArray[np.bool_]:
    """Tell which rows ran in a place, as far as the file says."""
    keep = np.ones(len(profile), np.bool_)
    for what, number in wanted.items():
        column = getattr(profile, what)
        if number is not None and column is not None:
            keep &= column == number
    return keep


@dataclass(frozen=True, slots=True, eq=False)
class BlockProfile:
    """The times of n thread blocks, one row per block, ordered by kernel and block.

    Attributes
    ----------
    source : Path
        The file that was read.
    format : str
        Its format, such as ``blocks-csv`` or ``simlog``.
    unit : {"us", "cycles"}
        Unit of `duration` and `start`: microseconds, or core clock cycles of a simulator.
    kernel : int64[n]
        Launch number from 0.
    block : int64[n]
        Block within the kernel: ``x + gx*(y + gy*z)``. A pair (kernel, block) occurs once.
    duration : float64[n]
        In `unit`, never negative, always finite.
    start : float64[n] or None
        In `unit`, from an origin of the file's choice.
    measured_sms : int or None
        SMs of the GPU that was measured or simulated.
    clock_mhz : float or None
        Core clock in MHz, which turns cycles into time, where the file states it.
    kernels : KernelProfile or None
        Names, grids and times of the kernels, where the file gives them as well.
    notes : tuple of str
        What the user should know about these numbers, one sentence each.
    skipped : mapping of str to int
        How many blocks, rows or kernels were left out, by reason.
    """

    source: Path
    format: str
    unit: BlockUnit
    kernel: NDArray[np.int64]
    block: NDArray[np.int64]
    duration: NDArray[np.float64]
    start: NDArray[np.float64] | None = None
    measured_sms: int | None = None
    clock_mhz: float | None = None
    kernels: KernelProfile | None = None
    notes: tuple[str, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.duration)


def _distinct(column: NDArray[np.int64] | None) -> tuple[int, ...]:
    if column is None:
        return ()
    return tuple(int(value) for value in np.unique(column) if value != UNKNOWN)
