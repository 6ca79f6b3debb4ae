"""Measured programs that nobody measured: fans and chains of a few kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from depgraph.analysis.measured_programs import MeasuredKernel, MeasuredProgram, Measurements

SMS = 13  # a tenth of an H100: a tenth of the blocks fill it


def small_programs() -> list[MeasuredProgram]:
    """Return fans and chains with kernels that fill a GPU, part of it, and hardly any of it."""
    found = []
    for blocks, time in ((1, 4.0), (10, 12.0), (26, 20.0), (60, 30.0)):
        kernel = MeasuredKernel("k", (blocks, 1, 1), (256, 1, 1), 64, 0, time)
        for n in (2, 4):
            fan = [kernel] * n
            found.append(_program(f"fan{n}-{blocks}", "fan", fan, []))
            chains = [(i, i + n) for i in range(n)]
            found.append(_program(f"chains{n}-{blocks}", "chains", fan * 2, chains))
        found.append(_program(f"chain-{blocks}", "chain", [kernel] * 2, [(0, 1)]))
    return [_in_half(program, i % 2) for i, program in enumerate(found)]


def short_programs() -> list[MeasuredProgram]:
    """Return programs of short kernels: fans, and branches with edges between them."""
    found = []
    for blocks, time in ((1, 1.2), (4, 5.0), (9, 9.0)):
        kernel = MeasuredKernel("k", (blocks, 1, 1), (256, 1, 1), 64, 0, time)
        for n in (3, 6, 12):
            found.append(_program(f"fan{n}-{blocks}", "fan", [kernel] * n, []))
            fork = [(0, i + 1) for i in range(n)]
            join = [(i + 1, n + 1) for i in range(n)]
            found.append(
                _program(f"diamond{n}-{blocks}", "diamond", [kernel] * (n + 2), fork + join)
            )
    return [_in_half(program, i // 2 % 2) for i, program in enumerate(found)]


def programs_of_classes() -> list[MeasuredProgram]:
    """Return fans of kernels of each class, for a whole H100."""
    found = []
    for name in ("sgemm", "conv", "flash_fwd", "layer_norm", "softmax"):
        for blocks, time in ((60, 20.0), (132, 25.0), (400, 30.0), (900, 60.0)):
            kernel = MeasuredKernel(name, (blocks, 1, 1), (256, 1, 1), 64, 0, time)
            fans = (("fan2", 2), ("fan4", 4))
            found += [_program(f"{f}-{name}-{blocks}", "fan", [kernel] * n, []) for f, n in fans]
    return [_in_half(program, i // 2 % 2) for i, program in enumerate(found)]


def _program(
    name: str, kind: str, kernels: list[MeasuredKernel], edges: list[tuple[int, int]]
) -> MeasuredProgram:
    serial = sum(kernel.time for kernel in kernels)
    kernels = [replace(kernel, operation=i) for i, kernel in enumerate(kernels)]
    return MeasuredProgram(name, kind, 0, kernels, edges, serial, serial)


def _in_half(program: MeasuredProgram, half: int) -> MeasuredProgram:
    return replace(program, half=half)


def measurements_of_machine(programs: list[MeasuredProgram], **machine: Any) -> Measurements:
    """Return what a machine gave, by default a part of an H100."""
    return Measurements(
        **{"gpu": "NVIDIA H100 80GB HBM3", "sms": SMS, **machine}, programs=programs
    )
