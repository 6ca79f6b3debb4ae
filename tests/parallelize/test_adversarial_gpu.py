"""On a GPU: `pytest -m gpu`. Programs that would show a wrong graph, a process each."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from checkout import ROOT  # noqa: E402

PROGRAMS = Path(__file__).with_name("adversarial.py")
OWN = re.findall(r"^@program\ndef (\w+)", PROGRAMS.read_text(), re.MULTILINE)
SHARED = sorted((ROOT.parent / "shared" / "apply_cases").glob("p*.py"))
# What its tensors hold after `parallelize` is what they held before: it expects one run's rows.
COUNTS_THE_EXAMPLE = "p11_check_inputs_not_undone"
SECONDS = 170

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this needs: a GPU"),
]


def line_of(path, *words):
    done = subprocess.run(
        [sys.executable, path, *words], capture_output=True, text=True, check=False,
        timeout=SECONDS, cwd=path.parent, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": f"{path.parent}:{os.environ.get('PYTHONPATH', ROOT)}"},
    )  # fmt: skip
    name = words[0] if words else path.stem
    found = [line for line in done.stdout.splitlines() if line.startswith(f"{name}: ")]
    return found[-1].removeprefix(f"{name}: ") if found else done.stderr[-2000:]


@pytest.mark.parametrize("name", OWN)
def test_a_call_equals_the_function_or_the_refusal_says_why(name):
    assert line_of(PROGRAMS, name).startswith("OK")


@pytest.mark.parametrize("path", SHARED, ids=lambda path: path.stem)
def test_a_program_of_others(path):
    said = line_of(path)
    if path.stem == COUNTS_THE_EXAMPLE:
        assert said.startswith("WRONG rows of the cache after parallelize: [], not [3]")
    else:
        assert said.startswith(("OK", "REFUSED"))
