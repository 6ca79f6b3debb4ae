"""Numbers of each recorded program of samples/suite.

python summarize_suite.py STORES PROFILES [NAME...] > ../samples/suite/recorded.json
python summarize_suite.py --table                   # that file as a table for docs/suite.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from depgraph.analysis.compare_mechanisms import compare_mechanisms
from depgraph.analysis.kernel_loads import kernel_loads
from depgraph.mechanisms import find_mechanisms
from depgraph.parsers.profiles import read_profile
from depgraph.scenario.build_scenario import build_scenario
from depgraph.store.store import Store
from depgraph.timing.launch_model import parse_launch

ROWS = ["streams", "cuda-graph", "pdl", "acs-sw", "acs-hw", "mega(task)", "cusync-row", "dataflow"]
LEVELS = 10
SUITE = "samples/suite/recorded.json"


def summary(name: str, store: Store, profile: Path, sms: int = 132) -> dict[str, object]:
    """Return what is kept of a program."""
    scenario = build_scenario(
        store.graph(), store.kernels, profile=read_profile(profile), footprints=store.footprints,
        metadata=store.metadata, launch=parse_launch("gpu"),
    ).on(sms)  # fmt: skip
    raw = compare_mechanisms(scenario.with_kinds({"RAW"}), [sms], find_mechanisms(["serial"]))
    found = compare_mechanisms(scenario, [sms], find_mechanisms(ROWS))
    limits = found.limits[0]
    loads = kernel_loads(scenario)
    level = [min(LEVELS - 1, int(LEVELS * load.utilization)) for load in loads]
    time = np.bincount(level, [load.time for load in loads], LEVELS)
    return {
        "name": name,
        "kernels": len(store.kernels),
        "blocks": scenario.graph.n_blocks,
        "serial_us": round(limits.serial, 2),
        "upper_bound": round(limits.upper_bound, 3),
        "upper_bound_raw_only": round(raw.limits[0].upper_bound, 3),
        "levels": [round(float(share), 4) for share in time / time.sum()],
        "speedups": {o.mechanism: round(o.speedup, 3) for o in found.outcomes},
        "predicted": {
            o.mechanism: round(o.predicted_speedup, 3)
            for o in found.outcomes
            if o.predicted_speedup is not None
        },
    }


def table() -> str:
    """Return what was recorded as a Markdown table, with geometric means."""
    rows = json.loads((Path(__file__).parents[1] / SUITE).read_text(encoding="utf-8"))
    shown = ["acs-sw", "acs-hw", "cuda-graph", "pdl", "mega(task)", "dataflow (oldest-first)"]
    names = [name.partition(" ")[0] for name in shown]
    lines = [
        "| program | kernels | below 30 % | from 70 % | upper bound | RAW only | "
        + " | ".join(f"`{name}`" for name in names) + " |",
        "|---|---:|---:|---:|---:|---:|" + "---:|" * len(shown),
    ]  # fmt: skip
    columns = []
    for row in rows:
        levels = row["levels"]
        numbers = [row["upper_bound"], row["upper_bound_raw_only"]]
        numbers += [row["speedups"][name] for name in shown]
        columns.append(numbers)
        lines.append(
            f"| {row['name']} | {row['kernels']} | {sum(levels[:3]):.0%} | {sum(levels[7:]):.0%} | "
            + " | ".join(f"{number:.2f}x" for number in numbers) + " |"
        )  # fmt: skip
    means = np.exp(np.log(np.array(columns)).mean(axis=0))
    lines.append("| geometric mean | | | | " + " | ".join(f"{mean:.2f}x" for mean in means) + " |")
    return "\n".join(lines)


def main() -> None:
    """Summarize the stores of a folder whose profiles are in another one."""
    if sys.argv[1:] == ["--table"]:
        print(table())
        return
    stores, profiles = map(Path, sys.argv[1:3])
    rows = []
    names = sys.argv[3:] or [path.name for path in sorted(stores.iterdir())]
    for path in (stores / name for name in names):
        profile = profiles / f"{path.name}.kineto.json.gz"
        if not profile.is_file():
            continue
        try:
            rows.append(summary(path.name, Store(path), profile))
        except Exception as error:  # noqa: BLE001 - the others are still worth having
            print(f"{path.name}: {error!r}", file=sys.stderr)
    json.dump(rows, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
