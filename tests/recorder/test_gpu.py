"""On a GPU: `pytest -m gpu`. The program's footprints are known by construction."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from depgraph.recorder.toolkit import Toolkit
from depgraph.store.store import Store

TOOLKIT = Toolkit()
MISSING = [each.name for each in TOOLKIT.found if not each.what]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(MISSING), reason=f"recording needs: {', '.join(MISSING)}"),
]


@pytest.fixture
def hooks(tmp_path):
    """Compile the program of one kernel a hook, and return its path."""
    target = tmp_path / "hooks"
    source = Path(__file__).with_name("hooks.cu")
    subprocess.run(
        [str(TOOLKIT.nvcc), "-std=c++17", "-arch=sm_90a", "-o", str(target), str(source)],
        check=True,
    )
    return target


def test_a_program_on_the_gpu_is_recorded_exactly(hooks, program, tmp_path):
    assert program("record", "--", hooks).code == 0
    store = Store(tmp_path / "depgraph.out")
    assert len(store.kernels) == 13
    assert len(json.loads((tmp_path / "depgraph.out.times.json").read_text())["traceEvents"]) > 13
    footprints = store.footprints()
    sizes = [
        int((mine.end - mine.start)[mine.kind == 0].sum())
        for kernel in store.kernels[:5]
        for mine in [footprints.of_block(kernel.first_block)]
    ]
    assert sizes == [64, 128, 256, 512, 1024]
