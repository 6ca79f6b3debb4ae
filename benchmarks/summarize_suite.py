"""Numbers of each recorded program of samples/suite.

python summarize_suite.py STORES PROFILES [NAME...] > ../samples/suite/recorded.json
python summarize_suite.py --launching > ../samples/suite/launching.json
python suite_page.py                                # these as tables and figure of docs/suite.md
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from depgraph.analysis.compare_mechanisms import compare_mechanisms
from depgraph.analysis.kernel_groups import kernel_loads
from depgraph.mechanisms import find_mechanisms
from depgraph.parsers.profiles import read_profile
from depgraph.parsers.workload import read_workload
from depgraph.reproduce.programs import scenario_of
from depgraph.samples.suite import launching
from depgraph.scenario.build_scenario import build_scenario
from depgraph.store.store import Store
from depgraph.timing.program_times import parse_launch

ROWS = ["streams", "cuda-graph", "pdl", "acs-sw", "acs-hw", "mega(task)", "cusync-row", "dataflow"]
LEVELS = 10
# SPAWN's paper simulates a Kepler K20m of 13 SMs; of the V100's model nothing counts here.
LAUNCHING_ON = ("V100", 13)
LAUNCHING_ROWS = ["flat", "cdp", "cdp(best)", "spawn"]


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
    # Over one stream, whatever each is compared with elsewhere: a CUDA graph with a chain of nodes.
    streamed = next(o.predicted_serial_us for o in found.outcomes if o.mechanism == "streams")
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
            o.mechanism: round(streamed / o.predicted_us, 3)
            for o in found.outcomes
            if streamed is not None and o.predicted_us is not None
        },
    }


def of_launching(name: str) -> dict[str, object]:
    """Return what is kept of a program whose blocks launch kernels."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.toml"
        path.write_text(launching.described(name), encoding="utf-8")
        scenario = scenario_of(read_workload(path), *LAUNCHING_ON)
    found = compare_mechanisms(scenario, [scenario.sms], find_mechanisms(LAUNCHING_ROWS))
    cycles = dict(zip(LAUNCHING_ROWS, (o.makespan for o in found.outcomes), strict=True))
    return {
        "name": name,
        "kernels": scenario.graph.n_operations,
        "launches": len(scenario.launches.items) if scenario.launches else 0,
        "cycles": cycles,
        "made": {
            row: o.launching.made
            for row, o in zip(LAUNCHING_ROWS, found.outcomes, strict=True)
            if o.launching
        },
        "threshold": next(
            a.partition("T = ")[2].partition(" ")[0]
            for o in found.outcomes
            for a in o.assumptions
            if "T = " in a
        ),
    }


def main() -> None:
    """Summarize the stores of a folder whose profiles are in another one."""
    if sys.argv[1:] == ["--launching"]:
        print(json.dumps([of_launching(name) for name in launching.PROGRAMS], indent=1))
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
