"""Stream-K: work split evenly over the SMs, so that no wave is part-filled."""

import math
import tomllib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from depgraph.mechanisms.base import LAUNCH, Availability, Charges, Cost, Mechanism, serialized
from depgraph.scenario.scenario import Scenario
from depgraph.schedule.policy import Against, Rules
from depgraph.system.text import counted
from depgraph.timing.program_times import kernel_makespans
from depgraph.trace.names import base_name

_PAPER = "Osama et al., Stream-K, PPoPP 2023"


class StreamK(Mechanism):
    """Serialized launches whose matrix products, or the functions given, have even waves."""

    name = "stream-k"
    signature = "stream-k(FUNCTION,...)"
    rule = (
        "serialized launches; the work of a matrix product whose last wave is not full is split "
        "evenly over as many slots as take least time, its blocks cut along k; other kernels, and "
        "those that would not gain, stay as they are"
    )
    cost = "a fix-up for each peer of a block that is cut; launches as serial"
    availability = Availability.CODE
    source = _PAPER
    costs: ClassVar[tuple[Cost, ...]] = (
        Cost(
            "fixup", 2, "count", "steps along k that each peer of a cut block costs: all but one "
            "write their part, one adds them up", "assumed, as NVIDIA's planner does: peer_cost "
            "in cutlass/gemm/threadblock/threadblock_swizzle_streamk.h",
        ),
        Cost(
            "steps", 32, "count", "steps along k of a block: no piece is less than one step",
            f"{_PAPER}: k = 1024, the middle of its problem sizes, in steps of 32",
        ),
        LAUNCH,
    )  # fmt: skip

    def __init__(self, functions: Sequence[str] = ()) -> None:
        self.functions = tuple(functions)
        self.shown = self.functions

    @classmethod
    def with_parameters(cls, parameters: Sequence[str]) -> Mechanism:
        """Read the patterns of functions."""
        return cls([p for p in parameters if p])

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Give the blocks of each cut kernel such equal durations that its last wave is full."""
        graph = program.graph
        blocks = np.diff(graph.first_block)
        slots = blocks if math.isinf(program.sms) else program.occupancy * int(program.sms)
        slots = np.maximum(slots, 1)
        steps, fixup = max(charges.number("steps"), 1.0), charges.number("fixup")
        total = np.add.reduceat(program.durations, graph.first_block[:-1])
        longest = np.maximum.reduceat(program.durations, graph.first_block[:-1])
        time = kernel_makespans(graph, program.durations, slots)
        cuttable = self._cuttable(program)
        in_waves = cuttable & (blocks % slots == 0)
        cut = np.zeros_like(cuttable)
        for kernel in np.flatnonzero(cuttable & ~in_waves).tolist():
            workers = np.arange(1, min(slots[kernel], blocks[kernel] * steps) + 1, dtype=np.int64)
            step = total[kernel] / blocks[kernel] / steps
            adding = fixup * step * peers(int(blocks[kernel]), workers) * (workers > 1)
            least = np.maximum(total[kernel] / workers, longest[kernel] / steps) + adding
            cut[kernel] = least.min() < time[kernel]
            time[kernel] = min(least.min(), time[kernel])
        even = (time / -(-blocks // slots))[graph.operation_of_block]
        n_cut, n_whole, n_cuttable = int(cut.sum()), int(in_waves.sum()), int(cuttable.sum())
        note = (
            f"kernels cut: {n_cut} of {int(program.is_kernel.sum())}; of "
            f"{counted(n_cuttable, 'matrix product')} {n_whole} in whole waves, "
            f"{n_cuttable - n_whole - n_cut} too short to be worth the fix-up"
        )
        return serialized(
            program,
            charges,
            durations=np.where(cut[graph.operation_of_block], even, program.durations),
            against=Against.WORK,
            assumptions=(note,),
        )

    def _cuttable(self, program: Scenario) -> NDArray[np.bool_]:
        if self.functions:
            names = program.functions or [""] * program.graph.n_operations
            chosen = np.array([matches_any(name, self.functions) for name in names])
            return chosen & program.is_kernel
        cuttable = np.zeros(program.graph.n_operations, np.bool_)
        for kernel in program.kernels:
            stated = kernel.cuttable
            cuttable[kernel.operation] = is_gemm(kernel.name) if stated is None else stated
        return cuttable


def peers(blocks: int, workers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many workers share a block at most, of blocks split evenly among them."""
    # Worker w takes what lies between block ``w * blocks / workers`` and ``(w + 1) * blocks /
    # workers``. In lowest terms ``workers / blocks`` is ``n / d``: where d is 1, blocks begin with
    # a worker; else one of them begins 1 / d before the next worker does.
    shared = np.gcd(blocks, workers)
    n, d = workers // shared, blocks // shared
    most: NDArray[np.int64] = n // d + np.where(n % d == 1, 1, 2)
    return np.where(d == 1, n, most)


@cache
def _patterns() -> tuple[tuple[str, ...], tuple[str, ...]]:
    content = tomllib.loads(Path(__file__).with_name("gemms.toml").read_text(encoding="utf-8"))
    return tuple(content["gemms"]), tuple(content["not_gemms"])


@lru_cache(maxsize=4096)
def is_gemm(name: str) -> bool:
    """Tell whether a function is a matrix product that runs along k in equal steps."""
    gemms, others = _patterns()
    bare = base_name(name)
    # CUTLASS names what it runs in a template argument of a function called Kernel or Kernel2.
    named = name if bare.startswith("Kernel") else bare
    return any(fnmatchcase(named.lower(), p) for p in gemms) and not matches_any(name, others)


def matches_any(name: str, patterns: Sequence[str]) -> bool:
    """Tell whether a function's bare or full name matches a pattern, whatever the case."""
    spellings = {base_name(name).lower(), name.lower()}
    return any(fnmatchcase(s, p.lower()) for s in spellings for p in patterns)
