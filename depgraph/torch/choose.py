"""Choosing a graph: those that a check has passed, measured beside the plain one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from depgraph.apply.applied import Applied, Tried
from depgraph.apply.captured import KERNEL
from depgraph.apply.plan import PLAIN
from depgraph.errors import DepgraphError
from depgraph.system.text import show_bytes
from depgraph.torch.bench import time_calls
from depgraph.torch.guards import Guards
from depgraph.torch.operator_log import addresses_of
from depgraph.torch.parallelized import Outputs, Ready, Replay

if TYPE_CHECKING:
    from depgraph.apply.order import Edge
    from depgraph.apply.recorded_call import RecordedCall
    from depgraph.apply.verdicts import Verdicts
    from depgraph.mechanisms.predicted_time import PredictedTime
    from depgraph.torch.bindings import Bindings, Slot
    from depgraph.torch.capture import Plain
    from depgraph.torch.parallelized import Parallelized
    from depgraph.torch.prepare import Graph, Prepared

_MOST_TRIED = 3  # graphs, the fastest where they were checked
_AS_FAST = 0.98  # of the time of the best so far: another one has to be faster than that
_NO_FASTER = 0.99  # of the plain graph's time: less is noise


@dataclass(slots=True)
class _Choice:
    plain_us: float = 0.0
    best: Graph | None = None  # None while the plain graph is the best
    share: float = _NO_FASTER / _AS_FAST  # of the plain graph's time that the best takes
    rows: list[Tried] = field(default_factory=list)
    pairs_left: int = 0  # free pairs of its nodes that no order of the check turned around


def choose(
    prepared: Prepared, verdicts: Verdicts, store: Path | None, made: Parallelized
) -> Applied:
    """Make a function ready to run as the fastest graph that a check has passed."""
    request, notes = prepared.request, list(verdicts.notes)
    prepared.codes = verdicts.codes
    warm = prepared.warm_up(verdicts.may_change)
    plain = prepared.plainly()
    base = prepared.graph(weights=verdicts.weights)
    recorded = _recorded_call(store, request.call, base)
    if recorded is not None and request.trusts_recording:
        base = prepared.graph(weights=verdicts.weights, recorded=recorded.shown())
        notes.append(
            "trust='recording': for values that lead elsewhere than the recorded ones results "
            "may be wrong"
        )
    predict = _predictor(recorded, notes)
    choice = _measured(prepared, plain, base, verdicts, predict, notes)
    graph = choice.best or base
    ready = _ready(prepared, plain, base, choice.best)
    made.set_ready(ready)
    leaves = prepared.arguments.leaves

    args, keywords = prepared.arguments.nested(leaves)
    stream = torch.cuda.current_stream().cuda_stream

    def as_anybody() -> None:
        prepared.arguments.copy_in(leaves, stream)
        plain.graph.replay()

    calls: list[Callable[[], object]] = [as_anybody, partial(made, *args, **keywords)]
    plain_call_us, call_us = time_calls(calls, prepared.device, prepared.restores)
    prepared.undo()
    if warm.made:
        notes.append(f"the first run made {warm.made}, and so it counts as a call")
    if choice.pairs_left:
        notes.append(
            f"{choice.pairs_left} pairs of nodes that may run at once ran in one order alone while "
            "it was checked: there was no time for more"
        )
    if graph.program.kept_bytes:
        size = show_bytes(graph.program.kept_bytes)
        notes.append(f"no two tensors share memory, which takes {size}")
    workspaces = prepared.lanes.workspace_bytes()
    wrong = [Tried(v.name, 0, None, v.measured, v.wrong) for v in verdicts.graphs if v.wrong]
    return Applied(
        name=request.name,
        gpu=torch.cuda.get_device_name(prepared.device),
        nodes=base.plan.n,
        kernels=sum(node.kind == KERNEL for node in base.program.captured.nodes),
        tried=(*choice.rows, *wrong),
        chosen=PLAIN if choice.best is None else choice.best.name,
        plain_call_us=plain_call_us,
        call_us=call_us,
        edges=tuple(graph.plan.reasons()),
        fixed=graph.plan.fixed,
        more_bytes=0 if choice.best is None else graph.program.kept_bytes + workspaces,
        inputs=verdicts.inputs,
        varies=verdicts.varies,
        guards=ready.guards.count,
        notes=tuple(dict.fromkeys(notes)),
    )


def _measured(
    prepared: Prepared,
    plain: Plain,
    base: Graph,
    verdicts: Verdicts,
    predict: Callable[[tuple[Edge, ...]], PredictedTime | None],
    notes: list[str],
) -> _Choice:
    """Measure the graphs that passed, each in turn with the plain one."""
    bench, restores = prepared.bench, prepared.restores
    with bench.instantiated(plain) as as_captured:
        choice = _Choice(bench.times([as_captured], restores, PLAIN)[0])
    edges = base.program.captured.edges
    choice.rows.append(Tried.of(PLAIN, len(edges), predict(edges), choice.plain_us))
    passed = sorted((v for v in verdicts.graphs if not v.wrong), key=lambda v: v.measured)
    names = {verdict.name for verdict in passed[:_MOST_TRIED]}
    for graph in prepared.graphs(base, names.__contains__):
        verdict = verdicts.of(graph.name, graph.fingerprint)
        if verdict is None or verdict.wrong:
            notes.append(f"the graph {graph.name!r} is another one here than was checked")
            continue
        before, after = prepared.interleaved_times(plain, graph)
        share = after / before
        us = share * choice.plain_us
        found = predict(graph.edges)
        row = Tried.of(graph.name, len(graph.edges), found, us, orders=verdict.orders)
        choice.rows.append(row)
        if share < _AS_FAST * choice.share:
            choice.best, choice.share, choice.pairs_left = graph, share, verdict.pairs_left
    return choice


def _recorded_call(store: Path | None, call: int, base: Graph) -> RecordedCall | None:
    if store is None:
        return None
    from depgraph.apply.recorded_call import read_recorded

    return read_recorded(store, call, base.program.captured)


def _predictor(
    recorded: RecordedCall | None, notes: list[str]
) -> Callable[[tuple[Edge, ...]], PredictedTime | None]:
    """Return what predicts how long graphs take; where that cannot be said, None for each."""
    if recorded is None:
        return lambda _: None
    from depgraph.apply.recorded_call import make_predictor
    from depgraph.parsers.profiles import read_profile
    from depgraph.store.companions import recorded_times

    recorded_times(recorded.store)  # times of another store, or changed ones, are refused
    try:
        sms = torch.cuda.get_device_properties().multi_processor_count
        found = make_predictor(recorded, sms, read_profile, notes.append)
    except DepgraphError as error:
        notes.append(f"nothing is predicted: {error}")
        return lambda _: None
    return (lambda _: None) if found is None else found.time


def _ready(prepared: Prepared, plain: Plain, base: Graph, best: Graph | None) -> Ready:
    """Return all that calls need, with the best graph made the program's own."""
    bindings = prepared.bindings(prepared.warm.executed)
    graph = best or base
    written = prepared.tensors_written(graph, bindings)
    _note_changed(prepared, graph, written)
    outside = graph.program.outside
    copy = prepared.driver.copier()
    prepared.arguments.copy_with(copy)
    outputs_of = partial(
        Outputs, arguments=prepared.arguments, outside=outside, device=prepared.device, copy=copy,
        bound={id(slot.value) for slot in bindings.tensors()},
    )  # fmt: skip
    as_captured = own = Replay(plain.graph.replay, outputs_of(plain.outputs), plain.gradients)
    if best is not None:
        bench, program = prepared.bench, best.program
        bench.change_edges(program.raw, program.handles, best.edges)
        program.graph.instantiate()
        own = Replay(program.graph.replay, outputs_of(program.outputs), program.gradients)
    return Ready(
        graph=own,
        plain=as_captured,
        guards=guards_of(prepared, graph, bindings),
        device=prepared.device,
        state=prepared.outside(written),
        is_pure=not written and not plain.gradients and not prepared.draws(plain),
        # The storages, too: a tensor may be given another one while the graph uses this one.
        held=(
            graph.program,
            base.program.outside,
            base.program.of_host,
            plain,
            bindings,
            [tensor.untyped_storage() for tensor in outside.values()],
        ),
        lanes=prepared.lanes,
    )


