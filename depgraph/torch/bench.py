"""Running graphs on the GPU: how long they take, and what they leave in memory."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import median
from time import monotonic, perf_counter, sleep
from typing import Any

import torch

from depgraph.apply.order import Edge
from depgraph.errors import ApplyError
from depgraph.torch.capture import Plain
from depgraph.torch.driver import Driver

_WARM_UPS, _ROUNDS, _ROUND_MS = 5, 7, 8.0
_MOST_SECONDS = 30.0  # that a graph may take to end, and ten times what the captured one takes
_PAUSE = 20e-6
_CLOSE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}
_TIMES_SPREAD = 8.0
_TIMES_ROUNDED = 4.0  # in a tensor that varies each number may, by so many of its roundings
_SAME_CHANGE = 1 / 64  # of what a call changes state by, its repetition may be off
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class _Bytes:
    """Memory by its address, for `torch.as_tensor`."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    """One tensor that a run leaves."""

    name: str
    tensor: Any  # a copy


def copied(named: Sequence[tuple[str, Any]]) -> list[Result]:
    """Return copies of tensors, to be compared later."""
    with torch.no_grad():
        return [Result(name, tensor.detach().clone()) for name, tensor in named]


def begin_with(state: Sequence[tuple[str, Any]], left: Sequence[Result]) -> None:
    """Let the next run begin with what another has left: the last of its results are the state."""
    with torch.no_grad():
        for (_, tensor), result in zip(reversed(state), reversed(left), strict=False):
            tensor.copy_(result.tensor)


def first_difference(
    found: Sequence[Result], wanted: Sequence[Result], spread: Sequence[Any] | None = None
) -> str:
    """Say in what some results differ from others, bit by bit; "" if in nothing."""
    # spread: by how much each element varies where nothing is wrong (of whole numbers, whether it
    # does); it may differ by some times as much.
    for new, old, slack in _unlike(found, wanted, spread):
        if slack is None:
            wrong = _bits(new.tensor) != _bits(old.tensor)
        elif slack.dtype is torch.bool:  # of whole numbers that vary nobody knows by how much
            wrong = (new.tensor != old.tensor) & ~slack
        else:
            wrong = _apart(new.tensor, old.tensor) > _allowed(slack, old.tensor)
        if bool(wrong.any()):
            return _differs(new.name, wrong)
    return ""


def _unlike(
    found: Sequence[Result], wanted: Sequence[Result], spread: Sequence[Any] | None
) -> Iterator[tuple[Result, Result, Any]]:
    """Yield results that have not the bits of others, and by how much their elements vary."""
    for new, old, slack in zip(found, wanted, spread or [None] * len(found), strict=True):
        if not _same_bits(new.tensor, old.tensor):
            yield new, old, slack


def _allowed(slack: Any, values: Any) -> Any:
    """Return how far apart elements may be that vary: those that did not may as others did."""
    varies = (slack > 0) & slack.isfinite()  # what overflows in some orders says nothing of others
    found, magnitudes = slack[varies], _magnitudes(values)
    most = _CLOSE.get(values.dtype, 1e-3)
    # Of each number alone: beside an outlier what rounds the largest would hide all others.
    share = _TIMES_ROUNDED * torch.finfo(values.dtype).eps
    if len(found):  # what varies about zero does so by more than all that it is
        share += (_TIMES_SPREAD * (found / magnitudes[varies]).median()).clamp(max=most)
    usual = _TIMES_SPREAD * _nine_of_ten(found)
    # Where others are something else in each run, what never varied is still what it is.
    still = usual.clamp(max=most * _nine_of_ten(magnitudes[magnitudes > 0]))
    return _TIMES_SPREAD * slack + torch.where(slack > 0, usual, still) + share * magnitudes


def _nine_of_ten(values: Any) -> Any:
    """Return what nine of ten numbers are not above: the largest may be any that was left there."""
    n = len(values)
    return values.sort().values[-(-9 * n // 10) - 1] if n else values.new_zeros(())


def _magnitudes(values: Any) -> Any:
    """Return the magnitudes of some numbers, nothing for what is infinite or no number."""
    exact = torch.complex128 if values.is_complex() else torch.float64
    return values.to(exact).abs().nan_to_num(0.0, 0.0, 0.0)


def not_close(
    found: Sequence[Result], wanted: Sequence[Result], spread: Sequence[Any] | None = None
) -> str:
    """Say in what some results differ from others by more than rounding; "" if in nothing."""
    # spread: as of `first_difference`, of runs that found the same left in memory.
    for new, old, slack in _unlike(found, wanted, spread):
        if new.tensor.shape != old.tensor.shape or new.tensor.dtype != old.tensor.dtype:
            return f"{new.name} has another shape or type"
        if not (new.tensor.is_floating_point() or new.tensor.is_complex()):
            return _differs(new.name, new.tensor != old.tensor)
        most = _CLOSE.get(old.tensor.dtype, 1e-3) * _magnitudes(old.tensor).max()
        allowed = 0.0 if slack is None else _allowed(slack, old.tensor)
        wrong = _apart(new.tensor, old.tensor) > most + allowed
        if bool(wrong.any()):
            return _differs(new.name, wrong)
    return ""


def other_changes(
    before: Sequence[Result],  # of the last results: the state that both runs began with
    found: Sequence[Result],
    wanted: Sequence[Result],
    spread: Sequence[Any] | None = None,
) -> str:
    """Say what state some runs change in another way than others; "" if none."""
    # A step of an optimizer is less than what rounding may make of a weight. Half of what a tensor
    # changes by must be the same: of a single number a rounded gradient may turn the direction.
    slacks = spread or [None] * len(found)
    for old, new, its, slack in zip(*map(reversed, (before, found, wanted, slacks)), strict=False):
        if not (its.tensor.is_floating_point() or its.tensor.is_complex()):
            continue
        is_changed = (new.tensor != old.tensor) | (its.tensor != old.tensor)
        rounding = torch.finfo(its.tensor.dtype).eps * _magnitudes(its.tensor) * is_changed
        allowed = _apart(its.tensor, old.tensor).norm() / 2 + rounding.norm()
        if slack is not None:
            allowed += _TIMES_SPREAD * slack.norm()
        if bool(_apart(new.tensor, its.tensor).norm() > allowed):
            return f"{new.name} is changed in another way"
    return ""


def _differs(name: str, wrong: Any) -> str:
    return f"{name} differs in {int(wrong.sum())} of {wrong.numel()} elements"


def _bits(tensor: Any) -> Any:
    flat = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return flat.contiguous().view(_BITS[flat.element_size()])


def _same_bits(one: Any, other: Any) -> bool:
    return bool(
        one.shape == other.shape
        and one.dtype == other.dtype
        and torch.equal(_bits(one), _bits(other))
    )


def _apart(one: Any, other: Any) -> Any:
    """Return how far numbers are apart: nothing where both are none, or the same infinity."""
    exact = torch.complex128 if one.is_complex() else torch.float64
    found = (one.to(exact) - other.to(exact)).abs()
    same = (one == other) | (one.isnan() & other.isnan())
    return found.nan_to_num(float("inf"), float("inf")).masked_fill(same, 0.0)


def spread_of(runs: Sequence[Sequence[Result]]) -> list[Any] | None:
    """Return by how much each element varies between runs of one graph; None if in nothing."""
    found: list[Any] = []
    for same in zip(*runs, strict=True):
        first = same[0].tensor
        if all(_same_bits(first, other.tensor) for other in same[1:]):
            found.append(None)
        elif not (first.is_floating_point() or first.is_complex()):
            varied = [first != other.tensor for other in same[1:]]
            found.append(torch.stack(varied).any(0))
        else:
            apart = [_apart(first, other.tensor) for other in same[1:]]
            found.append(torch.stack(apart).amax(0))
    return found if any(each is not None for each in found) else None


def wider(one: list[Any] | None, other: list[Any] | None) -> list[Any] | None:
    """Return by how much each element varies, of what `spread_of` returned twice."""
    if one is None or other is None:
        return one or other
    return [*map(_larger, one, other)]


def _larger(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    return one | other if one.dtype is torch.bool else torch.maximum(one, other)


def moved(
    first: Sequence[Result],
    # of one call, twice with its inputs as they are, then twice each with inputs rounded so and so
    runs: Iterable[tuple[Sequence[Result], Sequence[Result]]],
    spread: Sequence[Any] | None,
    begun: Sequence[Result] = (),  # of the last results: the state that all runs began with
) -> list[Any] | None:
    """Return by how much rounding moves results; None where they move by themselves, too."""
    found: list[Any] | None = None
    for times, (one, again) in enumerate(runs):
        same = [(again, one), (one, first)] if times == 0 else [(again, one)]
        # Each twice: what counts its calls may be right by chance where inputs are as they were.
        if not _are_alike(one, first) or any(_other(*two, spread, begun) for two in same):
            return None
        if times:
            found = wider(found, spread_of([first, one]))
    return found and [
        slack if slack is None or slack.dtype is torch.bool
        else slack.nan_to_num(0.0, 0.0, 0.0)  # of what overflows nothing is known
        for slack in found
    ]  # fmt: skip


def _are_alike(some: Sequence[Result], others: Sequence[Result]) -> bool:
    """Tell whether results are of the same shapes and types."""
    kinds = ([(each.tensor.shape, each.tensor.dtype) for each in all_] for all_ in (some, others))
    return next(kinds) == next(kinds)


def _other(
    again: Sequence[Result],
    first: Sequence[Result],
    spread: Sequence[Any] | None,
    begun: Sequence[Result],
) -> bool:
    """Tell whether a function run again gives something else by more than its graph varies."""
    if not _are_alike(again, first):
        return True
    before = dict(zip(range(len(first) - len(begun), len(first)), begun, strict=True))
    slacks = spread or [None] * len(first)
    for place, (new, old, slack) in enumerate(zip(again, first, slacks, strict=True)):
        if _same_bits(new.tensor, old.tensor):
            continue
        if not (old.tensor.is_floating_point() or old.tensor.is_complex()):
            return True
        apart = _apart(new.tensor, old.tensor)
        varies = torch.zeros_like(apart) if slack is None else slack
        apart = apart.masked_fill(~varies.isfinite(), 0.0)
        varies = _TIMES_SPREAD * varies.nan_to_num(0.0, 0.0, 0.0)
        usual = _TIMES_ROUNDED * torch.finfo(old.tensor.dtype).eps * _magnitudes(old.tensor)
        # Of each number, too: among many that vary, or beside an outlier, one would be hidden.
        if bool(
            (apart.norm() > usual.norm() + varies.norm()) | (apart > usual + varies.max()).any()
        ):
            return True
        if place in before:  # of which a step may be less than what rounding is
            change = _apart(old.tensor, before[place].tensor).norm()
            if bool(apart.norm() > _SAME_CHANGE * change + varies.norm()):
                return True
    return False


class Bench:
    """Makes, times and runs graphs of one captured function."""

    def __init__(self, driver: Driver, device: Any) -> None:
        self._driver = driver
        self._device = device
        self._us = 0.0

    @contextmanager
    def instantiated(
        self,
        program: Plain,
        edges: Sequence[Edge] | None = None,
        *,
        late: Sequence[int] = (),
    ) -> Iterator[int]:
        """Make a graph of a program for a while, which can be launched; `late` nodes begin late."""
        call = self._driver.call
        graph = int(call("cuGraphClone", program.raw))
        handles = [int(call("cuGraphNodeFindInClone", node, graph)) for node in program.handles]
        if edges is not None:
            self.change_edges(graph, handles, edges)
        for node in late:
            self._driver.add_before(graph, self._pause, handles[node])
        executable = int(call("cuGraphInstantiate", graph, 0))
        yield executable
        # After an error of a kernel nothing can be destroyed.
        call("cuGraphExecDestroy", executable)
        call("cuGraphDestroy", graph)

    def change_edges(self, graph: int, handles: Sequence[int], edges: Sequence[Edge]) -> None:
        """Give a graph other edges."""
        self._driver.remove_edges(graph)
        self._driver.add_edges(graph, [(handles[a], handles[b]) for a, b in edges])

    @cached_property
    def _pause(self) -> int:
        """A kernel node of a graph of its own that takes a while."""
        self._pausing = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(self._pausing):
            torch.cuda._sleep(60_000)
        return self._driver.nodes(int(self._pausing.raw_cuda_graph()))[0]

    def times(
        self,
        executables: Sequence[int],
        restore: Callable[[], object] | None = None,
        name: str = "a graph",
    ) -> list[float]:
        """Time graphs, in microseconds: medians of rounds in turn, after `restore` each."""
        return _in_turn([partial(self._round, each, restore, name) for each in executables])

    def _round(
        self, executable: int, restore: Callable[[], object] | None, name: str, runs: int
    ) -> float:
        stream = torch.cuda.current_stream(self._device)
        together = 1 if restore else runs
        spans = []
        for _ in range(0, runs, together):
            if restore:
                restore()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record(stream)
            for _ in range(together):
                self._driver.call("cuGraphLaunch", executable, stream.cuda_stream)
            end.record(stream)
            spans.append((begin, end))
        self.wait(name, runs)
        us = 1000 * median(float(b.elapsed_time(e)) for b, e in spans) / together
        self._us = max(self._us, us)
        return us

    def launch(self, executable: int, name: str) -> None:
        """Run a graph once, and wait for it."""
        stream = torch.cuda.current_stream(self._device).cuda_stream
        self._driver.call("cuGraphLaunch", executable, stream)
        self.wait(name)

    def wait(self, name: str, runs: int = 1) -> None:
        """Wait for the GPU; after a kernel that fails or hangs, nothing more runs here."""
        end = monotonic() + _MOST_SECONDS + 10 * self._us * runs / 1e6
        done = torch.cuda.Event()
        try:
            done.record(torch.cuda.current_stream(self._device))
            while not done.query():
                if monotonic() > end:
                    raise ApplyError(f"a graph ({name}) has not ended after {_MOST_SECONDS:.0f} s")
                sleep(_PAUSE)
        except RuntimeError as error:
            raise ApplyError(f"a graph ({name}) failed: {str(error).splitlines()[0]}") from None

    def filling(self, pool: tuple[int, int]) -> Callable[[int], None]:
        """Return what fills the memory of a private pool, where a graph works, with a byte."""
        memory = [
            torch.as_tensor(_Bytes(each["address"], each["total_size"]), device=self._device)
            for each in torch.cuda.memory_snapshot()
            if tuple(each["segment_pool_id"]) == tuple(pool)
        ]

        def fill(value: int) -> None:
            for each in memory:
                each.fill_(value)

        return fill


def time_calls(
    calls: Sequence[Callable[[], object]], device: Any, restore: Callable[[], object] | None = None
) -> list[float]:
    """Time calls, in microseconds: medians of rounds, back to back unless `restore` parts them."""

    def round_(call: Callable[[], object], runs: int) -> float:
        together = 1 if restore else runs
        spans = []
        for _ in range(0, runs, together):
            if restore:
                restore()
            torch.cuda.synchronize(device)
            start = perf_counter()
            for _ in range(together):
                call()
            torch.cuda.synchronize(device)
            spans.append(perf_counter() - start)
        return 1e6 * median(spans) / together

    return _in_turn([partial(round_, call) for call in calls])


def _in_turn(things: Sequence[Callable[[int], float]]) -> list[float]:
    """Return medians of what things return, microseconds, called in turn with a number of runs."""
    runs = [_runs_in_a_round(thing(_WARM_UPS)) for thing in things]
    rounds = [[thing(n) for thing, n in zip(things, runs, strict=True)] for _ in range(_ROUNDS)]
    return [median(column) for column in zip(*rounds, strict=True)]


def _runs_in_a_round(us: float) -> int:
    return max(3, min(1000, int(_ROUND_MS * 1000 / max(us, 1.0))))
