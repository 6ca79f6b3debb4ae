"""Collect kernels one by one, as a profiler lists them, into the columns of a profile."""

from __future__ import annotations

from array import array
from collections import Counter
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.errors import ProfileError
from depgraph.parsers.profiles.host_spans import HostSpans
from depgraph.system.limits import LONGEST_TIME, MOST_SMS
from depgraph.timing.profile import UNKNOWN, KernelProfile

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from depgraph.timing.profile import KernelUnit

Dim3 = tuple[int, int, int]

_INTEGERS = (
    "kernel",
    "registers",
    "static_shared_bytes",
    "dynamic_shared_bytes",
    "shared_bytes",
    "device",
    "process",
    "context",
    "stream",
    "correlation",
    "measured_sms",
)
MOST_KERNELS = 1 << 24
MOST_NAME_CHARACTERS = 1 << 28
_LESS = "profile a shorter run, or fewer kernels"
_INT64_LIMIT = 2**63
_INT32_LIMIT = 2**31
_TIME_LIMIT = 2**62  # two such times can be added
_NOWHERE: Dim3 = (UNKNOWN, UNKNOWN, UNKNOWN)
_NO_START = -_INT64_LIMIT


class KernelRows:
    """Growing columns of a `KernelProfile`; a kernel without a usable time is only counted.

    Parameters
    ----------
    path : Path
        The file that they are read from.

    Attributes
    ----------
    skipped : Counter
        What was left out, by reason.
    notes : list of str
        What the user should know.
    device_names : dict
        Name of each device.
    host : HostSpans
        What the host was doing.
    rank : int or None
        Of the process among those that ran together.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._name_characters = 0
        self.skipped: Counter[str] = Counter()
        self.notes: list[str] = []
        self.device_names: dict[int, str] = {}
        self._names: list[str] = []
        self._spellings: dict[str, str] = {}
        self._durations = array("d")
        self._starts = array("q")
        self._grids = array("i")
        self._blocks = array("i")
        self._integers = {column: array("q") for column in _INTEGERS}
        self._memory: KernelRows | None = None
        self._ops = array("q")
        self.host = HostSpans()
        self.rank: int | None = None
        self._calls = {name: array("q") for name in ("process", "correlation", "start")}

    def __len__(self) -> int:
        return len(self._names)

    def add(
        self,
        name: str,
        duration: float | None,
        start: int | None = None,
        *,
        grid: Dim3 | None = None,
        block: Dim3 | None = None,
        op_number: int | None = None,
        **integers: int | None,
    ) -> bool:
        """Add one kernel; return False if it has no usable duration.

        Parameters
        ----------
        name : str
            As the file spells it.
        duration, start : number or None
            In the unit of the profile.
        grid, block : tuple of int, optional
            Left out where a size is not positive.
        op_number : int, optional
            Number of the operator of the host that it belongs to.
        **integers : int or None
            Any integer column of `KernelProfile`.
        """
        if duration is None or not isfinite(duration):
            self.skipped["kernels without a duration"] += 1
            return False
        if duration < 0:
            self.skipped["kernels with a negative duration"] += 1
            return False
        if duration > LONGEST_TIME:
            self.skipped[f"kernels with a duration above {LONGEST_TIME:g}"] += 1
            return False
        if len(self._names) >= MOST_KERNELS:
            raise ProfileError(self._path, f"has more than {MOST_KERNELS} kernels", _LESS)
        self._names.append(self._spelled(name))
        self._durations.append(duration)
        self._starts.append(start if start is not None and abs(start) < _TIME_LIMIT else _NO_START)
        self._grids.extend(_sizes(grid))
        self._blocks.extend(_sizes(block))
        self._ops.append(op_number if op_number is not None and _fits(op_number) else UNKNOWN)
        for column, values in self._integers.items():
            value = integers.get(column)
            values.append(value if value is not None and _fits(value) and value >= 0 else UNKNOWN)
        return True

    def add_memory(self, name: str, duration: float | None, start: int | None, **more: Any) -> None:
        """Add a memset or a copy, as `add` does a kernel."""
        if self._memory is None:
            self._memory = KernelRows(self._path)
        if not self._memory.add(name, duration, start, **more):
            self.skipped["memsets and copies without a usable duration"] += 1

    def add_launch_call(
        self,
        correlation: int | None,
        start: int | None,
        process: int | None = None,
        thread: object = None,
    ) -> None:
        """Note when the host called for a launch.

        Parameters
        ----------
        correlation : int or None
            As of the kernels that it launched.
        start : int or None
            In the unit of the profile.
        process : int or None
            Where correlations are counted for each process apart.
        thread : object
            Names the thread of the host that called.
        """
        if correlation is None or start is None or not abs(start) < _TIME_LIMIT:
            return
        process = UNKNOWN if process is None else process
        if _fits(correlation) and _fits(process):
            for name, value in zip(self._calls, (process, correlation, start), strict=True):
                self._calls[name].append(value)
            self.host.add_call(correlation, start, thread, process)

    def _spelled(self, name: str) -> str:
        """Return one string for all kernels of a name."""
        found = self._spellings.get(name)
        if found is None:
            found = self._spellings[name] = _printable(name)
            self._name_characters += len(name)
            if self._name_characters > MOST_NAME_CHARACTERS:
                most = f"{MOST_NAME_CHARACTERS >> 20} MiB"
                raise ProfileError(self._path, f"has names of kernels of more than {most}", _LESS)
        return found

    def build(
        self,
        format_name: str,
        *,
        unit: KernelUnit = "ns",
        clock_mhz: float | None = None,
        start_origin: int = 0,
        sms_of_device: Mapping[int, int] | None = None,
        hint: str = "",
    ) -> KernelProfile:
        """Put the kernels in launch order.

        They are ordered by kernel number where all have one, else by process and correlation
        id, else by start, else as listed. `start_origin` is added to all starts.

        Raises
        ------
        ProfileError
            If there is no kernel, `hint` then says what to do; or a GPU has impossibly many SMs.
        """
        if not self._names:
            reasons = ", ".join(f"{what}: {count}" for what, count in self.skipped.items())
            found = "no kernel with a time" + (f" ({reasons})" if reasons else "")
            raise ProfileError(self._path, found, hint)
        columns = {name: _column(values) for name, values in self._integers.items()}
        starts = np.array(self._starts, np.int64)
        start = None if np.any(starts == _NO_START) else starts + start_origin % _TIME_LIMIT
        stated = columns["measured_sms"]
        most = max((sms_of_device or {}).values(), default=0)
        if max(most, 0 if stated is None else int(stated.max())) > MOST_SMS:
            found = f"states a GPU of more than {MOST_SMS} SMs"
            raise ProfileError(self._path, found, "correct the file, or profile again")
        if sms_of_device and columns["device"] is not None:
            columns["measured_sms"] = _looked_up(columns["device"], sms_of_device)
        order = self._launch_order(columns, start)
        columns["issued"] = _issued(self._calls, columns, start_origin)
        columns["site"], sites = self.host.sites(
            columns["correlation"], columns["process"], np.array(self._ops, np.int64)
        )
        if self.host.left_out:
            self.notes.append(f"{self.host.left_out} operators and ranges are too many to keep")
        zero = sum(duration == 0 for duration in self._durations)
        if zero:
            self.notes.append(f"kernels with a duration of 0: {zero} of {len(self)} (coarse clock)")
        memory = None
        if self._memory is not None and len(self._memory):
            memory = self._memory.build(format_name, unit=unit, start_origin=start_origin)
        picked: dict[str, Any] = {
            name: None if column is None else column[order] for name, column in columns.items()
        }
        return KernelProfile(
            source=self._path,
            format=format_name,
            unit=unit,
            name=tuple(self._names[row] for row in order),
            duration=np.array(self._durations, np.float64)[order],
            start=None if start is None else start[order],
            grid=_triples(self._grids, order),
            block=_triples(self._blocks, order),
            clock_mhz=clock_mhz,
            memory=memory,
            device_names=dict(self.device_names),
            sites=sites,
            steps=self.host.marked_steps(start_origin % _TIME_LIMIT),
            rank=self.rank,
            notes=tuple(self.notes),
            skipped=dict(self.skipped),
            **picked,
        )

    def _launch_order(
        self, columns: Mapping[str, NDArray[np.int64] | None], start: NDArray[np.int64] | None
    ) -> NDArray[np.intp]:
        kernel, correlation = columns["kernel"], columns["correlation"]
        listed = np.arange(len(self))
        if kernel is not None and not np.any(kernel == UNKNOWN):
            return np.argsort(kernel, kind="stable")
        if correlation is None or np.any(correlation == UNKNOWN):
            if correlation is not None:
                self.notes.append("not all kernels have a correlation id: ordered by start")
            return listed if start is None else np.argsort(start, kind="stable")
        shared = len(self) - _distinct_pairs(columns["process"], correlation)
        if shared:
            self.notes.append(
                "kernels that share a correlation id with another (CUDA graphs), ordered by start "
                f"among themselves: {shared}"
            )
        process = columns["process"]
        if process is None:
            return np.lexsort((listed if start is None else start, correlation))
        first = _first_kernel(process, listed if start is None else start)
        return np.lexsort((listed if start is None else start, correlation, process, first))


def _issued(
    noted: Mapping[str, array[int]],
    columns: Mapping[str, NDArray[np.int64] | None],
    start_origin: int,
) -> NDArray[np.int64] | None:
    """Return when each kernel was called for; None if that is not known of any."""
    correlation, process = columns["correlation"], columns["process"]
    if correlation is None or not len(noted["start"]):
        return None
    calls = {name: np.array(values, np.int64) for name, values in noted.items()}
    if process is None:
        process = np.full(len(correlation), UNKNOWN)
    key = np.stack(
        [
            np.concatenate([calls["process"], process]),
            np.concatenate([calls["correlation"], correlation]),
        ]
    )
    _, member = np.unique(key, axis=1, return_inverse=True)
    member = member.reshape(-1)
    n_calls = len(calls["start"])
    issued = np.full(int(member.max()) + 1, UNKNOWN)
    issued[member[:n_calls]] = calls["start"] + start_origin % _TIME_LIMIT
    found = issued[member[n_calls:]]
    return None if np.all(found == UNKNOWN) else found


def _fits(value: int) -> bool:
    return -_INT64_LIMIT < value < _INT64_LIMIT


def _sizes(sizes: Dim3 | None) -> Dim3:
    if sizes is None or not all(0 < size < _INT32_LIMIT for size in sizes):
        return _NOWHERE
    return sizes


def _printable(name: str) -> str:
    """Replace lone surrogates, which no output can encode."""
    return name if name.isascii() else name.encode("utf-8", "replace").decode("utf-8")


def _column(values: array[int]) -> NDArray[np.int64] | None:
    column = np.array(values, np.int64)
    return None if np.all(column == UNKNOWN) else column


def _looked_up(keys: NDArray[np.int64], values: Mapping[int, int]) -> NDArray[np.int64] | None:
    distinct, member = np.unique(keys, return_inverse=True)
    found = np.array([values.get(int(key), UNKNOWN) for key in distinct], np.int64)[member]
    return None if np.all(found == UNKNOWN) else found


def _triples(values: array[int], order: NDArray[np.intp]) -> NDArray[np.int32] | None:
    column = np.array(values, np.int32).reshape(-1, 3)
    return None if np.all(column == UNKNOWN) else column[order]


def _distinct_pairs(process: NDArray[np.int64] | None, correlation: NDArray[np.int64]) -> int:
    if process is None:
        return len(np.unique(correlation))
    return int(np.unique(np.stack([process, correlation]), axis=1).shape[1])


def _first_kernel(process: NDArray[np.int64], times: NDArray[Any]) -> NDArray[np.int64]:
    """Time of the first kernel of each kernel's process: ids of two processes do not compare."""
    processes, member = np.unique(process, return_inverse=True)
    first = np.full(len(processes), np.iinfo(np.int64).max)
    np.minimum.at(first, member, times)
    return first[member]
