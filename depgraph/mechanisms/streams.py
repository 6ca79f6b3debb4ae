"""Streams, and the order that events between them would impose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from depgraph.mechanisms.base import Availability, Mechanism, dependent_operations
from depgraph.mechanisms.costs import LAUNCH, gated, one_by_one
from depgraph.schedule.policy import ALL_ENDED, Gates, Rules

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from depgraph.mechanisms.costs import Charges
    from depgraph.scenario.scenario import Scenario


def previous_in_stream(program: Scenario) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return pairs of kernels that follow one another in a stream: sources, targets."""
    kernels = np.flatnonzero(program.is_kernel).astype(np.int32)
    kernels = kernels[np.argsort(program.stream[kernels], kind="stable")]
    same = program.stream[kernels[1:]] == program.stream[kernels[:-1]]
    return kernels[:-1][same], kernels[1:][same]


def across_streams(program: Scenario) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return dependent pairs of operations that their streams do not order: sources, targets."""
    source, target = dependent_operations(program.graph)
    apart = program.stream[source] != program.stream[target]
    apart |= ~program.is_kernel[source] | ~program.is_kernel[target]
    return source[apart], target[apart]


class Streams(Mechanism):
    """The program's own streams, with an event for each dependence between two of them."""

    name = "streams"
    rule = (
        "a kernel starts once the kernel before it in its stream has ended, and each kernel of "
        "another stream that it depends on"
    )
    cost = "launches: host and gap of each kernel"
    family = "streams"
    availability = Availability.SHIPS
    source = "CUDA C++ programming guide, streams and events"
    costs = (LAUNCH,)

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Gate each kernel by its stream and by what it depends on elsewhere."""
        gates = Gates.between(*previous_in_stream(program), ALL_ENDED)
        gates += Gates.between(*across_streams(program), ALL_ENDED)
        n_streams = len(np.unique(program.stream[program.is_kernel]))
        note = f"{n_streams} streams, as in the trace"
        if n_streams == 1:
            note = "all kernels are in one stream"
        return gated(program, one_by_one(program, charges), gates, assumptions=(note,))
