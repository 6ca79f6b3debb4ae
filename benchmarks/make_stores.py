"""The stores and times that ``depgraph reproduce`` starts from, made of the traces they are of.

    python make_stores.py TRACES

TRACES holds `accelsim/gru_train`, `accelsim/streams4`, `nvbit/dyn_moe.log.xz` and
`timing/dyn_moe.kineto.json`, made by `make_traces.py`. To be run anew where the schema of stores
changes.
"""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path

import depgraph
from depgraph.parsers import open_trace
from depgraph.parsers.profiles import read_profile
from depgraph.timing.fit import fit_profile

HERE = Path(__file__).resolve().parents[1] / "samples"
STORES = {
    "simulator/gru_train.out": "accelsim/gru_train",
    "simulator/streams4.out": "accelsim/streams4",
    "papers/dyn_moe.out": "nvbit/dyn_moe.log.xz",
}
TIMES = "papers/dyn_moe.times.csv", "papers/dyn_moe.out", "timing/dyn_moe.kineto.json"


def main(traces: Path) -> None:
    """Make all of them; paths in them are relative to the folder of traces."""
    os.chdir(traces)
    for store, trace in STORES.items():
        depgraph.extract(open_trace(Path(trace)), HERE / store, force=True)
    table, store, profile = TIMES
    fit = fit_profile(read_profile(Path(profile)), depgraph.Store(HERE / store).kernels)
    times = [] if fit.match is None else fit.match.duration.round(3).tolist()
    with (HERE / table).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["kernel", "duration_us"])
        writer.writerows(enumerate(times))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
