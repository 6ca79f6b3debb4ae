"""Figures from the literature come out: waves, cuSync, and the original dependence tool."""

import csv
import json

import numpy as np
import pytest
from programs import find_dependences
from published import outcomes
from small_graphs import graph_of, scenario_of, shares_of

from depgraph.analysis.kernel_loads import kernel_loads
from depgraph.footprint.footprints import concatenate_footprints
from depgraph.schedule.policy import Gates, Rules
from depgraph.schedule.simulate import run_rules


def read_cases(shared_data, name):
    with (shared_data / "papers" / name).open() as file:
        return list(csv.DictReader(file))


def utilization_of_waves(blocks, sms, occupancy=1):
    """Return how well equal blocks of one kernel fill a GPU, 0 to 1."""
    kernel = scenario_of(graph_of([blocks], []), np.ones(blocks), occupancy=occupancy, sms=sms)
    return kernel_loads(kernel)[0].utilization


def test_idle_shares_of_the_wave_formula(shared_data):
    for case in read_cases(shared_data, "wave_idle_bullet.csv"):
        used = utilization_of_waves(
            int(case["g_tbs(inferred tiles)"]), int(case["N_sm"]), int(case["b_occ"])
        )
        assert 100 * (1 - used) == pytest.approx(float(case["idle_pct_paper"]), abs=0.06)


def test_toy_waves(shared_data):
    for case in read_cases(shared_data, "toy_waves.csv"):
        used = utilization_of_waves(int(case["tiles"]), int(case["slots"]))
        assert 100 * used == float(case["util_pct"])


def test_cusync_toy_takes_three_waves_instead_of_four():
    found, _ = outcomes("cusync_toy", 4, ["serial", "cusync-row", "cusync-tile"])
    assert found == {"serial": 4, "cusync-row": 3, "cusync-tile": 3}


def test_llama_mlp_of_2048_tokens_on_a_v100():
    found, limits = outcomes("llama_mlp_2048", 80, ["serial", "cusync-row"])
    assert found["serial"] == pytest.approx(2189.3, abs=0.05)
    assert found["cusync-row"] == pytest.approx(1701.0, abs=0.1)
    assert limits.work == pytest.approx(1653.8, abs=0.05)
    assert 1 - found["cusync-row"] / found["serial"] == pytest.approx(0.223, abs=5e-4)


def test_llama_mlp_of_1024_tokens_on_a_v100():
    found, _ = outcomes("llama_mlp_1024", 80, ["serial", "cusync-row", "cusync-strided(2)"])
    assert found["serial"] == pytest.approx(1341.3, abs=0.05)
    assert found["cusync-row"] == pytest.approx(1158.5, abs=0.05)
    assert found["cusync-strided(2)"] == pytest.approx(1108.6, abs=0.05)


def test_whole_waves_leave_nothing_to_gain():
    found, limits = outcomes("whole_waves", 80, ["serial", "cusync-row", "dataflow"])
    assert set(found.values()) == {limits.serial}


@pytest.fixture(scope="module")
def tool_cases(shared_data):
    return json.loads((shared_data / "papers" / "kuper_tool_golden.json").read_text())


def program_of(case):
    """Return the graph and durations of a case, in the original tool's mode: lines of 128 bytes."""
    blocks, kinds, lines, durations, first = [], [], [], [], [0]
    for kernel in case["input"]:
        for block in kernel["tbs"].values():
            for line, kind in block["accesses"]:
                blocks.append(len(durations))
                kinds.append(int(kind == "W"))
                lines.append(line)
            durations.append(block["end"] - block["start"])
        first.append(len(durations))
    start = np.array(lines, np.uint64) * np.uint64(128)
    piece = concatenate_footprints([], 0).__class__(
        np.array(blocks, np.int32), np.array(kinds, np.uint8), start, start + np.uint64(128)
    )
    n_kernels = len(case["input"])
    graph, _ = find_dependences(
        concatenate_footprints([piece], len(durations)), np.array(first, np.int64),
        np.arange(n_kernels, dtype=np.int32),
    )  # fmt: skip
    return graph, np.array(durations, float)


def within_depth(graph, depth):
    """Return the edges that do not skip more kernels than the original tool looks at."""
    kernel, index = graph.block_names()
    return {
        (f"kernel-{kernel[s] + 1}_{index[s]},0,0", f"kernel-{kernel[t] + 1}_{index[t]},0,0",
         ("RAW", "WAR", "WAW")[kind])
        for sources, targets, of_kind in graph.edges()
        for s, t, kind in zip(sources, targets, of_kind, strict=True)
        if kernel[t] - kernel[s] <= depth
    }  # fmt: skip


def test_edges_are_those_of_the_original_tool(tool_cases):
    for case in tool_cases:
        graph, _ = program_of(case)
        expected = {
            (source, *target.rsplit("_", 1))
            for source, targets in case["edges"].items()
            for target in targets
        }
        assert within_depth(graph, case["depth"]) == expected, case["case"]


# What the original tool drops: dependences that skip a kernel (depth 1), and blocks without edges
# that are not much longer than their kernel's mean.
ITS_DEFECTS = {
    ("skip_dep", 1): 150,
    ("read_read", 1): 60,
    ("uniform_independent_all_dropped", 1): 50,
}


def test_ideal_times_are_those_of_the_original_tool_but_for_its_defects(tool_cases):
    for case in tool_cases:
        graph, durations = program_of(case)
        name = case["case"], case["depth"]
        ideal = graph.earliest_finish(durations)[0].max()
        assert ideal == ITS_DEFECTS.get(name, case["ideal_tb"]), name


def test_ideal_times_of_kernels_are_those_of_the_original_tool(tool_cases):
    for case in tool_cases:
        graph, _ = program_of(case)
        times = np.array([kernel["kernel_time"] for kernel in case["input"]], float)
        pairs = [
            (p.source, p.target) for p in graph.pairs() if p.target - p.source <= case["depth"]
        ]
        gates = Gates.between([s for s, _ in pairs], [t for _, t in pairs])
        alone, _ = program_of({"input": [
            {"tbs": {"0,0,0": {"accesses": [], "start": 0, "end": t}}} for t in times
        ]})  # fmt: skip
        rules = Rules(gates=gates, unlimited=True)
        found = run_rules("kernels", rules, alone, times, shares_of(alone), 1).makespan
        assert found == case["ideal_kernel"], case["case"]
