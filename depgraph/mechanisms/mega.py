"""Megakernels: the whole program as one persistent kernel whose workers run blocks as tasks."""

from typing import ClassVar

import numpy as np

from depgraph.errors import ModelError
from depgraph.mechanisms.base import Availability, Charges, Cost, Mechanism, once, word
from depgraph.scenario.scenario import Scenario
from depgraph.schedule.policy import HOLDS, PLACES, Against, Rules

TASK, READY, KERNEL = "task", "ready", "kernel"


class MegaKernel(Mechanism):
    """A persistent kernel with counters between its tasks, or a barrier after each kernel."""

    name = "mega"
    signature = "mega(task|ready|kernel)"
    takes = (word,)
    rule = (
        "one kernel whose workers, as many as an SM holds, run blocks as tasks: each takes the "
        "next task in program order and holds its slot until all that it depends on have ended; "
        "ready: it takes the oldest task that may run; kernel: all workers wait after each kernel"
    )
    cost = "a time for each task; launches: one, of the whole program"
    family = "megakernels"
    availability = Availability.CODE
    source = (
        "Cheng et al., Mirage Persistent Kernel, arXiv:2512.22219, 2025; the megakernels of "
        "HazyResearch; Event Tensor (second-hand)"
    )
    among_all = ((TASK,), (READY,))
    costs: ClassVar[tuple[Cost, ...]] = (
        Cost(
            "task", 1.2, "us", "waiting for counters that are full, and setting its own",
            "benchmarks/block_placement.cu on an H100, waits for one task or for all (0.9 us on an "
            "H200); the authors of Mirage state 1 to 2 us (second-hand)",
        ),
        Cost(
            "prefetch", 0.0, "share", "part of a task's work, such as loading weights, that it "
            "does before it waits", "none assumed: only the rule",
        ),
        Cost(
            "workers", 0, "count", "workers of an SM; 0 for as many as it holds of a kernel that "
            "takes the most of each resource of any of the program's", "our choice",
        ),
    )  # fmt: skip

    def __init__(self, order: str = TASK) -> None:
        if order not in (TASK, READY, KERNEL):
            raise ModelError(f"give {self.signature}")
        self.order = order
        self.shown = (order,)

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Run blocks on equal workers."""
        graph = program.graph
        task, prefetch = charges.time("task"), charges.number("prefetch")
        most = workers_of(program)
        workers = min(int(charges.number("workers")) or most, most)
        durations = program.durations + task * program.is_kernel[graph.operation_of_block]
        holds = self.order == TASK
        largest = program.occupancy[program.is_kernel].max(initial=1)
        note = f"workers of an SM: {workers}; the largest occupancy of a kernel is {largest}"
        return Rules(
            joins=HOLDS if holds else PLACES,
            join_need=np.full(len(graph.join_kind), min(prefetch, 1.0)) if holds else None,
            waits_for_all=self.order == KERNEL,
            strict=holds,
            workers=workers,
            enter=once(program, charges).enter,
            durations=durations if task else None,
            against=Against.WORK if holds and prefetch else Against.BLOCK,
            assumptions=(note,),
        )


def workers_of(program: Scenario) -> int:
    """Return how many blocks an SM holds that take the most of each resource of any kernel."""
    resources = program.resources
    most = resources.placed.max(axis=0, initial=0)
    held = resources.capacity // np.maximum(most, 1)
    return max(1, int(held[most > 0].min(initial=1 << 30))) if most.any() else 1
