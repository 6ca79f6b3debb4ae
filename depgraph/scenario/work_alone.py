"""What blocks would take at a rate of 1, with nothing beside them on their SM.

It is found so that each kernel alone, on the GPU that it was measured on, takes as long as it was
measured to take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from depgraph.schedule.policy import IGNORED, Rules
from depgraph.schedule.simulate import run_rules
from depgraph.timing.durations import kernel_makespans

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from depgraph.gpu.sm_resources import SmResources, SmSharing
    from depgraph.graph.block_graph import BlockGraph
    from depgraph.timing.durations import Durations

Contention = Literal["none", "sm", "full"]
CHOICES: tuple[str, ...] = get_args(Contention)

_GOLDEN = 0.6180339887498949
# What of a kernel's measured time is work, at least, in microseconds.
_LEAST_WORK = 0.15


def work_of_blocks(
    graph: BlockGraph,
    timing: Durations,
    on: SmResources,
    sms: int | None,
    sharing: SmSharing,
    microsecond: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what each block would take at a rate of 1, and the part of kernels that holds no SM.

    `on`, `sms` (None for those of its model) and `sharing` are of the GPU that durations were
    measured on; the part, float64[n_operations], is 0 for copies and memsets; `microsecond` is in
    their unit.
    """
    durations, sms = timing.values, sms or on.gpu.sms
    alone = kernel_makespans(graph, durations, on.occupancy * sms)
    most = np.maximum(alone - _LEAST_WORK * microsecond, 0.0)
    lead = np.minimum(sharing.lead * microsecond, most) * (graph.kernel >= 0)
    index = np.arange(graph.n_blocks) - graph.first_block[graph.operation_of_block]
    # Spread evenly whatever their number, and neighbours apart; measured blocks have a spread.
    place = 2 * np.modf(index * _GOLDEN)[0] - 1
    together = 1 - 1 / np.maximum(on.occupancy, 1)
    together[np.isin(graph.kernel, list(timing.of_blocks))] = 0.0
    shape = durations * (1 + sharing.spread * together[graph.operation_of_block] * place)
    rules = Rules(
        joins=np.full(len(graph.join_kind), IGNORED, np.uint8),
        waits_for_all=True,
    )
    run = run_rules("alone", rules, graph, shape, on, sms, sharing=sharing)
    full = np.flatnonzero(np.diff(graph.first_block))
    first = graph.first_block[:-1][full]
    taken = np.zeros(graph.n_operations)
    if len(full):
        taken[full] = np.maximum.reduceat(run.end, first) - np.minimum.reduceat(run.start, first)
    factor = np.divide(alone - lead, taken, out=np.zeros(len(taken)), where=taken > 0)
    values: NDArray[np.float64] = shape * factor[graph.operation_of_block]
    return values, lead
