"""Capturing a PyTorch function as a CUDA graph, and describing it."""

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from depgraph.apply.broken_capture import what_helps, why_not_captured
from depgraph.apply.captured import (
    COPY,
    KERNEL,
    LIBRARY,
    MEMSET,
    SOURCE,
    TARGET,
    TENSOR,
    Allocation,
    Call,
    Captured,
    Node,
    Operand,
    Pointer,
)
from depgraph.apply.operators import rule_of
from depgraph.apply.order import Edge
from depgraph.apply.plan import Layout
from depgraph.errors import ApplyError
from depgraph.torch.allocations import Timeline, listening
from depgraph.torch.compiling import allocation_hook
from depgraph.torch.driver import Driver
from depgraph.torch.executed import is_library
from depgraph.torch.lanes import Lanes
from depgraph.torch.operator_log import OperatorLog, SeenCall, refuse_faults

_WORD = 8
_LEAST_ADDRESS, _MOST_ADDRESS = 1 << 20, 1 << 57


@dataclass(slots=True)
class Plain:
    """A function as anybody would capture it."""

    graph: Any
    outputs: Any  # what the function returned: tensors in it are those that a replay writes
    handles: list[int] = field(default_factory=list)  # the driver's nodes; none: they stay as is
    gradients: list[tuple[Any, Any]] = field(default_factory=list)  # parameters, and what it writes

    @property
    def raw(self) -> int:
        """The driver's graph."""
        return int(self.graph.raw_cuda_graph())


@dataclass(slots=True, kw_only=True)
class Program(Plain):
    """A captured function that is described, node by node, and not yet instantiated."""

    pool: tuple[int, int]  # the private pool that its memory lies in
    captured: Captured
    outside: dict[int, Any] = field(default_factory=dict)  # earlier tensors on the GPU, by storage
    on_host: dict[int, Any] = field(default_factory=dict)  # earlier tensors on the CPU, by storage
    first_use: dict[int, str] = field(default_factory=dict)  # of these storages: the operator
    kept_bytes: int = 0  # of memory that is kept so that no two tensors share it
    of_host: list[Any] = field(default_factory=list)  # made on the CPU; a replay may read it


def _held(outputs: Any) -> Any:
    """Return the same leaves in containers that the function does not fill again."""
    return pytree.tree_map(lambda leaf: leaf, outputs)


def capture_plainly(run: Callable[[], Any], lanes: Lanes) -> Plain:
    """Capture a function as anybody would."""
    graph = _new_graph()
    with _explained(), torch.cuda.graph(graph, stream=lanes.stream(0)):
        outputs = _held(run())
    graph.instantiate()
    return Plain(graph, outputs)


def capture(
    run: Callable[[], Any],  # reads the tensors that it is given where they lie, in each replay
    lanes: Lanes,
    driver: Driver,
    device: Any,
    layout: Layout,  # on which lane each operator runs
    *,
    most_bytes: int = 0,  # of tensors that are kept so that no later one gets their memory
    name: str = "it",
    place: int = 0,  # which call of `depgraph.torch.parallelize` it is
) -> Program:
    """Capture a function that is warm, note what it calls, and refuse what no graph does again."""
    graph = _new_graph()
    main = lanes.stream(0)
    pool = torch.cuda.graph_pool_handle()  # as if nothing had been captured before
    raw = 0

    def nodes() -> int:
        nonlocal raw
        raw = raw or driver.captures_into(main.cuda_stream)
        return driver.count(raw)

    def around(call: int) -> Any:
        return lanes.on(layout.lanes[call] if call < len(layout.lanes) else 0)

    with listening(device.index, lanes.workspaces) as allocations:
        log = OperatorLog(
            device, lambda: (nodes(), allocations.now()), around,
            most_bytes if layout.keeps else 0,
        )  # fmt: skip
        with (
            _explained(), torch.cuda.graph(graph, pool=pool, stream=main),
            log, allocation_hook(log.take),
        ):  # fmt: skip
            outputs = _held(run())
        timeline = allocations.timeline()
    refuse_faults(log, name)
    raw = int(graph.raw_cuda_graph())
    handles = driver.nodes(raw)
    number = {handle: i for i, handle in enumerate(handles)}
    edges = sorted((number[a], number[b]) for a, b in driver.edges(raw))
    if any(a > b for a, b in edges):
        raise ApplyError(f"{name} cannot run as a graph: it changes the graph that is captured")
    captured = describe(driver, handles, edges, log.calls, timeline, place)
    first_use: dict[int, str] = {}
    for call in log.calls:
        for memory in [*(each.view.memory for each in call.operands), *call.others]:
            first_use.setdefault(memory.start, call.name)
    outside = {at: tensor for at, tensor in log.outside.items() if not timeline.is_new(at)}
    return Program(
        graph, outputs, handles, pool=pool, captured=captured, outside=outside,
        on_host=log.on_host, first_use=first_use, kept_bytes=log.kept_bytes, of_host=log.of_host,
    )  # fmt: skip


