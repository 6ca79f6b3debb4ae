"""BlockMaestro: blocks of a few pre-launched kernels, released by counters."""

from typing import ClassVar

import numpy as np

from depgraph.errors import ModelError
from depgraph.graph.block_graph import dependent_operations
from depgraph.graph.dependences import KIND_NAMES
from depgraph.mechanisms.base import (
    INVOCATION,
    Availability,
    Charges,
    Cost,
    Mechanism,
    ahead,
    whole_number,
    word,
)
from depgraph.scenario.scenario import Scenario
from depgraph.schedule import policy
from depgraph.system.text import counted

_PAPER = "Abdolrashidi et al., BlockMaestro, ISCA 2021 (second-hand)"
DEFAULT_WINDOW = 2
_ORDERS = {"producer": policy.oldest_first, "consumer": policy.newest_first}


class BlockMaestro(Mechanism):
    """At most `window` kernels at a time, blocks of the producer or of the consumer first."""

    name = "blockmaestro"
    signature = "blockmaestro(N[,producer|consumer])"
    takes = (whole_number, word)
    rule = (
        "a block starts once the blocks of the kernel just before that it reads from have ended; "
        "N = 2 kernels launched at a time, ended in order; anything else waits for the whole kernel"
    )
    cost = "a list of edges and a counter of parents for each block; launches as cusync-row"
    availability = Availability.HARDWARE
    source = _PAPER
    costs: ClassVar[tuple[Cost, ...]] = (
        INVOCATION._replace(source=f"--launch; {_PAPER}: 5 us"),
        Cost(
            "parents", 63, "count", "most parents a block can count; more wait for the kernel",
            f"{_PAPER}: a counter of 6 bits",
        ),
        Cost(
            "edges", 0, "count", "edges between two kernels that the dependency list holds; a "
            "kernel with more waits for the whole one before it; 0 for any number",
            "its size is not known to us",
        ),
    )  # fmt: skip

    def __init__(self, window: int = DEFAULT_WINDOW, priority: str = "producer") -> None:
        if priority not in _ORDERS:
            raise ModelError(f"priority {priority!r}: give one of {', '.join(_ORDERS)}")
        self.window = window
        self.priority = priority
        self.shown = () if window == DEFAULT_WINDOW else (window,)
        if priority != "producer":
            self.shown = window, priority
        self.freedom = f"{self.name}, {priority}", window

    def rules(self, program: Scenario, charges: Charges) -> policy.Rules:
        """Gate blocks by RAW from the kernel before, kernels by everything else."""
        graph = program.graph
        most, capacity = int(charges.number("parents")), int(charges.number("edges"))
        adjacent = graph.join_target_operation - graph.join_source_operation == 1
        fine = adjacent & (graph.join_kind == KIND_NAMES.index("RAW"))
        number = {int(k): operation for operation, k in enumerate(graph.kernel)}
        wide, full = np.zeros((2, graph.n_operations), np.bool_)
        widest = counters = 0
        for pair in graph.with_kinds({"RAW"}).pairs() if fine.any() else ():
            target = number[pair.target]
            if target - number[pair.source] != 1:
                continue
            wide[target] |= pair.most_sources > most
            full[target] |= 0 < capacity < pair.raw
            if not wide[target] and not full[target]:
                widest = max(widest, pair.raw)
                counters = max(counters, pair.waiting)
        wide |= full
        fine &= ~wide[graph.join_target_operation]
        whole = ~fine
        bits = max(most, 1).bit_length()
        notes = [
            "WAR, WAW and dependences on older kernels wait for the whole kernel",
            f"buffers in use at once, at most: edges {widest}, counters of {bits} bits {counters}",
        ]
        if n_crowded := int((wide & ~full).sum()):
            notes.append(f"kernels with blocks of more than {counted(most, 'parent')}: {n_crowded}")
        if n_full := int(full.sum()):
            notes.append(f"kernels with more than {counted(capacity, 'edge')}: {n_full}")
        launching = ahead(program, charges, name=INVOCATION.name)
        return policy.Rules(
            joins=np.where(fine, policy.PLACES, policy.IGNORED).astype(np.uint8),
            gates=policy.Gates.between(*dependent_operations(graph, whole), policy.ALL_ENDED),
            enter=launching.enter,
            window=self.window,
            in_order=True,
            order=_ORDERS[self.priority](graph, program.durations),
            strict=False,
            assumptions=tuple(notes),
        )
