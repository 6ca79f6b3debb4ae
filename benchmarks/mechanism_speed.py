"""How long each mechanism's schedule of a million blocks takes, on one core.

    python benchmarks/mechanism_speed.py [KERNELS [BLOCKS]]

A chain of kernels of equal grids in rows of 100 blocks; each row waits for the row before it. Every
kernel takes other resources, so that placement has as many classes of blocks as there are kernels,
at most 32. Compiling is not counted.
"""

import sys
import time

import numpy as np

from depgraph.extraction.workload import WorkloadDependence, WorkloadKernel, workload_extraction
from depgraph.gpu.model import load_gpu
from depgraph.gpu.sm_resources import SmResources
from depgraph.mechanisms import MECHANISMS, Charges, NotApplicableError
from depgraph.mechanisms.base import run_mechanism
from depgraph.scenario.scenario import Scenario
from depgraph.timing.program_times import Durations

ROW = 100
CLASSES = 32


def chain(n_kernels: int, n_blocks: int) -> Scenario:
    """Return a program of kernels whose rows depend on the same rows of the kernel before."""
    grid = ROW, n_blocks // ROW, 1
    kernels = [WorkloadKernel(f"kernel_{k % 10}", grid, (128, 1, 1)) for k in range(n_kernels)]
    rows = [WorkloadDependence(k - 1, k, "row") for k in range(1, n_kernels)]
    extraction = workload_extraction(kernels, rows, unit="us", metadata={})
    random = np.random.default_rng(0)
    of_class = np.stack([random.integers(1, 8, CLASSES) * size for size in (1, 8, 8192)], axis=1)
    need = of_class[np.arange(n_kernels) % CLASSES]
    capacity = np.array([32, 64, 65536])
    taken = SmResources(("slots", "warps", "registers"), capacity, need, need, load_gpu("H100 SXM"))
    times = random.uniform(1, 2, extraction.graph.n_blocks)
    return Scenario(
        graph=extraction.graph,
        timing=Durations(times, "us", "random"),
        resources_of=lambda _: taken,
        kernels=extraction.kernels,
        sms=132,
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
