"""Which cuSync policy fits each pair of kernels, what it costs and how much faster it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from depgraph.analysis.compare_mechanisms import run_mechanism
from depgraph.graph.builder import GraphBuilder
from depgraph.graph.regroup import grouped_pairs
from depgraph.mechanisms import Charges, Quantity
from depgraph.mechanisms.cusync import CuSyncRow, CuSyncStrided, CuSyncTile
from depgraph.mechanisms.serial import serial
from depgraph.system.ratios import ratio
from depgraph.timing.launch_model import OFF

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from depgraph.mechanisms import Mechanism
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
    speedup: float  # serial time of the two kernels alone over their time with the policy
    tile_speedup: float  # the same with a semaphore for each block


def cheapest_policies(program: Scenario) -> list[Policy]:
    """Find the cheapest correct policy for each pair of dependent kernels.

    Fewest waits first; among equals the one that waits for the fewest blocks.
    """
    graph = program.graph
    found = []
    for source, target, groups in grouped_pairs(graph):
        if graph.kernel[source] < 0 or graph.kernel[target] < 0:
            continue
        mechanism, semaphores, waits = _cheapest(groups, program, source)
        pair = _alone(program, source, target, groups)
        before = serial(pair).makespan
        speedups = [
            ratio(before, _makespan(each, pair)) if each else 1.0
            for each in (mechanism, CuSyncTile())
        ]
        name = "none" if mechanism is None else mechanism.label.removeprefix("cusync-")
        found.append(
            Policy(
                source=int(graph.kernel[source]),
                target=int(graph.kernel[target]),
                policy=name,
                semaphores=semaphores,
                waits=waits,
                speedup=speedups[0],
                tile_speedup=speedups[1],
            )
        )
    return found


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


def _alone(program: Scenario, source: int, target: int, groups: Groups) -> Scenario:
    """Return the program of two kernels alone."""
    graph = program.graph
    pair = [source, target]
    sizes = np.diff(graph.first_block)[pair]
    builder = GraphBuilder([0, 1], sizes.tolist())
    first = graph.first_block[pair]
    for sources, targets in groups:
        builder.add("RAW", sources - first[0], targets - first[1] + sizes[0])
    blocks = np.concatenate([np.arange(f, f + n) for f, n in zip(first, sizes, strict=True)])
    row = {k.operation: k for k in program.kernels}
    alone = replace(
        program,
        graph=builder.build(graph.kinds),
        resources_of=lambda _: program.resources.take(pair),
        kernels=[replace(row[k], operation=i) for i, k in enumerate(pair)],
        launch=OFF,
    )
    return alone.with_durations(program.durations[blocks])


def _makespan(mechanism: Mechanism, program: Scenario) -> float:
    # The rule alone: what synchronising costs is the same for all policies.
    charges = Charges(mechanism.costs, {"sync": Quantity(0.0, "share")})
    return run_mechanism(mechanism, program, charges)[0].makespan
