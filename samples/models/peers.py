"""A model as it is, and as everything that a user would pick runs it, in turn in one process."""

from __future__ import annotations

import fcntl
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

import depgraph.torch
from depgraph.apply.plan import Layout
from depgraph.errors import DepgraphError
from depgraph.samples.models.measure import plain_graph, prepared
from depgraph.samples.models.rules import (
    nimble_streams,
    on_streams,
    opara_streams,
    operator_edges,
)
from depgraph.torch.arguments import Arguments
from depgraph.torch.bench import time_calls
from depgraph.torch.driver import Driver
from depgraph.torch.prepare import Prepared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

_MOST_BYTES = 1 << 30
_COMPILED: dict[str, dict[str, Any]] = {
    "torch.compile": {},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "max-autotune": {"mode": "max-autotune"},
    "combo kernels": {"options": {"triton.cudagraphs": True, "combo_kernels": True}},
}
_RULES = {"Opara's rule": opara_streams, "Nimble's rule": nimble_streams}


class _Peers:
    """One model, and the ways to call it that could be made."""

    def __init__(
        self, name: str, type_: str, batch: int, seconds: float, ways: Sequence[str] | None
    ) -> None:
        self._name, self._seconds, self._ways = name, seconds, ways
        self._ends = time.perf_counter() + seconds
        self._function, self._args, self._keywords = prepared(name, type_, batch, trains=False)
        self.calls: dict[str, Callable[[], Any]] = {}
        self.facts: dict[str, dict[str, Any]] = {}
        self._held: list[Any] = []

    def add(self, name: str, make: Callable[[], Callable[[], Any]]) -> None:
        """Make a way to call the model, and note what that takes; or why it cannot be made."""
        if self._ways and name not in self._ways:
            return
        if time.perf_counter() > self._ends:
            self.facts[name] = {"why": "there was no time left to prepare it"}
            return
        before, began = torch.cuda.memory_reserved(), time.perf_counter()
        try:
            call = make()
            for _ in range(3):
                call()
            torch.cuda.synchronize()
        except (DepgraphError, RuntimeError, AssertionError, ValueError) as error:
            text = str(error).strip().splitlines()
            self.facts[name] = {"why": (text[0] if text else type(error).__name__)[:300]}
            return
        self.calls[name] = call
        self.facts[name] = {
            "prepare_s": time.perf_counter() - began,
            "bytes": torch.cuda.memory_reserved() - before,
        }

    def eager(self) -> Any:
        """Call the model as it is."""
        return self._function(*self._args, **self._keywords)

    def ours(self, *, compiled: bool) -> Callable[[], Any]:
        """Return a call of what `parallelize` makes of it."""
        function = torch.compile(self._function, dynamic=False) if compiled else self._function
        fast = depgraph.torch.parallelize(
            function, self._args, self._keywords, name=self._name, time_limit=self._seconds
        )
        return lambda: fast(*self._args, **self._keywords)

    def compiled(self, how: dict[str, Any]) -> Callable[[], Any]:
        """Return a call of the compiled model."""
        made = torch.compile(self._function, dynamic=False, **how)
        return lambda: made(*self._args, **self._keywords)

    def graph(self) -> Callable[[], Any]:
        """Return a call of a plain graph: inputs copied in, outputs overwritten by the next."""
        arguments = Arguments(self._args, self._keywords)
        graph, outputs = plain_graph(lambda: arguments.call(self._function))

        def call() -> Any:
            arguments.copy_in(arguments.leaves)
            graph.replay()
            return outputs

        return call

    def by_rule(self, rule: Callable[[int, Any], list[int]]) -> Callable[[], Any]:
        """Return a call of the captured kernels on the streams of a rule, memory used once."""
        arguments, driver = Arguments(self._args, self._keywords), Driver()
        mine = Prepared(self._function, arguments, self._name, driver, _MOST_BYTES)
        mine.warm_up()
        plan = mine.graph().plan
        edges = operator_edges(plan.captured, plan.units)
        streams = rule(len(plan.units), edges)
        lanes = [0] * len(plan.captured.calls)
        for unit, stream in zip(plan.units, streams, strict=True):
            call = plan.captured.nodes[unit.first].call
            if call >= 0:
                lanes[call] = stream % 32  # workspaces of their own for so many
        graph = mine.graph(Layout(tuple(lanes)))
        between = on_streams(operator_edges(graph.plan.captured, graph.plan.units), streams)
        program = graph.program
        mine.bench.change_edges(program.raw, program.handles, graph.plan.node_edges(between))
        program.graph.instantiate()
        self._held.append(mine)

        def replay() -> Any:
            arguments.copy_in(arguments.leaves)
            program.graph.replay()
            return program.outputs

        return replay


def peers_of(
    name: str,
    type_: str,
    batch: int,
    seconds: float,  # to prepare in
    *,
    ways: Sequence[str] | None = None,
    turn: Path | None = None,  # a file: once it is there, whoever has locked it measures
) -> dict[str, Any]:
    """Return what each way takes, in microseconds a call."""
    with torch.no_grad():
        peers = _Peers(name, type_, batch, seconds, ways)
        peers.add("ours", lambda: peers.ours(compiled=False))
        peers.add("ours, compiled", lambda: peers.ours(compiled=True))
        peers.add("eager", lambda: peers.eager)
        peers.add("CUDA graph", peers.graph)
        for title, rule in _RULES.items():
            peers.add(title, lambda rule=rule: peers.by_rule(rule))  # type: ignore[misc]
        for title, how in _COMPILED.items():
            peers.add(title, lambda how=how: peers.compiled(how))  # type: ignore[misc]
        calls = [*peers.calls.values()]
        wanted = _results(peers.eager)
        for title, call in peers.calls.items():
            peers.facts[title] |= _compared(_results(call), wanted)
        with _in_turn(turn):
            found = time_calls(calls, torch.device("cuda"))
        for title, us in zip(peers.calls, found, strict=True):
            peers.facts[title]["us"] = us
    return {
        "model": name, "type": type_, "batch": batch, "kind": "peers",
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "ways": peers.facts,
    }  # fmt: skip


@contextmanager
def _in_turn(turn: Path | None) -> Iterator[None]:
    """Wait until a file is there, and lock it meanwhile."""
    if turn is None:
        yield
        return
    while not turn.is_file():
        time.sleep(0.1)
    with turn.open(encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _results(call: Callable[[], Any]) -> list[Any]:
    found = [each for each in pytree.tree_leaves(call()) if isinstance(each, torch.Tensor)]
    return [each.clone() for each in found]


def _compared(found: Sequence[Any], wanted: Sequence[Any]) -> dict[str, Any]:
    """Tell whether results have the bits of the model's own, and how far they are off."""
    if all(map(torch.equal, found, wanted)):
        return {"bits_equal": True, "off_by": 0.0}
    off = 0.0
    for mine, its in zip(found, wanted, strict=True):
        if its.is_floating_point() and its.numel():
            most = its.double().abs().max().clamp_min(1e-30)
            off = max(off, float((mine.double() - its.double()).abs().max() / most))
    return {"bits_equal": False, "off_by": off}
