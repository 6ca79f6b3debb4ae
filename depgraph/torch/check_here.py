"""In a process that runs for that alone: comparing the graphs of a function with it."""

from collections.abc import Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

import torch
from torch.utils import _pytree as pytree

from depgraph.apply.may_sets import needs_code
from depgraph.apply.plan import PLAIN
from depgraph.apply.verdicts import Verdict, Verdicts
from depgraph.errors import ApplyError, DepgraphError
from depgraph.torch.arguments import Arguments, own_copies
from depgraph.torch.bench import Result, begin_with, copied, moved
from depgraph.torch.capture import Plain
from depgraph.torch.checking import Checker, rounded, varied
from depgraph.torch.choose import guards_of
from depgraph.torch.operator_log import OperatorLog
from depgraph.torch.parallel import Request
from depgraph.torch.parallelized import Outputs
from depgraph.torch.prepare import Graph, Prepared
from depgraph.torch.rerun import FUNCTION, GRAPH, Stage

_MOST_CHECKED = 4  # graphs, the fastest first
_VARIATIONS = 2
_ROUNDINGS = 3
_PROFILED = 5  # replays
_NO_FASTER = 0.99


def check_here(request: Request, arguments: Arguments) -> NoReturn:
    """Compare the graphs of a function with it, leave what was found, and end the process."""
    stage = Stage.from_environment()
    stage.begins("warming up")
    try:
        prepared = Prepared(request, arguments)
        prepared.codes = stage.codes or {}
        check = Check(prepared, stage)
        found = check.run() if stage.modules is None else check.read_codes(stage.modules)
    except DepgraphError as error:
        found = Verdicts(refused=str(error))
    except torch.cuda.OutOfMemoryError as error:
        found = Verdicts(refused=f"out of GPU memory while it was checked: {error}")
    stage.ends(found)
    raise AssertionError


class Check:
    """One function and its graphs."""

    def __init__(self, prepared: Prepared, stage: Stage) -> None:
        self._prepared = prepared
        self._stage = stage
        self._verdicts = Verdicts()
        self.runs: Runs  # once `run` was called

    def run(self) -> Verdicts:
        """Return what came of it."""
        prepared, verdicts = self._prepared, self._verdicts
        warm = prepared.warm_up()
        plain = prepared.plainly()
        verdicts.weights = _weights(plain.graph, prepared)
        base = prepared.graph(weights=verdicts.weights)
        if self._stage.codes is None and _pointers_of_others(base):
            return Verdicts(wants_code=True)
        verdicts.codes = dict(prepared.codes)
        bindings = prepared.bindings(warm.executed)
        guards_of(prepared, base, bindings)  # what cannot be guarded is refused
        written = prepared.tensors_written(base, bindings)
        if any(node.call < 0 for node in base.program.captured.nodes):
            verdicts.may_change = [name for name, _ in written]
        prepared.warm.saved.add_all(tensor for _, tensor in written)
        self.runs = runs = Runs(prepared, plain, prepared.outside(written), self._inputs(base))
        function = runs.of_function(self._stage)
        self._stage.begins(f"{GRAPH}{PLAIN!r}")
        checker = runs.checker(base)
        verdicts.inputs = len(runs.inputs)
        verdicts.varies = checker.varies
        if wrong := checker.differs_from(function, partial(runs.rounding, function)):
            message = f"as a graph it gives other results than {prepared.name} itself: {wrong}"
            raise ApplyError(message, self._what_differs(base))
        best = self._fastest(plain, base)
        for graph in prepared.graphs(base, best.__contains__):
            self._stage.begins(GRAPH + graph.name)
            blank = Verdict(graph.name, graph.fingerprint, best[graph.name])
            verdicts.graphs.append(runs.checker(graph).check(graph.edges, blank))
        return verdicts

    def _what_differs(self, base: Graph) -> str:
        """Say what to look at where a graph gives other results than the function."""
        log = OperatorLog(self._prepared.device)
        with log:
            self._prepared.run()
        return other_call(
            [call.name for call in log.calls], [call.name for call in base.program.captured.calls]
        )

    def read_codes(self, folder: Path) -> Verdicts:
        """Return what the machine code of the kernels says that no operator launched."""
        from depgraph.apply.kernel_code import read_codes
        from depgraph.recorder.module_code import find_nvdisasm

        self._prepared.warm_up()
        graph = self._prepared.graph()
        nvdisasm = find_nvdisasm()
        if nvdisasm is None:
            return Verdicts(notes=["no machine code was read: there is no nvdisasm"])
        self._verdicts.codes |= read_codes(folder, _pointers_of_others(graph), nvdisasm)
        return self._verdicts

    def _inputs(self, base: Graph) -> list[list[Any]]:
        """Return the inputs to compare on: the example, those that were given, and variations."""
        arguments, request = self._prepared.arguments, self._prepared.request
        names = request.example_keywords
        found = [arguments.fits(each, names) for each in request.check_inputs]
        found.insert(0, list(arguments.leaves))
        found += varied(
            arguments.leaves, arguments.buffers, base.program.captured, _VARIATIONS,
            integers=not self._stage.is_gentle,
        )  # fmt: skip
        return [*map(arguments.alike, found)]

    def _fastest(self, plain: Plain, base: Graph) -> dict[str, float]:
        """Return the graphs that are faster than the plain one, the fastest of them."""
        prepared = self._prepared
        found: dict[str, float] = {}
        for graph in prepared.graphs(base, lambda name: name not in self._stage.left_out):
            self._stage.begins(GRAPH + graph.name)
            before, after = prepared.interleaved_times(plain, graph)
            if after < _NO_FASTER * before:
                found[graph.name] = after
        self._verdicts.graphs += [
            Verdict(name, "", 0.0, "it ended the process that checked it")
            for name in sorted(self._stage.left_out)
        ]
        return dict(sorted(found.items(), key=lambda pair: pair[1])[:_MOST_CHECKED])


