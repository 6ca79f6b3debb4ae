"""Child kernels: the programs of samples/validation/children.cu, predicted and measured.

``python benchmarks/validation/children.py --write docs/validation.md`` replaces what stands between
the marks ``children`` of the page; without ``--write`` the tables are printed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import numpy as np
from pages import print_or_write, table

from depgraph.reproduce.papers import described, measurements
from depgraph.reproduce.programs import makespan
from depgraph.reproduce.programs import scenario_of as described_on

if TYPE_CHECKING:
    from depgraph.scenario.scenario import Scenario

FILE = Path(__file__).resolve().parents[2] / "samples/validation/measured/h100-children.jsonl.xz"


@dataclass(frozen=True, slots=True)
class Run:
    """One program at one threshold, in microseconds."""

    name: str
    threshold: int
    launches: int
    measured: float
    predicted: float
    flat: float  # measured, without children

    @property
    def error(self) -> float:
        """Relative error of the predicted time; above 0 it is too long."""
        return self.predicted / self.measured - 1


def scenario_of(case: dict[str, Any]) -> Scenario:
    """Describe a case, on the GPU that it was measured on."""
    return described_on(described(case), "H100 SXM")


def runs() -> list[Run]:
    """Predict each case at each threshold, children launched to run on their own."""
    # What the kernel itself takes to start and to be timed is the median difference between
    # measured and predicted times without children.
    lines = measurements(FILE)
    mhz = clock(lines)
    scenarios = {line["name"]: scenario_of(line) for line in lines if line["what"] == "case"}
    own = [line for line in lines if line["what"] == "run" and line["stream"] == 0]
    flat = {line["name"]: line["us"] for line in own if line["launches"] == 0}
    found = []
    for line in own:
        scenario = scenarios[line["name"]]
        time = predicted(scenario, line["threshold"]) / mhz
        found.append(
            Run(
                line["name"], line["threshold"], line["launches"], line["us"], time,
                flat[line["name"]],
            )
        )  # fmt: skip
    lead = float(np.median([r.measured - r.predicted for r in found if not r.launches]))
    return [replace(r, predicted=r.predicted + lead) for r in found]


def searches() -> list[Run]:
    """Predict each search at each threshold, its levels together."""
    # An edge takes what makes the time without children right in all.
    lines = measurements(FILE)
    mhz = clock(lines)
    levels: dict[str, list[list[int]]] = {}
    for line in lines:
        if line["what"] == "level":
            levels.setdefault(line["name"], []).append(line["items"])
    times: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for line in lines:
        if line["what"] == "bfs":
            times.setdefault((line["name"], line["threshold"]), []).append(line)
    lead = min(line["us"] for own in times.values() for line in own)
    found = []
    for (name, threshold), own in times.items():
        flat = sum(line["us"] for line in times[name, max(t for n, t in times if n == name)])
        longest = sum(max(items) for items in levels[name])
        cycles = (flat - lead * len(own)) * mhz / longest
        case = {"before": 1, "after": 1, "cycles": cycles, "threads": 128, "name": name}
        time = sum(
            lead + predicted(scenario_of({**case, "items": items}), threshold) / mhz
            for items in levels[name]
        )
        launches = sum(line["launches"] for line in own)
        found.append(Run(name, threshold, launches, sum(line["us"] for line in own), time, flat))
    return found


def clock(lines: list[dict[str, Any]]) -> float:
    """Return the median clock of the machine while it was measured, in MHz."""
    return float(np.median([line["mhz"] for line in lines if line["what"] == "machine"]))


def predicted(scenario: Scenario, threshold: int) -> float:
    """Return the makespan with children from a threshold on."""
    return makespan(scenario, f"cdp({threshold})")


def tables() -> str:
    """Return the errors, the best thresholds, and all runs."""
    found = [*runs(), *searches()]
    launching = np.array([abs(r.error) for r in found if r.launches])
    summary = (
        f"{len(launching)} runs with children: mean error {launching.mean():.1%}, nine of ten "
        f"within {np.quantile(launching, 0.9):.1%}, worst {launching.max():.1%}."
    )
    heads = (
        "program", "best T, predicted", "its measured time", "best T, measured", "its time", "flat",
    )  # fmt: skip
    rows = []
    cases = dict.fromkeys(r.name for r in found)
    for name in cases:
        own = [r for r in found if r.name == name]
        chosen, best = min(own, key=lambda r: r.predicted), min(own, key=lambda r: r.measured)
        times = (f"{time:.0f}" for time in (best.measured, best.flat))
        rows.append((name, _shown(chosen), f"{chosen.measured:.0f}", _shown(best), *times))
    return f"{summary}\n\n{table(heads, 'lrrrrr', rows)}\n"


def _shown(run: Run) -> str:
    return str(run.threshold) if run.launches else "flat"


if __name__ == "__main__":
    print_or_write(__doc__.partition("\n")[0], tables, "children")
