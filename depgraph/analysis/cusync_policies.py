"""Which cuSync policy fits each pair of kernels, what it costs and how much faster it is."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from depgraph.analysis.bound import Outcome
from depgraph.analysis.compare_mechanisms import compare_mechanisms
from depgraph.graph.regroup import graph_of_pair, grouped_pairs
from depgraph.mechanisms import Mechanism
from depgraph.mechanisms.cusync import CuSyncRow, CuSyncStrided, CuSyncTile
from depgraph.scenario.scenario import Scenario

Groups = Sequence[tuple[NDArray[np.int64], NDArray[np.int32]]]


@dataclass(frozen=True, slots=True)
class Policy:
    """The cheapest cuSync policy that keeps the dependences of a pair of kernels."""

    # source, target: kernel numbers
    source: int
    target: int
    # "row", "tile", "strided(s)", or "none": some block needs blocks of several rows, so that only
    # the end of the kernel will do
    policy: str
    # semaphores, waits: what the policy takes; waits are summed over the blocks
    semaphores: int
    waits: int
    # What `compare_mechanisms` says of the two kernels alone: with the policy, None where there is
    # none, and with a semaphore for each block.
    reached: Outcome | None
    by_tile: Outcome


def cheapest_policies(program: Scenario) -> list[Policy]:
    """Find the correct policy of the fewest waits, then blocks waited for, of each pair."""
    graph = program.graph
    policies = []
    for source, target, groups in grouped_pairs(graph):
        if graph.kernel[source] < 0 or graph.kernel[target] < 0:
            continue
        mechanism, semaphores, waits = _cheapest(groups, program, source)
        tried = [CuSyncTile()] if mechanism is None else [CuSyncTile(), mechanism]
        pair = _alone(program, source, target)
        by_tile, *others = compare_mechanisms(pair, [program.sms], tried).outcomes
        name = "none" if mechanism is None else mechanism.label.removeprefix("cusync-")
        policies.append(
            Policy(
                source=int(graph.kernel[source]),
                target=int(graph.kernel[target]),
                policy=name,
                semaphores=semaphores,
                waits=waits,
                reached=next(iter(others), None),
                by_tile=by_tile,
            )
        )
    return policies


def _cheapest(groups: Groups, program: Scenario, source: int) -> tuple[Mechanism | None, int, int]:
    """Return the policy, its semaphores and its waits."""
    width = int(program.shape[source, 0])
    first = int(program.graph.first_block[source])
    rows = [np.unique((sources - first) // width) for sources, _ in groups]
    if any(len(row) > 1 for row in rows):
        return None, 0, 0
    n_rows = len(np.unique(np.concatenate(rows)))
    consumers = sum(len(targets) for _, targets in groups)
    columns = [(sources - first) % width for sources, _ in groups]
    if all(len(c) == 1 for c in columns):
        blocks = np.unique(np.concatenate([sources for sources, _ in groups]))
        return CuSyncTile(), len(blocks), consumers
    distances = {_distance(c, width) for c in columns}
    distance = distances.pop() if len(distances) == 1 else 1
    if distance > 1:
        return CuSyncStrided(width // distance), n_rows * distance, consumers
    return CuSyncRow(), n_rows, consumers


def _distance(columns: NDArray[np.int64], width: int) -> int:
    """Return the distance of equally spaced columns that span the row, else 1."""
    distance = int(columns[1] - columns[0]) if len(columns) > 1 else 1
    even = width % distance == 0 and len(columns) == width // distance
    return distance if even and (np.diff(columns) == distance).all() else 1


def _alone(program: Scenario, source: int, target: int) -> Scenario:
    """Return the program of two kernels alone."""
    pair = [source, target]
    first = program.graph.first_block
    blocks = np.concatenate([np.arange(*first[kernel : kernel + 2]) for kernel in pair])
    row = {k.operation: k for k in program.kernels}
    kernels, at = [], 0
    for place, kernel in enumerate(pair):
        kernels.append(replace(row[kernel], operation=place, first_block=at))
        at += row[kernel].blocks
    measured_on = program.measured_on
    there = None if measured_on is None else measured_on(program.graph).take(pair)
    alone = replace(
        program,
        graph=graph_of_pair(program.graph, source, target),
        resources_of=lambda _: program.resources.take(pair),
        measured_on=None if there is None else lambda _: there,
        kernels=kernels,
        memory=0.0,
    )
    return alone.with_durations(program.durations[blocks])
