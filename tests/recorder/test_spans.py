"""On a GPU: blocks that take known times (`spans.cu`), held against what they note themselves."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from depgraph.parsers.profiles import read_profile
from depgraph.recorder.toolkit import Toolkit

HERE = Path(__file__).parent
TOOLKIT = Toolkit()
MISSING = [each.name for each in TOOLKIT.requirements if not each.what]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(MISSING), reason=f"recording needs: {', '.join(MISSING)}"),
]
IN_A_GRAPH = 9  # the first launch that is a node of the graph
MOST_ADDED = 1000  # ns that measuring may add to a block


def measure_here(folder):
    """Compile the program and measure it; return the times and what its blocks noted."""
    program, noted = folder / "spans", folder / "spans.json"
    source = str(HERE / "spans.cu")
    words = [str(TOOLKIT.nvcc), "-std=c++17", "-arch=sm_90a", "-o", str(program), source]
    subprocess.run(words, check=True)
    words = [sys.executable, "-m", "depgraph", "record", "--block-times", "--time-only"]
    subprocess.run(
        [*words, "--", str(program)], cwd=folder, check=True,
        env={**os.environ, "SPANS_FILE": str(noted)},
    )  # fmt: skip
    return folder / "depgraph.out.times.json", noted


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Return the times of each launch's blocks, and what they noted: begin, end, SM."""
    times, noted = measure_here(tmp_path_factory.mktemp("spans"))
    launches = json.loads(noted.read_text())["launches"]
    return list(read_profile(times).block_spans), [np.array(each["blocks"]) for each in launches]


def test_blocks_begin_and_end_when_they_noted_it(measured):
    spans, noted = measured
    for mine, own in zip(spans[1:IN_A_GRAPH], noted[1:IN_A_GRAPH], strict=True):
        begin, end, sm = own.T
        added = mine.duration - (end - begin)
        assert added.min() >= 0
        assert added.max() < MOST_ADDED
        assert np.abs(mine.begin - (begin - begin.min())).max() < MOST_ADDED
        assert mine.sm.tolist() == sm.tolist()


def test_what_measuring_adds_is_about_what_it_was_said_to_be(measured):
    spans, noted = measured
    added = [
        mine.duration - (own[:, 1] - own[:, 0])
        for mine, own in zip(spans[1:IN_A_GRAPH], noted[1:IN_A_GRAPH], strict=True)
    ]
    assert abs(np.median(np.concatenate(added)) - spans[0].patch_ns) < MOST_ADDED / 2


def test_a_block_ends_with_its_last_thread(measured):
    leaves_one_by_one = measured[0][3]
    assert leaves_one_by_one.duration.min() >= 64_000  # 64 threads, one each us


def test_blocks_wait_for_room(measured):
    """An SM holds one block of this kernel, and there are five more blocks than SMs."""
    waves = measured[0][4]
    assert waves.resident == 1
    assert (waves.begin >= 15_000).sum() == 5


def test_nodes_of_a_graph_have_their_own_times_in_each_of_its_runs(measured):
    spans, noted = measured
    paces = {4: 10_000, 6: 30_000, 2: 7_000}  # by the number of blocks
    nodes = spans[IN_A_GRAPH:]
    assert sorted(len(each.sm) for each in nodes) == [2, 2, 4, 4, 6, 6]
    for each in nodes:
        assert paces[len(each.sm)] <= each.duration.min()
        assert each.duration.max() < paces[len(each.sm)] + 4 * MOST_ADDED  # 3.1 us were seen
    sms = {len(own): own[:, 2].tolist() for own in noted[IN_A_GRAPH:]}
    for each in nodes[3:]:
        assert each.sm.tolist() == sms[len(each.sm)]


def test_the_step_of_the_clock_is_known(measured):
    spans, noted = measured
    steps = np.gcd.reduce(np.concatenate([own[:, :2].ravel() for own in noted if len(own)]))
    assert {each.clock_ns for each in spans} == {int(steps)}
