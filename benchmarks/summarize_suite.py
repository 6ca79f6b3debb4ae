"""Numbers of each recorded program of samples/suite.

python summarize_suite.py STORES PROFILES [NAME...] > ../samples/suite/recorded.json
python suite_page.py                                # that file as table and figure of docs/suite.md
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


def main() -> None:
    """Summarize the stores of a folder whose profiles are in another one."""
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
