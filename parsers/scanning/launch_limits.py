"""Which launches are possible, and which of a trace's numbers are rubbish."""

from typing import Any

from depgraph.trace.records import Dim3, KernelLaunch

# What the CUDA programming guide allows for a grid and a block (Technical Specifications per
# Compute Capability).
_GRID_LIMIT = (2**31 - 1, 65535, 65535)
_MAX_THREADS = 1024
_SHOWN_DIGITS = 20
_MAX_REGISTERS = 255
_MAX_SHARED_BYTES = 1 << 20
_ARCHITECTURES = frozenset(
    (20, 21, 30, 32, 35, 37, 50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 101)
) | {103, 110, 120, 121}


def check_dimensions(grid: Dim3, block: Dim3) -> None:
    """Refuse a grid or block that no GPU can launch; a `ValueError` says what was found."""
    if not all(0 < n <= limit for n, limit in zip(grid, _GRID_LIMIT, strict=True)):
        raise ValueError(f"grid of {_dimensions(grid)} blocks is not possible")
    if min(block) <= 0 or block[0] * block[1] * block[2] > _MAX_THREADS:
        raise ValueError(f"block of {_dimensions(block)} threads is not possible")


def _dimensions(sizes: Dim3) -> str:
    digits = (str(size) for size in sizes)
    return ",".join(text if len(text) <= _SHOWN_DIGITS else text[:9] + "..." for text in digits)


def checked_launch(
    name: str,
    grid: Dim3,
    block: Dim3,
    *,
    registers: int = 0,
    shared_bytes: int = -1,
    architecture: int = 0,
    **known: Any,
) -> KernelLaunch:
    """Return a launch, numbers that are rubbish left out; see `check_dimensions`."""
    check_dimensions(grid, block)
    return KernelLaunch(
        name,
        grid,
        block,
        registers=registers if 0 < registers <= _MAX_REGISTERS else None,
        shared_bytes=shared_bytes if 0 <= shared_bytes < _MAX_SHARED_BYTES else None,
        architecture=architecture if architecture in _ARCHITECTURES else None,
        **known,
    )


def signed64(value: int) -> int:
    """Return a stream or launch number as a signed 64-bit integer; `ValueError` if it has more."""
    if not -(1 << 63) <= value < 1 << 64:
        raise ValueError(f"number {str(value)[:24]}... has more than 64 bits")
    return value - (1 << 64) if value >= 1 << 63 else value
