"""What predictions know of a program beside the durations of its blocks."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from depgraph.gpu.sm_resources import calibrated_gpu, sm_sharing
from depgraph.scenario.operation_facts import OperationFacts
from depgraph.scenario.work_alone import work_of_blocks
from depgraph.system.time_units import convert_time
from depgraph.timing.durations import kernel_makespans
from depgraph.timing.launch_model import OF_GPU, OFF, LaunchChoice, launch_model
from depgraph.timing.matched_profile import memory_node_times

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from numpy.typing import NDArray

    from depgraph.gpu.sm_resources import SmResources, SmSharing
    from depgraph.graph.block_graph import BlockGraph
    from depgraph.graph.launches import DeviceLaunches
    from depgraph.scenario.work_alone import Contention
    from depgraph.timing.durations import Durations
    from depgraph.timing.fit import Fit
    from depgraph.timing.launch_model import LaunchModel


class PredictionFacts(OperationFacts):
    """How blocks slow each other, how long kernels take alone, what launches cost.

    Attributes are those of `Scenario`.
    """

    timing: Durations
    sms: float
    launch: LaunchModel
    contention: Contention
    fit: Fit | None
    measured_on: Callable[[BlockGraph], SmResources] | None
    measured_sms: int | None

    if TYPE_CHECKING:

        @property
        def resources(self) -> SmResources: ...  # noqa: D102
        @property
        def durations(self) -> NDArray[np.float64]: ...  # noqa: D102
        @property
        def launches(self) -> DeviceLaunches | None: ...  # noqa: D102
        @property
        def unit(self) -> str: ...  # noqa: D102
        @property
        def clock_mhz(self) -> float | None: ...  # noqa: D102
        def with_launch(self, launch: LaunchModel) -> Self: ...  # noqa: D102
        def _with(self, name: str, value: object) -> Self: ...

    @property
    def priced(self) -> Self:
        """The same with launch costs: those it has, else those of the GPU's model.

        What is predicted to be measured includes what launches cost, even where the user did not
        ask for it. Durations that are no times have none.
        """
        if self.launch != OFF:  # the user may have said that launches cost nothing
            return self
        gpu, choice = self.resources.gpu, LaunchChoice(OF_GPU, {})
        return self.with_launch(
            launch_model(choice, unit=self.unit, gpu=gpu, clock_mhz=self.clock_mhz)
        )

    def without_carve_outs(self) -> Self:
        """Return the same where any two kernels may share an SM."""
        sharing, _ = self.sharing, self._work_of_blocks
        return self._with("sharing", sharing and replace(sharing, carve_outs=None))

    @cached_property
    def sharing(self) -> SmSharing | None:
        """How blocks on one SM slow each other; None where predictions have no contention.

        Durations that count instructions are no times: nothing is measured that contention could be
        fitted to. With child kernels no schedule has it.
        """
        is_timed = self.unit != "instructions" and self.launches is None
        if self.contention == "none" or not is_timed:
            return None
        return self._sharing_on(self.resources)

    def _sharing_on(self, resources: SmResources) -> SmSharing:
        shape = self.shape if self.kernels else None
        carve_outs = self.contention == "full"
        return sm_sharing(resources, self.functions, shape, carve_outs=carve_outs)

    @property
    def has_predictions(self) -> bool:
        """Whether schedules are made with contention too: never without a limit of SMs."""
        return self.sharing is not None and not math.isinf(self.sms)

    @cached_property
    def _work_of_blocks(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        on = self.measured_on(self.graph) if self.measured_on else self.resources
        microsecond = convert_time(1.0, "us", self.unit, self.clock_mhz) or 0.0
        work, lead = work_of_blocks(
            self.graph, self.timing, on, self.measured_sms, self._sharing_on(on), microsecond
        )
        own = self.memory_times[self.graph.operation_of_block]
        return np.where(own > 0, own, work), lead

    @cached_property
    def kernel_times(self) -> NDArray[np.float64]:
        """How long each operation takes alone on the GPU it was measured on: float64[n]."""
        on = self.measured_on(self.graph) if self.measured_on else self.resources
        slots = on.occupancy * (self.measured_sms or on.gpu.sms)
        return kernel_makespans(self.graph, self.durations, slots) + self.memory_times

    @cached_property
    def memory_times(self) -> NDArray[np.float64]:
        """What predictions let each memset and copy take: float64[n_operations], 0 if unknown.

        Bounds and schedules of fixed durations leave them out.
        """
        match = None if self.fit is None else self.fit.match
        is_memory = self.graph.kernel < 0
        known = memory_node_times(match, int(is_memory.sum()))
        times = np.zeros(self.graph.n_operations)
        if known is not None:
            beyond = calibrated_gpu(self.resources.gpu).graph_memory_us or 0.0
            beyond = convert_time(beyond, "us", self.unit, self.clock_mhz) or 0.0
            times[is_memory] = known + beyond
        return times

    @property
    def contended(self) -> Self:
        """The same, the durations being what blocks would take at a rate of 1."""
        work, lead = self._work_of_blocks
        same = self._with("timing", replace(self.timing, values=work))
        vars(same)["kernel_times"] = self.kernel_times
        if self.sharing is not None:
            vars(same)["sharing"] = replace(self.sharing, lead=lead)
        return same

    @property
    def is_timed(self) -> bool:
        """Whether durations are times, on a number of SMs: else there is nothing to predict."""
        return self.microseconds(1.0) is not None and not math.isinf(self.sms)

    def microseconds(self, time: float) -> float | None:
        """Return a time in microseconds; None where durations are no times."""
        return convert_time(time, self.unit, "us", self.clock_mhz)
