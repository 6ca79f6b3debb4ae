"""What policies would be measured at: schedules with contention and with what launches cost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from depgraph.analysis.as_launched import priced
from depgraph.analysis.compare_mechanisms import charges_of, run_mechanism
from depgraph.errors import NotApplicableError
from depgraph.mechanisms.cuda_graph import CudaGraph, graph_rules
from depgraph.mechanisms.serial import Serial, serial
from depgraph.mechanisms.streams import across_streams, previous_in_stream
from depgraph.scenario.contention import run_contended
from depgraph.system.ratios import ratio
from depgraph.system.workers import available_jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from depgraph.mechanisms import Mechanism, Rules
    from depgraph.mechanisms.costs import Charges
    from depgraph.scenario.scenario import Scenario
    from depgraph.schedule.schedule import Schedule

_MOST_AT_ONCE = 4  # schedules, each with arrays of all blocks


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a policy would be measured at, launch costs included where durations are times."""

    policy: str
    makespan: float
    # over the same kernels one after another, launched in the same way. What launches win by lying
    # side by side is left out: it is at most `overlap`
    speedup: float
    overlap: float  # speedup without launch costs on either side: at most the upper bound
    fixed: float  # the same if blocks did not slow each other


def predict(policies: Sequence[Mechanism], scenario: Scenario) -> list[Prediction]:
    """Predict what policies would be measured at, but for those that cannot be had.

    Where launches cost nothing in the scenario, the GPU's model says what they do.
    """
    if scenario.has_predictions:
        _ = scenario.contended  # worked out here, so that copies with other launch costs have it
    alone, launched = scenario.without_launches(), priced(scenario)
    with ThreadPoolExecutor(min(available_jobs(), _MOST_AT_ONCE)) as pool:
        try:
            return _predicted(policies, alone, launched, pool)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _predicted(
    policies: Sequence[Mechanism], alone: Scenario, launched: Scenario, pool: ThreadPoolExecutor
) -> list[Prediction]:
    begin = pool.submit
    serially = begin(_serially, alone, as_graph=False)
    overlapped = [begin(_makespans, policy, alone) for policy in policies]
    chains, makespans = [serially] * len(policies), overlapped
    if not launched.launch.is_off:
        as_graph = [isinstance(policy, CudaGraph) for policy in policies]
        chain_of = {each: begin(_serially, launched, as_graph=each) for each in set(as_graph)}
        chains = [chain_of[each] for each in as_graph]
        makespans = [begin(_makespans, policy, launched) for policy in policies]
    found = []
    for policy, *runs in zip(policies, overlapped, chains, makespans, strict=True):
        with suppress(NotApplicableError):
            found.append(_prediction(policy.name, serially.result(), *[r.result() for r in runs]))
    return found


def _prediction(
    name: str,
    serially: Sequence[float],
    overlapped: Sequence[float],
    chain: Sequence[float],
    makespans: Sequence[float],
) -> Prediction:
    """Compare makespans without and with launch costs, for fixed durations and with contention.

    Where single blocks gain by running alone the speedup with contention is the larger one: but it
    is the bound for fixed durations that stands beside predictions.
    """
    overlaps = list(map(ratio, serially, overlapped))
    overlap = min(overlaps)
    speedup = min(overlap, *map(ratio, chain, makespans))
    return Prediction(name, max(makespans), speedup, overlap, fixed=overlaps[0])


def _makespans(policy: Mechanism, scenario: Scenario) -> list[float]:
    return [schedule.makespan for schedule in _schedules(policy, scenario)]


def _schedules(policy: Mechanism, scenario: Scenario) -> list[Schedule]:
    """Return the schedule for fixed durations and, where it counts, with contention."""
    fixed = run_mechanism(policy, scenario, charges_of(policy, {}, scenario))[0]
    return [fixed, *_contended(policy, scenario)]


def _contended(policy: Mechanism, scenario: Scenario) -> list[Schedule]:
    if not scenario.has_predictions:
        return []
    contended = scenario.contended
    rules = policy.rules(contended, charges_of(policy, {}, contended))
    return [run_contended(policy.label, rules, contended)]


def _serially(scenario: Scenario, *, as_graph: bool) -> list[float]:
    return [schedule.makespan for schedule in _chains(scenario, as_graph=as_graph)]


def _chains(scenario: Scenario, *, as_graph: bool) -> list[Schedule]:
    """Return the same of kernels one after another."""
    fixed = serial(scenario, as_graph=as_graph)
    launch, once = scenario.launch, 0.0
    if as_graph:
        launch, once = replace(launch, host=launch.node, gap=launch.path), launch.graph.value
    contended = _contended(Serial(), scenario.with_launch(launch))
    return [fixed, *[replace(s, start=s.start + once, end=s.end + once) for s in contended]]


def predict_as_graph(scenario: Scenario) -> Prediction | None:
    """Predict what a CUDA graph would be measured at; None where it cannot be had."""
    return next(iter(predict([CudaGraph()], scenario)), None)


def chain_as_graph(scenario: Scenario) -> float:
    """Return the makespan of the kernels one after another as a CUDA graph, with launch costs."""
    return chain_schedule(scenario).makespan


def chain_schedule(scenario: Scenario) -> Schedule:
    """Return the schedule that `chain_as_graph` is the makespan of."""
    return _longest(_chains(priced(scenario), as_graph=True))


def graph_schedule(scenario: Scenario) -> Schedule:
    """Return the schedule that `predict_as_graph` has the makespan of."""
    return _longest(_schedules(CudaGraph(), priced(scenario)))


def captured_schedule(scenario: Scenario) -> Schedule:
    """Return the schedule of a CUDA graph captured from the program's own streams."""
    return _longest(_schedules(_Captured(), priced(scenario)))


class _Captured(CudaGraph):
    def rules(self, program: Scenario, charges: Charges) -> Rules:
        edges = zip(previous_in_stream(program), across_streams(program), strict=True)
        source, target = map(np.concatenate, edges)
        return graph_rules(program, charges, source, target)


def _longest(schedules: Sequence[Schedule]) -> Schedule:
    return max(schedules, key=lambda schedule: schedule.makespan)
