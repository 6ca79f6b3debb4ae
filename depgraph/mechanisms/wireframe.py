"""Wireframe: blocks level by level of the dependence graph, a few levels at a time."""

import math
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from depgraph.mechanisms.base import Availability, Charges, Cost, Numbered, once
from depgraph.scenario.scenario import Scenario
from depgraph.schedule.policy import Rules


class Wireframe(Numbered):
    """Blocks level by level, at most so many levels at a time."""

    name = "wireframe"
    signature = "wireframe(L)"
    rule = (
        "a block starts once its parents have ended and its level is less than L = 3 ahead of the "
        "first unfinished one, fewer where the structures do not hold the blocks of so many; lower "
        "levels first"
    )
    cost = "2 KB of structures; launches: one, of the whole program"
    availability = Availability.HARDWARE
    source = "Abdolrashidi et al., Wireframe, MICRO 2017 (second-hand); L = 3 is our choice"
    costs: ClassVar[tuple[Cost, ...]] = (
        Cost(
            "bytes", 2048, "count", "size of the structures that hold blocks; 0 for any",
            "Abdolrashidi et al., Wireframe, MICRO 2017 (second-hand): 2 KB",
        ),
        Cost(
            "entry", 8, "count", "bytes that a block takes there",
            "assumed: a state, a counter of parents, and where its edges are",
        ),
    )  # fmt: skip
    usual = (3,)
    more_is_freer = True

    def __init__(self, levels: int = 3) -> None:
        super().__init__(levels)
        self.levels = levels

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Rank blocks by level and let `levels` of them run."""
        graph = program.graph
        finish, _ = graph.earliest_finish(np.ones(graph.n_blocks))
        level = finish.astype(np.int32) - 1
        order = np.lexsort((np.arange(graph.n_blocks), level))
        size = charges.number("bytes") or math.inf
        entries = max(1.0, size / max(charges.number("entry"), 1.0))
        held = most_levels(np.bincount(level), self.levels, entries)
        stage, ahead = level, held
        note = f"levels at a time: {held} (not published as such)"
        if held < self.levels:
            note += f", as the structures hold {int(entries)} blocks"
        if not held:
            ahead = int(entries)
            stage = np.empty(graph.n_blocks, np.int32)
            stage[order] = np.arange(graph.n_blocks)
            note = f"a level is wider than the structures: {ahead} blocks at a time, in its order"
        return Rules(
            order=order,
            strict=False,
            enter=once(program, charges).enter,
            stage=stage,
            stages_ahead=ahead,
            assumptions=(note,),
        )


def most_levels(widths: NDArray[np.int64], levels: int, entries: float) -> int:
    """Return how many levels on end fit into so many entries wherever they begin, 0 if not one."""
    ends = np.concatenate([[0], np.cumsum(widths)])
    for together in range(min(levels, len(widths)), 0, -1):
        if (ends[together:] - ends[:-together]).max() <= entries:
            return levels if together == len(widths) else together
    return 0
