"""What policies would be measured at, beside the same kernels one after another."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from depgraph.analysis.compare_mechanisms import run_mechanism
from depgraph.errors import NotApplicableError
from depgraph.mechanisms.costs import charges_of
from depgraph.mechanisms.cuda_graph import CudaGraph
from depgraph.mechanisms.predicted_time import predicted_chain, predicted_time
from depgraph.mechanisms.serial import serial
from depgraph.system.ratios import ratio
from depgraph.system.workers import available_jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from depgraph.mechanisms import Mechanism
    from depgraph.mechanisms.predicted_time import Predicted
    from depgraph.scenario.scenario import Scenario

_MOST_AT_ONCE = 4  # schedules, each with arrays of all blocks


@dataclass(frozen=True, slots=True)
class Prediction:
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
    """Predict what policies would be measured at, but for those that cannot be had.

    Where launches cost nothing in the scenario, the GPU's model says what they do.
    """
    if scenario.has_predictions:
        _ = scenario.contended  # worked out here, so that copies with other launch costs have it
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
    fixed = [begin(_fixed_makespan, policy, alone) for policy in policies]
    serially = serial(alone).makespan
    found = []
    for policy, time, without in zip(policies, times, fixed, strict=True):
        with suppress(NotApplicableError):
            chain = chains[isinstance(policy, CudaGraph)].result()
            possible = ratio(serially, without.result())
            # Where single blocks gain by running alone the other is the larger one, but it is the
            # bound for fixed durations that stands beside predictions.
            overlap = min(possible, ratio(chain.free, time.result().free))
            found.append(Prediction(policy.name, time.result(), chain, overlap, possible))
    return found


def _fixed_makespan(policy: Mechanism, alone: Scenario) -> float:
    return run_mechanism(policy, alone, charges_of(policy, {}, alone))[0].makespan


def predict_as_graph(scenario: Scenario) -> Prediction | None:
    """Predict what a CUDA graph would be measured at; None where it cannot be had."""
    return next(iter(predict([CudaGraph()], scenario)), None)
