"""Branches of a CUDA graph, against a twin that follows the rule word for word."""

import naive_launches
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from depgraph.mechanisms.branches_jit import continue_branches

TIMES = st.integers(0, 4).map(float)  # so that many end at once


@given(st.data(), st.integers(1, 8))
def test_branches_are_continued_as_the_twin_does(data, n):
    sources_of = [
        data.draw(st.lists(st.integers(0, k - 1), unique=True, max_size=4)) if k else []
        for k in range(n)
    ]
    times, path, more = (
        np.array(data.draw(st.lists(TIMES, min_size=n, max_size=n))) for _ in "abc"
    )
    begin = np.cumsum([0, *map(len, sources_of)])
    sources = np.array([s for of_one in sources_of for s in of_one], np.int32)
    latency, branch = continue_branches(times, path, path + more, begin, sources)
    expected = naive_launches.branches(times, path, path + more, sources_of)
    assert (latency.tolist(), branch.tolist()) == (list(expected[0]), expected[1])


def test_a_chain_is_one_branch_and_a_fork_begins_another():
    times, no_time = np.ones(3), np.zeros(3)
    begin, sources = np.array([0, 0, 1, 2]), np.zeros(2, np.int32)
    latency, branch = continue_branches(times, no_time, np.full(3, 5.0), begin, sources)
    assert branch.tolist() == [0, 0, 2]
    assert latency.tolist() == [0, 0, 5]