def other_call(itself: Sequence[str], captured: Sequence[str]) -> str:
    """Say where a function calls another operator while it is captured; else what may be wrong."""
    for one, other in zip_longest(itself, captured, fillvalue="no more"):
        if one != other:
            return f"while it is captured it calls {other}, else {one}: see what it asks before"
    return "look for random numbers or values from outside of PyTorch"


def _pointers_of_others(graph: Graph) -> dict[str, set[int]]:
    """Return the kernels that are not PyTorch's own, and where their pointers stand."""
    found: dict[str, set[int]] = {}
    captured = graph.program.captured
    for node in captured.nodes:
        if needs_code(captured, node):
            found.setdefault(node.name, set()).update(p.at for p in node.pointers)
    return found


class Runs:
    """Runs of a function, and of graphs of it, on the same inputs from the same state."""

    def __init__(
        self,
        prepared: Prepared,  # warm
        plain: Plain,
        state: Sequence[tuple[str, Any]],  # what the function may change outside of its own memory
        inputs: Sequence[list[Any]],  # leaves of arguments
    ) -> None:
        self._prepared = prepared
        self._plain = plain
        self._state = state
        self.inputs = inputs
        self._draws = prepared.draws(plain)

    def of_function(self, stage: Stage) -> list[list[Result]]:
        """Return what the function itself leaves after each call."""
        prepared = self._prepared
        prepared.undo()
        found = []
        stage.begins(FUNCTION)
        for leaves in self.inputs:
            if self._draws:
                prepared.undo()
            found.append(self._called(own_copies(leaves)))
        torch.cuda.synchronize(prepared.device)
        prepared.undo()
        return found

    def _called(self, leaves: list[Any]) -> list[Result]:
        """Return what the function itself leaves of one call."""
        outputs = self._prepared.arguments.call(self._prepared.function, leaves)
        gradients = [tensor.grad for tensor, _ in self._plain.gradients]
        return copied(self._named(outputs, gradients, leaves))

    def rounding(self, function: Sequence[Sequence[Result]], place: int, spread: Any) -> Any:
        """Return by how much a call's results move where its inputs are rounded."""
        # A sum that is zero but for rounding is something else wherever one is rounded otherwise:
        # gradients are such, and what they change. What is returned is compared as it is.
        if not self._plain.gradients:
            return None
        left = function[place - 1] if place and not self._draws else ()
        try:
            self._begin(left)
            begun = copied(self._state)
            runs = (
                (self._rounded(place, times, left), self._rounded(place, times, left))
                for times in range(1 + _ROUNDINGS)
            )
            found = moved(function[place], runs, spread, begun)
        except RuntimeError:  # no memory for it, or nothing more that it takes from somewhere
            return None
        finally:
            self._prepared.undo()
        names = [each.name.partition(" ")[0] for each in function[place]]
        return found and [
            None if name in {"output", "argument"} else slack
            for name, slack in zip(names, found, strict=True)
        ]

    def _begin(self, left: Sequence[Result]) -> None:
        """Let the function's next run begin with what another has left, if with anything."""
        self._prepared.undo()
        if left:
            begin_with(self._state, left)

    def _rounded(self, place: int, times: int, left: Sequence[Result]) -> list[Result]:
        """Return what the function itself leaves of one call whose inputs are rounded."""
        self._begin(left)
        leaves = [rounded(leaf, times) for leaf in self.inputs[place]]
        return self._called(self._prepared.arguments.alike(leaves))

    def _named(
        self, outputs: Any, gradients: Sequence[Any], arguments: Sequence[Any]
    ) -> list[tuple[str, Any]]:
        """Name everything that a call leaves."""
        kinds = ("output", pytree.tree_leaves(outputs)), ("gradient", gradients)
        tensors = [
            (f"{kind} {place}", tensor)
            for kind, all_ in (*kinds, ("argument", arguments))
            for place, tensor in enumerate(all_)
            if isinstance(tensor, torch.Tensor)
        ]
        return [*tensors, *self._state]

    def checker(self, graph: Graph) -> Checker:
        """Return what compares graphs of a captured program."""
        prepared, program = self._prepared, graph.program
        bench, arguments = prepared.bench, prepared.arguments

        def call(leaves: list[Any]) -> None:
            if self._draws:  # a replay by PyTorch sets the generator's state that this graph reads
                prepared.undo()
                program.graph.replay()
                prepared.warm.saved.restore()
            arguments.copy_in(leaves)

        gradients = [gradient for _, gradient in program.gradients]
        captured = program.captured
        copy = prepared.driver.copier()
        outputs = Outputs(program.outputs, arguments, program.outside, prepared.device, copy)

        def results() -> list[tuple[str, Any]]:
            stream = torch.cuda.current_stream(prepared.device).cuda_stream
            copied_out = outputs.copied_out(arguments.buffers, stream)
            return self._named(copied_out, gradients, arguments.buffers)

        return Checker(
            graph=lambda edges, late: bench.instantiated(program, edges, late=late),
            launch=lambda executable: bench.launch(executable, graph.name),
            calls=[partial(call, leaves) for leaves in self.inputs],
            results=results,
            state=self._state,
            restore=prepared.undo,
            fill=bench.filling(program.pool),
            n=len(program.handles),
            labels=[
                f"node {place} ({captured.label_of(node)})"
                for place, node in enumerate(captured.nodes)
            ],
        )


def _weights(graph: Any, prepared: Prepared) -> list[float]:
    """Return how long each node of a graph takes, in microseconds; none if that cannot be said."""
    times: list[tuple[int, float]] = []
    try:
        kinds = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=kinds, acc_events=True) as profile:
            for _ in range(_PROFILED):
                graph.replay()
            torch.cuda.synchronize(prepared.device)
        times = [
            (event.start_ns(), event.duration_ns() / 1000)
            for event in profile.profiler.kineto_results.events()
            if event.device_type().name == "CUDA" and event.duration_ns()
        ]
    except (AttributeError, RuntimeError):
        times = []
    finally:
        prepared.undo()
    n, rest = divmod(len(times), _PROFILED)
    if rest or not n:
        return []
    ordered = [duration for _, duration in sorted(times)]
    return [median(ordered[node::n]) for node in range(n)]
