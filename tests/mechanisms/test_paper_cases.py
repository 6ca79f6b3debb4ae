"""Figures from the literature come out: waves and cuSync."""

import csv

import numpy as np
import pytest
from published import outcomes
from small_graphs import graph_of, scenario_of

from depgraph.analysis.kernel_groups import kernel_loads


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
