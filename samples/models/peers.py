"""A model as it is, and as everything that a user would pick runs it, in turn in one process."""

from __future__ import annotations

import fcntl
import signal
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch.utils import _pytree as pytree

import depgraph.torch
from depgraph.apply.plan import Layout
from depgraph.samples.models.measure import measured_with, plain_graph, prepared
from depgraph.samples.models.rules import (
    nimble_streams,
    on_streams,
    opara_streams,
    operator_edges,
)
from depgraph.torch import compiling, parallel
from depgraph.torch.arguments import Arguments
from depgraph.torch.bench import time_calls
from depgraph.torch.prepare import Prepared
from depgraph.torch.rerun import call_to_check, run_again

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from depgraph.apply.applied import Applied
    from depgraph.apply.verdicts import Verdicts

_MOST_BYTES = 1 << 30
_TO_CHOOSE = 120.0  # seconds: what was checked is only measured then
_OURS = {"ours": False, "ours, compiled": True}
_COMPILED: dict[str, dict[str, Any]] = {
    "torch.compile": {},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "combo kernels": {"options": {"triton.cudagraphs": True, "combo_kernels": True}},
    "max-autotune": {"mode": "max-autotune"},  # the last: it may take longer than there is
}
_OVERWRITTEN = "ours, overwritten"
WAYS = (*_OURS, _OVERWRITTEN, "eager", "CUDA graph", "Opara's rule", "Nimble's rule", *_COMPILED)
_BY_ITSELF = "runs by itself, not as a graph"
_RULES = {"Opara's rule": opara_streams, "Nimble's rule": nimble_streams}


class _TooLongError(BaseException):
    """Goes through whatever catches exceptions, as compilers do."""


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
        self.graphs: dict[str, dict[str, Any]] = {}
        self.fast: dict[str, Any] = {}
        self._held: list[Any] = []

    def wanted(self, name: str) -> bool:
        """Tell whether a way was asked for."""
        return not self._ways or name in self._ways

    def add(
        self, name: str, make: Callable[[], Callable[[], Any]], *, most: float | None = None
    ) -> None:
        """Make a way to call the model, and note what that takes; or why it cannot be made."""
        if not self.wanted(name):
            return
        left = self._ends - time.perf_counter() if most is None else most
        if left <= 0:
            self.facts[name] = {"why": "there was no time left to prepare it"}
            return
        before, began = torch.cuda.memory_reserved(), time.perf_counter()
        try:
            with _ended_after(left), warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                call = make()
                for _ in range(3):
                    call()
            torch.cuda.synchronize()
        except _TooLongError:
            self.facts[name] = {"why": f"it was not ready after {left:.0f} s"}
            return
        except Exception as error:  # noqa: BLE001 - whatever a model, or its compiler, raises
            text = str(error).strip().splitlines()
            self.facts[name] = {"why": (text[0] if text else type(error).__name__)[:300]}
            return
        itself = [str(each.message) for each in said if _BY_ITSELF in str(each.message)]
        if itself:
            self.facts[name] = {"why": itself[0]}
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
        function = compiling.compiled(self._function) if compiled else self._function
        fast = depgraph.torch.parallelize(
            function, self._args, self._keywords, name=self._name, time_limit=self._seconds
        )
        title = "ours, compiled" if compiled else "ours"
        self.graphs[title], self.fast[title] = _described(fast.report), fast
        return lambda: fast(*self._args, **self._keywords)

    def overwritten(self) -> Callable[[], Any]:
        """Return a call of the faster of ours whose results the next one overwrites, as others'."""
        times = {title: graph["call_us"] for title, graph in self.graphs.items()}
        fast = self.fast[min(times, key=lambda title: times[title])]

        def call() -> Any:
            fast._is_own = False
            try:
                return fast(*self._args, **self._keywords)
            finally:
                fast._is_own = True

        return call

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
        arguments = Arguments(self._args, self._keywords)
        asked = parallel.Request(0, self._function, most_bytes=_MOST_BYTES, name=self._name)
        mine = Prepared(asked, arguments)
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
        ours = {title: compiled for title, compiled in _OURS.items() if peers.wanted(title)}
        if call_to_check() is not None:
            for compiled in ours.values():
                peers.ours(compiled=compiled)  # ends the process in its turn
        checks = _Checks(len(ours), seconds)
        peers.add("eager", lambda: peers.eager)
        peers.add("CUDA graph", peers.graph)
        for title, rule in _RULES.items():
            peers.add(title, lambda rule=rule: peers.by_rule(rule))  # type: ignore[misc]
        for title, how in _COMPILED.items():
            peers.add(title, lambda how=how: peers.compiled(how))  # type: ignore[misc]
        checks.wait()
        with _in_turn(turn), checks.known():
            for title, compiled in ours.items():
                peers.add(title, lambda how=compiled: peers.ours(compiled=how), most=_TO_CHOOSE)  # type: ignore[misc]
            peers.add(_OVERWRITTEN, peers.overwritten, most=_TO_CHOOSE)
            wanted = _results(peers.eager)
            for title, call in peers.calls.items():
                peers.facts[title] |= _compared(_results(call), wanted)
            found = time_calls([*peers.calls.values()], torch.device("cuda"))
        for title, us in zip(peers.calls, found, strict=True):
            peers.facts[title]["us"] = us
        for title, took in zip(ours, checks.took, strict=True):
            peers.facts[title] |= peers.graphs.get(title, {})
            if "prepare_s" in peers.facts[title]:
                peers.facts[title]["prepare_s"] += took
    return {
        "model": name, "type": type_, "batch": batch, "kind": "peers",
        **measured_with(),
        "ways": {title: peers.facts[title] for title in WAYS if title in peers.facts},
    }  # fmt: skip


def _described(report: Applied | None) -> dict[str, Any]:
    """Return which graph runs, of which there were how many nodes, and how long it takes alone."""
    if report is None:
        return {}
    return {
        "graph": report.chosen, "nodes": report.nodes, "call_us": report.call_us,
        "plain_graph_us": report.before.measured, "graph_us": report.after.measured,
        "costs": [[each.reason, each.edges, round(each.costs_us, 1)] for each in report.edges[:3]],
        "wrong": [each.refused for each in report.tried if each.refused],
    }  # fmt: skip


class _Checks:
    """What processes find that run the program again, all at once, beside everything else."""

    def __init__(self, n: int, seconds: float) -> None:
        self._seconds = seconds
        self.took = [0.0] * n
        self._pool = ThreadPoolExecutor(max(n, 1))
        self._found = [self._pool.submit(self._check, call) for call in range(n)]

    def _check(self, call: int) -> Verdicts:
        began = time.perf_counter()
        try:
            return run_again([sys.executable, *sys.orig_argv[1:]], call, self._seconds)
        finally:
            self.took[call] = time.perf_counter() - began

    def wait(self) -> None:
        """Wait for all of them."""
        self._pool.shutdown()

    @contextmanager
    def known(self) -> Iterator[None]:
        """Let `parallelize` take what was found, in the order of its calls."""

        def found(_command: object, call: int, _seconds: float) -> Verdicts:
            return self._found[call].result()

        with patch.object(parallel, "run_again", found):
            yield


@contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """Raise a _TooLongError after a time: compiling may take longer than there is."""

    def end(*_: object) -> None:
        raise _TooLongError

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


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
