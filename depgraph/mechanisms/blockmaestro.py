"""BlockMaestro: blocks of a few pre-launched kernels, released by counters."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from depgraph.errors import ModelError
from depgraph.graph import KIND_NAMES
from depgraph.mechanisms.base import (
    Availability,
    Cost,
    Mechanism,
    dependent_operations,
    whole_number,
)
from depgraph.rules import ALL_ENDED, IGNORED, PLACES, Gates, Rules
from depgraph.schedules import newest_first, oldest_first

if TYPE_CHECKING:
    from collections.abc import Sequence

    from depgraph.mechanisms.costs import Charges
    from depgraph.scenario import Scenario

_PAPER = "Abdolrashidi et al., BlockMaestro, ISCA 2021 (second-hand)"
DEFAULT_WINDOW = 2
_ORDERS = {"producer": oldest_first, "consumer": newest_first}


class BlockMaestro(Mechanism):
    """BlockMaestro.

    Parameters
    ----------
    window : int
        Kernels launched at a time, 2 to 4 in the paper.
    priority : {"producer", "consumer"}
        Whose blocks go first.
    """

    name = "blockmaestro"
    signature = "blockmaestro(N[,producer|consumer])"
    rule = (
        "a block starts once the blocks of the kernel just before that it reads from have ended; "
        "N = 2 kernels launched at a time, ended in order; anything else waits for the whole kernel"
    )
    cost = "launches, hidden behind the kernel before"
    availability = Availability.HARDWARE
    source = _PAPER
    costs: ClassVar[tuple[Cost, ...]] = (
        Cost("launch", 5.0, "us", "launching a kernel, one after another", _PAPER),
        Cost(
            "parents", 63, "count", "most parents a block can count; more wait for the kernel",
            f"{_PAPER}: a counter of 6 bits",
        ),
    )  # fmt: skip

    def __init__(self, window: int = DEFAULT_WINDOW, priority: str = "producer") -> None:
        if priority not in _ORDERS:
            raise ModelError(f"priority {priority!r}: give one of {', '.join(_ORDERS)}")
        self.window = window
        self.priority = priority

    @property
    def label(self) -> str:
        """The name, with window and priority if they are not the defaults."""
        if self.priority != "producer":
            return f"{self.name}({self.window},{self.priority})"
        return self.name if self.window == DEFAULT_WINDOW else f"{self.name}({self.window})"

    @classmethod
    def with_parameters(cls, parameters: Sequence[str]) -> Mechanism:
        """Read window and priority."""
        if len(parameters) not in (1, 2):
            raise ModelError(f"give {cls.signature}")
        return cls(whole_number(cls.name, parameters[0]), *parameters[1:])

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Gate blocks by RAW from the kernel before, kernels by everything else."""
        graph = program.graph
        most = int(charges.number("parents"))
        adjacent = graph.join_target_operation - graph.join_source_operation == 1
        fine = adjacent & (graph.join_kind == KIND_NAMES.index("RAW"))
        number = {int(k): operation for operation, k in enumerate(graph.kernel)}
        crowded = {
            (number[p.source], number[p.target]) for p in graph.pairs() if p.most_sources > most
        }
        wide = np.zeros(graph.n_operations, np.bool_)
        for source, target in crowded:
            wide[target] |= target - source == 1
        fine &= ~wide[graph.join_target_operation]
        whole = ~fine
        n_crowded = int(wide.sum())
        notes = ["WAR, WAW and dependences on older kernels wait for the whole kernel"]
        if n_crowded:
            notes.append(f"{n_crowded} kernels have blocks with more than {most} parents")
        return Rules(
            joins=np.where(fine, PLACES, IGNORED).astype(np.uint8),
            gates=Gates.between(*dependent_operations(graph, whole), ALL_ENDED),
            enter=program.is_kernel * charges.time("launch"),
            window=self.window,
            in_order=True,
            order=_ORDERS[self.priority](graph, program.durations),
            strict=False,
            assumptions=tuple(notes),
        )
