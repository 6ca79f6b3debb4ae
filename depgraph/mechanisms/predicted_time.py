"""What a program would be measured at: the one prediction, whoever asks."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from depgraph.gpu.model import EARLY, MeasuredErrors
from depgraph.mechanisms.base import (
    ChangedCosts,
    Mechanism,
    Serial,
    charges_of,
    run_mechanism,
    without_launch_costs,
)
from depgraph.mechanisms.cuda_graph import CudaGraph
from depgraph.mechanisms.streams import across_streams, previous_in_stream
from depgraph.scenario.contention import contended_bound, run_contended
from depgraph.scenario.scenario import Scenario
from depgraph.schedule.policy import Against, Schedule
from depgraph.timing.program_times import LaunchTime

# How much of the way from even to piled up such chains were on average (samples/validation: half
# of h100-pdl; 0 to 0.25 are as good).
_PILED = 0.2


class Predicted(NamedTuple):
    """A predicted makespan, in the unit of the durations.

    What decides it is not all known: the order in which a CUDA graph starts its branches,
    whether replays of a short graph of many roots find the one before at work, whose leaves
    they then wait for, and whether blocks that start early spread as evenly over the SMs as
    those that they wait for or pile up where slots fall free first. Each may go either way:
    `low` and `high` are the extremes, and the time is their mean (nearer than any one way to
    the 329 programs that were measured on an H100, ``samples/validation``). Blocks that start
    early mostly stay even: piled up counts less.
    """

    time: float
    low: float
    high: float
    free: float  # the time if launches cost nothing


class PredictedTime(NamedTuple):
    """A predicted time in microseconds, and the range that nine of ten measured ones lie in."""

    us: float
    # low_us, high_us: None where nobody measured how far predictions of the family are off
    low_us: float | None
    high_us: float | None
    family: str = ""  # programs whose errors make the range
    errors: MeasuredErrors | None = None  # these errors


def in_microseconds(
    found: Predicted, mechanism: Mechanism, scenario: Scenario
) -> PredictedTime | None:
    """Return a prediction in microseconds, with its range; None where durations are no times."""
    # The range holds nine of ten measured times of the family, and all that hardware may do, but
    # nothing below the bound of predictions, if blocks do not start before what they wait for ends.
    us, low, high = map(scenario.microseconds, (found.time, found.low, found.high))
    if us is None or low is None or high is None or math.isinf(scenario.sms):
        return None
    family = mechanism.family_of(scenario)
    errors = None if scenario.trust is None else scenario.trust.of(family)
    if errors is None:
        return PredictedTime(us, None, None, family)
    low, high = min(us * errors.low, low), max(us * errors.high, high)
    if (apart := scenario.eager_errors) is not None:
        low, high = low * apart.low, high * apart.high
    if family not in EARLY:
        low = max(low, min(us, scenario.microseconds(contended_bound(scenario.contended)) or 0.0))
    return PredictedTime(us, low, high, family, errors)


def predicted_time(
    mechanism: Mechanism, scenario: Scenario, costs: ChangedCosts | None = None
) -> Predicted:
    """Predict what a mechanism would be measured at, no less than if launches were free."""
    launched = scenario.priced
    ways = _makespans(mechanism, launched, costs or {})
    free = least = ways
    spreads = len(_spreads(mechanism, launched))
    if not launched.launch.is_off:
        costs = without_launch_costs(mechanism, costs or {})
        scenario = launched.without_launches()
        free = least = _makespans(mechanism, scenario, costs)
        if (anywhere := scenario.on_any_sm()) is not scenario:
            least = _makespans(mechanism, anywhere, costs)
        # A greedy schedule may end sooner where launches cost more.
        ways = max(ways, least, key=lambda times: _likely(times, spreads))
        if isinstance(mechanism, CudaGraph):
            ways = [*ways, *_replays_on_idle_gpu(mechanism, launched, min(free))]
    # Nor is it longer if launches cost nothing, which leave kernels time to find other SMs.
    time = _likely(ways, spreads)
    return Predicted(time, min(ways), max(ways), min(time, _likely(free, spreads)))


def _likely(times: list[float], spreads: int) -> float:
    """Return the mean over ways, each of which has so many times: for each spread of its blocks."""
    ways = np.reshape(times, (-1, spreads))
    even, piled = ways.min(axis=1), ways.max(axis=1)
    return float(np.mean(even + _PILED * (piled - even)))


def _replays_on_idle_gpu(graph: CudaGraph, scenario: Scenario, least: float) -> list[float]:
    """Return the host's time for a replay, no less than `least`, for each way, if all end in it."""
    model = scenario.launch
    issued = model.issue.value * graph.roots(scenario)
    if not model.leaf.value or issued < least:
        return []
    model = model._replace(root=LaunchTime(), second=LaunchTime(), leaf=LaunchTime())
    times = []
    for way in _ways(graph, scenario.with_launch(model), {}):
        if way.makespan > issued:
            return []
        times.append(issued)
    return times


