"""The publications that can be reproduced, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depgraph.errors import ModelError
from depgraph.reproduce import (
    communication,
    cusync_programs,
    kuper,
    simulator,
    spawn,
    stream_k_tiles,
    windows,
)
from depgraph.system.text import did_you_mean, in_short

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from depgraph.reproduce.figures import Inputs, Reproduction

EXPERIMENTS: Mapping[str, Callable[[Inputs], Reproduction]] = {
    "kuper": kuper.reproduce,
    "cusync": cusync_programs.reproduce,
    "acs": windows.acs,
    "spawn": spawn.reproduce,
    "c3": communication.c3,
    "blockmaestro": windows.blockmaestro,
    "flashoverlap": communication.flashoverlap,
    "stream-k": stream_k_tiles.reproduce,
    "simulator": simulator.reproduce,
}


def reproduce(name: str, inputs: Inputs) -> Reproduction:
    """Compute the figures of one publication.

    Raises
    ------
    ModelError
        If there is none of that name.
    """
    if name not in EXPERIMENTS:
        known = f"; there are {', '.join(EXPERIMENTS)}"
        hint = did_you_mean(name, EXPERIMENTS) or known
        raise ModelError(f"nothing called {in_short(name)!r} can be reproduced{hint}")
    return EXPERIMENTS[name](inputs)
