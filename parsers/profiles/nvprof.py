"""Kernel times from ``nvprof --print-gpu-trace --csv``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depgraph.parsers.profiles.gpu_trace import Dialect, read_gpu_trace

if TYPE_CHECKING:
    from pathlib import Path

    from depgraph.timing.profile import KernelProfile

HINT = "write it with: nvprof --print-gpu-trace --csv --log-file times.csv PROGRAM"

NVPROF = Dialect(
    format="nvprof",
    start="Start",
    duration="Duration",
    name="Name",
    grid=("Grid X", "Grid Y", "Grid Z"),
    block=("Block X", "Block Y", "Block Z"),
    registers="Registers Per Thread",
    static_shared="Static SMem",
    dynamic_shared="Dynamic SMem",
    device="Device",
    context="Context",
    stream="Stream",
    correlation="Correlation_ID",
    kilo=1024,
    units_below=True,
    ends_at_text=False,
    hint=HINT,
)


def read_nvprof(path: Path) -> KernelProfile:
    """Read the kernels of the table; ``==pid==`` lines and program output are passed over."""
    return read_gpu_trace(path, NVPROF)
