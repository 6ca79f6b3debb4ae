"""The verdict: what keeps a program slow, in one or two sentences, and what to do next.

Of the rules about launches one may apply; of those about overlap the first that applies does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from depgraph.analysis.findings import Findings
from depgraph.analysis.next_steps import AS_USUAL, Step
from depgraph.analysis.verdict_rules import BUFFERS, RULES, Topic

if TYPE_CHECKING:
    from depgraph.analysis.next_steps import Invocation
    from depgraph.scenario.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Verdict:
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


def verdict_of(found: Findings) -> Verdict:
    """As `conclude`, from what has been found."""
    rules = []
    for topic in Topic:
        first = next((r for r in RULES if r.topic is topic and r.applies(found)), None)
        rules += [first] if first else []
    # What launches cost the first line has said already.
    later = sorted(rules, key=lambda rule: rule.topic is Topic.LAUNCHES)
    changes = [step for rule in rules for step in rule.steps(found) if not step.command]
    looks = [step for rule in later for step in rule.steps(found) if step.command]
    steps = changes + looks
    return Verdict(
        tuple(rule.name for rule in rules),
        tuple(rule.says(found) for rule in rules),
        tuple(dict.fromkeys(steps)),
    )
