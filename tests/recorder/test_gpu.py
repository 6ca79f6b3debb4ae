"""On a GPU: `pytest -m gpu`. Whole runs of `depgraph record`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from orders import judged

from depgraph.recorder.toolkit import Toolkit
from depgraph.store.store import Store

TOOLKIT = Toolkit()
MISSING = [each.name for each in TOOLKIT.requirements if not each.what]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(MISSING), reason=f"recording needs: {', '.join(MISSING)}"),
]


@pytest.fixture
def compiled(tmp_path):
    """Return a function that compiles a CUDA program of this folder and returns its path."""

    def compile_program(name):
        target = tmp_path / name
        source = Path(__file__).with_name(f"{name}.cu")
        subprocess.run(
            [str(TOOLKIT.nvcc), "-std=c++17", "-arch=native", "-o", str(target), str(source)],
            check=True,
        )
        return target

    return compile_program


def test_a_program_is_timed_and_recorded(compiled, program, tmp_path):
    assert program("record", "--", compiled("waits")).code == 0
    store = Store(tmp_path / "depgraph.out")
    times = json.loads((tmp_path / "depgraph.out.times.json").read_text())
    kernels = [event for event in times["traceEvents"] if event["cat"] == "kernel"]
    assert len(kernels) == len(store.kernels) == 7


def test_kernels_that_wait_for_others_or_for_the_host_are_let_go_and_recorded(compiled, tmp_path):
    command = [sys.executable, "-m", "depgraph", "record", "--no-time", "--", compiled("waits")]
    done = subprocess.run(
        command, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=120
    )
    assert "7 3 1" in done.stdout
    assert done.stderr.count("wait_for(int volatile*, int*) has not ended for 2 s") == 1
    store = Store(tmp_path / "depgraph.out")
    assert not [kernel.name for kernel in store.kernels if kernel.untraced]
    footprints, reads = store.footprints(), {}
    for kernel in store.kernels:
        mine = footprints.of_block(kernel.first_block)
        reads[kernel.kernel] = int((mine.end - mine.start)[mine.kind != 1].sum())
    assert reads[3] == 4  # the flag


def test_what_is_chosen_is_recorded_and_the_rest_runs_untouched(compiled, program, tmp_path):
    chosen = ["--name", "wait_for", "--skip", "1", "--count", "1"]
    assert program("record", *chosen, "--", compiled("waits")).code == 0
    store = Store(tmp_path / "depgraph.out")
    assert [kernel.name.split("(")[0] for kernel in store.kernels] == ["wait_for"]
    times = json.loads((tmp_path / "depgraph.out.times.json").read_text())
    kernels = [event for event in times["traceEvents"] if event["cat"] == "kernel"]
    assert [event["name"].split("(")[0] for event in kernels] == ["wait_for"]


def test_programs_race_that_lack_an_order(compiled, tmp_path):
    command = [sys.executable, "-m", "depgraph", "record", "--no-time", "--", compiled("orders")]
    done = subprocess.run(
        command, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=120
    )
    racing, expected, _ = judged(Store(tmp_path / "depgraph.out"), done.stdout)
    assert racing == expected