def _note_changed(prepared: Prepared, graph: Graph, written: list[tuple[str, Any]]) -> None:
    """Let the arguments know what is copied back, and what they must not share memory with."""
    changed = {tensor.untyped_storage().data_ptr(): tensor for _, tensor in written}
    buffers = prepared.arguments.addresses
    used = {**graph.program.outside, **changed} if changed.keys() & buffers else changed
    outside = [
        (at, at + tensor.untyped_storage().nbytes())
        for at, tensor in used.items()
        if at not in buffers
    ]
    prepared.arguments.note_changed(changed.keys(), outside)


def guards_of(prepared: Prepared, graph: Graph, bindings: Bindings) -> Guards:
    """Return what looks at all that a graph takes for granted."""
    program = graph.program
    buffers = prepared.arguments.addresses
    used = {at: t for at, t in program.outside.items() if at not in buffers}
    # What kernels of no operator reach, operators need not have used.
    reached = [
        pointer.memory
        for node in program.captured.nodes
        if node.call < 0
        for pointer in node.pointers
    ]
    for slot in bindings.tensors():
        for at in addresses_of(slot.value):
            if any(memory.start <= at < memory.end for memory in reached):
                used.setdefault(at, slot.value)
    anew = {id(tensor) for tensor, _ in program.gradients}

    def is_made_anew(slot: Slot) -> bool:
        return slot.key == "grad" and id(slot.owner) in anew

    given = [t for t in prepared.arguments.buffers if isinstance(t, torch.Tensor)]
    needs_grad = any(t.requires_grad for t in [*used.values(), *given])
    return Guards(
        bindings, list(used.values()), list(program.on_host.values()), program.first_use,
        needs_grad=needs_grad, ignored=is_made_anew,
    )  # fmt: skip
