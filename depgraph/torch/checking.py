"""Comparing graphs with the function: in the orders that would show a missing edge."""

from __future__ import annotations

import random
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from depgraph.apply.order import adversarial_orders, chain, masks_of, reduced
from depgraph.torch.bench import copied, first_difference, not_close, spread_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from depgraph.apply.order import Edge
    from depgraph.torch.bench import Result

_LEFT_THERE = (0xFF, 0x00, 0x3C)  # no number, nothing, and small numbers
_MOST_ORDERS, _MOST_SECONDS = 2000, 20.0
_DELAYED, _LATE_AT_ONCE = 12, 4
_CALLS_AN_ORDER = 2


@dataclass(frozen=True, slots=True)
class Checked:
    """What came of comparing one graph."""

    wrong: str  # in what it differs; "" if in nothing
    orders: int = 0  # permitted orders that were run
    pairs_left: int = 0  # free pairs of nodes that no order turned around


class Checker:
    """Runs graphs of one captured function on several inputs, one after another."""

    def __init__(
        self,
        # makes a graph with some edges for a while, in which some nodes begin late:
        # called with edges and nodes, it returns a context with what `launch` takes
        graph: Callable[[Sequence[Edge], Sequence[int]], AbstractContextManager[Any]],
        launch: Callable[[Any], None],  # runs a graph once
        calls: Sequence[Callable[[], None]],  # each writes one input to where the graph reads it
        results: Callable[[], Sequence[tuple[str, Any]]],  # names and tensors that a run leaves
        restore: Callable[[], None],  # undoes what runs have changed
        fill: Callable[[int], None],  # fills the memory in which a graph works with a byte
        n: int,  # number of nodes
        labels: Sequence[str],  # what messages call them
    ) -> None:
        self._graph = graph
        self._launch = launch
        self._calls = calls
        self._results = results
        self._restore = restore
        self._fill = fill
        self._n = n
        self._labels = labels
        with graph(chain(n), ()) as made:
            runs = [list(self._run(made, value)) for value in _LEFT_THERE]
        self._wanted = runs[0]
        self.spread = [spread_of(same) for same in zip(*runs, strict=True)]

    @property
    def varies(self) -> bool:
        """Whether runs in the captured order leave other bits each time."""
        return any(each is not None for each in self.spread)

    def differs_from(self, function: Sequence[Sequence[Result]]) -> str:
        """Say in what the captured order differs from the function itself by more than rounding."""
        for place, (mine, its) in enumerate(zip(self._wanted, function, strict=True)):
            if wrong := not_close(mine, its):
                return f"call {place}: {wrong}"
        return ""

    def check(self, edges: Sequence[Edge], seed: int = 0) -> Checked:
        """Compare a graph: side by side, in orders that turn free pairs around, and delayed."""
        deadline = monotonic() + _MOST_SECONDS
        with self._graph(edges, ()) as made:
            for value in _LEFT_THERE[:2]:
                if wrong := self._wrong(made, value):
                    return Checked(f"side by side: {wrong}")
        fewest, closed = reduced(masks_of(self._n, edges))
        orders, left = adversarial_orders(fewest, closed, _MOST_ORDERS)
        ran = 0
        for order in orders:
            line = [(order[a], order[b]) for a, b in chain(self._n)]
            with self._graph(line, ()) as made:
                wrong = self._wrong(made, _LEFT_THERE[ran % 2], _CALLS_AN_ORDER)
            ran += 1
            if wrong:
                last = self._labels[order[-1]]
                return Checked(f"with {last} postponed: {wrong}", ran, left)
            if monotonic() > deadline:
                break
        if ran < len(orders):
            _, left = adversarial_orders(fewest, closed, ran)
        chance = random.Random(seed)  # noqa: S311 - the same each time
        for _ in range(_DELAYED):
            late = chance.sample(range(self._n), min(_LATE_AT_ONCE, self._n))
            with self._graph(edges, late) as made:
                if wrong := self._wrong(made, _LEFT_THERE[0], _CALLS_AN_ORDER):
                    names = ", ".join(self._labels[node] for node in late)
                    return Checked(f"with {names} delayed: {wrong}", ran, left)
        return Checked("", ran, left)

    def _run(self, made: Any, value: int, most: int | None = None) -> Iterator[list[Result]]:
        """Yield what each of some calls leaves, one after another from the same state."""
        self._restore()
        for call in self._calls[:most]:
            call()
            self._fill(value)
            self._launch(made)
            yield copied(self._results())

    def _wrong(self, made: Any, value: int, most: int | None = None) -> str:
        for place, found in enumerate(self._run(made, value, most)):
            if wrong := first_difference(found, self._wanted[place], self.spread[place]):
                return f"call {place}: {wrong}"
        return ""
