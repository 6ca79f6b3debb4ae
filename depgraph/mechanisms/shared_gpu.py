"""How two programs share a GPU: by kernels, by parts of its SMs, as ECLIP does, or by blocks."""

import math
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import ModelError, NotApplicableError
from depgraph.mechanisms.base import (
    Availability,
    Charges,
    Mechanism,
    one_by_one,
    serial,
    whole_number,
)
from depgraph.scenario.contention import run_contended
from depgraph.scenario.scenario import Scenario
from depgraph.schedule.policy import ALL_ENDED, IGNORED, Gates, Places, Rules

PARTITION, BLOCKS, ECLIP = "partition", "blocks", "eclip"
_NAME = re.compile(r"(streams|blocks|eclip)|partition\(([^()]*)\)")
STREAMS = 7
"""Sizes of streams that are made beforehand."""
MOST_SWITCHES = 14
"""How often a program goes from a stream to one of another size."""
_ECLIP = (
    "Quach et al., ECLIP, ISLPED 2025 (arXiv:2506.12598, abstract: kernels in groups, streams of "
    "masked CUs made beforehand, an optimizer that assigns them); second-hand: seven streams, 14 "
    "switches, the fewest CUs that do not slow a kernel, an integer program over groups"
)


class SharedGpu(Mechanism):
    """Two programs, each launched by a host of its own; of a partition the first has `sms` SMs."""

    name = "shared-gpu"
    rule = "two programs side by side"
    availability = Availability.SHIPS
    source = f"CUDA C++ programming guide, streams; MPS and green contexts; {_ECLIP}"

    def __init__(self, split: int, how: str, sms: int = 0) -> None:
        # How many operations of the joined scenario are the first program's.
        self.split, self.how, self.sms = split, how, sms

    @property
    def label(self) -> str:
        """How they share it."""
        return f"{self.how}({self.sms})" if self.how == PARTITION else self.how

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Keep each program's own order, and let what could start first go first."""
        n = program.graph.n_operations
        launching = one_by_one(program, charges)
        begins, _ = serial(program).of_operations(program.graph.first_block)
        begins[self.split :] -= begins[self.split : self.split + 1]
        host = launching.enter
        if self.how == BLOCKS:  # kernels wait on the GPU: only the first of a program pays the gap
            host = host + self._first_of_each(program) * launching.launch
        entry, enter = _two_hosts(host, self.split)
        block = np.arange(program.graph.n_blocks)
        order = np.lexsort((block, begins[program.graph.operation_of_block]))
        if self.how == BLOCKS:
            return Rules(enter=enter, entry=entry, order=order, strict=False)
        later = np.setdiff1d(np.arange(1, n), [self.split])
        sizes = self._sizes(program)
        launch, notes = launching.launch, list[str]()
        if self.how == ECLIP and sizes is not None:
            switches = self._switches(program, sizes)
            launch = launch + switches * charges.launches.event.value
            first, second = (int(own.sum()) for own in np.split(switches, [self.split]))
            streams = ", ".join(map(str, stream_sizes(program.sms).tolist()))
            switched = f"the first program switches {first} times, the second {second}"
            notes.append(f"eclip: streams of {streams} SMs; {switched}")
        return Rules(
            joins=IGNORED,
            gates=Gates.between(later - 1, later, ALL_ENDED),
            enter=enter,
            entry=entry,
            launch=launch,
            order=order,
            places=None if sizes is None else self._places(program, sizes),
            assumptions=tuple(notes),
        )

    def _first_of_each(self, program: Scenario) -> NDArray[np.bool_]:
        """Return which operations are the first kernel of a program: bool[n_operations]."""
        first = np.zeros(program.graph.n_operations, np.bool_)
        kernels = np.flatnonzero(program.is_kernel)
        for own in (kernels[kernels < self.split], kernels[kernels >= self.split]):
            first[own[:1]] = True
        return first

    def _switches(self, program: Scenario, sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which kernels go to another stream than the one before: bool[n_operations]."""
        kernels = np.flatnonzero(program.is_kernel)
        found = np.zeros(program.graph.n_operations, np.bool_)
        found[kernels[1:]] = np.diff(sizes[kernels]) != 0
        return found & ~self._first_of_each(program)

    def _sizes(self, program: Scenario) -> NDArray[np.int64] | None:
        """Return how many SMs each operation may use: int64[n]; None where all use all."""
        limited = not math.isinf(program.sms)
        if self.how == ECLIP and limited:
            return sizes_of_kernels(program, self.split)
        if self.how != PARTITION:
            return None
        if not limited or self.sms >= program.sms:
            size = f"{program.sms:g}" if limited else "unlimited"
            raise NotApplicableError(
                f"{self.label} leaves the second program none of {size} SMs: give fewer"
            )
        is_first = np.arange(program.graph.n_operations) < self.split
        return np.where(is_first, self.sms, int(program.sms) - self.sms)

    def _places(self, program: Scenario, sizes: NDArray[np.int64]) -> Places:
        """Count the first program's SMs from the first on, the second's from the last."""
        kernels, last = program.is_kernel, int(program.sms) - 1
        is_first = np.arange(len(kernels)) < self.split
        return Places.on_sms(
            np.where(kernels & ~is_first, last + 1 - sizes, 0),
            np.where(kernels & is_first, sizes - 1, last),
        )


def find_sharing(names: str, split: int = 0) -> list[SharedGpu]:
    """Return the ways in a list such as ``streams,partition(66)``; `ModelError` for others."""
    found = []
    for name in names.split(","):
        match = _NAME.fullmatch(name.strip())
        if match is None:
            raise ModelError(
                f"share {name.strip()!r}: give streams, partition(SMS), eclip or blocks"
            )
        sms = 0 if match[1] else whole_number(PARTITION, match[2].strip())
        found.append(SharedGpu(split, match[1] or PARTITION, sms))
    return found


def _two_hosts(
    enter: NDArray[np.floating[Any]], split: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return in which order operations are issued, and how long after the one before."""
    issued = np.append(np.cumsum(enter[:split]), np.cumsum(enter[split:]))
    entry = np.argsort(issued, kind="stable")
    after = np.zeros(len(enter))
    after[entry] = np.diff(issued[entry], prepend=0.0)
    return entry, after


def stream_sizes(sms: float) -> NDArray[np.int64]:
    """Return the SMs of each stream: equal steps, the last of them all."""
    return np.unique(np.ceil(np.arange(1, STREAMS + 1) * sms / STREAMS).astype(np.int64))


def sizes_of_kernels(program: Scenario, split: int) -> NDArray[np.int64]:
    """Return how many SMs each operation may use, of the first program those before `split`."""
    # A kernel needs the smallest stream on which it takes no longer than on all SMs, with
    # contention between its blocks where that is predicted. Consecutive kernels form a group, which
    # gets what the neediest of them needs. Groups are cut so that SMs are held for the least time
    # in all: what is left is the other program's.
    sizes = stream_sizes(program.sms)
    times = np.stack([_times_alone(program.on(float(size))) for size in sizes])
    need = (times <= times[-1] * (1 + 1e-9)).argmax(axis=0)
    found = np.full(program.graph.n_operations, sizes[-1])
    kernels = np.flatnonzero(program.is_kernel)
    for own in (kernels[kernels < split], kernels[kernels >= split]):
        if len(own):
            found[own] = sizes[groups(need[own], times[-1, own], sizes, MOST_SWITCHES)]
    return found


def groups(
    need: NDArray[np.intp], time: NDArray[np.float64], sizes: NDArray[np.int64], switches: int
) -> NDArray[np.int64]:
    """Return the place in `sizes` of each kernel, at least its `need`, changed so often at most."""
    place = np.arange(len(sizes))
    # held[w, s]: the least SM time so far after w switches, the last kernel on a stream of size s.
    held, came_from = np.full((switches + 1, len(sizes)), np.inf), []
    held[0] = 0.0
    for least, own in zip(need.tolist(), time.tolist(), strict=True):
        cheapest = held.argmin(axis=1)
        switched = np.append(np.inf, held.min(axis=1)[:-1])[:, None]
        stays = held <= switched
        came_from.append(np.where(stays, place, np.append(0, cheapest[:-1])[:, None]))
        held = np.where(stays, held, switched) + np.where(place >= least, own * sizes, np.inf)
    w, s = map(int, np.unravel_index(held.argmin(), held.shape))
    found = np.empty(len(need), np.int64)
    for k in range(len(need) - 1, -1, -1):
        found[k], before = s, int(came_from[k][w, s])
        w, s = w - (before != s), before
    return found


def _times_alone(program: Scenario) -> NDArray[np.float64]:
    """Return what a profile would say that each operation takes: float64[n_operations]."""
    if program.has_predictions:
        plan = run_contended("alone", Rules(waits_for_all=True), program.contended)
    else:
        plan = serial(program.without_launches())
    begins, ends = plan.of_operations(program.graph.first_block)
    return ends - begins
