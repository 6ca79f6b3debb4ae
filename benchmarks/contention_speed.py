"""Measure ``depgraph bound --mechanism`` with contention against the same with fixed durations.

Both synthetic stores have 1 million blocks in 200 kernels with times: in one each block waits for
ten neighbours in the kernel before, in the other eight chains of kernels run side by side, so that
blocks of different kernels share SMs throughout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bound_speed import kernel_graph, local_graph, write_graph
from figures import MIB, Figure, seconds
from inputs import Options, main
from measure import DEPGRAPH, median_wall, run_together

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TITLE = "Predictions with contention"

_CHAINS = 8
_TIMES = 10.0


def measure(chosen: Options) -> Iterator[Figure]:
    """Yield all figures of this program."""
    kernels, blocks = (20, 50) if chosen.quick else (200, 5000)
    times = chosen.work / "times.csv"
    rows = "".join(f"{kernel},{20 + kernel % 7}\n" for kernel in range(kernels))
    times.write_text(f"kernel,duration_us\n{rows}")
    beside = [(kernel - _CHAINS, kernel) for kernel in range(_CHAINS, kernels)]
    graphs = {
        "neighbours": local_graph(kernels, blocks),
        f"{_CHAINS} chains": kernel_graph(kernels, blocks, beside),
    }
    mechanism = "cuda-graph"
    for name, graph in graphs.items():
        store = chosen.work / f"{name.replace(' ', '-')}.out"
        write_graph(graph, store)
        for cores in chosen.cores:
            commands: dict[str, list[str | Path]] = {
                contention: [
                    *DEPGRAPH, "bound", store, "--sms", "132", "--gpu", "H100", "--timing", times,
                    "--mechanism", mechanism, "--contention", contention, "-q",
                ]
                for contention in ("none", "full")
            }  # fmt: skip
            runs = run_together(commands, chosen.work, repeat=chosen.repeat, cores=cores)
            without, took = (median_wall(runs[name]) for name in ("none", "full"))
            peak = max(one.peak for one in runs["full"])
            what = f"`bound --mechanism {mechanism}` with contention"
            yield Figure(
                f"{what}, {graph.n_blocks:,} blocks, {name}",
                f"{seconds(took)}, {took / without:.1f} times {seconds(without)}, peak "
                f"{peak / MIB:.0f} MiB",
                f"{_TIMES:.0f} times",
                took <= _TIMES * without,
                cores,
            )


if __name__ == "__main__":
    main(__doc__, TITLE, lambda chosen: list(measure(chosen)))
