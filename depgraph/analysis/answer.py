"""What analysis answers about a program on GPU sizes: plain values, which reports only write."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from depgraph.analysis.bound import BoundTable, bound
from depgraph.analysis.compare_mechanisms import Comparison, compare_mechanisms
from depgraph.analysis.findings import Findings
from depgraph.analysis.next_steps import AS_USUAL
from depgraph.analysis.outcome import limits_of
from depgraph.analysis.run_times import times_of
from depgraph.analysis.suite import results_of_bounds, results_of_comparison
from depgraph.analysis.verdict import verdict_of
from depgraph.system.steps import NOBODY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from depgraph.analysis.as_launched import AsLaunched
    from depgraph.analysis.next_steps import Invocation
    from depgraph.analysis.outcome import Bound
    from depgraph.analysis.predictions import Prediction
    from depgraph.analysis.run_times import Times
    from depgraph.analysis.suite import ProgramResult
    from depgraph.analysis.verdict import Verdict
    from depgraph.mechanisms import Mechanism
    from depgraph.mechanisms.costs import ChangedCosts
    from depgraph.scenario.scenario import Scenario
    from depgraph.system.steps import Steps


Table = TypeVar("Table", BoundTable, Comparison)


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What is concluded about a program on one GPU size."""

    sms: float  # number of SMs
    verdict: Verdict
    launched: AsLaunched  # how the program runs today
    # Of policies that ship today; empty where the verdict does not rest on them.
    predictions: tuple[Prediction, ...]
    # bound, renamed: with all dependences that count, and with RAW only
    bound: Bound
    renamed: Bound
    # Now, as a CUDA graph, with what the verdict proposes, at least; None where durations are no
    # times.
    times: Times | None


@dataclass(frozen=True, slots=True)
class Answer(Generic[Table]):
    """Bounds of a program, or mechanisms beside each other, and what is concluded."""

    table: Table  # on all sizes, with what the numbers rest on
    conclusion: Conclusion  # on one of them: that of the GPU if it is among them, else the last


def answer_bound(
    scenario: Scenario,
    sizes: Sequence[float],
    *,
    invocation: Invocation = AS_USUAL,
    steps: Steps = NOBODY,
) -> Answer[BoundTable]:
    """Bound the speedup on GPU sizes, as `bound` does, and conclude."""
    table = bound(scenario, sizes, steps=steps)
    steps.begin("verdict", 1)
    found = Findings(_concluded_on(scenario, sizes), invocation, table.bounds)
    return Answer(table, conclusion_of(found))


def answer_mechanisms(
    scenario: Scenario,
    sizes: Sequence[float],
    mechanisms: Sequence[Mechanism],
    *,
    costs: ChangedCosts | None = None,
    invocation: Invocation = AS_USUAL,
    steps: Steps = NOBODY,
) -> Answer[Comparison]:
    """Compare mechanisms on GPU sizes, as `compare_mechanisms` does, and conclude."""
    table = compare_mechanisms(scenario, sizes, mechanisms, costs=costs, steps=steps)
    steps.begin("verdict", 1)
    found = Findings(_concluded_on(scenario, sizes), invocation, table.limits)
    return Answer(table, conclusion_of(found))


def _concluded_on(scenario: Scenario, sizes: Sequence[float]) -> Scenario:
    """Return it on the size that the verdict is about: the GPU's own, else the last finite one."""
    whole = scenario.resources.gpu.sms
    counted = [size for size in sizes if not math.isinf(size)]
    return scenario.on(whole if whole in sizes else (counted or sizes)[-1])


def conclusion_of(found: Findings) -> Conclusion:
    """Make a verdict; what its rules work out on the way is plain values from here on."""
    verdict = verdict_of(found)
    times = times_of(found, separate_buffers=verdict.names_buffers)
    return Conclusion(
        sms=found.scenario.sms,
        verdict=verdict,
        launched=found.launched,
        predictions=found.known_predictions,
        bound=found.bound,
        renamed=found.renamed,
        times=times,
    )


def program_results(
    program: str, store: str, scenario: Scenario, found: Answer[BoundTable] | Answer[Comparison]
) -> list[ProgramResult]:
    """Return what a suite shows of an answer: a result for each GPU size."""
    table = found.table
    if isinstance(table, BoundTable):
        results = results_of_bounds(program, store, table)
    else:
        kinds = {"RAW"} & scenario.graph.kinds
        renamed = scenario.with_kinds(kinds) if kinds else scenario
        limits = [limits_of(renamed.on(b.sms).without_launches()) for b in table.limits]
        results = results_of_comparison(program, store, table, limits)
    concluded = found.conclusion
    verdicts = {concluded.sms: concluded.verdict.text}
    return [replace(result, verdict=verdicts.get(result.sms, "")) for result in results]
