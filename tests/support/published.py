"""Programs that papers describe, and what mechanisms make of them."""

from pathlib import Path

from depgraph.analysis.compare_mechanisms import compare_mechanisms
from depgraph.gpu.model import load_gpu
from depgraph.mechanisms import Quantity, find_mechanisms
from depgraph.parsers.workload import read_workload
from depgraph.scenario.build_scenario import build_scenario

WORKLOADS = Path(__file__).resolve().parents[2] / "samples" / "workloads"


def outcomes(name, sms, mechanisms, costs=None):
    """Return the makespans of mechanisms on a described program, and the limits.

    Without costs cuSync's rule alone: nothing for synchronising.
    """
    names = {m.name for m in find_mechanisms(mechanisms)}
    if costs is None:
        costs = {n: {"sync": Quantity(0, "share")} for n in names if n.startswith("cusync")}
    extraction = read_workload(WORKLOADS / f"{name}.toml")
    scenario = build_scenario(
        extraction.graph, extraction.kernels, gpu=load_gpu("V100"),
        footprints=lambda: extraction.footprints,
    )  # fmt: skip
    found = compare_mechanisms(scenario, [sms], find_mechanisms(mechanisms), costs=costs)
    return {o.mechanism: o.makespan for o in found.outcomes}, found.limits[0]
