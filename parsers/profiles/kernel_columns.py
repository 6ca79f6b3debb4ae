"""The columns of a profile, filled by all readers of profiles, and typed and checked here alone."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import ProfileError
from depgraph.parsers.profiles.host_spans import Call, HostSpans, Names
from depgraph.system.text import LONGEST_TIME, MOST_SMS
from depgraph.timing.profile import UNKNOWN, KernelProfile, KernelUnit

Integers = NDArray[np.int64]
Columns = Mapping[str, NDArray[Any]]

_INTEGERS = (
    "kernel", "registers", "static_shared_bytes", "dynamic_shared_bytes", "shared_bytes", "device",
    "process", "context", "stream", "correlation", "measured_sms", "alu_utilization",
)  # fmt: skip
MOST_KERNELS = 1 << 24
MOST_NAME_CHARACTERS = 1 << 28
_LESS = "profile a shorter run, or fewer kernels"
_ROWS_AT_ONCE = 1 << 12
_UNUSABLE_MEMORY = "memsets and copies without a usable duration"
_INT64_LIMIT = 2**63
_INT32_LIMIT = 2**31
_TIME_LIMIT = 2**62  # two such times can be added
_NOWHERE = (UNKNOWN, UNKNOWN, UNKNOWN)
_NO_START = -_INT64_LIMIT
_UNUSABLE = (
    "kernels without a duration",
    "kernels with a negative duration",
    f"kernels with a duration above {LONGEST_TIME:g}",
)


def _integers(
    values: Sequence[int | None],
    least: int = 0,
    most: int = _INT64_LIMIT - 1,
    otherwise: int = UNKNOWN,
) -> Integers:
    """Return values within limits as an array; one of `otherwise` stands for the rest."""
    fitting = [v if v is not None and least <= v <= most else otherwise for v in values]
    return np.array(fitting, np.int64)


def _sizes(values: Sequence[Sequence[Any] | None]) -> NDArray[np.int32]:
    known = [
        _NOWHERE if v is None or None in v or min(v) <= 0 or max(v) >= _INT32_LIMIT else v
        for v in values
    ]
    return np.array(known, np.int32).reshape(-1, 3)


def _objects(values: Sequence[object]) -> NDArray[np.object_]:
    found = np.empty(len(values), np.object_)
    found[:] = [UNKNOWN if value is None else value for value in values]
    return found


def _shared(columns: Columns) -> Integers:
    """Return the shared memory of a block: as the file states it, or both parts of it together."""
    static, dynamic = columns["static_shared_bytes"], columns["dynamic_shared_bytes"]
    both = np.where((static >= 0) & (dynamic >= 0), static + dynamic, UNKNOWN)
    both = np.maximum(both, UNKNOWN)  # below it where the sum is too large
    return np.where(columns["shared_bytes"] >= 0, columns["shared_bytes"], both)


_READ: dict[str, Callable[[Sequence[Any]], NDArray[Any]]] = {
    "start": partial(_integers, least=-_TIME_LIMIT + 1, most=_TIME_LIMIT - 1, otherwise=_NO_START),
    "op_number": partial(_integers, least=-_INT64_LIMIT + 1),
    "grid": _sizes,
    "block": _sizes,
    "block_spans": _objects,
    **dict.fromkeys(_INTEGERS, _integers),
}


class KernelColumns:
    """Columns of a `KernelProfile` as they grow; kernels without a usable time are counted."""

    def __init__(self, path: Path) -> None:
        self.skipped: Counter[str] = Counter()
        self.notes: list[str] = []
        self.device_names: dict[int, str] = {}
        self.host = HostSpans()
        self.rank: int | None = None  # of the process among those that ran together
        self._path = path
        self._memory: KernelColumns | None = None
        self._rows: list[dict[str, Any]] = []
        self._names: list[str] = []
        self._spellings = Names()
        self._parts: list[dict[str, NDArray[Any]]] = []
        self._called: dict[Call, int] = {}  # when

    def __len__(self) -> int:
        self._flush()
        return len(self._names)

    def add(self, name: str, duration: float | None, start: int | None = None, **row: Any) -> None:
        """Add a kernel; `row` has cells of `extend`."""
        spelled = self._spelled(name)
        self._rows.append({"name": spelled, "duration": duration, "start": start, **row})
        if len(self._rows) >= _ROWS_AT_ONCE:
            self._flush()

    @property
    def memory(self) -> "KernelColumns":
        """The columns of memsets and copies."""
        if self._memory is None:
            self._memory = KernelColumns(self._path)
        return self._memory

    def add_call(
        self, correlation: int | None, start: int | None, thread: object, process: int | None = None
    ) -> None:
        """Note when a thread of the host called for a launch; its kernels have the correlation."""
        process = UNKNOWN if process is None else process
        if correlation is None or start is None or not abs(start) < _TIME_LIMIT:
            return
        if 0 <= correlation < _INT64_LIMIT and abs(process) < _INT64_LIMIT:
            call = process, correlation
            self._called[call] = start
            self.host.add_call(call, start, thread)

    def _spelled(self, name: str) -> str:
        found = self._spellings.kept(name)
        if self._spellings.characters > MOST_NAME_CHARACTERS:
            most = f"{MOST_NAME_CHARACTERS >> 20} MiB"
            raise ProfileError(self._path, f"has names of kernels of more than {most}", _LESS)
        return found

    def _flush(self) -> None:
        if self._rows:
            rows, self._rows = self._rows, []
            given = ("name", "duration", *_READ)
            self.extend(**{column: [row.get(column) for row in rows] for column in given})

    def extend(self, **columns: Sequence[Any] | None) -> None:
        """Add kernels by columns of `KernelProfile`; what cannot be is unknown, but for names."""
        names, nothing = columns["name"] or (), [None] * len(columns["name"] or ())
        times = np.array(columns["duration"], np.float64)  # NaN for None
        reasons = np.select([~np.isfinite(times), times < 0, times > LONGEST_TIME], [0, 1, 2], -1)
        for number, text in enumerate(_UNUSABLE):
            if count := int((reasons == number).sum()):
                self.skipped[text] += count
        usable = np.flatnonzero(reasons < 0)
        if len(self._names) + len(usable) > MOST_KERNELS:
            raise ProfileError(self._path, f"has more than {MOST_KERNELS} kernels", _LESS)
        self._names += [self._spelled(names[row]) for row in usable.tolist()]
        part = {c: read(columns.get(c) or nothing)[usable] for c, read in _READ.items()}
        self._parts.append({"duration": times[usable], **part})

    def profile(
        self,
        format_name: str,
        *,
        unit: KernelUnit = "ns",
        start_origin: int = 0,
        sms_of_device: Mapping[int, int] | None = None,
        hint: str = "",
        **more: Any,
    ) -> KernelProfile:
        """Put the kernels in launch order; `hint` says what to do where there is none."""
        memory = self._memory
        if memory is not None:
            memory._flush()  # noqa: SLF001 - it is one of these
            self.skipped[_UNUSABLE_MEMORY] += sum(memory.skipped[reason] for reason in _UNUSABLE)
            self.skipped = +self.skipped
        if not len(self):
            reasons = ", ".join(f"{what}: {count}" for what, count in sorted(self.skipped.items()))
            found = "no kernel with a time" + (f" ({reasons})" if reasons else "")
            raise ProfileError(self._path, found, hint)
        origin = start_origin % _TIME_LIMIT
        parts = self._parts
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        start = columns.pop("start")
        columns["measured_sms"] = self._sms(columns, sms_of_device or {})
        columns["shared_bytes"] = _shared(columns)
        calls = list(zip(columns["process"].tolist(), columns["correlation"].tolist(), strict=True))
        issued = (self._called.get(call, UNKNOWN - origin) + origin for call in calls)
        columns["issued"] = np.array([*issued], np.int64)
        columns["site"], sites = self.host.sites(calls, columns.pop("op_number"))
        known: dict[str, Any] = {
            name: None if np.all(column == UNKNOWN) else column for name, column in columns.items()
        }
        known["start"] = None if np.any(start == _NO_START) else start + origin
        order = self._launch_order(columns, known["start"])
        if self.host.left_out:
            self.notes.append(f"{self.host.left_out} operators and ranges are too many to keep")
        if zero := int((columns["duration"] == 0).sum()):
            self.notes.append(f"kernels with a duration of 0: {zero} of {len(self)} (coarse clock)")
        listed = KernelProfile(
            source=self._path,
            format=format_name,
            unit=unit,
            name=tuple(self._names),
            sites=sites,
            steps=self.host.marked_steps(origin),
            rank=self.rank,
            device_names=dict(self.device_names),
            memory=memory.profile(format_name, unit=unit, start_origin=origin) if memory else None,
            notes=tuple(self.notes),
            skipped=dict(self.skipped),
            **known,
            **more,
        )
        return listed.take(order)

    def _sms(self, columns: Columns, of_device: Mapping[int, int]) -> Integers:
        """Return the SMs that each kernel was measured on; refuse impossibly large GPUs."""
        stated: Integers = columns["measured_sms"]
        if max(of_device.values(), default=0) > MOST_SMS or stated.max() > MOST_SMS:
            found = f"states a GPU of more than {MOST_SMS} SMs"
            raise ProfileError(self._path, found, "correct the file, or profile again")
        if not of_device:
            return stated
        return np.array([of_device.get(device, UNKNOWN) for device in columns["device"].tolist()])

    def _launch_order(self, columns: Columns, start: Integers | None) -> Integers:
        kernel, process, correlation = (columns[c] for c in ("kernel", "process", "correlation"))
        if not np.any(kernel == UNKNOWN):
            return np.argsort(kernel, kind="stable")
        time = np.arange(len(self)) if start is None else start
        if np.any(correlation == UNKNOWN):
            if np.any(correlation != UNKNOWN):
                self.notes.append("not all kernels have a correlation id: ordered by start")
            return np.argsort(time, kind="stable")
        shared = len(self) - len({*zip(process.tolist(), correlation.tolist(), strict=True)})
        if shared:
            found = "kernels that share a correlation id with another (CUDA graphs)"
            self.notes.append(f"{found}, ordered by start among themselves: {shared}")
        # Ids of two processes do not compare: the process whose first kernel is first goes first.
        _, member = np.unique(process, return_inverse=True)
        first = np.full(len(self), np.iinfo(np.int64).max)
        np.minimum.at(first, member, time)
        return np.lexsort((time, correlation, process, first[member]))
