"""Choosing a graph: predicted, measured, and compared with the captured one, or not used."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from depgraph.apply.applied import Tried

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from depgraph.apply.order import Edge
    from depgraph.apply.plan import Candidate

_TRIED_AT_ONCE = 6
_AS_FAST = 1.02  # times the best: of those the one that takes the least memory is used
_NO_FASTER = 0.99  # of the captured graph's time: less is noise


@dataclass(frozen=True, slots=True)
class Difference:
    """Where the results of a graph are not those of the captured one.

    Attributes
    ----------
    node : int or None
        The first that wrote another result; None where it is not known.
    label : str
        What that is called; without a node, what speaks against the graph.
    """

    node: int | None
    label: str


class Bench(Protocol):
    """What runs graphs."""

    def measure(self, candidate: Candidate) -> float:
        """Return how long a graph takes, in microseconds."""

    def compare(self, candidate: Candidate) -> Difference | None:
        """Compare a graph's results with those of the captured one; None if they are the same."""


def choose(
    bench: Bench,
    candidates: Sequence[Candidate],
    predict: Callable[[Sequence[Edge]], float | None],
    estimate: Callable[[Sequence[Edge]], float],
) -> tuple[Candidate, list[Tried]]:
    """Choose the fastest graph whose results are right.

    Those that are predicted best are measured, then others if none of them can be used; the
    captured one is used unless another is faster.

    Parameters
    ----------
    bench : Bench
    candidates : sequence of Candidate
        The captured one first.
    predict : callable
        Returns microseconds, None where that cannot be said.
    estimate : callable
        Tells better from worse where there is no prediction.

    Returns
    -------
    Candidate
    list of Tried
        The captured graph first.
    """
    captured, *others = candidates
    foreseen = {each.name: predict(each.edges) for each in candidates}

    def expected(candidate: Candidate) -> float:
        time = foreseen[candidate.name]
        return estimate(candidate.edges) if time is None else time

    others = sorted(others, key=expected)
    limit = bench.measure(captured)
    tried = [Tried(captured.name, len(captured.edges), foreseen[captured.name], limit)]
    chosen = captured
    while others and chosen is captured:
        now, others = others[:_TRIED_AT_ONCE], others[_TRIED_AT_ONCE:]
        rows = [
            (each, Tried(each.name, len(each.edges), foreseen[each.name], bench.measure(each)))
            for each in now
        ]
        chosen = _first_that_is_right(bench, rows, captured, limit, tried)
    return chosen, tried


def _first_that_is_right(
    bench: Bench,
    rows: Sequence[tuple[Candidate, Tried]],
    captured: Candidate,
    limit: float,
    tried: list[Tried],
) -> Candidate:
    """Compare measured graphs, the best first; return one that can be used, else the captured."""
    chosen = captured
    best = min(row.measured for _, row in rows)

    def rank(pair: tuple[Candidate, Tried]) -> tuple[bool, int, float]:
        candidate, row = pair
        is_slower = row.measured > _AS_FAST * best
        return is_slower, 0 if is_slower else len(candidate.moved), row.measured

    for candidate, row in sorted(rows, key=rank):
        if chosen is not captured or row.measured > _NO_FASTER * limit:
            tried.append(row)
            continue
        difference = bench.compare(candidate)
        if difference is None:
            chosen = candidate
            tried.append(row)
        else:
            what = "" if difference.node is None else "another result: "
            tried.append(replace(row, refused=what + difference.label))
    return chosen
