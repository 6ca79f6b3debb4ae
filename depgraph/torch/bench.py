"""Running graphs on the GPU: their times, and whether their results are the same to the bit."""

from __future__ import annotations

from contextlib import contextmanager
from math import inf, isfinite
from statistics import median
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from depgraph.apply.byte_ranges import joined, ranges_of, runs_of, without
from depgraph.apply.plan import AS_CAPTURED, Candidate
from depgraph.apply.trial import Difference
from depgraph.apply.varying import Varying, dense_range, find_varying
from depgraph.errors import ApplyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from depgraph.apply.byte_ranges import Ranges
    from depgraph.apply.matching import Placed
    from depgraph.apply.plan import Plan
    from depgraph.torch.capture import Program
    from depgraph.torch.driver import Driver

_WARM_UPS, _ROUNDS, _ROUND_MS = 10, 7, 10.0
_MOST_LOOKED_AT = 1000
_RUNS = 4  # of the captured graph on each input, to see what varies
_SLACK = 4.0  # times the difference between two runs of a graph that is not reproducible
_PIECE = 1 << 26  # bytes that are compared at once
_MOST_SECONDS, _MOST_TIMES_CAPTURED = 30, 10  # of a graph: so long, and so much longer a run
_PAUSE = 50e-6
_LEFT_THERE = (0xFF, 0x00, 0x3C)  # bytes: no number, nothing, and small ones


