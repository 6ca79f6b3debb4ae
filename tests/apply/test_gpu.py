"""On a GPU: `pytest -m gpu`. Whole programs, with recordings and by the command."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from depgraph.recorder.toolkit import Toolkit

MISSING = [each.name for each in Toolkit().requirements if not each.what]
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
    assert row["applied_measured_us"] <= row["captured_measured_us"]
    assert row["captured_predicted_us"] > 0
    assert row["inputs"] > 1


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
fast = depgraph.torch.parallelize(run, x, recording={recording!r}, trust={trust!r})
"""


@pytest.mark.parametrize("trust", ["operators", "recording"])
def test_a_function_is_recorded_on_the_way_and_falls_back_for_other_shapes(trust, tmp_path):
    text = BRANCHES.format(recording=str(tmp_path / "kept.out"), trust=trust) + (
        "print(fast.report.inputs, fast.report.predicted_speedup > 1)\n"
        "for x in torch.randn(3, 16, 128).cuda():\n"
        "    print(torch.allclose(fast(x), run(x), rtol=1e-4, atol=1e-4))\n"
        "print(torch.equal(fast(x[:8]), run(x[:8])))\n"
    )
    for _ in range(2):  # the second time the recording is there, and what the check found
        code, out, err = run(text, tmp_path)
        assert out.split() == ["3", "True"] + ["True"] * 4, err
        assert code == 0


def test_another_program_is_refused(tmp_path):
    text = BRANCHES.format(recording=str(tmp_path / "kept.out"), trust="operators")
    assert run(text, tmp_path)[0] == 0
    code, _, said = run(text.replace("relu", "tanh"), tmp_path)
    assert code == 1
    assert said.splitlines()[-1].startswith("depgraph.errors.ApplyError: another program: node ")


def test_what_cannot_be_captured_is_named_with_its_line(tmp_path):
    text = "def run(x):\n    return x * x.sum().item()\n"
    text += "depgraph.torch.parallelize(run, torch.randn(4).cuda())\n"
    _, _, said = run(text, tmp_path)
    last = said.splitlines()[-1]
    assert last.startswith("depgraph.errors.ApplyError: cannot be captured: ")
    assert "program.py:3: return x * x.sum().item()" in last
