"""Running graphs on the GPU: how long they take, and what they leave in memory."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from time import monotonic, perf_counter, sleep
from typing import TYPE_CHECKING, Any

import torch

from depgraph.errors import ApplyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from depgraph.apply.order import Edge
    from depgraph.torch.capture import Program
    from depgraph.torch.driver import Driver
    from depgraph.torch.prepare import Plain

_WARM_UPS, _ROUNDS, _ROUND_MS = 5, 7, 8.0
_MOST_SECONDS = 30.0  # that a graph may take to end, and ten times what the captured one takes
_PAUSE = 20e-6
_CLOSE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}
_TIMES_SPREAD, _TIMES_CLOSE = 8.0, 9.0
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


def first_difference(
    found: Sequence[Result], wanted: Sequence[Result], spread: Sequence[Any] | None = None
) -> str:
    """Say in what some results differ from others, bit by bit; "" if in nothing."""
    # spread: by how much each element varies where nothing is wrong (of whole numbers, whether it
    # does); it may differ by some times as much.
    for place, (new, old) in enumerate(zip(found, wanted, strict=True)):
        if _same_bits(new.tensor, old.tensor):
            continue
        slack = None if spread is None else spread[place]
        if slack is None:
            wrong = _bits(new.tensor) != _bits(old.tensor)
        elif slack.dtype is torch.bool:  # of whole numbers that vary nobody knows by how much
            wrong = (new.tensor != old.tensor) & ~slack
        else:
            wrong = _apart(new.tensor, old.tensor) > _allowed(slack)
        if bool(wrong.any()):
            return _differs(new.name, wrong)
    return ""


def _allowed(slack: Any) -> Any:
    """Return how far apart elements may be that vary: those that did not may as others did."""
    varied = slack[slack > 0]
    return _TIMES_SPREAD * (slack + (varied.mean() if len(varied) else 0.0))


def not_close(
    found: Sequence[Result], wanted: Sequence[Result], spread: Sequence[Any] | None = None
) -> str:
    """Say in what some results differ from others by more than rounding; "" if in nothing."""
    # spread: as of `first_difference`. What varies with what was left in memory is no rounding.
    for place, (new, old) in enumerate(zip(found, wanted, strict=True)):
        if _same_bits(new.tensor, old.tensor):
            continue
        if new.tensor.shape != old.tensor.shape or new.tensor.dtype != old.tensor.dtype:
            return f"{new.name} has another shape or type"
        if not (new.tensor.is_floating_point() or new.tensor.is_complex()):
            return _differs(new.name, new.tensor != old.tensor)
        values = old.tensor.abs().to(torch.float64)
        finite = values[values.isfinite()]
        most = _CLOSE.get(old.tensor.dtype, 1e-3) * float(finite.max() if len(finite) else 0.0)
        slack = None if spread is None else spread[place]
        allowed = 0.0 if slack is None else _allowed(slack).clamp(max=_TIMES_CLOSE * most)
        wrong = _apart(new.tensor, old.tensor) > most + allowed
        if bool(wrong.any()):
            return _differs(new.name, wrong)
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
    return found.nan_to_num(float("inf")).masked_fill(same, 0.0)


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


class Bench:
    """Makes, times and runs graphs of one captured function."""

    def __init__(self, driver: Driver, device: Any) -> None:
        self._driver = driver
        self._device = device
        self._us = 0.0

    @contextmanager
    def instantiated(
        self,
        program: Program | Plain,
        edges: Sequence[Edge] | None = None,
        *,
        late: Sequence[int] = (),
    ) -> Iterator[int]:
        """Make a graph of a program for a while, which can be launched; `late` nodes begin late."""
        graph = self._driver.clone(program.raw)
        handles = [self._driver.in_clone(node, graph) for node in program.handles]
        if edges is not None:
            self.change_edges(graph, handles, edges)
        for node in late:
            self._driver.add_before(graph, self._pause, handles[node])
        executable = self._driver.instantiate(graph)
        yield executable
        # After an error of a kernel nothing can be destroyed.
        self._driver.destroy(graph, executable)

    def change_edges(self, graph: int, handles: Sequence[int], edges: Sequence[Edge]) -> None:
        """Give a graph other edges."""
        between = [(handles[a], handles[b]) for a, b in edges]
        self._driver.change_edges(graph, self._driver.edges(graph), between)

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
        rounds: list[list[float]] = [[] for _ in executables]
        runs = []
        for executable in executables:
            warm = self._round(executable, _WARM_UPS, restore, name)
            runs.append(max(3, min(1000, int(_ROUND_MS * 1000 / max(warm, 1.0)))))
        for _ in range(_ROUNDS):
            for place, executable in enumerate(executables):
                rounds[place].append(self._round(executable, runs[place], restore, name))
        return [median(each) for each in rounds]

    def _round(
        self, executable: int, runs: int, restore: Callable[[], object] | None, name: str
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
                self._driver.launch(executable, stream.cuda_stream)
            end.record(stream)
            spans.append((begin, end))
        self.wait(name, runs)
        us = 1000 * median(float(b.elapsed_time(e)) for b, e in spans) / together
        self._us = max(self._us, us)
        return us

    def launch(self, executable: int, name: str) -> None:
        """Run a graph once, and wait for it."""
        self._driver.launch(executable, torch.cuda.current_stream(self._device).cuda_stream)
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

    runs = [max(3, min(1000, int(_ROUND_MS * 1000 / round_(call, _WARM_UPS)))) for call in calls]
    rounds = [
        [round_(call, n) for call, n in zip(calls, runs, strict=True)] for _ in range(_ROUNDS)
    ]
    return [median(column) for column in zip(*rounds, strict=True)]
