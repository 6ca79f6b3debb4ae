"""What is known of a program on one GPU size when a verdict is made; worked out when asked for."""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from depgraph.analysis.bound import Bound, limits_of
from depgraph.analysis.kernel_groups import KernelLoad, kernel_loads
from depgraph.analysis.next_steps import AS_USUAL, LAUNCH_BOUND, Invocation
from depgraph.analysis.renaming import BufferSet, Renaming, study_renaming
from depgraph.errors import NotApplicableError
from depgraph.mechanisms import Mechanism
from depgraph.mechanisms.base import charges_of, run_mechanism, run_without_launches, serial
from depgraph.mechanisms.cuda_graph import CudaGraph
from depgraph.mechanisms.pdl import ProgrammaticDependentLaunch
from depgraph.mechanisms.predicted_time import (
    Predicted,
    captured_streams,
    graph_chain,
    predicted_chain,
    predicted_time,
)
from depgraph.mechanisms.streams import Streams
from depgraph.scenario.contention import run_contended
from depgraph.scenario.scenario import Scenario
from depgraph.scenario.what_if import apply_what_ifs, parse_what_if
from depgraph.system.arrays import distinct
from depgraph.system.text import ratio, share_of
from depgraph.system.workers import available_jobs
from depgraph.timing.measured_run import MeasuredRun
from depgraph.timing.program_times import kernel_makespans

_MOST_AT_ONCE = 4  # schedules, each with arrays of all blocks


class Prediction(NamedTuple):
    """What a policy would be measured at, launch costs included where durations are times."""

    policy: str
    time: Predicted
    chain: Predicted  # the same kernels one after another, launched in the same way
    overlap: float  # speedup without launch costs on either side: at most the upper bound
    fixed: float  # the same if blocks did not slow each other

    @property
    def makespan(self) -> float:
        """The predicted time, in the unit of the durations."""
        return self.time.time

    @property
    def speedup(self) -> float:
        """How much longer the kernels take one after another."""
        return ratio(self.chain.time, self.time.time)

    @property
    def gain(self) -> float:
        """The same without what launches win by lying side by side: what overlap brings at most."""
        return min(self.speedup, self.overlap)


def predict(policies: Sequence[Mechanism], scenario: Scenario) -> list[Prediction]:
    """Predict policies that can be had, launches as the GPU's model has them if they are free."""
    # Worked out here, so that copies with other launch costs have it.
    _ = scenario.clusters, scenario.has_predictions and scenario.contended
    with ThreadPoolExecutor(min(available_jobs(), _MOST_AT_ONCE)) as pool:
        try:
            return _predicted(policies, scenario, pool)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _predicted(
    policies: Sequence[Mechanism], scenario: Scenario, pool: ThreadPoolExecutor
) -> list[Prediction]:
    alone, begin = scenario.without_launches(), pool.submit
    sorts = {isinstance(policy, CudaGraph): policy for policy in policies}
    chains = {sort: begin(predicted_chain, policy, scenario) for sort, policy in sorts.items()}
    times = [begin(predicted_time, policy, scenario) for policy in policies]
    fixed = [begin(run_mechanism, policy, alone) for policy in policies]
    serially = serial(alone).makespan
    predictions = []
    for policy, time, without in zip(policies, times, fixed, strict=True):
        with suppress(NotApplicableError):
            chain = chains[isinstance(policy, CudaGraph)].result()
            possible = ratio(serially, without.result()[0].makespan)
            # Where single blocks gain by running alone the other is the larger one, but it is the
            # bound for fixed durations that stands beside predictions.
            overlap = min(possible, ratio(chain.free, time.result().free))
            predictions.append(Prediction(policy.name, time.result(), chain, overlap, possible))
    return predictions


def predict_as_graph(scenario: Scenario) -> Prediction | None:
    """Predict what a CUDA graph would be measured at; None where it cannot be had."""
    return next(iter(predict([CudaGraph()], scenario)), None)


_MOST_OF_IT = 0.9
_AS_GOOD = 0.98


