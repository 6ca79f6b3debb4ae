"""The markers `shared` and `jit_only` skip what cannot run, and nothing else."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TESTS = """
import pytest

@pytest.mark.shared
def test_marked():
    pass

def test_fixture(shared_data):
    assert shared_data.is_dir()

@pytest.mark.jit_only
def test_slow():
    pass

def test_sample(sample_trace):
    assert sample_trace.stat().st_size == 284_704
"""


@pytest.fixture
def checkout(tmp_path):
    tests = tmp_path / "checkout" / "tests"
    tests.mkdir(parents=True)
    shutil.copy(ROOT / "pyproject.toml", tests.parent)
    shutil.copy(ROOT / "tests" / "conftest.py", tests)
    (tests / "test_some.py").write_text(TESTS)
    return tests.parent


def run_pytest(checkout, *arguments, jit):
    environment = os.environ | {"NUMBA_DISABLE_JIT": "0" if jit else "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    result = subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_all_run_where_all_can(checkout):
    (checkout.parent / "shared" / "data").mkdir(parents=True)
    assert "4 passed" in run_pytest(checkout, jit=True)


def test_shared_needs_the_folder(checkout):
    output = run_pytest(checkout, jit=True)
    assert "2 passed, 2 skipped" in output
    assert f"no folder {checkout.parent / 'shared' / 'data'}" in output


def test_jit_only_needs_the_compiler(checkout):
    (checkout.parent / "shared" / "data").mkdir(parents=True)
    output = run_pytest(checkout, jit=False)
    assert "3 passed, 1 skipped" in output
    assert "NUMBA_DISABLE_JIT=1" in output


def test_the_fixture_brings_its_marker(checkout):
    (checkout.parent / "shared" / "data").mkdir(parents=True)
    assert "2 passed, 2 deselected" in run_pytest(checkout, "-m", "shared", jit=True)
