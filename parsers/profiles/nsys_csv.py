"""Kernel times from ``nsys stats --report cuda_gpu_trace --format csv`` (once ``gputrace``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depgraph.parsers.profiles.gpu_trace import Dialect, read_gpu_trace

if TYPE_CHECKING:
    from pathlib import Path

    from depgraph.timing.profile import KernelProfile

HINT = "write it with: nsys stats --report cuda_gpu_trace --format csv REPORT.nsys-rep"

NSYS = Dialect(
    format="nsys-csv",
    start="Start",
    duration="Duration",
    name="Name",
    grid=("GrdX", "GrdY", "GrdZ"),
    block=("BlkX", "BlkY", "BlkZ"),
    registers="Reg/Trd",
    static_shared="StcSMem",
    dynamic_shared="DymSMem",
    device="Device",
    context="Ctx",
    stream="Strm",
    correlation="CorrId",
    kilo=1000,
    units_below=False,
    ends_at_text=True,
    hint=HINT,
)


def read_nsys_csv(path: Path) -> KernelProfile:
    """Read the kernels of the report; anything around the table is passed over."""
    return read_gpu_trace(path, NSYS)