def predicted_schedule(mechanism: Mechanism, scenario: Scenario, time: float) -> Schedule:
    """Return the one of possible schedules nearest to a predicted time, stretched to it."""
    schedule = min(_ways(mechanism, scenario.priced, {}), key=lambda way: abs(way.makespan - time))
    makespan = schedule.makespan
    if makespan == 0:
        return schedule
    # Divided first: the last end is then the predicted time to the last digit.
    start, end = schedule.start / makespan * time, schedule.end / makespan * time
    return schedule._replace(start=start, end=end, least=schedule.least / makespan * time)


def predicted_chain(mechanism: Mechanism, scenario: Scenario) -> Predicted:
    """Predict the same kernels one after another, launched in the same way as by a mechanism."""
    chain = graph_chain(scenario) if isinstance(mechanism, CudaGraph) else Serial()
    return predicted_time(chain, scenario)


def graph_chain(scenario: Scenario) -> CudaGraph:
    """Return the CUDA graph whose nodes wait for one another in launch order."""
    operations = np.arange(scenario.graph.n_operations, dtype=np.int32)
    return CudaGraph(edges=(operations[:-1], operations[1:]))


def captured_streams(scenario: Scenario) -> CudaGraph:
    """Return the CUDA graph that capturing the program's streams makes."""
    order, across = previous_in_stream(scenario), across_streams(scenario)
    sources, targets = (np.concatenate(ends) for ends in zip(order, across, strict=True))
    return CudaGraph(edges=(sources, targets))


def _makespans(mechanism: Mechanism, scenario: Scenario, costs: ChangedCosts) -> list[float]:
    return [way.makespan for way in _ways(mechanism, scenario, costs)]


def _ways(mechanism: Mechanism, scenario: Scenario, costs: ChangedCosts) -> Iterator[Schedule]:
    """Make the schedules of all that hardware may do."""
    ways, spreads = mechanism.ways(scenario), _spreads(mechanism, scenario)
    return (_schedule(way, scenario, costs, in_step=each) for way in ways for each in spreads)


def _spreads(mechanism: Mechanism, scenario: Scenario) -> tuple[bool, ...]:
    """Return whether all SMs may work in step; blocks that start early do or pile up."""
    is_early = scenario.has_predictions and mechanism.family_of(scenario) in EARLY
    return (True, False) if is_early else (False,)


def _schedule(
    mechanism: Mechanism, scenario: Scenario, costs: ChangedCosts, *, in_step: bool
) -> Schedule:
    if not scenario.has_predictions:
        return run_mechanism(mechanism, scenario, charges_of(mechanism, costs, scenario))[0]
    contended = (scenario.in_step if in_step else scenario).contended
    rules = mechanism.rules(contended, charges_of(mechanism, costs, contended))
    schedule = run_contended(mechanism.label, rules, contended)
    if not in_step or rules.against is not Against.BLOCK:
        return schedule
    # Blocks are as long in step, together; a path through the longest of them may be shorter.
    return schedule._replace(least=max(schedule.least, contended_bound(scenario.contended)))
