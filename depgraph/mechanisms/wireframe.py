"""Wireframe: blocks level by level of the dependence graph, a few levels at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from depgraph.mechanisms.base import Availability, Numbered
from depgraph.mechanisms.costs import once
from depgraph.schedule.policy import Rules

if TYPE_CHECKING:
    from depgraph.mechanisms.costs import Charges
    from depgraph.scenario.scenario import Scenario


class Wireframe(Numbered):
    """Wireframe with a bound on how far blocks may run ahead.

    Parameters
    ----------
    levels : int
        Levels of the graph that may run at a time.
    """

    name = "wireframe"
    signature = "wireframe(L)"
    rule = (
        "a block starts once its parents have ended and its level is less than L = 3 ahead of the "
        "first unfinished one; lower levels first"
    )
    cost = "2 KB of structures; launches: one, of the whole program"
    availability = Availability.HARDWARE
    source = "Abdolrashidi et al., Wireframe, MICRO 2017 (second-hand); L = 3 is our choice"
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
        return Rules(
            order=np.lexsort((np.arange(graph.n_blocks), level)),
            strict=False,
            enter=once(program, charges).enter,
            stage=level,
            stages_ahead=self.levels,
            assumptions=(f"levels at a time: {self.levels} (not published as such)",),
        )
