"""Programs whose concurrency was measured on a GPU, and what is predicted for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.analysis.compare_mechanisms import charges_of, predicted, run_mechanism
from depgraph.analysis.outcome import limits_of
from depgraph.extraction.workload import WorkloadDependence, WorkloadKernel, workload_extraction
from depgraph.gpu.model_file import MeasuredErrors
from depgraph.gpu.sm_resources import sm_resources
from depgraph.mechanisms.cuda_graph import CudaGraph
from depgraph.scenario.contention import contended_bound
from depgraph.scenario.scenario import Scenario
from depgraph.timing.durations import default_durations
from depgraph.timing.launch_model import OF_GPU, LaunchChoice, launch_model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from depgraph.gpu.model import Gpu
    from depgraph.scenario.work_alone import Contention
    from depgraph.trace.records import Dim3

PROGRAMS = "fans, pairs, chains and graphs of PyTorch's kernels, as CUDA graphs"
"""What is measured, in a few words."""
# Time saved, as a share, that is as good as none.
_NOTHING = 0.03


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """A kernel of a measured program."""

    name: str
    grid: Dim3
    block: Dim3
    registers: int  # of a thread
    shared_bytes: int  # of a block
    time: float  # in a chain of the program's kernels, in microseconds
    operation: int = 0  # the call into a library that launched it, counted from 0


@dataclass(frozen=True)
class MeasuredProgram:
    """A program that was measured as CUDA graphs; times in microseconds."""

    name: str
    kind: str
    half: int  # constants are fitted to programs of half 0 and judged by those of half 1
    kernels: Sequence[MeasuredKernel]  # in launch order
    edges: Sequence[tuple[int, int]]  # which kernel waits for which: source, target
    serial: float  # a replay of the graph that is a chain
    parallel: float  # a replay of the one with these edges alone
    # On as many streams as there are branches, without a graph: as the host issues it, with the
    # host ahead of the GPU, and what the host needs for all of it. None if not measured.
    streams: float | None = None
    streams_ahead: float | None = None
    streams_host: float | None = None

    def scenario(
        self, gpu: Gpu, contention: Contention, *, streams: Sequence[int] | None = None
    ) -> Scenario:
        """Return the program with the launch costs of a GPU, all on one stream by default."""
        kernels = [
            WorkloadKernel(
                f"{place} {k.name[:40]}", k.grid, k.block, np.full(int(np.prod(k.grid)), k.time),
                registers=k.registers, shared_bytes=k.shared_bytes,
                stream=0 if streams is None else streams[place],
            )
            for place, k in enumerate(self.kernels)
        ]  # fmt: skip
        links = [WorkloadDependence(source, target, "all") for source, target in self.edges]
        extraction = workload_extraction(kernels, links, unit="us", metadata={})
        scenario = Scenario(
            graph=extraction.graph,
            timing=default_durations(extraction.graph),
            resources_of=lambda graph: sm_resources(graph, gpu),
            kernels=extraction.kernels,
            contention=contention,
        )
        # These are times of whole kernels: a wave takes its part.
        waves = np.ceil(np.diff(scenario.graph.first_block) / (scenario.occupancy * gpu.sms))
        durations = scenario.durations / waves[scenario.graph.operation_of_block]
        return with_launches(scenario.with_durations(durations).on(gpu.sms), gpu)


def with_launches(scenario: Scenario, gpu: Gpu) -> Scenario:
    """Return the scenario with the launch costs of a GPU."""
    return scenario.with_launch(launch_model(LaunchChoice(OF_GPU, {}), unit="us", gpu=gpu))


@dataclass(frozen=True)
class Measurements:
    """What one machine gave."""

    gpu: str  # its name, as CUDA says it
    sms: int
    programs: Sequence[MeasuredProgram]
    architecture: int | None = None
    l2_bytes: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)  # for people: driver, versions, date


@dataclass(frozen=True)
class Prediction:
    """A measured program beside what is predicted for its graph; times in microseconds."""

    program: MeasuredProgram
    time: float
    bound: float = 0.0  # no prediction is below it

    @cached_property
    def error(self) -> float:
        """Relative error of the time; above 0 it is too long."""
        return self.time / self.program.parallel - 1

    @property
    def direction_is_right(self) -> bool:
        """Whether faster or slower than serial is told right; within 3 % both are."""
        saved = 1 - self.program.parallel / self.program.serial
        return abs(saved) < _NOTHING or saved * (1 - self.time / self.program.serial) > 0


def predict_graph(program: MeasuredProgram, gpu: Gpu, contention: Contention) -> Prediction:
    """Predict a replay of a program's parallel CUDA graph on the GPU that it was measured on."""
    scenario = program.scenario(gpu, contention)
    if scenario.has_predictions:
        bound = contended_bound(scenario.contended)
    else:
        bound = limits_of(scenario).lower_bound
    return Prediction(program, graph_time(scenario), bound)


def graph_time(scenario: Scenario) -> float:
    """Return the makespan of the CUDA graph of a scenario, as its contention says."""
    policy = CudaGraph()
    time = predicted(policy, {}, scenario)
    if time is None:
        time = run_mechanism(policy, scenario, charges_of(policy, {}, scenario))[0].makespan
    return time


def errors_of(
    gpu: str, what: str, found: Sequence[Prediction], fixed: Sequence[Prediction]
) -> MeasuredErrors:
    """Sum up how far predictions were off, of programs with contention and with fixed durations."""
    errors, without = (np.abs([each.error for each in group]) for group in (found, fixed))
    return MeasuredErrors(
        gpu=gpu,
        what=what,
        programs=len(found),
        mean=float(errors.mean()),
        nine_of_ten=float(np.quantile(errors, 0.9)),
        worst=float(errors.max()),
        direction=float(np.mean([each.direction_is_right for each in found])),
        fixed_mean=float(without.mean()),
        fixed_worst=float(without.max()),
    )
