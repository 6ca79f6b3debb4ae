"""Command queues of the HSA: a graph of kernels as barrier packets in more or fewer queues."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from depgraph.graph.block_graph import BlockGraph, dependent_operations, sources_of_each
from depgraph.mechanisms.base import Availability, Charges, Cost, Numbered
from depgraph.scenario.scenario import Scenario
from depgraph.schedule.policy import ALL_ENDED, IGNORED, Gates, Rules

_SIGNALS = 5
_PAPER = "Puthoor et al., Oversubscribed command queues in GPUs, GPGPU 2018 (second-hand)"


def chain_of_each(graph: BlockGraph) -> NDArray[np.int64]:
    """Deal operations out to chains, each waiting for the one before it: int64[n_operations]."""
    chain = np.empty(graph.n_operations, np.int64)
    goes_on = np.zeros(graph.n_operations, np.bool_)
    chains = 0
    for operation, before in enumerate(sources_of_each(graph)):
        free = before[~goes_on[before]]
        if len(free):  # the latest of them
            goes_on[free[-1]] = True
            chain[operation] = chain[free[-1]]
        else:
            chain[operation] = chains
            chains += 1
    return chain


class HsaQueues(Numbered):
    """Chains of kernels in queues, as many at a time as the hardware looks at."""

    name = "hsa-queues"
    signature = "hsa-queues(Q)"
    rule = (
        "a kernel starts once every kernel that it depends on has ended; each chain of kernels "
        "has a queue, and where there are more than Q = 32 queues take turns in groups of Q, the "
        "last of what is left, in which alone their kernels start"
    )
    cost = (
        "the rest of other queues' turns; launches: a packet for each kernel, and a barrier packet "
        "for each five kernels of other queues that it depends on, once they have ended"
    )
    availability = Availability.SHIPS
    vendor = "AMD"
    source = f"{_PAPER}; HSA platform system architecture, barrier-AND packets of five signals"
    usual = (32,)
    more_is_freer = True
    costs: ClassVar[tuple[Cost, ...]] = (
        Cost("packet", 4.4, "us", "processing a packet", _PAPER, is_launch=True),
        Cost("quantum", 100, "us", "a turn, where there are more queues than Q", _PAPER),
    )

    def __init__(self, queues: int = 32) -> None:
        super().__init__(queues)
        self.queues = queues

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Gate each kernel by those it depends on, and by the turn of its queue."""
        graph = program.graph
        source, target = dependent_operations(graph)
        queue = chain_of_each(graph)
        others = np.bincount(target[queue[source] != queue[target]], minlength=graph.n_operations)
        packets = 1 + -(-others // _SIGNALS)
        used = int(queue.max(initial=-1)) + 1
        turns = -(-used // self.queues)
        quantum = charges.time("quantum") if turns > 1 else 0.0
        note = f"queues: {used}, in {turns} turns" if turns > 1 else f"queues: {used}"
        return Rules(
            joins=IGNORED,
            gates=Gates.between(source, target, ALL_ENDED),
            launch=program.is_kernel * packets * charges.time("packet"),
            turn=queue // self.queues,
            turns=(turns if quantum else 1, quantum),
            assumptions=(note,),
        )