class _Bytes:
    """Memory by its address, for `torch.as_tensor`."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3,
        }  # fmt: skip


class GpuBench:
    """Makes, runs and compares graphs of a captured program.

    Parameters
    ----------
    driver : Driver
    program : Program
    plan : Plan
    placed : Placed
        Where the memory of the plan is in the program.
    inputs : sequence of callable
        Each writes another input into the buffers of the graph.
    tensors : callable
        Returns the tensors that the program's results are.
    """

    def __init__(
        self,
        driver: Driver,
        program: Program,
        plan: Plan,
        placed: Placed,
        inputs: Sequence[Callable[[], object]],
        tensors: Callable[[], Sequence[Any]],
    ) -> None:
        self._driver = driver
        self._program = program
        self._plan = plan
        self._placed = placed
        self._inputs = inputs
        self._tensors = tensors
        self._views: dict[int, tuple[int, Any]] = {}
        for number, ranges in plan.written().items():
            if number in placed.region:
                low, high = int(ranges[0, 0]), int(ranges[-1, 1])
                at = low + placed.shift_of(number)
                self._views[number] = low, torch.as_tensor(_Bytes(at, high - low), device="cuda")
        self._state = self._copied()
        self._wanted: list[tuple[dict[int, Any], list[Any]]] | None = None
        self._varying: Varying | None = None
        self._tolerances: list[float] = []
        self._captured_us = 0.0
        self.compared = 0  # inputs

    def measure(self, candidate: Candidate) -> float:
        """Return how long a graph takes, in microseconds: the median of several rounds."""
        stream = torch.cuda.current_stream().cuda_stream

        def run(executable: int, times: int) -> float:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(times):
                self._driver.launch(executable, stream)
            end.record()
            self._wait(candidate, times)
            return float(begin.elapsed_time(end)) / times

        with self._made(candidate) as (executable, _):
            warm = run(executable, _WARM_UPS)
            times = max(3, min(1000, int(_ROUND_MS / max(warm, 1e-3))))
            found = 1000 * median(run(executable, times) for _ in range(_ROUNDS))
            self.restore()
        if candidate.name == AS_CAPTURED:
            self._captured_us = found
        return found

    def compare(self, candidate: Candidate) -> Difference | None:
        """Compare what a graph leaves with what the captured one does, on each input."""
        if self._wanted is None or self._varying is None:
            self._wanted, self._varying = self._expected()
        if len(self._varying.unchecked) or not all(map(isfinite, self._tolerances)):
            return Difference(None, "two runs of the captured graph differ where none may")
        elsewhere = ranges_of(self._plan.reuse.left_empty(candidate.moved))
        elsewhere = joined(np.concatenate([elsewhere, self._varying.excused]))
        found = None
        with self._made(candidate) as (executable, memory):
            try:
                # What is read before it is written makes another result.
                for left_there in _LEFT_THERE[: 1 if memory is None else None]:
                    if memory is not None:
                        memory.fill_(left_there)
                    found = found or self._first_difference(candidate, executable, elsewhere)
            except torch.cuda.OutOfMemoryError:
                self.restore()
                raise
            self.restore()
        return found

    def _first_difference(
        self, candidate: Candidate, executable: int, elsewhere: Ranges
    ) -> Difference | None:
        for write, (wanted, results) in zip(self._inputs, self._wanted or (), strict=True):
            self._run(candidate, executable, write)
            found = self._difference(wanted, elsewhere)
            if found is not None:
                return found
            if not self.is_reproducible and not self._is_close(results):
                return Difference(None, "results differ more than those of two equal runs")
        return None

    def use(self, candidate: Candidate) -> Any:
        """Turn the program's own graph into a candidate; return the memory that it needs.

        Nothing is measured or compared after it.
        """
        self._state.clear()
        self._wanted = None
        memory = self._change(self._program.raw, self._program.handles, candidate)
        self._program.graph.instantiate()
        return memory

    @property
    def is_reproducible(self) -> bool:
        """Whether all runs of the captured graph have left the same."""
        return self._varying is None or not len(self._varying.ranges)

    @property
    def tolerance(self) -> float:
        """Largest difference that is allowed in what the function returns."""
        return max(filter(isfinite, self._tolerances), default=0.0)

    def restore(self) -> None:
        """Undo what runs have changed."""
        torch.cuda.synchronize()
        for number, (_, view) in self._views.items():
            view.copy_(self._state[number])
        torch.cuda.synchronize()

    @contextmanager
    def _made(self, candidate: Candidate) -> Iterator[tuple[int, Any]]:
        """Make a graph for a while, and its memory, which only one at a time has."""
        graph = self._driver.clone(self._program.raw)
        handles = [self._driver.in_clone(node, graph) for node in self._program.handles]
        memory = self._change(graph, handles, candidate)
        executable = self._driver.instantiate(graph)
        yield executable, memory
        # After an error of a kernel nothing can be destroyed.
        self._driver.destroy(graph, executable)
        del memory

    def _change(self, graph: int, handles: Sequence[int], candidate: Candidate) -> Any:
        captured = self._program.captured
        if tuple(candidate.edges) != captured.edges:
            edges = [(handles[a], handles[b]) for a, b in candidate.edges]
            self._driver.change_edges(graph, self._driver.edges(graph), edges)
        values = [v for v in self._plan.reuse.values if v.number in candidate.moved]
        if not values:
            return None
        size = sum(value.size for value in values)
        memory = torch.zeros(size + 512, dtype=torch.uint8, device="cuda")
        base = -(-memory.data_ptr() // 512) * 512
        for node, words in self._placed.words_of(values, base).items():
            self._driver.change_words(handles[node], captured.nodes[node].kind, words)
        return memory

    def _copied(self) -> dict[int, Any]:
        torch.cuda.synchronize()
        return {number: view.clone() for number, (_, view) in self._views.items()}

    def _run(self, candidate: Candidate, executable: int, write: Callable[[], object]) -> None:
        self.restore()
        write()
        self._driver.launch(executable, torch.cuda.current_stream().cuda_stream)
        self._wait(candidate, 1)

    def _wait(self, candidate: Candidate, runs: int) -> None:
        """Wait for the GPU; after an error of a kernel, or one without end, it can do no more."""
        seconds = _MOST_SECONDS + _MOST_TIMES_CAPTURED * self._captured_us * runs / 1e6
        end = monotonic() + (inf if candidate.name == AS_CAPTURED else seconds)
        done = torch.cuda.Event()
        done.record()
        try:
            while not done.query():
                if monotonic() > end:
                    raise ApplyError(
                        f"a graph ({candidate.name}) has not ended after {seconds:.0f} s, and the "
                        "GPU is still at it",
                        "end this program, and give max_extra_memory=0",
                    )
                sleep(_PAUSE)
        except RuntimeError as error:
            said = str(error).splitlines()[0]
            raise ApplyError(
                f"a graph failed: {said}",
                "give check_inputs that the function can take, or max_extra_memory=0",
            ) from None

    def _expected(self) -> tuple[list[tuple[dict[int, Any], list[Any]]], Varying]:
        """Run the captured graph on each input, several times."""
        captured = Candidate(AS_CAPTURED, self._program.captured.edges)
        self._tolerances = [0.0 for _ in self._tensors()]
        found, varying = [], ranges_of([])
        with self._made(captured) as (executable, _):
            for write in self._inputs:
                self._run(captured, executable, write)
                wanted, results = self._copied(), [t.detach().clone() for t in self._tensors()]
                for _ in range(_RUNS - 1):
                    self._run(captured, executable, write)
                    varying = joined(np.concatenate([varying, *self._differing(wanted)]))
                    for at, (old, new) in enumerate(zip(results, self._tensors(), strict=True)):
                        apart = _SLACK * _largest_difference(old, new)
                        self._tolerances[at] = max(self._tolerances[at], apart)
                found.append((wanted, results))
            self.restore()
        self.compared = len(found)
        return found, find_varying(self._plan, varying, self._returned())

    def _returned(self) -> Iterator[tuple[int, int]]:
        """Return the bytes of each floating tensor that is returned, by address when recorded."""
        for tensor in self._tensors():
            if not tensor.is_floating_point():
                continue
            place = dense_range(
                tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.element_size()
            )
            for low, view in self._views.values():
                shift = low - view.data_ptr()
                if place is not None:
                    start, end = max(place[0] + shift, low), min(place[1] + shift, low + len(view))
                    if start < end:
                        yield start, end

    def _is_close(self, results: Sequence[Any]) -> bool:
        return all(
            _largest_difference(old, new) <= most
            for old, new, most in zip(results, self._tensors(), self._tolerances, strict=True)
        )

    def _differing(self, wanted: dict[int, Any]) -> Iterator[Ranges]:
        """Find the bytes that differ, by address when recorded."""
        for number, (low, view) in self._views.items():
            for at in range(0, len(view), _PIECE):
                new, old = view[at : at + _PIECE], wanted[number][at : at + _PIECE]
                if not torch.equal(new, old):
                    places = np.flatnonzero((new != old).cpu().numpy())
                    yield runs_of(low + at + places.astype(np.int64))

    def _difference(self, wanted: dict[int, Any], elsewhere: Ranges) -> Difference | None:
        """Find the first node whose result differs, but for results that are elsewhere."""
        nodes = set()
        for found in self._differing(wanted):
            starts = without(found, elsewhere)[:_MOST_LOOKED_AT, 0].tolist()
            nodes |= {self._plan.last_writer(at) for at in starts}
        nodes.discard(None)
        if not nodes:
            return None
        first = min(node for node in nodes if node is not None)
        return Difference(first, f"node {first}, {self._plan.recorded.nodes[first].label}")


def _largest_difference(old: Any, new: Any) -> float:
    if torch.equal(old, new):
        return 0.0
    if not old.is_floating_point():
        return float("inf")
    apart = (old.double() - new.double()).abs()
    apart[old.isnan() & new.isnan()] = 0.0
    return float(apart.nan_to_num(float("inf"), float("inf")).max())
