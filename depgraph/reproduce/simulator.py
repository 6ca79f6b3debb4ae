"""Accel-Sim with dependences in its block scheduler: its times beside those of a schedule here."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import ProfileError
from depgraph.graph.block_graph import BlockGraph
from depgraph.graph.program import Kernel
from depgraph.reproduce.figures import Figure, Inputs, Published
from depgraph.reproduce.programs import makespan
from depgraph.scenario.of_store import Request
from depgraph.scenario.scenario import Scenario
from depgraph.store.store import Store
from depgraph.timing.profile import BlockProfile
from depgraph.trace.names import base_name

_RUNS = (("gru_train", 46), ("streams4", 46), ("streams4", 80))
_NOTICED = 0.05  # what single functions take longer beside others, to be named


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """What the simulator printed of one run, serial or by the rule; cycles."""

    profile: BlockProfile
    # start, end: of each block of the store
    start: NDArray[np.float64]
    end: NDArray[np.float64]

    @property
    def busy(self) -> NDArray[np.float64]:
        """How long each block ran."""
        return self.end - self.start


def reproduce(published: Published) -> Iterator[Figure]:
    """Compare schedules with runs of the simulator, on the block times of either."""
    inputs = published.inputs
    for program, sms in _RUNS:
        store = Store(inputs.path(f"simulator/{program}.out"))
        graph = store.graph()
        serial, rule = (
            read_run(inputs, graph, f"{program}.sms{sms}.{name}.csv") for name in ("serial", "rule")
        )
        yield from _rows(published, store, (program, sms), serial, rule)
        contention = _contention(store.kernels, graph, serial, rule)
        published.notes.append(f"{program} on {sms} SMs: {contention}")


def read_run(inputs: Inputs, graph: BlockGraph, name: str) -> Run:
    """Read a table of blocks, and find each in the graph by its number."""
    path = inputs.path(f"simulator/{name}")
    profile = inputs.read_profile(path)
    if not isinstance(profile, BlockProfile) or profile.start is None:
        raise ProfileError(path, "has no times of blocks with their starts")
    start = np.full((2, graph.n_blocks), np.nan)
    place = graph.first_block[profile.kernel] + profile.block
    start[0, place] = profile.start
    start[1, place] = profile.start + profile.duration
    return Run(profile, start[0], start[1])


def _rows(
    published: Published, store: Store, case: tuple[str, int], serial: Run, rule: Run
) -> Iterator[Figure]:
    program, sms = case
    before, after, edges = published.table["runs"][f"{program} {sms}"]
    measured, own = (
        Scenario.of_store(store, Request(times=run.profile), tell=lambda _: None).on(sms)
        for run in (serial, rule)
    )
    one_by_one = makespan(measured, "serial")
    dataflow, on_its_own = (makespan(times, "dataflow(oldest-first)") for times in (measured, own))
    checked, violated = _violations(store.graph(), rule)
    figures = {
        "serial": (one_by_one, before),
        "rule": (dataflow, after),
        "own": (on_its_own, after),
        "speedup": (one_by_one / dataflow, before / after),
        "work": (serial.busy.sum(), rule.busy.sum()),
        "edges": (checked, edges),
        "violated": (violated, 0),
    }
    for key, (ours, theirs) in figures.items():
        yield published.figure(key, ours, float(theirs), program=program, sms=sms)


def _violations(graph: BlockGraph, run: Run) -> tuple[int, int]:
    """Return the edges between kernels, each kind by itself, and those whose target began early."""
    checked = violated = 0
    for kind in ("RAW", "WAR", "WAW"):
        for sources, targets, _ in graph.with_kinds({kind}).edges():
            timed = ~np.isnan(run.end[sources]) & ~np.isnan(run.start[targets])
            checked += int(timed.sum())
            violated += int((run.start[targets] < run.end[sources])[timed].sum())
    return checked, violated


def _contention(kernels: list[Kernel], graph: BlockGraph, serial: Run, rule: Run) -> str:
    """Say how much longer blocks ran beside those of other kernels, function by function."""
    ran = ~np.isnan(serial.busy) & ~np.isnan(rule.busy)
    function = {kernel.operation: base_name(kernel.name) for kernel in kernels}
    of_block = np.array([function.get(int(op), "") for op in graph.operation_of_block])
    slower = {
        name: rule.busy[of_block == name].sum() / serial.busy[of_block == name].sum()
        for name in sorted(set(of_block[ran]))
    }
    listed = [f"{name} {by:.2f}" for name, by in slower.items() if abs(by - 1) > _NOTICED]
    whole = rule.busy[ran].sum() / serial.busy[ran].sum()
    parts = f"; by function {', '.join(listed)}" if listed else ""
    return f"beside other kernels blocks ran {whole:.2f} times as long as alone{parts}"
