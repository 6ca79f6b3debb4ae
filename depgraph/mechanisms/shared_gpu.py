"""How two programs share a GPU: by kernels, by parts of its SMs, or block by block."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.errors import ModelError, NotApplicableError
from depgraph.mechanisms.base import Availability, Mechanism, whole_number
from depgraph.mechanisms.costs import one_by_one
from depgraph.mechanisms.serial import serial
from depgraph.schedule.policy import ALL_ENDED, IGNORED, Gates, Places, Rules

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from depgraph.mechanisms.costs import Charges
    from depgraph.scenario.scenario import Scenario

PARTITION, BLOCKS = "partition", "blocks"
_NAME = re.compile(r"(streams|blocks)|partition\(([^()]*)\)")


class SharedGpu(Mechanism):
    """Two programs side by side, each launched by a host of its own.

    Parameters
    ----------
    split : int
        How many operations of the joined scenario are the first program's.
    how : {"streams", "partition", "blocks"}
        A stream each; a stream each on SMs of its own; or all blocks in one pool, each placed as
        soon as those that it depends on have ended.
    sms : int
        SMs of the first program, of a partition.
    """

    name = "shared-gpu"
    rule = "two programs side by side"
    availability = Availability.SHIPS
    source = "CUDA C++ programming guide, streams; MPS and green contexts"

    def __init__(self, split: int, how: str, sms: int = 0) -> None:
        self.split, self.how, self.sms = split, how, sms

    @property
    def label(self) -> str:
        """How they share it."""
        return f"{self.how}({self.sms})" if self.how == PARTITION else self.how

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Keep each program's own order, and let what could start first go first."""
        n = program.graph.n_operations
        launching = one_by_one(program, charges)
        begins = self._begins_alone(program)
        host = launching.enter
        if self.how == BLOCKS:  # kernels wait on the GPU: only the first of a program pays the gap
            host = host + self._first_of_each(program) * launching.launch
        entry, enter = _two_hosts(host, self.split)
        block = np.arange(program.graph.n_blocks)
        order = np.lexsort((block, begins[program.graph.operation_of_block]))
        if self.how == BLOCKS:
            return Rules(enter=enter, entry=entry, order=order, strict=False)
        later = (
            np.delete(np.arange(1, n), self.split - 1) if 0 < self.split < n else np.arange(1, n)
        )
        return Rules(
            joins=np.full(len(program.graph.join_kind), IGNORED, np.uint8),
            gates=Gates.between(later - 1, later, ALL_ENDED),
            enter=enter,
            entry=entry,
            launch=launching.launch,
            order=order,
            places=self._places(program) if self.how == PARTITION else None,
        )

    def _first_of_each(self, program: Scenario) -> NDArray[np.bool_]:
        """Return which operations are the first kernel of a program: bool[n_operations]."""
        first = np.zeros(program.graph.n_operations, np.bool_)
        kernels = np.flatnonzero(program.is_kernel)
        for own in (kernels[kernels < self.split], kernels[kernels >= self.split]):
            first[own[:1]] = True
        return first

    def _begins_alone(self, program: Scenario) -> NDArray[np.float64]:
        """Return when each operation would begin if its program were alone: float64[n]."""
        graph = program.graph
        begins = np.full(graph.n_operations, np.inf)
        np.minimum.at(begins, graph.operation_of_block, serial(program).start)
        begins[np.isinf(begins)] = 0.0
        begins[self.split :] -= begins[self.split : self.split + 1]
        return begins

    def _places(self, program: Scenario) -> Places:
        if math.isinf(program.sms) or self.sms >= program.sms:
            size = "unlimited" if math.isinf(program.sms) else f"{program.sms:g}"
            raise NotApplicableError(
                f"{self.label} leaves the second program none of {size} SMs: give fewer"
            )
        n, last = program.graph.n_operations, int(program.sms) - 1
        is_first = np.arange(n) < self.split
        kernels, nothing = program.is_kernel, np.zeros(n, np.int64)
        return Places(
            np.where(kernels & ~is_first, self.sms, 0),
            np.where(kernels & is_first, self.sms - 1, last),
            link=nothing - 1,
            taken=nothing,
            capacity=np.empty(0, np.int64),
            talks=np.zeros(n, np.bool_),
        )


def find_sharing(names: str, split: int = 0) -> list[SharedGpu]:
    """Return the ways to share a GPU in a list such as ``streams,partition(66),blocks``.

    Raises
    ------
    ModelError
        If one is none.
    """
    found = []
    for name in names.split(","):
        match = _NAME.fullmatch(name.strip())
        if match is None:
            raise ModelError(f"share {name.strip()!r}: give streams, partition(SMS) or blocks")
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
