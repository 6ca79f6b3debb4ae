"""Dynamic parallelism: no child kernels, all of them, those above a threshold, or as SPAWN says."""

import math
from dataclasses import replace
from typing import ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import DeadlockError, ModelError, NotApplicableError
from depgraph.graph.program import DeviceLaunches
from depgraph.mechanisms.base import (
    Availability,
    Charges,
    Cost,
    Mechanism,
    serialized,
    whole_number,
)
from depgraph.scenario.scenario import Scenario
from depgraph.schedule.policy import DECIDE, INLINE, LAUNCH, LaunchRules, Rules
from depgraph.schedule.simulate import run_rules
from depgraph.system.text import counted, show_number

_SIMULATOR = (
    "GPGPU-Sim, -cdp_latency 7200,8000,100,12000,1600: a warp takes 8000 and 100 a lane for the "
    "parameters, 12000 and 1600 a lane for the launch"
)
_MOST_THRESHOLDS = 32
MOST_QUEUES = 32
BEST = "best"
_COSTS = (
    Cost(
        "stall", 20_000, "cycles", "time that a launch from the device stalls its warp",
        f"the GPU's model if one is named (--gpu) that was measured, else {_SIMULATOR}",
    ),
    Cost("lane", 1_700, "cycles", "the same, more for each lane that launches", "as stall"),
    Cost(
        "dispatch", 0, "cycles", "time for each child, one after another, before it is queued",
        "the GPU's model if one is named; the simulator has none",
    ),
    Cost(
        "finish", 0, "cycles", "time until a kernel knows that a child has ended",
        "as dispatch",
    ),
    Cost(
        "queues", 8, "count", f"hardware queues that child kernels wait in, {MOST_QUEUES} at most",
        "CUDA_DEVICE_MAX_CONNECTIONS: 8 by default, 32 at most",
    ),
)  # fmt: skip


class Flat(Mechanism):
    """No launches from the device: blocks do all work themselves."""

    name = "flat"
    rule = "blocks do the work of their child kernels themselves; kernels as serial"
    cost = "launches: host and gap of each kernel"
    family = "device launches"
    availability = Availability.SHIPS
    source = "Tang et al., SPAWN, HPCA 2017 (second-hand)"
    needs_launches = True

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Launch nothing."""
        launches = _launches_of(program)
        mode = np.full(len(launches), INLINE, np.uint8)
        return _rules(program, charges, LaunchRules(launches, mode, 0.0, 0.0, 1))


def _threshold(mechanism: str, text: str) -> float | str:
    if text in {BEST, "inf"}:
        return BEST if text == BEST else math.inf
    return whole_number(mechanism, text, 0)


class Cdp(Mechanism):
    """CUDA dynamic parallelism, with launches of at least `threshold` work items."""

    name = "cdp"
    signature = "cdp[(T|best)]"
    takes = (_threshold,)
    rule = (
        "a block launches its child kernels, those of T work items and more (default all); "
        "children wait behind hardware queues, in order in a stream, and take slots after the "
        "parent's blocks; a kernel ends with its last child; best: the fastest T"
    )
    cost = "the launching warp stalls; launches of the host as serial"
    vendor = "NVIDIA"
    least_architecture = 35
    family = "device launches"
    availability = Availability.SHIPS
    source = "CUDA C++ programming guide, dynamic parallelism"
    costs: ClassVar[tuple[Cost, ...]] = _COSTS
    needs_launches = True
    among_all = ((), (BEST,))

    def __init__(self, threshold: float | str = 0) -> None:
        self.threshold = threshold
        self.shown = () if threshold == 0 else (threshold,)

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Launch what has enough work items."""
        items = _launches_of(program).items
        rules = _launching(program, charges, np.full(len(items), LAUNCH, np.uint8))
        if self.threshold != BEST:
            return _from(rules, items >= float(self.threshold))
        tried_rules: dict[float, tuple[float, Rules]] = {}
        for threshold in thresholds_of(_launches_of(program)):
            each = _from(rules, items >= threshold)
            try:
                plan = run_rules(
                    self.label, each, program.graph, program.durations, program.resources,
                    program.sms,
                )  # fmt: skip
            except DeadlockError:
                continue
            tried_rules[threshold] = plan.makespan, each
        best = min(tried_rules, key=lambda threshold: (tried_rules[threshold][0], -threshold))
        tried = ", ".join(f"{t:g}: {show_number(time)}" for t, (time, _) in tried_rules.items())
        return tried_rules[best][1].assuming(
            f"T = {best:g} is the best of {counted(len(tried_rules), 'threshold')} ({tried} "
            f"{program.unit})"
        )


class Spawn(Mechanism):
    """SPAWN: each launch is made if its child is expected to end before its parent had done it."""

    name = "spawn"
    rule = (
        "a block launches a child if stall + (n + x) / T < inline: n child blocks queued or "
        "running, x of the child, T the mean number that ran of late over their mean time; while "
        "none has ended, if stall < inline; else as cdp"
    )
    cost = "the launching warp stalls; launches of the host as serial"
    family = "device launches"
    availability = Availability.HARDWARE
    source = "Tang et al., SPAWN, HPCA 2017 (second-hand)"
    costs: ClassVar[tuple[Cost, ...]] = (
        *_COSTS,
        Cost("window", 1024, "cycles", "time over which running child blocks are averaged",
             "Tang et al., SPAWN, HPCA 2017 (second-hand)"),
    )  # fmt: skip
    needs_launches = True

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Decide at each launch."""
        mode = np.full(len(_launches_of(program)), DECIDE, np.uint8)
        return _launching(program, charges, mode, charges.time("window"))


def thresholds_of(launches: DeviceLaunches) -> list[float]:
    """Return thresholds worth trying: each number of work items, or some evenly spread, and inf."""
    items = np.unique(launches.items)
    if len(items) > _MOST_THRESHOLDS:
        items = items[np.linspace(0, len(items) - 1, _MOST_THRESHOLDS).round().astype(int)]
    return [*items.astype(float).tolist(), math.inf]


def _launches_of(program: Scenario) -> DeviceLaunches:
    if program.launches is None:
        raise NotApplicableError("no block of the program launches child kernels")
    return program.launches


def _launching(
    program: Scenario, charges: Charges, mode: NDArray[np.uint8], window: float = 1.0
) -> Rules:
    """Return the rules of a mechanism that launches, with what launches cost."""
    known = None if program.resources.gpu_is_assumed else program.resources.gpu
    queues = int(charges.number("queues"))
    if not 1 <= queues <= MOST_QUEUES:
        raise ModelError(f"cost 'queues' is {queues}: give a whole number from 1 to {MOST_QUEUES}")
    times = [
        charges.time(name, default=getattr(known, f"device_{name}_cycles", None))
        for name in ("stall", "lane", "dispatch", "finish")
    ]
    stall, lane, dispatch, finish = times
    rules = LaunchRules(_launches_of(program), mode, stall, lane, queues, window, dispatch, finish)
    return _rules(program, charges, rules)


def _from(rules: Rules, is_made: NDArray[np.bool_]) -> Rules:
    """Return rules that make some launches, and let parents do the work of the others."""
    mode = np.where(is_made, LAUNCH, INLINE).astype(np.uint8)
    return replace(rules, launching=cast("LaunchRules", rules.launching)._replace(mode=mode))


def _rules(program: Scenario, charges: Charges, launching: LaunchRules) -> Rules:
    return serialized(program, charges, durations=program.own_durations, launching=launching)
