"""Streams, and the order that events between them would impose."""

import numpy as np
from numpy.typing import NDArray

from depgraph.graph.block_graph import dependent_operations
from depgraph.mechanisms.base import (
    LAUNCH,
    Availability,
    Charges,
    Launching,
    Mechanism,
    gated,
    one_by_one,
)
from depgraph.scenario.scenario import Scenario
from depgraph.schedule.policy import ALL_ENDED, Gates, Rules
from depgraph.schedule.simulate import largest_gpc
from depgraph.system.arrays import distinct
from depgraph.timing.program_times import LaunchModel

# Streams beyond these make no fork longer (samples/validation, and streams of kernels that do
# nothing in samples/validation/hardware.cu, where 64 took no longer each).
_MOST_IN_TURN = 16


def previous_in_stream(
    program: Scenario, stream: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return pairs of kernels that follow one another in a stream, by default of the program."""
    stream = program.stream if stream is None else stream
    kernels = np.flatnonzero(program.is_kernel).astype(np.int32)
    kernels = kernels[np.argsort(stream[kernels], kind="stable")]
    same = stream[kernels[1:]] == stream[kernels[:-1]]
    return kernels[:-1][same], kernels[1:][same]


def across_streams(program: Scenario) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return dependent pairs of operations that their streams do not order: sources, targets."""
    source, target = dependent_operations(program.graph)
    apart = program.stream[source] != program.stream[target]
    apart |= ~program.is_kernel[source] | ~program.is_kernel[target]
    return source[apart], target[apart]


def named_clusters(program: Scenario) -> NDArray[np.int64]:
    """Return the `clusters` of a program that have room in a GPC."""
    largest = largest_gpc(program.resources.gpu, program.sms)
    return np.where(program.clusters <= largest, program.clusters, 1)


class Streams(Mechanism):
    """The program's own streams, with an event for each dependence between two of them."""

    name = "streams"
    rule = (
        "a kernel starts once the kernel before it in its stream has ended, and each kernel of "
        "another stream that it depends on"
    )
    cost = (
        "launches: host and gap of each kernel; of several streams the GPU's own time for each "
        "kernel, for each event, and for each pair of streams before the first kernels"
    )
    family = "streams"
    availability = Availability.SHIPS
    source = "CUDA C++ programming guide, streams and events"
    costs = (LAUNCH,)

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Gate each kernel by its stream and by what it depends on elsewhere."""
        source, target = across_streams(program)
        gates = Gates.between(*previous_in_stream(program), ALL_ENDED)
        gates += Gates.between(source, target, ALL_ENDED)
        n_streams = len(distinct(program.stream[program.is_kernel]))
        note = f"{n_streams} streams, as in the trace"
        launching, entry = one_by_one(program, charges), None
        if n_streams == 1:
            note = "all kernels are in one stream"
        elif not charges.is_given(LAUNCH.name):
            launching, entry = _in_turns(program, charges.launches, launching, n_streams, target)
        return gated(
            launching,
            gates,
            entry=entry,
            cluster=named_clusters(program),
            first_come=True,
            assumptions=(note,),
        )


def _in_turns(
    program: Scenario,
    model: LaunchModel,
    launching: Launching,
    n_streams: int,
    waiting: NDArray[np.int32],
) -> tuple[Launching, NDArray[np.int64] | None]:
    """Return what launches into several streams cost, and in which order the GPU takes them."""
    # One kernel of each stream in turn, unless the host takes longer to issue them; those that are
    # `waiting` for another stream do so for an event.
    place = np.zeros(program.graph.n_operations, np.int64)
    for before, after in zip(*previous_in_stream(program), strict=True):
        place[after] = place[before] + 1
    waits = np.bincount(waiting, minlength=len(place)) > 0
    # Streams fork from one and join there: each is looked at once for each other one.
    forked = (place == 0) * n_streams * min(n_streams, _MOST_IN_TURN) * model.turn.value
    in_turns = Launching(
        np.maximum(launching.enter, program.is_kernel * model.streamed.value),
        launching.launch + program.is_kernel * (waits * model.event.value + forked),
    )
    if model.host.value >= model.streamed.value:
        return in_turns, None
    return in_turns, np.lexsort((np.arange(len(place)), place))
