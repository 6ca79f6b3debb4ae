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
    """What all numbers of an answer rest on.

    Attributes
    ----------
    unit : str
        Of all times.
    durations : str
        Where they come from.
    gpu : str
        Whose limits apply.
    occupancy : (int, int)
        Least and most resident blocks per SM among the kernels.
    kernels, blocks : int
        Of the program.
    dependences, known_kinds : str
        Kinds that count, and all that the graph knows, such as "RAW,WAR,WAW".
    launches_cost, has_contention : bool
        Whether launches cost anything, and blocks of one SM slow each other in predictions.
    measured : MeasuredSchedule or None
        How the program ran when it was profiled.
    assumptions, uncertain : tuple of str
        What times and limits rest on; what of the dependences is not certain.
    trust : Trust or None
        How far predictions can be trusted; None where durations are no times.
    """

    unit: str
    durations: str
    gpu: str
    gpu_is_assumed: bool  # nobody named it
    occupancy: tuple[int, int]
    kernels: int
    blocks: int
    dependences: str
    known_kinds: str
    launches_cost: bool
    has_contention: bool
    measured: MeasuredSchedule | None
    assumptions: tuple[str, ...]
    uncertain: tuple[str, ...]
    trust: Trust | None

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
