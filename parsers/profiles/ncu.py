"""Kernel times from the CSV of Nsight Compute, its raw page or its details page."""

import re
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from depgraph.parsers.profiles import source
from depgraph.parsers.profiles.kernel_columns import KernelColumns
from depgraph.timing.profile import KernelProfile

HINT = (
    "write it with: ncu --csv --page raw --print-units base --import REPORT.ncu-rep, the report "
    "taken with --set full or --metrics gpu__time_duration.sum"
)
_KILO = 1000
_OF_A_METRIC = ("Value", "Unit")
_DURATION = ("gpu__time_duration.sum", "gpu__time_duration.avg", "Duration")
_REGISTERS = ("launch__registers_per_thread", "Registers Per Thread")
_STATIC = ("launch__shared_mem_per_block_static", "Static Shared Memory Per Block")
_DYNAMIC = ("launch__shared_mem_per_block_dynamic", "Dynamic Shared Memory Per Block")
_SMS = ("device__attribute_multiprocessor_count", "launch__sm_count", "# SMs")
_GRID = ("launch__grid_dim_x", "launch__grid_dim_y", "launch__grid_dim_z")
_BLOCK = ("launch__block_dim_x", "launch__block_dim_y", "launch__block_dim_z")
_ALU = (
    "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active",
    "sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "Compute (SM) Throughput",
)
_WANTED = frozenset((*_ALU, *_DURATION, *_REGISTERS, *_STATIC, *_DYNAMIC, *_SMS, *_GRID, *_BLOCK))
_IDENTITY = frozenset((
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context",
    "Stream", "Block Size", "Grid Size", "Device", "CC", "Section Name",
))  # fmt: skip
_NUMBER = re.compile("[+-]?[0-9][0-9.,'\u00a0\u202f\u2009 ]*")
_TRIPLE = re.compile(r"\(\s*(\d{1,10})\s*,\s*(\d{1,10})\s*,\s*(\d{1,10})\s*\)")


@dataclass(slots=True)
class _Kernel:
    """One profiled kernel: the columns that say which, and its metrics as (value, unit)."""

    identity: dict[str, str]
    numbers: source.NumberFormat  # of the file, known once all of it is read
    metrics: dict[str, tuple[str, str]] = field(default_factory=dict)

    def number(self, *names: str) -> tuple[Decimal | None, str]:
        value, unit = next((self.metrics[name] for name in names if name in self.metrics), ("", ""))
        return self.numbers.decimal(value), unit

    def whole(self, *names: str) -> int | None:
        value, _ = self.number(*names)
        return int(value) if value is not None and value == int(value) else None

    def share(self, name: str) -> int | None:
        value, unit = self.number(name)
        return None if value is None or unit != "%" else min(round(100 * value), 10_000)

    def bytes(self, *names: str) -> int | None:
        value, unit = self.number(*names)
        return None if value is None else source.exact_bytes(value, unit, _KILO)


def read_ncu(path: Path) -> KernelProfile:
    """Read the kernels of a raw page (a row per kernel) or a details page (a row per metric)."""
    reader = _Reader(path)
    with source.open_text(path) as text:
        for line in text:
            reader.feed(line)
    columns = reader.columns
    if reader.numbers.uncertain:
        columns.notes.append(f"the decimal mark is not certain: '{reader.numbers.mark}' assumed")
    columns.notes.append(
        "Nsight Compute runs kernels one at a time, and at base clocks unless --clock-control none"
    )
    counted = {name for kernel in reader.kernels.values() for name in kernel.metrics}
    alu_counter = next((name for name in _ALU if name in counted), "")
    for kernel in reader.kernels.values():
        _add(columns, kernel, alu_counter)
    return columns.profile("ncu", alu_counter=alu_counter, hint=HINT)