@contextmanager
def _explained() -> Iterator[None]:
    """Say at which line a capture broke."""
    try:
        yield
    except Exception as error:
        _forget_capture()
        if isinstance(error, (torch.cuda.OutOfMemoryError, ApplyError)):
            raise
        raise ApplyError(why_not_captured(error), what_helps(error)) from error


@contextmanager
def unnoticed() -> Iterator[None]:
    """Let code that is not PyTorch's make the calls that it makes where nothing is captured."""
    # Models of transformers that ask build masks which they leave out else, and draw other numbers.
    # The public function stays what it is: others have imported it, and compiled code looks at it.
    of_pytorch = torch.cuda.graphs
    asked = of_pytorch._cuda_isCurrentStreamCapturing

    def is_capturing() -> bool:
        caller = str(sys._getframe(2).f_globals.get("__name__", ""))
        return bool(asked()) and is_library(caller)

    of_pytorch._cuda_isCurrentStreamCapturing = is_capturing
    try:
        yield
    finally:
        of_pytorch._cuda_isCurrentStreamCapturing = asked


def _new_graph() -> Any:
    try:
        return torch.cuda.CUDAGraph(keep_graph=True)
    except TypeError:
        raise ApplyError(
            f"PyTorch {torch.__version__} is too old", "2.8 or later is needed"
        ) from None


