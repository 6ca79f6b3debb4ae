"""Comparing graphs with the function: on other inputs, in orders that would show a missing edge."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from time import monotonic
from typing import Any

import torch

from depgraph.apply.captured import Call, Captured
from depgraph.apply.order import Edge, adversarial_orders, chain, masks_of, reduced
from depgraph.apply.verdicts import Verdict
from depgraph.torch import bench
from depgraph.torch.arguments import own_copy
from depgraph.torch.bench import Result

_MORE_RUNS = 2
_LEFT_THERE = (0xFF, 0x00, 0x3C)  # no number, nothing, and small numbers
_MOST_ORDERS, _MOST_SECONDS = 2000, 20.0
_DELAYED, _LATE_AT_ONCE = 12, 4
_CALLS_AN_ORDER = 2
NOTHING = Verdict("", "", 0.0)
# Where an integer tensor stands among the arguments of operators, and which tensor bounds it.
_BY_INDEX = (
    "index_select", "index_copy", "index_add", "index_fill", "gather", "scatter", "scatter_add",
    "scatter_reduce", "take",
)  # fmt: skip
_BY_INDICES = "index", "_unsafe_index", "index_put", "_index_put_impl", "_unsafe_index_put"
_INDICES = {
    "embedding": ("indices", "weight"),
    "nll_loss_forward": ("target", "self"),
    **dict.fromkeys(_BY_INDEX, ("index", "self")),
    **dict.fromkeys(_BY_INDICES, ("indices", "self")),
}
# Views and comparisons: operators that set no bound.
_UNBOUND = frozenset(
    """
    view _unsafe_view expand unsqueeze squeeze slice select t transpose permute detach alias
    as_strided split unbind _reshape_alias eq ne lt le gt ge
    """.split()  # noqa: SIM905 - easier to read
)
_LOOKS_FOR_INFINITIES = "aten::_amp_foreach_non_finite_check_and_unscale"
_OUTLIER = 64.0


def varied(
    leaves: Sequence[Any], buffers: Sequence[Any], captured: Captured, n: int, *, integers: bool
) -> list[list[Any]]:
    """Return other inputs: floats in other orders, with outliers; with `integers` other indices."""
    generator = torch.Generator(device="cpu").manual_seed(0)
    bounds = {
        number: _bound_of(buffers[number], captured)
        for number, leaf in enumerate(leaves)
        if integers and isinstance(leaf, torch.Tensor)
    }
    found = [
        [
            _varied(leaf, bounds.get(number, 0), generator, outliers=place % 2 == 1)
            for number, leaf in enumerate(leaves)
        ]
        for place in range(n)
    ]
    scales = any(call.operator.startswith(_LOOKS_FOR_INFINITIES) for call in captured.calls)
    floats = [i for i, leaf in enumerate(leaves) if _is_floating(leaf)]
    if scales and floats:
        found.append(list(found[-1] if found else leaves))
        overflowing = leaves[floats[-1]].detach().clone()
        overflowing.reshape(-1)[0] = float("inf")
        found[-1][floats[-1]] = overflowing
    return found


def _is_floating(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.numel() > 0


def _varied(leaf: Any, bound: int, generator: Any, *, outliers: bool) -> Any:
    if not isinstance(leaf, torch.Tensor) or not leaf.numel():
        return leaf
    if leaf.is_floating_point() or leaf.is_complex():
        order = torch.randperm(leaf.numel(), generator=generator).to(leaf.device)
        made = leaf.detach().reshape(-1)[order]
        if outliers:
            few = torch.rand(made.shape, generator=generator) < 1 / 64
            made = torch.where(few.to(leaf.device), made * _OUTLIER, made)
    elif leaf.dtype is torch.bool:
        if not bound:
            return leaf
        made = (torch.rand(leaf.numel(), generator=generator) < 0.5).to(leaf.device)  # noqa: PLR2004
    elif bound:
        made = _other_indices(leaf.detach().reshape(-1), bound, generator)
    else:
        return leaf
    return made.reshape(leaf.shape).requires_grad_(leaf.requires_grad)


def _other_indices(values: Any, bound: int, generator: Any) -> Any:
    """Return other indices below a bound: none twice where there was none twice."""
    n = values.numel()
    if n <= bound and len(values.unique()) == n:
        made = torch.randperm(bound, generator=generator)[:n]
    else:
        made = torch.randint(bound, (n,), generator=generator)
    return made.to(values.device, values.dtype)


def _bound_of(buffer: Any, captured: Captured) -> int:
    """Return below what a tensor's values may be chosen anew; 0 where they had better stay."""
    if buffer.is_floating_point() or buffer.is_complex():
        return 0
    storage = buffer.untyped_storage().data_ptr()
    least = 0
    for call in captured.calls:
        for operand in call.operands:
            if not operand.name or operand.view.memory.start != storage:
                continue
            bound = _bound_in(call, operand.name, is_mask=buffer.dtype is torch.bool)
            if bound == 0:
                return 0
            if bound > 0:
                least = min(least or bound, bound)
    return least


def _bound_in(call: Call, name: str, *, is_mask: bool) -> int:
    """Return the bound that one operator sets; -1 for none, 0 if nobody knows."""
    operator = call.operator.removeprefix("aten::").removesuffix("_")
    if operator in _UNBOUND:
        return -1
    if is_mask:
        return 1
    if operator in _INDICES and _INDICES[operator][0] == name:
        shapes = [o.view.shape for o in call.operands if o.name == _INDICES[operator][1]]
        return min((min(shape) for shape in shapes if shape), default=0)
    return 0