@dataclass(frozen=True, eq=False)
class Findings:
    """A program on one GPU size."""

    scenario: Scenario  # on one number of SMs
    invocation: Invocation = AS_USUAL  # how the user asked about it
    known: Sequence[Bound] = ()  # bounds of this scenario that need not be worked out again

    @cached_property
    def bound(self) -> Bound:
        """The bound with all dependences that count."""
        return self._bound(self.scenario)

    @cached_property
    def renamed(self) -> Bound:
        """The bound with RAW dependences only."""
        if "RAW" not in self.scenario.graph.kinds:
            return self.bound
        return self._bound(self.scenario.with_kinds({"RAW"}))

    @cached_property
    def inline(self) -> Bound:
        """The bound if no block launched a child kernel, but did that work itself."""
        graph = replace(self.scenario.graph, launches=None)
        return limits_of(self.scenario.with_graph(graph).without_launches())

    def _bound(self, scenario: Scenario) -> Bound:
        wanted = scenario.sms, scenario.dependences
        known = (b for b in self.known if (b.sms, b.dependences) == wanted)
        return next(known, None) or limits_of(scenario.without_launches())

    @property
    def utilization(self) -> float:
        """Share of the SMs that kernels, one after another, keep busy, 0 to 1."""
        return share_of(self.bound.work, self.bound.serial)

    @cached_property
    def longest_share(self) -> float:
        """Part of the serial time that the longest kernel takes, 0 to 1."""
        scenario = self.scenario
        slots = scenario.occupancy * int(min(scenario.sms, scenario.graph.n_blocks))
        times = kernel_makespans(scenario.graph, scenario.durations, slots)
        return share_of(float(times.max(initial=0.0)), self.bound.serial)

    @cached_property
    def launched(self) -> "AsLaunched":
        """What the program does today."""
        return as_launched(self.scenario, self.bound)

    @cached_property
    def loads(self) -> list[KernelLoad]:
        """How each kernel, alone, fills the SMs."""
        return [] if math.isinf(self.scenario.sms) else kernel_loads(self.scenario)

    @cached_property
    def renaming(self) -> Renaming | None:
        """What renaming buffers brings; None where addresses are not known."""
        try:
            return study_renaming(self.scenario.without_launches())
        except NotApplicableError:
            return None

    @property
    def buffer_set(self) -> BufferSet | None:
        """The smallest set of buffers that brings most of what renaming all would."""
        if self.renaming is None or not self.renaming.sets:
            return None
        sets = self.renaming.sets
        least = _MOST_OF_IT * sets[-1].upper_bound
        return next(each for each in sets if each.upper_bound >= least)

    @cached_property
    def predictions(self) -> list[Prediction]:
        """What policies that ship today would be measured at, the cheapest to use first."""
        policies: list[Mechanism] = [CudaGraph(), ProgrammaticDependentLaunch()]
        if self.launched.streams > 1:
            policies.insert(0, Streams())
        had = [each for each in policies if not each.lacking_for(self.scenario)]
        return predict(had, self.scenario)

    @property
    def known_predictions(self) -> tuple[Prediction, ...]:
        """Those of `predictions` if a rule has asked for them: they are not worked out for this."""
        return tuple(vars(self).get("predictions", ()))

    @property
    def best_prediction(self) -> Prediction:
        """The cheapest of the policies that ship today among those that are as good as the best."""
        best = max(each.gain for each in self.predictions)
        return next(each for each in self.predictions if each.gain >= _AS_GOOD * best)

    @cached_property
    def renamed_scenario(self) -> Scenario:
        """The program with the buffers of `buffer_set` renamed."""
        texts = () if self.buffer_set is None else self.buffer_set.what_ifs
        return apply_what_ifs(self.scenario, [parse_what_if(text) for text in texts])

    @cached_property
    def renamed_prediction(self) -> Prediction | None:
        """What a CUDA graph of it would be measured at."""
        return None if self.buffer_set is None else predict_as_graph(self.renamed_scenario)

    @property
    def graph_prediction(self) -> Prediction:
        """What a CUDA graph with parallel branches would be measured at."""
        return next(each for each in self.predictions if each.policy == CudaGraph.name)

    @cached_property
    def launched_graph(self) -> tuple[Mechanism, Predicted]:
        """The program captured as it is launched, and what that graph would be measured at."""
        if self.launched.streams <= 1:
            return graph_chain(self.scenario), self.graph_prediction.chain
        graph = captured_streams(self.scenario)
        return graph, predicted_time(graph, self.scenario)

    @cached_property
    def conflicts(self) -> "list[CarveOutConflict]":
        """Kernels that would run at a time as a CUDA graph, but cannot share SMs."""
        return carve_out_conflicts(self.scenario.priced)

    @cached_property
    def together(self) -> Prediction | None:
        """What a CUDA graph would be measured at if any two kernels could share an SM."""
        return predict_as_graph(without_carve_outs(self.scenario)) if self.conflicts else None

    @cached_property
    def tails(self) -> Sequence[KernelLoad]:
        """Kernels whose last wave does not fill the SMs, those that lose most first."""
        if math.isinf(self.scenario.sms):
            return []
        tails = [load for load in kernel_loads(self.scenario, uneven=True) if load.tail_cost > 0]
        return sorted(tails, key=lambda load: (-load.tail_cost, load.kernel))


_ANY = np.iinfo(np.int64).max


class CarveOutConflict(NamedTuple):
    """A kernel that cannot join another one on an SM, where both would run at a time."""

    # first, second: kernel numbers: the second cannot join the first
    first: int
    second: int
    set_to: int  # bytes of shared memory that an SM is set to for the first
    needed: int  # bytes that it must be set to for the second


def without_carve_outs(scenario: Scenario) -> Scenario:
    """Return the scenario with all kernels preferring the same carve-out: any may share an SM."""
    return replace(scenario, contention="sm")


def carve_out_conflicts(scenario: Scenario) -> list[CarveOutConflict]:
    """Find kernels that would run at a time as a CUDA graph, but cannot share SMs."""
    if scenario.sharing is None or math.isinf(scenario.sms):
        return []
    sharing = scenario.contended.sharing
    cuts = None if sharing is None else sharing.carve_outs
    if cuts is None or not cuts.keep_apart(scenario.is_kernel):
        return []
    least = np.where(scenario.is_kernel, cuts.least, 0)
    chosen = np.where(scenario.is_kernel, cuts.chosen, _ANY)
    contended, policy = without_carve_outs(scenario).contended, CudaGraph()
    rules = policy.rules(contended, charges_of(policy, {}, contended))
    schedule = run_contended(policy.name, rules, contended)
    start, end = schedule.of_operations(scenario.graph.first_block)
    number = scenario.graph.kernel
    conflicts = []
    for second in np.flatnonzero(least > chosen.min()).tolist():
        together = (start < end[second]) & (end > start[second]) & (chosen < least[second])
        conflicts += [
            CarveOutConflict(
                int(number[first]), int(number[second]), int(chosen[first]), int(least[second])
            )
            for first in np.flatnonzero(together).tolist()
        ]  # fmt: skip
    return sorted(conflicts, key=lambda each: (each.first, each.second))


class AsLaunched(NamedTuple):
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
    streams = len(distinct(scenario.stream[scenario.is_kernel]))
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
