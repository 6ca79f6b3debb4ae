"""How long each mechanism's schedule of a million blocks takes, on one core.

    python benchmarks/mechanism_speed.py [KERNELS [BLOCKS]]

A chain of kernels of equal grids in rows of 100 blocks; each row waits for the row before it. Every
kernel takes other resources, so that placement has as many classes of blocks as there are kernels,
at most 32. Compiling is not counted.
"""

import sys
import time

import numpy as np

from depgraph.build import assemble
from depgraph.mechanisms import MECHANISMS, Charges, NotApplicableError, Program
from depgraph.room import Room
from depgraph.rules import run_rules

ROW = 100
CLASSES = 32


def chain(n_kernels: int, n_blocks: int) -> Program:
    """Return a program of kernels whose rows depend on the same rows of the kernel before."""
    rows = n_blocks // ROW
    kernels = np.arange(n_kernels)
    n_sets = n_kernels * rows
    n_joins = (n_kernels - 1) * rows
    one_each = np.arange(n_joins + 1)
    graph = assemble(
        kernels.astype(np.int32),
        np.arange(n_kernels + 1) * n_blocks,
        (
            np.repeat(kernels, rows).astype(np.int32),
            np.arange(n_sets + 1) * ROW,
            np.arange(n_kernels * n_blocks, dtype=np.int32),
        ),
        np.zeros(n_joins, np.uint8),
        (one_each, np.arange(n_joins, dtype=np.int32)),
        (one_each, np.arange(rows, n_sets, dtype=np.int32)),
    )
    random = np.random.default_rng(0)
    of_class = np.stack([random.integers(1, 8, CLASSES) * size for size in (1, 8, 8192)], axis=1)
    need = of_class[kernels % CLASSES]
    capacity = np.array([32, 64, 65536])
    return Program(
        graph=graph,
        durations=random.uniform(1, 2, graph.n_blocks),
        room=Room(capacity, need),
        occupancy=(capacity // need).min(axis=1),
        sms=132,
        functions=tuple(f"kernel_{k % 10}" for k in kernels),
        grid=np.tile([ROW, rows, 1], (n_kernels, 1)),
        block=np.tile([128, 1, 1], (n_kernels, 1)),
    )


def main() -> None:
    """Print the seconds that each mechanism takes."""
    n_kernels, n_blocks = (int(word) for word in (*sys.argv[1:], "100", "10000")[:2])
    small, program = chain(3, 2 * ROW), chain(n_kernels, n_blocks)
    print(f"{program.graph.n_blocks} blocks, {program.sms} SMs")
    for kind in MECHANISMS.values():
        mechanism = kind.variants()[0]
        try:
            for each in (small, program):
                began = time.perf_counter()
                rules = mechanism.rules(each, Charges(mechanism.costs))
                ruled = time.perf_counter()
                run_rules(mechanism.label, rules, each.graph, each.durations, each.room, each.sms)
                ended = time.perf_counter()
        except NotApplicableError as error:
            print(f"{mechanism.label:20} left out: {error}")
            continue
        print(f"{mechanism.label:20} {ended - began:6.2f} s, of which rules {ruled - began:.2f}")


if __name__ == "__main__":
    main()