def _forget_capture() -> None:
    """Capture nothing: after a capture that failed the random generator waits for one that ends."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the graph is empty
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=torch.cuda.Stream()):
            pass


def describe(
    driver: Driver,
    handles: Sequence[int],
    edges: Sequence[Edge],  # ascending
    seen: Sequence[SeenCall],
    timeline: Timeline,
    place: int = 0,
) -> Captured:
    """Describe a graph, whose nodes are in the order in which they were launched."""
    memory = _Memory(driver, timeline)
    calls: list[Call] = []
    nodes: list[Node] = []
    for number, call in enumerate(seen):
        (first, begun), (end, ended) = call.begun, call.ended
        timeline.until(begun)
        nodes += (memory.node(handles[i]) for i in range(len(nodes), first))
        given = [_lying_in(memory.storage, each) for each in call.operands if each.name]
        others = [*map(memory.storage, call.others)]
        made = timeline.until(ended)
        given += [_lying_in(memory.storage, each) for each in call.operands if not each.name]
        memory.made_inside |= {each.number for each in made}
        if not others and rule_of(call.name) is not None:
            memory.known_calls.add(number)
        nodes += (memory.node(handles[i], number) for i in range(len(nodes), end))
        calls.append(Call(call.name, tuple(given), tuple(others), tuple(made)))
    timeline.until_end()
    nodes += (memory.node(handles[i]) for i in range(len(nodes), len(handles)))
    return memory.finished(nodes, tuple(edges), calls, place)


class _Memory:
    """Finds the allocations that addresses lie in."""

    def __init__(self, driver: Driver, timeline: Timeline) -> None:
        self._driver = driver
        self._timeline = timeline
        self._foreign: dict[int, Allocation] = {}
        self._tensors: set[int] = set()
        self.made_inside: set[int] = set()  # allocations, by an operator
        self.known_calls: set[int] = set()  # of operators that touch their tensors alone

    def storage(self, seen: Allocation) -> Allocation:
        """Return the allocation that a tensor's storage lies in."""
        found = self._timeline.holding(seen.start)
        if found is None and (found := self._outside(seen.start)) is None:
            return seen
        self._tensors.add(found.number)
        return found

    def node(self, handle: int, call: int = -1) -> Node:
        """Return a node, and what a kernel has pointers to."""
        kind = self._driver.kind(handle)
        if kind == KERNEL:
            name, grid, block, shared = self._driver.kernel(handle)
            return Node(kind, name, grid, block, shared, call, tuple(self._pointers(handle, call)))
        if kind == MEMSET:
            ends, to_host = [(TARGET, self._driver.memset(handle))], False
        elif kind == COPY:
            source, target, to_host = self._driver.copy(handle)
            ends = [(SOURCE, source), (TARGET, target)]
        else:
            return Node(kind, call=call)
        found = [Pointer(at, each) for at, address in ends for each in self._holding(address, call)]
        return Node(kind, call=call, pointers=tuple(found), to_host=to_host)

    def _pointers(self, handle: int, call: int) -> Iterator[Pointer]:
        """Yield what every eight bytes of a kernel's parameters point into, however they lie."""
        for begin, raw in self._driver.parameters(handle):
            if len(raw) < _WORD:
                continue
            windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(raw, np.uint8), _WORD)
            words = windows.copy().view("<u8").ravel()
            likely = np.flatnonzero((words >= _LEAST_ADDRESS) & (words < _MOST_ADDRESS))
            for at in likely.tolist():
                for memory in self._holding(int(words[at]), call):
                    yield Pointer(begin + at, memory)

    def _holding(self, address: int, call: int) -> list[Allocation]:
        """Return what held an address; of a node of no operator nobody knows when exactly."""
        now = self._timeline.holding(address)
        found = [] if now is None else [now]
        if call < 0:
            found += self._timeline.held_lately(address)
        if found or self._timeline.is_of_pytorch(address):
            return found
        outside = self._outside(address)
        return [] if outside is None else [outside]

    def _outside(self, address: int) -> Allocation | None:
        """Return memory that the driver knows and PyTorch does not."""
        if not _LEAST_ADDRESS <= address < _MOST_ADDRESS:
            return None
        known = self._driver.allocation(address)
        if known is None:
            return None
        return self._foreign.setdefault(
            known[0], Allocation(*known, number=-2 - len(self._foreign), owner=LIBRARY)
        )

    def finished(
        self,
        nodes: Sequence[Node],
        edges: tuple[Edge, ...],
        calls: Sequence[Call],
        place: int,
    ) -> Captured:
        """Return the graph, now that it is known what every allocation was for."""
        kept = self.made_inside - self._timeline.freed

        def own(each: Allocation) -> Allocation:
            if each.number in self._tensors:
                return replace(each, owner=TENSOR)
            return replace(each, owner=LIBRARY) if each.number in kept else each

        def pointers(node: Node) -> tuple[Pointer, ...]:
            """Return the pointers that say something: of a known operator those to workspaces."""
            found = dict.fromkeys(Pointer(p.at, own(p.memory)) for p in node.pointers)
            is_known = node.kind == KERNEL and node.call in self.known_calls
            return tuple(p for p in found if not is_known or p.memory.owner == LIBRARY)

        return Captured(
            nodes=tuple(replace(node, pointers=pointers(node)) for node in nodes),
            edges=edges,
            calls=tuple(
                Call(
                    c.name, tuple(_lying_in(own, each) for each in c.operands),
                    tuple(map(own, c.others)), tuple(map(own, c.made)),
                )
                for c in calls
            ),
            before=self._timeline.before,
            call=place,
        )  # fmt: skip


def _lying_in(memory: Callable[[Allocation], Allocation], operand: Operand) -> Operand:
    """Return an operand whose memory is known better now."""
    return replace(operand, view=replace(operand.view, memory=memory(operand.view.memory)))
