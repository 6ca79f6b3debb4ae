"""Durations of blocks: the medians that they rest on."""

import numpy as np
import pytest

from depgraph.timing.program_times import median


@pytest.mark.parametrize("rows", [1, 2, 3, 8, 9])
def test_medians_are_those_of_numpy(rows):
    values = np.random.default_rng(rows).random((rows, 5)) * 1e-3
    holes = np.where(np.random.default_rng(0).random(values.shape) < 0.4, np.nan, values)
    holes[0] = values[0]
    assert median(values).tolist() == np.median(values, axis=0).tolist()
    assert median(holes).tolist() == np.nanmedian(holes, axis=0).tolist()
    assert median(values[:, 0].tolist()) == np.median(values[:, 0])
