"""What analysis answers about a program on GPU sizes: plain values, which reports only write."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from depgraph.analysis.bound import Bound, BoundTable, Outcome, bound, limits_of
from depgraph.analysis.compare_mechanisms import Comparison, compare_mechanisms
from depgraph.analysis.findings import AsLaunched, Findings, Prediction
from depgraph.analysis.next_steps import AS_USUAL, Invocation, Step
from depgraph.analysis.run_times import Times, times_of
from depgraph.analysis.verdict_rules import BUFFERS, RULES, Topic
from depgraph.system.arrays import grouped
from depgraph.system.workers import NOBODY, Steps

if TYPE_CHECKING:
    from depgraph.analysis.suite import ProgramResult
    from depgraph.mechanisms import Mechanism
    from depgraph.mechanisms.base import ChangedCosts
    from depgraph.scenario.scenario import Scenario


Table = TypeVar("Table", BoundTable, Comparison)


class Conclusion(NamedTuple):
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


@dataclass(frozen=True, slots=True, eq=False)
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
    facts = Findings(_concluded_on(scenario, sizes), invocation, table.bounds)
    return Answer(table, conclusion_of(facts))


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
    facts = Findings(_concluded_on(scenario, sizes), invocation, table.limits)
    return Answer(table, conclusion_of(facts))


def _concluded_on(scenario: Scenario, sizes: Sequence[float]) -> Scenario:
    """Return it on the size that the verdict is about: the GPU's own, else the last finite one."""
    whole = scenario.resources.gpu.sms
    counted = [size for size in sizes if not math.isinf(size)]
    return scenario.on(whole if whole in sizes else (counted or sizes)[-1])


def conclusion_of(facts: Findings) -> Conclusion:
    """Make a verdict; what its rules work out on the way is plain values from here on."""
    verdict = verdict_of(facts)
    times = times_of(facts, separate_buffers=verdict.names_buffers)
    return Conclusion(
        sms=facts.scenario.sms,
        verdict=verdict,
        launched=facts.launched,
        predictions=facts.known_predictions,
        bound=facts.bound,
        renamed=facts.renamed,
        times=times,
    )


def program_results(
    program: str, store: str, scenario: Scenario, answer: Answer[BoundTable] | Answer[Comparison]
) -> list[ProgramResult]:
    """Return what a suite shows of an answer: a result for each GPU size."""
    from depgraph.analysis.suite import ProgramResult

    table, concluded = answer.table, answer.conclusion

    def result(
        limits: Bound, renamed: Bound, best: Outcome | None, rows: Sequence[Outcome]
    ) -> ProgramResult:
        verdict = concluded.verdict.text if limits.sms == concluded.sms else ""
        return ProgramResult(
            program, store, table.basis, limits, renamed, best, tuple(rows), verdict
        )

    if isinstance(table, BoundTable):
        of_sizes = grouped(table.bounds, attrgetter("sms")).values()
        return [result(own[0], own[-1], own[0].reached, own[0].schedules[1:]) for own in of_sizes]
    kinds = {"RAW"} & scenario.graph.kinds
    raw = scenario.with_kinds(kinds) if kinds else scenario
    return [
        result(
            limits,
            limits_of(raw.on(limits.sms).without_launches()),
            table.best(limits.sms),
            [outcome for outcome in table.outcomes if outcome.sms == limits.sms],
        )
        for limits in table.limits
    ]


class Verdict(NamedTuple):
    """What keeps a program slow, and what to do next."""

    rules: tuple[str, ...]  # names of the rules that apply
    sentences: tuple[str, ...]
    steps: tuple[Step, ...]

    @property
    def text(self) -> str:
        """All sentences."""
        return " ".join(self.sentences)

    @property
    def names_buffers(self) -> bool:
        """Whether it says that buffers are to be kept apart."""
        return BUFFERS in self.rules


def conclude(scenario: Scenario, invocation: Invocation | None = None) -> Verdict:
    """Say what keeps a program slow.

    Parameters
    ----------
    scenario : Scenario
        On one number of SMs.
    invocation : Invocation, optional
        How the user asked, for the commands among the next steps.
    """
    return verdict_of(Findings(scenario, invocation or AS_USUAL))


def verdict_of(facts: Findings) -> Verdict:
    """As `conclude`, from what has been found."""
    rules = []
    for topic in Topic:
        first = next((r for r in RULES if r.topic is topic and r.applies(facts)), None)
        rules += [first] if first else []
    # What launches cost the first line has said already.
    later = sorted(rules, key=lambda rule: rule.topic is Topic.LAUNCHES)
    steps_of = {rule.name: rule.steps(facts) for rule in rules}
    changes = [step for rule in rules for step in steps_of[rule.name] if not step.command]
    looks = [step for rule in later for step in steps_of[rule.name] if step.command]
    steps = changes + looks
    return Verdict(
        tuple(rule.name for rule in rules),
        tuple(rule.says(facts) for rule in rules),
        tuple(dict.fromkeys(steps)),
    )
