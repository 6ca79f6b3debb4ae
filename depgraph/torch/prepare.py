"""Everything between a function and a graph of it: warming up, capturing, choosing."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import torch

from depgraph.apply.captured import Allocation
from depgraph.apply.kernel_code import KernelCode
from depgraph.apply.may_sets import reached_by_others, written_outside
from depgraph.apply.order import Edge, chain
from depgraph.apply.plan import PLAIN, Candidate, Layout, Plan, Recorded, make_plan
from depgraph.apply.verdicts import fingerprint
from depgraph.errors import ApplyError
from depgraph.torch.arguments import Arguments
from depgraph.torch.bench import Bench
from depgraph.torch.bindings import Bindings, find_bindings
from depgraph.torch.capture import Plain, Program, capture, capture_plainly, unnoticed
from depgraph.torch.compiling import compiled, without_own_graphs
from depgraph.torch.driver import Driver
from depgraph.torch.executed import Executed
from depgraph.torch.lanes import Lanes
from depgraph.torch.operator_log import parts_of
from depgraph.torch.parallel import Request
from depgraph.torch.warm_up import Warm, warm_up

_WIDTHS = (2, 4, 8, 16, 32)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Graph:
    """A captured function, and a graph that it may run as."""

    program: Program
    plan: Plan
    candidate: Candidate | None = None  # None for the order in which it was captured
    recorded: Recorded | None = None  # what a recording shows, where that is trusted

    @property
    def edges(self) -> tuple[Edge, ...]:
        """Between the nodes."""
        if self.candidate is None:
            return tuple(chain(self.plan.n))
        return self.candidate.edges

    @property
    def name(self) -> str:
        """What it is called."""
        return PLAIN if self.candidate is None else self.candidate.name

    @property
    def fingerprint(self) -> str:
        """Tells it from other graphs."""
        return fingerprint(self.program.captured, self.edges)


class Prepared:
    """A function on its way to a graph."""

    def __init__(self, request: Request, arguments: Arguments) -> None:
        function = compiled(request.function) if request.compiles else request.function
        self.request = request
        self.function = without_own_graphs(function)
        self.arguments = arguments
        self.name = request.name
        self.driver = Driver()
        self.device = arguments.device or torch.device("cuda", torch.cuda.current_device())
        self.codes: Mapping[str, KernelCode] = {}  # machine code of kernels
        self.run = partial(arguments.call, self.function)
        self.lanes = Lanes.acquire(self.device, self.driver)
        self.bench = Bench(self.driver, self.device)
        self._warm: Warm | None = None
        # whether the function may know that it is captured; None before the first capture
        self._may_notice: bool | None = None

    @property
    def warm(self) -> Warm:
        """What came of running the function until it was warm."""
        if self._warm is None:
            message = "warm_up comes first"
            raise RuntimeError(message)
        return self._warm

    def _open_lanes(self, width: int) -> None:
        if self.warm.uses_libraries:
            self.lanes.open(width, backward=self.warm.is_backward)

    @cached_property
    def _workspace_bytes(self) -> int:
        """What the workspaces of one lane take."""
        self._open_lanes(1)
        return self.lanes.workspace_bytes() // max(self.lanes.width, 1)

    def bindings(self, executed: Executed | None = None) -> Bindings:
        """Go through what the function refers to."""
        roots = {self.name: self.function, **self.arguments.opaque()}
        return find_bindings(roots, executed)

    def warm_up(self, also: Sequence[str] = ()) -> Warm:
        """Run the function until it is warm; see `depgraph.torch.warm_up`."""
        self._warm = warm_up(self.run, self.bindings, self.device, self.name, also=also)
        return self._warm

    def undo(self) -> None:
        """Let everything be as if the function had not run, but for a run that counts."""
        torch.cuda.synchronize(self.device)
        self.warm.undo()
        torch.cuda.synchronize(self.device)

    def plainly(self) -> Plain:
        """Capture the function as anybody would."""
        self._open_lanes(1)
        plain = self._unnoticed(lambda: capture_plainly(self.run, self.lanes))
        plain.gradients = self._gradients_now()
        return plain

    def _unnoticed(self, capture: Callable[[], T]) -> T:
        """Capture the function so that it does not know; if that fails at first, so that it may."""
        if self._may_notice is None:
            try:
                with unnoticed():
                    captured = capture()
            except ApplyError:  # it leaves out what cannot be captured, but has to know
                self._may_notice = True
            else:
                self._may_notice = False
                return captured
        # All graphs are of the same calls: only one of them is compared with the function.
        with nullcontext() if self._may_notice else unnoticed():
            return capture()

    def captured(self, layout: Layout) -> Program:
        """Capture the function with its memory laid out in a way."""
        self._open_lanes(layout.width)
        program = self._unnoticed(
            lambda: capture(
                self.run, self.lanes, self.driver, self.device, layout,
                most_bytes=self.request.most_bytes, name=self.name, place=self.request.call,
            )
        )  # fmt: skip
        program.gradients = self._gradients_now()
        return program

    def draws(self, plain: Plain) -> bool:
        """Tell whether a function draws random numbers on the GPU."""
        before = torch.cuda.get_rng_state(self.device)
        plain.graph.replay()
        found = not torch.equal(before, torch.cuda.get_rng_state(self.device))
        self.undo()
        return found

    def _gradients_now(self) -> list[tuple[Any, Any]]:
        return [(tensor, tensor.grad) for tensor, _ in self.warm.anew]

    @property
    def restores(self) -> Callable[[], None] | None:
        """What undoes a run, None where a run changes nothing."""
        return self.warm.saved.restore if self.warm.saved.size else None

    def abandon(self) -> None:
        """Undo everything, as far as that can be done, and let go of the GPU's memory."""
        with suppress(RuntimeError):
            if self._warm is not None:
                self.undo()
            self.lanes.release()

    def tensors_written(self, graph: Graph, bindings: Bindings) -> list[tuple[str, Any]]:
        """Return the named tensors that a graph may change; refuse memory of no tensor."""
        program = graph.program
        known: dict[int, tuple[str, Any]] = {
            buffer.untyped_storage().data_ptr(): (f"argument {number}", buffer)
            for number, buffer in enumerate(self.arguments.buffers)
            if isinstance(buffer, torch.Tensor)
        }
        known |= {
            at: (f"a tensor of {program.first_use[at]}", t) for at, t in program.outside.items()
        }
        for slot in bindings.tensors():
            parts = (part for part, _ in parts_of(slot.value) if part.device == self.device)
            known |= {part.untyped_storage().data_ptr(): (slot.path, part) for part in parts}
        places = sorted(known)
        found: dict[int, tuple[str, Any]] = {}
        captured, units = graph.plan.captured, graph.plan.units

        def within(memory: Allocation) -> list[int]:
            return places[bisect_left(places, memory.start) : bisect_left(places, memory.end)]

        if not all(map(within, reached_by_others(captured, units))):
            raise ApplyError(
                "a kernel that no operator launched reaches memory of no tensor that the "
                "function refers to",
                "make the tensor an argument, an attribute or a global name",
            )
        for memory in written_outside(captured, units):
            found.update((at, known[at]) for at in within(memory))
        return list(found.values())

    def outside(self, named: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
        """Return the whole storages of tensors, typed as they are, but for the buffers."""
        buffers = self.arguments.addresses
        return [
            (name, torch.empty(0, dtype=t.dtype, device=t.device).set_(t.untyped_storage()))
            for name, t in named
            if t.untyped_storage().data_ptr() not in buffers
        ]

    def interleaved_times(self, plain: Plain, graph: Graph) -> tuple[float, float]:
        """Time a graph in turn with the plain one, in microseconds: the plain one's time first."""
        with (
            self.bench.instantiated(plain) as as_captured,
            self.bench.instantiated(graph.program, graph.edges) as own,
        ):
            before, after = self.bench.times([as_captured, own], self.restores, graph.name)
        return before, after

    def graphs(
        self, base: Graph, wanted: Callable[[str], bool] = lambda _: True
    ) -> Iterator[Graph]:
        """Yield the graphs wanted by name; each layout of memory is captured anew."""
        for layout in self._layouts(base.plan):
            if not any(map(wanted, layout.names)):
                continue
            own = base if layout == Layout() else self.graph(layout, base)
            for candidate in own.plan.candidates(layout):
                if wanted(candidate.name):
                    yield replace(own, candidate=candidate)

    def _layouts(self, plan: Plan) -> Iterator[Layout]:
        """Yield the ways to lay out memory that are worth trying, the plainest first."""
        yield Layout()
        known: list[Layout] = []
        most = self.request.most_bytes // max(self._workspace_bytes, 1)
        for width in _WIDTHS:
            layout = Layout(plan.lanes(width))
            if 1 < layout.width <= most + 1 and layout not in known:
                known.append(layout)
                yield layout
        if known:
            yield replace(known[-1], keeps=False)

    def graph(
        self,
        layout: Layout = Layout(),  # noqa: B008 - it is frozen
        like: Graph | None = None,
        *,
        weights: Sequence[float] | None = None,
        recorded: Recorded | None = None,
    ) -> Graph:
        """Capture the function and plan it, with the times and recording of `like`."""
        program = self.captured(layout)
        if like is not None:
            weights, recorded = like.plan.weights, like.recorded
        if weights is not None and len(weights) != len(program.handles):
            weights = None
        plan = make_plan(program.captured, weights, self.codes, recorded)
        return Graph(program, plan, None, recorded)