def is_ncu_header(line: str) -> bool:
    """Whether a line is the header of a raw or a details page."""
    if "ID" not in line or "Kernel Name" not in line:
        return False
    header = source.header_of(line)
    has_values = "Metric Value" in header or "Metric Name" not in header
    return has_values and "ID" in header and "Kernel Name" in header


class _Reader:
    """Gathers kernels line by line; metrics stay text until the decimal mark is known."""

    def __init__(self, path: Path) -> None:
        self.columns = KernelColumns(path)
        self.numbers = source.NumberFormat()
        self.kernels: dict[tuple[str, str], _Kernel] = {}
        self._header: source.Header | None = None
        self._units: list[str] | None = None

    def feed(self, line: str) -> None:
        if is_ncu_header(line):
            self._header, self._units = source.header_of(line), None
        elif self._header is None or not line.startswith('"'):
            return  # output of the program, or of ncu itself
        elif not line.endswith("\n"):
            self.columns.skipped["unfinished last lines"] += 1
        else:
            self._row(self._header, source.cells_of(line, self._header.delimiter))

    def _row(self, header: source.Header, cells: list[str]) -> None:
        if "Metric Name" in header:
            # Beside rules, metrics leave out the columns of the rules; rules name no metric.
            if header.position["Metric Value"] < len(cells) <= len(header.names):
                if name := header.cell(cells, "Metric Name"):
                    value, unit = (header.cell(cells, f"Metric {what}") for what in _OF_A_METRIC)
                    self._metric(self._kernel(header, cells), name, value, unit)
            else:
                self.columns.skipped["rows of another width"] += 1
        elif len(cells) != len(header.names):
            self.columns.skipped["rows of another width"] += 1
        elif self._units is None and not header.cell(cells, "ID"):
            self._units = cells
        else:
            kernel = self._kernel(header, cells)
            units = self._units or [""] * len(cells)
            for name, value, unit in zip(header.names, cells, units, strict=True):
                if name not in _IDENTITY:
                    self._metric(kernel, name, value, unit)

    def _kernel(self, header: source.Header, cells: list[str]) -> _Kernel:
        key = header.cell(cells, "Process ID"), header.cell(cells, "ID")
        if key not in self.kernels:
            identity = {n: header.cell(cells, n) for n in header.names if n in _IDENTITY}
            self.kernels[key] = _Kernel(identity, self.numbers)
        return self.kernels[key]

    def _metric(self, kernel: _Kernel, name: str, value: str, unit: str) -> None:
        if _NUMBER.fullmatch(value):
            self.numbers.learn(value, whole=source.nanoseconds_in(unit) == 1)
        if name in _WANTED:
            kernel.metrics.setdefault(name, (value, unit.strip()))


def _add(columns: KernelColumns, kernel: _Kernel, alu_counter: str) -> None:
    duration, unit = kernel.number(*_DURATION)
    time = source.time_in(duration, unit)
    if duration is not None and time is None:
        columns.skipped[f"durations in '{unit}', which is not a unit of time"] += 1
    identity = kernel.identity
    columns.add(
        identity.get("Kernel Name", ""),
        None if time is None else float(time),
        grid=_triple(identity.get("Grid Size", "")) or [kernel.whole(name) for name in _GRID],
        block=_triple(identity.get("Block Size", "")) or [kernel.whole(name) for name in _BLOCK],
        registers=kernel.whole(*_REGISTERS),
        static_shared_bytes=kernel.bytes(*_STATIC),
        dynamic_shared_bytes=kernel.bytes(*_DYNAMIC),
        device=source.integer(identity.get("Device", "")),
        process=source.integer(identity.get("Process ID", "")),
        context=source.integer(identity.get("Context", "")),
        stream=source.integer(identity.get("Stream", "")),
        measured_sms=kernel.whole(*_SMS),
        alu_utilization=kernel.share(alu_counter),
    )


def _triple(text: str) -> list[int] | None:
    match = _TRIPLE.fullmatch(text)
    return [*map(int, match.groups())] if match else None
