"""On a GPU: `pytest -m gpu`. Graphs with only their real edges give the bits of the chain."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from depgraph.recorder.toolkit import Toolkit

MISSING = [each.name for each in Toolkit().found if not each.what]
if importlib.util.find_spec("torch") is None:
    MISSING.append("PyTorch")
SAMPLE = Path(__file__).parents[2] / "samples" / "validation" / "applied.py"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(MISSING), reason=f"this needs: {', '.join(MISSING)}"),
]


@pytest.mark.parametrize("name", ["dyn_moe", "ensemble_8", "rnn", "train_mlp", "inception"])
def test_a_program_runs_side_by_side_and_gives_the_same_bits(name, program):
    result = program("apply", "--format", "json", "--", sys.executable, SAMPLE, name)
    assert result.code == 0, result.err
    (row,) = json.loads(result.out)["programs"]
    assert row["bit_equal"]
    assert row["applied_measured_us"] <= row["captured_measured_us"]


def run(text, tmp_path):
    path = tmp_path / "program.py"
    path.write_text("import torch, depgraph.torch\n" + text)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


BRANCHES = """
torch.manual_seed(0)
layers = [torch.nn.Linear(128, 128).cuda().requires_grad_(False) for _ in range(6)]

def run(x):
    return torch.stack([layer(torch.relu(layer(x))) for layer in layers]).sum(0)

x = torch.randn(16, 128).cuda()
fast = depgraph.torch.parallelize(run, x, recording={recording!r})
"""


def test_a_function_is_recorded_on_the_way_and_falls_back_for_other_shapes(tmp_path):
    recording = str(tmp_path / "kept.out")
    text = BRANCHES.format(recording=recording) + (
        "print(fast.report.inputs, len(fast.report.tried) > 1)\n"
        "for x in torch.randn(3, 16, 128).cuda():\n"
        "    print(torch.equal(fast(x), run(x)))\n"
        "print(torch.equal(fast(x[:8]), run(x[:8])))\n"
    )
    for _ in range(2):  # the second time the recording is there
        assert run(text, tmp_path)[1].split() == ["3", "True"] + ["True"] * 4


IN_PLACE = """
layer = torch.nn.Linear(64, 64).cuda().requires_grad_(False)

def step(x, cache):
    cache.add_(layer(x))
    return cache.sum()

x, cache = torch.randn(16, 64).cuda(), torch.zeros(16, 64).cuda()
with torch.inference_mode({mode}):
    fast = depgraph.torch.parallelize(step, (x, cache))
    wanted = cache.clone()
    for _ in range(3):
        fast(x, cache)
        step(x, wanted)
    print(torch.equal(cache, wanted), torch.equal(x, torch.zeros_like(x)))
"""


@pytest.mark.parametrize("mode", [False, True])
def test_what_is_changed_in_place_is_the_caller_s(mode, tmp_path):
    assert run(IN_PLACE.format(mode=mode), tmp_path)[1].split() == ["True", "False"]


def test_another_program_is_refused(tmp_path):
    recording = str(tmp_path / "kept.out")
    assert run(BRANCHES.format(recording=recording), tmp_path)[0] == 0
    code, _, said = run(BRANCHES.format(recording=recording).replace("relu", "tanh"), tmp_path)
    assert code == 1
    assert said.splitlines()[-1].startswith("depgraph.errors.ApplyError: another program: node ")


def test_what_cannot_be_captured_is_named_with_its_line(tmp_path):
    text = "def run(x):\n    return x * x.sum().item()\n"
    text += "depgraph.torch.parallelize(run, torch.randn(4).cuda())\n"
    _, _, said = run(text, tmp_path)
    last = said.splitlines()[-1]
    assert last.startswith("depgraph.errors.ApplyError: cannot be captured: ")
    assert "program.py:3: return x * x.sum().item()" in last
