"""What all numbers of an answer rest on: which program, whose times, which GPU, what is assumed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from depgraph.graph.kinds import KIND_NAMES

if TYPE_CHECKING:
    from depgraph.scenario.scenario import MeasuredSchedule, Scenario
    from depgraph.scenario.trust import Trust


@dataclass(frozen=True, slots=True)
class Basis:
    """What all numbers of an answer rest on."""

    unit: str  # of all times
    durations: str  # where they come from
    gpu: str  # whose limits apply
    gpu_is_assumed: bool  # nobody named it
    occupancy: tuple[int, int]  # least and most resident blocks per SM among the kernels
    # kernels, blocks: of the program
    kernels: int
    blocks: int
    # dependences, known_kinds: kinds that count, and all that the graph knows, such as
    # "RAW,WAR,WAW"
    dependences: str
    known_kinds: str
    # launches_cost, has_contention: whether launches cost anything, and blocks of one SM slow each
    # other in predictions
    launches_cost: bool
    has_contention: bool
    measured: MeasuredSchedule | None  # how the program ran when it was profiled
    # assumptions, uncertain: what times and limits rest on; what of the dependences is not certain
    assumptions: tuple[str, ...]
    uncertain: tuple[str, ...]
    trust: Trust | None  # how far predictions can be trusted; None where durations are no times

    @classmethod
    def of(cls, scenario: Scenario) -> Basis:
        """Take from a scenario what its numbers rest on."""
        graph = scenario.graph
        of_kernels = scenario.occupancy[scenario.is_kernel].tolist()
        return cls(
            unit=scenario.unit,
            durations=scenario.timing.source,
            gpu=scenario.resources.gpu.name,
            gpu_is_assumed=scenario.resources.gpu_is_assumed,
            occupancy=(min(of_kernels, default=1), max(of_kernels, default=1)),
            kernels=len(scenario.kernels),
            blocks=graph.n_blocks,
            dependences=scenario.dependences,
            known_kinds=",".join(kind for kind in KIND_NAMES if kind in graph.known_kinds),
            launches_cost=not scenario.launch.is_off,
            has_contention=scenario.sharing is not None,
            measured=scenario.measured,
            assumptions=scenario.assumptions,
            uncertain=tuple(scenario.uncertainty.notes),
            trust=scenario.trust,
        )
