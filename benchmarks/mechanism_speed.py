"""How long each mechanism's schedule of a million blocks takes, on one core.

    python benchmarks/mechanism_speed.py [KERNELS [BLOCKS]]

A chain of kernels of equal grids in rows of 100 blocks; each row waits for the row before it. Every
kernel takes other resources, so that placement has as many classes of blocks as there are kernels,
at most 32. Compiling is not counted.
"""

import sys
import time

import numpy as np

from depgraph.gpu.model import load_gpu
from depgraph.gpu.sm_resources import SmResources
from depgraph.graph.builder import assemble
from depgraph.graph.program import Kernel
from depgraph.mechanisms import MECHANISMS, Charges, NotApplicableError
from depgraph.mechanisms.base import run_mechanism
from depgraph.scenario.scenario import Scenario
from depgraph.timing.durations import Durations

ROW = 100
CLASSES = 32


def chain(n_kernels: int, n_blocks: int) -> Scenario:
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
    taken = SmResources(("slots", "warps", "registers"), capacity, need, need, load_gpu("H100 SXM"))
    return Scenario(
        graph=graph,
        timing=Durations(random.uniform(1, 2, graph.n_blocks), "us", "random"),
        resources_of=lambda _: taken,
        kernels=[_kernel(k, rows) for k in kernels.tolist()],
        sms=132,
    )


def _kernel(number: int, rows: int) -> Kernel:
    blocks = ROW * rows
    return Kernel(
        kernel=number, operation=number, name=f"kernel_{number % 10}", mangled_name=None,
        trace_id=None, grid_x=ROW, grid_y=rows, grid_z=1, block_x=128, block_y=1, block_z=1,
        registers=None, shared_bytes=None, architecture=None, stream=0, context=0,
        first_block=number * blocks, blocks=blocks, active_blocks=blocks, accesses=0,
        instructions=0, read_bytes=0, written_bytes=0, shared_written_bytes=0, untraced=None,
    )  # fmt: skip


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
                mechanism.rules(each, Charges(mechanism.costs))
                ruled = time.perf_counter()
                run_mechanism(mechanism, each, Charges(mechanism.costs))
                ended = time.perf_counter()
        except NotApplicableError as error:
            print(f"{mechanism.label:20} left out: {error}")
            continue
        print(f"{mechanism.label:20} {ended - ruled:6.2f} s, of which rules {ruled - began:.2f}")


if __name__ == "__main__":
    main()
