"""What is learned, and gained, in each iteration of training: the table of docs/mechanisms.md.

python iterations.py STORE PROFILE ITERATIONS [SMS]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from depgraph.analysis.compare_mechanisms import run_mechanism
from depgraph.mechanisms import find_mechanisms
from depgraph.mechanisms.base import charges_of
from depgraph.parsers.profiles import read_profile
from depgraph.scenario.of_store import Request
from depgraph.scenario.scenario import Scenario
from depgraph.store.store import Store

ROWS = ["serial", "dataflow", "dataflow-learned", "dataflow-learned(relative)"]


def table(program: Scenario, iterations: int) -> str:
    """Return a line for each iteration: how long it takes, and how many barriers are left."""
    kernels = np.flatnonzero(program.is_kernel)
    last = kernels[np.arange(1, iterations + 1) * (len(kernels) // iterations) - 1]
    lines = ["| iteration | " + " | ".join(f"`{row}`" for row in ROWS) + " |"]
    lines.append("|---:" * (len(ROWS) + 1) + "|")
    columns = []
    for mechanism in find_mechanisms(ROWS):
        schedule, rules = run_mechanism(
            mechanism, program, charges_of(mechanism, {}, program)
        )  # fmt: skip
        ends = np.zeros(program.graph.n_operations)
        np.maximum.at(ends, program.graph.operation_of_block, schedule.end)
        done = np.maximum.accumulate(ends)[last]
        barriers = np.broadcast_to(rules.waits_for_all, len(ends))[kernels]
        left = barriers.reshape(iterations, -1).sum(axis=1)
        times = np.diff(done, prepend=0.0)
        is_learned = mechanism.name == "dataflow-learned"
        columns.append(
            [
                f"{time:.1f}" + f" ({count})" * is_learned
                for time, count in zip(times, left, strict=True)
            ]
        )
        print("\n".join(rules.assumptions), file=sys.stderr)
    lines += [
        f"| {i + 1} | " + " | ".join(cells) + " |"
        for i, cells in enumerate(zip(*columns, strict=True))
    ]
    return "\n".join(lines)


def main() -> None:
    """Print the table of one program."""
    store, profile, iterations, *sms = sys.argv[1:]
    request = Request(times=Path(profile), read_profile=read_profile)
    program = Scenario.of_store(Store(Path(store)), request)
    print(table(program.on(float(sms[0]) if sms else 132.0), int(iterations)))


if __name__ == "__main__":
    main()
