"""What the program does today: its streams or its CUDA graph, and how busy the GPU was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from depgraph.analysis.compare_mechanisms import run_without_launches
from depgraph.mechanisms.streams import Streams
from depgraph.system.ratios import ratio

if TYPE_CHECKING:
    from depgraph.analysis.outcome import Bound
    from depgraph.scenario.scenario import Scenario
    from depgraph.timing.measured_run import MeasuredRun


LAUNCH_BOUND = 0.25
"""Share of the time that the GPU waits for the host or for launches, from which a program is called
launch-bound."""
PROFILER_SLOWS = "A profiler slows the host; bound --wall TIME counts with the real time."


@dataclass(frozen=True, slots=True)
class AsLaunched:
    """How far the program's own streams get, and what is left."""

    streams: int  # streams that the program launches kernels into
    # with those streams, and an event for each dependence between two; without launch costs
    makespan: float
    serial: float  # kernels one after another
    lower_bound: float
    run: MeasuredRun | None  # how it ran when it was profiled
    unit: str

    @property
    def speedup(self) -> float:
        """Speedup of the program's streams over serialized launches."""
        return ratio(self.serial, self.makespan)

    @property
    def remaining(self) -> float:
        """Upper bound on the speedup over what the program does today, without launch costs."""
        return max(1.0, ratio(self.makespan, self.lower_bound))

    @property
    def idle_share(self) -> float:
        """Part of the wall time in which no kernel ran, 0 to 1; 0 without a profile."""
        return 0.0 if self.run is None else min(1.0, ratio(self.run.idle, self.run.wall))

    @property
    def is_doubtful(self) -> bool:
        """Whether the profiler may have made the GPU wait, and nobody said how long it takes."""
        if self.run is None or self.run.is_stated or self.run.is_graph:
            return False
        return self.unit != "cycles" and self.idle_share > LAUNCH_BOUND


def as_launched(scenario: Scenario, limits: Bound) -> AsLaunched:
    """Work out how far the program's streams get."""
    streams = len(np.unique(scenario.stream[scenario.is_kernel]))
    makespan = limits.serial
    if streams > 1:
        makespan = min(makespan, run_without_launches(Streams(), {}, scenario)[0].makespan)
    return AsLaunched(
        streams=streams,
        makespan=makespan,
        serial=limits.serial,
        lower_bound=limits.lower_bound,
        run=None if scenario.measured is None else scenario.run,
        unit=scenario.unit,
    )
