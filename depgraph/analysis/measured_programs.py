"""Programs whose concurrency was measured on a GPU, and what is predicted for them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from depgraph.analysis.bound import limits_of
from depgraph.extraction.workload import WorkloadDependence, WorkloadKernel, workload_extraction
from depgraph.gpu.model import Gpu, MeasuredErrors
from depgraph.gpu.sm_resources import sm_resources
from depgraph.mechanisms.base import Mechanism
from depgraph.mechanisms.cuda_graph import CudaGraph
from depgraph.mechanisms.predicted_time import (
    PredictedTime,
    graph_chain,
    in_microseconds,
    predicted_time,
)
from depgraph.mechanisms.streams import Streams
from depgraph.scenario.contention import Contention, contended_bound
from depgraph.scenario.scenario import Scenario
from depgraph.system.arrays import grouped
from depgraph.timing.program_times import (
    OF_GPU,
    LaunchChoice,
    LaunchTime,
    default_durations,
    launch_model,
)
from depgraph.trace.records import Dim3

_NOTHING = 0.03  # time saved, as a share, that is as good as none
_MOST = 0.9
_IN_RANGE = 0.95


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

    @property
    def streams_captured(self) -> list[int]:
        """Stream of each kernel, as ``samples/validation/measure.py`` chose them."""
        # An operation goes where the last one is that it waits for or comes after anyway, so that
        # streams add no order.
        operation = [kernel.operation for kernel in self.kernels]
        needs: list[set[int]] = [set() for _ in range(1 + max(operation))]
        for source, target in self.edges:
            if operation[source] != operation[target]:
                needs[operation[target]].add(operation[source])
        before: list[set[int]] = []
        last: list[int] = []
        chosen: list[int] = []
        for i, direct in enumerate(needs):
            before.append(direct.union(*(before[j] for j in direct)))
            free = [s for s, end in enumerate(last) if end in before[i]]
            best = next((s for s in free if last[s] in direct), free[0] if free else len(last))
            last[best : best + 1] = [i]
            chosen.append(best)
        return [chosen[i] for i in operation]

    def scenario(self, gpu: Gpu, contention: Contention) -> Scenario:
        """Return the program with the launch costs of a GPU, on a stream for each branch."""
        kernels = [
            WorkloadKernel(
                k.name, k.grid, k.block, duration=k.time,
                registers=k.registers, shared_bytes=k.shared_bytes, stream=stream,
            )
            for k, stream in zip(self.kernels, self.streams_captured, strict=True)
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
    """A measured program beside what is predicted for a graph of it; times in microseconds."""

    program: MeasuredProgram
    found: PredictedTime
    measured: float  # a replay of that graph
    bound: float = 0.0  # no prediction is below it

    @property
    def time(self) -> float:
        """What is predicted."""
        return self.found.us

    @property
    def family(self) -> str:
        """What the graph is."""
        return self.found.family

    @property
    def error(self) -> float:
        """Relative error of the time; above 0 it is too long."""
        return self.time / self.measured - 1


def predict_graph(program: MeasuredProgram, gpu: Gpu, *, as_chain: bool = False) -> Prediction:
    """Predict a replay of a program's CUDA graph, or of a chain of its kernels, on its GPU."""
    scenario = program.scenario(gpu, "full")
    if scenario.has_predictions:
        bound = contended_bound(scenario.contended)
    else:
        bound = limits_of(scenario).lower_bound
    policy, measured = CudaGraph(), program.parallel
    if as_chain:
        policy, measured = graph_chain(scenario), program.serial
    return _prediction(program, policy, scenario, measured, bound)


def predict_streams(program: MeasuredProgram, gpu: Gpu) -> Prediction | None:
    """Predict a program on streams, the host ahead of the GPU; None if that was not measured."""
    if program.streams_ahead is None:
        return None
    scenario = _ahead(program.scenario(gpu, "full"))
    return _prediction(program, Streams(), scenario, program.streams_ahead)


def _prediction(
    program: MeasuredProgram, policy: Mechanism, scenario: Scenario, measured: float,
    bound: float = 0.0,
) -> Prediction:  # fmt: skip
    time = in_microseconds(predicted_time(policy, scenario), policy, scenario)
    if time is None:
        raise TypeError("measured programs have times")
    return Prediction(program, time, measured, bound)


def _ahead(scenario: Scenario) -> Scenario:
    return scenario.with_launch(scenario.launch._replace(host=LaunchTime()))


def graph_time(scenario: Scenario) -> float:
    """Return the predicted time of the CUDA graph of a scenario."""
    return predicted_time(CudaGraph(), scenario).time


def chain_time(scenario: Scenario) -> float:
    """Return the predicted time of the CUDA graph that is a chain of a scenario's kernels."""
    return predicted_time(graph_chain(scenario), scenario).time


def streams_time(scenario: Scenario) -> float:
    """Return the predicted time of a scenario's streams, the host ahead of the GPU."""
    return predicted_time(Streams(), _ahead(scenario)).time


_TIMES = attrgetter("time", "measured", "program.serial")


def errors_by_family(gpu: str, predictions: Iterable[Prediction]) -> tuple[MeasuredErrors, ...]:
    """Sum up how far predictions were off, of each family of programs."""
    groups = grouped(predictions, attrgetter("family"))
    return tuple(
        errors_of(family, gpu, *zip(*map(_TIMES, members), strict=True))
        for family, members in sorted(groups.items())
    )


def errors_of(
    family: str, gpu: str, predicted: ArrayLike, measured: ArrayLike, serial: ArrayLike
) -> MeasuredErrors:
    """Sum up how far times were off; `serial` is measured, kernels one after another."""
    # The range holds 19 of 20 of these programs, of fewer than 39 all: of others nine in ten should
    # lie in it.
    found, real, before = (np.asarray(times, np.float64) for times in (predicted, measured, serial))
    errors, saved = np.abs(found / real - 1), 1 - real / before
    is_right = (np.abs(saved) < _NOTHING) | (saved * (1 - found / before) > 0)
    ratios = np.sort(real / found)
    outside = int((1 - _IN_RANGE) / 2 * (len(ratios) + 1))
    return MeasuredErrors(
        family=family,
        gpu=gpu,
        programs=len(errors),
        mean=float(errors.mean()),
        nine_of_ten=float(np.quantile(errors, _MOST)),
        worst=float(errors.max()),
        direction=float(is_right.mean()),
        low=min(1.0, float(ratios[max(0, outside - 1)])),
        high=max(1.0, float(ratios[-max(1, outside)])),
    )
