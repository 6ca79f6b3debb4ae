"""Kernel and block times, in cycles, from the logs of GPGPU-Sim and Accel-Sim."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from depgraph.parsers.profiles.kernel_columns import KernelColumns
from depgraph.parsers.profiles.source import open_text
from depgraph.parsers.simlog.lines import FinishedBlock, NamedBlocks, pushed_kernel
from depgraph.timing.profile import BlockProfile, KernelProfile
from depgraph.trace.records import Dim3

HINT = (
    "give the standard output of the whole simulation; every kernel that ended prints "
    "gpu_sim_cycle and gpu_tot_sim_cycle there"
)
_KEY_CHARACTERS = 6
_HEADER_KEYS = ("-kerne", "-grid ", "-block", "-shmem", "-nregs", "-cuda ")
_WARP = 32
_SCHEDULERS = 4

_OPTION = re.compile(r"-gpgpu_(\w+)\s+([0-9]{1,15}(?:\.[0-9]{1,15})?)(?![0-9.])")
_DIMENSION_END = 1 << 31
_CYCLES = r"\((\d{1,18}),(\d{1,18})\)"
_HEADER = re.compile(
    r"-(kernel name|kernel id|grid dim|block dim|shmem|nregs|cuda stream id) = (.*)"
)
_LAUNCHED = re.compile(r"launching kernel name: (.*?) uid: ?(\d{1,9})(?: .*)?")
_BOUND = re.compile(r".* Shader (\d{1,9}) bind to kernel (\d{1,9}) '(.*)'")
_BLOCK_BEGAN = re.compile(
    rf".*?(?:core:|Core)\s*(\d{{1,9}}).*\bcta:\s*(\d{{1,9}}).* initialized @{_CYCLES}"
    r"(?:, kernel_uid: ?(\d{1,9}))?"
)
_BLOCK_ENDED = re.compile(
    rf".*?(?:Shader|Core) (\d{{1,9}}).* [fF]inished CTA #(\d{{1,9}}) {_CYCLES}"
)
_DESTROYED = re.compile(r"Destroy streams for kernel (\d{1,9}):")
_STATISTIC = re.compile(r"(\w+) = ?(.*)")
_UPDATE = re.compile(
    r".*update_stats\(\).* last_uid=(\d{1,9}), start_cycle=(\d{1,18}), end_cycle=(\d{1,18})"
    r"(?:.* is (\d{1,18}))?"
)


@dataclass(slots=True)
class _Kernel:
    """A kernel of the simulation; cycles count from the beginning of the simulation."""

    uid: int
    name: str = ""
    launch: dict[str, Any] = field(default_factory=dict)  # what headers say of it
    start: int | None = None
    cycles: int | None = None
    issued: int = 0
    instructions: int | None = None
    blocks: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def grid(self) -> Dim3 | None:
        return self.launch.get("grid")

    @property
    def has_all_blocks(self) -> bool:
        return bool(self.blocks) and self.grid is not None and len(self.blocks) == prod(self.grid)

    def number_of(self, block: Dim3) -> int | None:
        """Return the number of a block in the grid; None if it lies outside."""
        if self.grid is None or any(n >= size for n, size in zip(block, self.grid, strict=True)):
            return None
        x, y, z = block
        return x + self.grid[0] * (y + self.grid[1] * z)


def read_simlog(path: Path) -> KernelProfile | BlockProfile:
    """Read the cycles of every kernel, or of every block if the log has all their lines."""
    # A block is the one that the line before its first one names; else they go in grid order.
    log = _Log()
    with open_text(path) as text:
        for line in text:
            log.feed(line)
    for kernel in log.kernels.values():
        if kernel.cycles is None and kernel.has_all_blocks:  # it has no statistics of its own
            kernel.start = min(start for start, _ in kernel.blocks.values())
            kernel.cycles = max(end for _, end in kernel.blocks.values()) - kernel.start
    clock_mhz = log.options.get("clock_domains") or None
    kernels = _columns(path, log).profile(
        "simlog",
        unit="cycles",
        clock_mhz=clock_mhz,
        launch_latency=log.launch_latency,
        alu_counter="instructions of threads, of what the schedulers of all SMs could issue",
        hint=HINT,
    )
    timed = [kernel for _, kernel in sorted(log.kernels.items()) if kernel.cycles is not None]
    if not all(kernel.has_all_blocks for kernel in timed):
        return kernels
    rows = [
        (log.number(kernel), block, *times)
        for kernel in timed
        for block, times in sorted(kernel.blocks.items())
    ]
    kernel_of, block_of, start, end = np.array(rows, np.int64).T
    return BlockProfile(
        source=path,
        format="simlog",
        unit="cycles",
        kernel=kernel_of,
        block=block_of,
        duration=end.astype(np.float64) - start,
        start=start.astype(np.float64),
        measured_sms=log.sms,
        clock_mhz=clock_mhz,
        kernels=kernels,
        notes=kernels.notes,
        skipped=kernels.skipped,
    )


def _alu_utilization(kernel: _Kernel, log: "_Log") -> int | None:
    """Return the share of instructions that the schedulers could issue, in hundredths of 1 %."""
    if kernel.instructions is None or kernel.cycles is None or log.sms is None:
        return None
    cycles = kernel.cycles - log.launch_latency
    most = cycles * log.sms * _WARP * log.options.get("num_sched_per_core", _SCHEDULERS)
    return min(round(10_000 * kernel.instructions / most), 10_000) if most > 0 else None


def _columns(path: Path, log: "_Log") -> KernelColumns:
    columns = KernelColumns(path)
    columns.skipped.update(log.skipped)
    for _, kernel in sorted(log.kernels.items()):
        if kernel.cycles is None:
            columns.skipped["kernels that did not end, or ended together with others"] += 1
            continue
        columns.add(
            kernel.name,
            float(kernel.cycles),
            kernel.start,
            kernel=log.number(kernel),
            **kernel.launch,
            measured_sms=log.sms,
            alu_utilization=_alu_utilization(kernel, log),
        )
    if partial := sum(bool(k.blocks) and not k.has_all_blocks for k in log.kernels.values()):
        found = f"kernels with times of only some blocks: {partial}"
        columns.notes.append(f"{found}; block times not used")
    if log.launch_latency:
        found = f"a simulated launch latency of {log.launch_latency:g} cycles"
        columns.notes.append(f"kernel times include {found}")
    return columns


def _sizes(text: str) -> Dim3 | None:
    match = re.fullmatch(r"\((\d{1,9}),(\d{1,9}),(\d{1,9})\)", text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,18}", text) else None


_HEADER_FIELDS = {
    "kernel id": "trace_id", "grid dim": "grid", "block dim": "block", "shmem": "shared_bytes",
    "nregs": "registers", "cuda stream id": "stream",
}  # fmt: skip


class _Log:
    def __init__(self) -> None:
        self.kernels: dict[int, _Kernel] = {}
        self.options: dict[str, float] = {}
        self.skipped: Counter[str] = Counter()
        self._announced: list[_Kernel] = []
        self._launched = 0
        self._starting: list[_Kernel] = []
        self._ended: list[_Kernel] = []
        self._names: list[str] = []
        self._uids: list[int] = []
        self._interval: int | None = None
        self._total: int | None = None
        self._instructions: int | None = None
        self._kernel_on_shader: dict[int, int] = {}
        self._resident: dict[tuple[int, int], tuple[_Kernel, int, int]] = {}
        self._blocks = NamedBlocks()
        self._handlers: dict[str, Callable[[str], None]] = {
            "-gpgpu": self._option,
            **dict.fromkeys(_HEADER_KEYS, self._header),
            "GPGPU-": self._simulator,
            "launch": self._launch,
            "thread": self._blocks.issue,
            "Destro": self._destroy,
            **dict.fromkeys(("kernel", "gpu_si", "gpu_to"), self._statistic),
            "gpgpu_": self._update,
        }

    @property
    def sms(self) -> int | None:
        sms = self.options.get("n_clusters", 0) * self.options.get("n_cores_per_cluster", 1)
        return int(sms) or None

    @property
    def launch_latency(self) -> float:
        return self.options.get("kernel_launch_latency", 0.0)

    def number(self, kernel: _Kernel) -> int:
        return kernel.uid - 1 if self._places is None else self._places[kernel.uid]

    @cached_property
    def _places(self) -> dict[int, int] | None:
        """Kernels in the order of their traces' ids, at the end of the log; None without such."""
        ids = {kernel.launch.get("trace_id") or 0: uid for uid, kernel in self.kernels.items()}
        if 0 in ids or len(ids) < len(self.kernels):
            return None
        return {uid: place for place, (_, uid) in enumerate(sorted(ids.items()))}

    def feed(self, line: str) -> None:
        handler = self._handlers.get(line[:_KEY_CHARACTERS])
        if handler is None:
            return
        if line.endswith("\n"):
            handler(line[:-1])
        else:
            self.skipped["unfinished last lines"] += 1

    def _kernel(self, uid: int, name: str = "") -> _Kernel:
        kernel = self.kernels.setdefault(uid, _Kernel(uid))
        kernel.name = kernel.name or name
        return kernel

    def _option(self, line: str) -> None:
        if match := _OPTION.match(line):
            self.options[match[1]] = float(match[2])

    def _header(self, line: str) -> None:
        match = _HEADER.fullmatch(line)
        if match is None:
            return
        key, value = match[1], match[2].strip()
        if key == "kernel name":
            self._announced.append(_Kernel(0, value))
        elif self._announced:
            read = _sizes if key.endswith(" dim") else _number
            self._announced[-1].launch[_HEADER_FIELDS[key]] = read(value)

    def _launch(self, line: str) -> None:
        """Pair a launch with the header that was echoed for it, maybe many lines before."""
        if match := _LAUNCHED.fullmatch(line):
            name, uid = match[1], int(match[2])
            found = next((at for at, k in enumerate(self._announced) if k.name == name), None)
        elif line.startswith("launching kernel command"):
            name, uid = "", self._launched + 1
            found = 0 if self._announced else None
        else:
            return
        self._launched = uid
        kernel = _Kernel(uid, name) if found is None else self._announced.pop(found)
        kernel.uid = uid
        self.kernels[uid] = kernel
        self._starting.append(kernel)

    def _simulator(self, line: str) -> None:
        if match := _BLOCK_BEGAN.match(line):
            self._begin_block(match)
        elif match := _BLOCK_ENDED.match(line):
            self._end_block(match)
        elif self._blocks.start(line):
            pass
        elif finished := self._blocks.finish(line):
            self._end_named_block(finished)
        elif match := _BOUND.match(line):
            self._kernel(int(match[2]), match[3])
            self._kernel_on_shader[int(match[1])] = int(match[2])
        elif pushed := pushed_kernel(line):
            self._launched += 1
            kernel = self._kernel(self._launched, pushed.name)
            kernel.launch["stream"] = pushed.stream
            if max(*pushed.grid, *pushed.block) < _DIMENSION_END:
                kernel.launch |= {"grid": pushed.grid, "block": pushed.block}

    def _begin_block(self, match: re.Match[str]) -> None:
        shader, slot = int(match[1]), int(match[2])
        uid = int(match[5]) if match[5] else self._kernel_on_shader.get(shader)
        if uid is None:
            self.skipped["blocks of an unknown kernel"] += 1
            return
        kernel = self._kernel(uid)
        named = self._blocks.take_issued()
        block = kernel.issued if named is None else kernel.number_of(named)
        kernel.issued += 1
        if block is None:
            self.skipped["blocks outside the grid of their kernel"] += 1
            return
        self._resident[shader, slot] = kernel, block, int(match[3]) + int(match[4])

    def _end_block(self, match: re.Match[str]) -> None:
        if running := self._resident.pop((int(match[1]), int(match[2])), None):
            kernel, block, start = running
            kernel.blocks[block] = start, int(match[3]) + int(match[4])
        else:
            self.skipped["ends of blocks without a beginning"] += 1

    def _end_named_block(self, finished: FinishedBlock) -> None:
        kernel = self._kernel(finished.kernel)
        if kernel.grid is None or finished.start is None:
            self.skipped["ends of blocks without a beginning"] += 1
        elif (number := kernel.number_of(finished.block)) is None:
            self.skipped["blocks outside the grid of their kernel"] += 1
        else:
            kernel.blocks[number] = finished.start, finished.end

    def _destroy(self, line: str) -> None:
        if match := _DESTROYED.match(line):
            self._ended.append(self._kernel(int(match[1])))

    def _update(self, line: str) -> None:
        match = _UPDATE.match(line)
        if match is None or not int(match[1]):
            return
        kernel = self._kernel(int(match[1]))
        kernel.start = int(match[2])
        kernel.cycles = int(match[4]) if match[4] else int(match[3]) - kernel.start + 1

    def _statistic(self, line: str) -> None:
        match = _STATISTIC.match(line)
        if match is None:
            return
        key, words = match[1], match[2].split()
        numbers = [number for word in words if (number := _number(word)) is not None]
        if key == "kernel_name":
            self._names = words
        elif key == "kernel_launch_uid":
            self._uids = numbers
        elif key == "gpu_sim_cycle":
            self._interval = numbers[0] if numbers else None
        elif key == "gpu_sim_insn":
            self._instructions = numbers[0] if numbers else None
        elif key == "gpu_tot_sim_cycle" and numbers:
            self._end_interval(numbers[0])

    def _end_interval(self, total: int) -> None:
        names = self._names if len(self._names) == len(self._uids) else [""] * len(self._uids)
        listed = [self._kernel(uid, name) for uid, name in zip(self._uids, names, strict=True)]
        if self._interval:
            before = total - self._interval
            if self._total is not None and self._total <= total:
                before = self._total
            for kernel in (*self._starting, *listed):
                if kernel.start is None:
                    kernel.start = before
            self._starting = []
            ended = self._ended or listed
            if len(ended) == 1 and ended[0].cycles is None and ended[0].start is not None:
                ended[0].cycles = total - ended[0].start
                if ended[0].cycles == self._interval:  # nothing else ran then
                    ended[0].instructions = self._instructions
        self._total = total
        self._instructions = None
        self._ended, self._names, self._uids, self._interval = [], [], [], None
