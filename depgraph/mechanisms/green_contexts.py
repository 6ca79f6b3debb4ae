"""Green contexts: streams that own a part of the SMs."""

import math
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import NotApplicableError
from depgraph.graph.block_graph import dependent_operations
from depgraph.mechanisms.base import (
    LAUNCH,
    Availability,
    Charges,
    Cost,
    Numbered,
    gated,
    one_by_one,
)
from depgraph.mechanisms.queues import chain_of_each
from depgraph.mechanisms.streams import previous_in_stream
from depgraph.scenario.scenario import Scenario
from depgraph.schedule.policy import ALL_ENDED, Gates, Places, Rules

# By the first digit of the compute capability: the fewest SMs of a part, and what they are a
# multiple of; the latter for all newer ones.
_PARTS = {6: (2, 2), 7: (2, 2), 8: (4, 2)}
_NEWER = (8, 8)


class GreenContexts(Numbered):
    """As many streams as there are parts of the GPU."""

    name = "green-contexts"
    signature = "green-contexts(N)"
    rule = (
        "the SMs are cut into N = 2 parts, as equal as the GPU allows; the program's streams, or "
        "if there are fewer the chains of its dependent kernels, are dealt out, most work first, "
        "each to the part that would be done with it first; a kernel runs on its part, once the "
        "kernel before it there has ended, and each one elsewhere that it depends on"
    )
    cost = "SMs that others may not use; launches: host and gap of each kernel"
    availability = Availability.SHIPS
    vendor = "NVIDIA"
    least_architecture = 60
    source = (
        "CUDA driver API, green contexts: parts are multiples of 8 SMs from compute capability 9.0 "
        "on (the same on an H100 and an H200, benchmarks/block_placement.cu), of 2 and at least 4 "
        "of 8.x, of 2 before"
    )
    usual = (2,)
    costs: ClassVar[tuple[Cost, ...]] = (
        Cost(
            "granularity", 0, "count", "SMs that a part is a multiple of; 0 for what the GPU's "
            "architecture allows", "CUDA driver API",
        ),
        LAUNCH,
    )  # fmt: skip

    def __init__(self, contexts: int = 2) -> None:
        super().__init__(contexts)
        self.contexts = contexts

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Put each stream on its SMs."""
        graph = program.graph
        step = int(charges.number("granularity"))
        first, last = self._parts(program, step)
        context = self._context_of_each(program, last - first + 1)
        places = None
        if not math.isinf(program.sms):
            places = Places.on_sms(
                np.where(program.is_kernel, first[context], 0),
                np.where(program.is_kernel, last[context], int(program.sms) - 1),
            )
        gates = Gates.between(*previous_in_stream(program, context), ALL_ENDED)
        sizes = ", ".join(map(str, (last - first + 1).tolist()))
        return gated(
            one_by_one(program, charges),
            gates + Gates.between(*dependent_operations(graph), ALL_ENDED),
            places=places,
            assumptions=(f"SMs of the parts: {sizes}",) if places is not None else (),
        )

    def _parts(self, program: Scenario, step: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first and the last SM of each part; what is left over goes to the last."""
        least, usual = _PARTS.get(program.resources.gpu.architecture // 10, _NEWER)
        if math.isinf(program.sms):
            return np.zeros(self.contexts, np.int64), np.zeros(self.contexts, np.int64)
        least, step = (step, step) if step else (least, usual)
        sms = int(program.sms)
        size = sms // self.contexts // step * step
        if size < least:
            raise NotApplicableError(
                f"{self.contexts} parts of at least {least} SMs each do not fit on {sms} SMs"
            )
        first = size * np.arange(self.contexts, dtype=np.int64)
        return first, np.append(first[1:], sms) - 1

    def _context_of_each(self, program: Scenario, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Deal streams out, those of most work first, each to where it would be done first."""
        graph = program.graph
        stream = program.stream
        if len(np.unique(stream[program.is_kernel])) < self.contexts:
            stream = chain_of_each(graph)
        _, stream = np.unique(stream, return_inverse=True)
        weights = program.durations * program.shares
        work = np.bincount(stream[graph.operation_of_block], weights)
        context = np.zeros(len(work), np.int64)
        load = np.zeros(self.contexts)
        for each in np.argsort(-work, kind="stable"):
            context[each] = ((load + work[each]) / sizes).argmin()
            load[context[each]] += work[each]
        of_each: NDArray[np.int64] = context[stream]
        return of_each
