"""Measured programs that nobody measured: fans and chains of a few kernels."""

from __future__ import annotations

from typing import Any

from depgraph.analysis.measured_programs import MeasuredKernel, MeasuredProgram, Measurements


def small_programs() -> list[MeasuredProgram]:
    """Return fans and chains with kernels that fill a GPU, part of it, and hardly any of it."""
    found = []
    for blocks, time in ((8, 4.0), (100, 12.0), (264, 20.0), (600, 30.0)):
        kernel = MeasuredKernel("k", (blocks, 1, 1), (256, 1, 1), 64, 0, time)
        for n in (2, 4):
            fan = [kernel] * n
            found.append(_program(f"fan{n}-{blocks}", "fan", fan, []))
            chains = [(i, i + n) for i in range(n)]
            found.append(_program(f"chains{n}-{blocks}", "chains", fan * 2, chains))
        found.append(_program(f"chain-{blocks}", "chain", [kernel] * 2, [(0, 1)]))
    return [_in_half(program, i % 2) for i, program in enumerate(found)]


def _program(
    name: str, kind: str, kernels: list[MeasuredKernel], edges: list[tuple[int, int]]
) -> MeasuredProgram:
    serial = sum(kernel.time for kernel in kernels)
    return MeasuredProgram(name, kind, 0, kernels, edges, serial, serial)


def _in_half(program: MeasuredProgram, half: int) -> MeasuredProgram:
    from dataclasses import replace

    return replace(program, half=half)


def measurements_of_machine(programs: list[MeasuredProgram], **machine: Any) -> Measurements:
    """Return what a machine gave, by default an H100."""
    return Measurements(
        **{"gpu": "NVIDIA H100 80GB HBM3", "sms": 132, **machine}, programs=programs
    )