def rounded(leaf: Any, times: int = 1) -> Any:
    """Return an input whose numbers are rounded some times, towards zero; not of half precision."""
    made = own_copy(leaf)
    if isinstance(leaf, torch.Tensor) and leaf.dtype in {torch.float32, torch.float64}:
        with torch.no_grad():
            # Whole and short numbers are exact: indices, masks, steps, where less is another one.
            is_exact = (made == made.trunc()) | (made == made.bfloat16())
            for _ in range(times):
                less = torch.nextafter(made, torch.zeros_like(made))
                made.copy_(torch.where(is_exact, made, less))
    return made


def _unlike_function(
    begun: Sequence[Result], mine: Sequence[Result], its: Sequence[Result], slack: Any
) -> str:
    return bench.not_close(mine, its, slack) or bench.other_changes(begun, mine, its, slack)


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
        state: Sequence[tuple[str, Any]],  # those of them, the last, that the next run begins with
        restore: Callable[[], None],  # undoes what runs have changed
        fill: Callable[[int], None],  # fills the memory in which a graph works with a byte
        n: int,  # number of nodes
        labels: Sequence[str],  # what messages call them
    ) -> None:
        self._graph = graph
        self._launch = launch
        self._calls = calls
        self._results = results
        self._state = state
        self._restore = restore
        self._fill = fill
        self._n = n
        self._labels = labels
        with graph(chain(n), ()) as made:
            self._wanted = list(self._run(made, _LEFT_THERE[0]))
            self.spread = self._spread(made, self._wanted, _LEFT_THERE[1:])
            if self.varies:  # by how much, three runs do not show
                more = self._spread(made, self._wanted, _MORE_RUNS * _LEFT_THERE)
                self.spread = [*map(bench.wider, self.spread, more)]

    @property
    def varies(self) -> bool:
        """Whether runs in the captured order leave other bits each time."""
        return any(each is not None for each in self.spread)

    def differs_from(
        self,
        function: Sequence[Sequence[Result]],
        rounding: Callable[[int, Any], Any] = lambda *_: None,  # of a call, and how it varies:
        # how far the function's results move where its inputs are rounded once more
    ) -> str:
        """Say in what the captured order differs from the function itself by more than rounding."""
        # Each call begins where the function's began: training makes of rounding something else.
        with self._graph(chain(self._n), ()) as made:
            begun: list[list[Result]] = []
            found = list(self._run(made, _LEFT_THERE[0], like=function, begun=begun))
            spread = self._spread(made, found, 2 * _LEFT_THERE[:1], like=function)
        for place, (mine, its, slack) in enumerate(zip(found, function, spread, strict=True)):
            wrong = _unlike_function(begun[place], mine, its, slack)
            if wrong and (more := rounding(place, slack)) is not None:
                wrong = _unlike_function(begun[place], mine, its, bench.wider(slack, more))
            if wrong:
                return f"call {place}: {wrong}"
        return ""

    def check(self, edges: Sequence[Edge], of: Verdict = NOTHING, seed: int = 0) -> Verdict:
        """Compare a graph: side by side, in orders that turn free pairs around, and delayed."""
        deadline = monotonic() + _MOST_SECONDS
        with self._graph(edges, ()) as made:
            for value in _LEFT_THERE[:2]:
                if wrong := self._wrong(made, value):
                    return replace(of, wrong=f"side by side: {wrong}")
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
                return replace(of, wrong=f"with {last} postponed: {wrong}", orders=ran)
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
                    return replace(of, wrong=f"with {names} delayed: {wrong}", orders=ran)
        return replace(of, orders=ran, pairs_left=left)

    def _spread(
        self,
        made: Any,
        first: Sequence[Sequence[Result]],  # what the first run left
        values: Sequence[int],  # what memory is filled with in each further one
        like: Sequence[Sequence[Result]] = (),
    ) -> list[Any]:
        """Return by how much further runs differ from the first, for each call; none is kept."""
        spread: list[Any] = [None] * len(first)
        for value in values:
            for place, found in enumerate(self._run(made, value, like=like)):
                spread[place] = bench.wider(spread[place], bench.spread_of([first[place], found]))
        return spread

    def _run(
        self,
        made: Any,
        value: int,
        most: int | None = None,
        like: Sequence[Sequence[Result]] = (),  # what earlier runs left, for each to begin with
        begun: list[list[Result]] | None = None,  # takes the state that each begins with
    ) -> Iterator[list[Result]]:
        """Yield what each of some calls leaves, one after another from the same state."""
        self._restore()
        for place, call in enumerate(self._calls[:most]):
            if like and place:
                bench.begin_with(self._state, like[place - 1])
            call()
            if begun is not None:
                begun.append(bench.copied(self._state))
            self._fill(value)
            self._launch(made)
            yield bench.copied(self._results())

    def _wrong(self, made: Any, value: int, most: int | None = None) -> str:
        for place, found in enumerate(self._run(made, value, most)):
            if wrong := bench.first_difference(found, self._wanted[place], self.spread[place]):
                return f"call {place}: {wrong}"
        return ""
