"""The markers `shared`, `jit_only` and `slow` leave out what cannot or need not run, no more."""

import os
import shutil
import subprocess
import sys

import pytest
from checkout import ROOT

pytestmark = pytest.mark.slow  # each is a pytest of its own

TESTS = """
import pytest

@pytest.mark.shared
def test_marked():
    pass

def test_fixture(shared_data):
    assert shared_data.is_dir()

@pytest.mark.jit_only
def test_compiled():
    pass

@pytest.mark.slow
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
    shutil.copytree(ROOT / "tests" / "support", tests / "support")
    (tests / "test_some.py").write_text(TESTS)
    return tests.parent


def run_pytest(checkout, *arguments, jit):
    environment = os.environ | {"NUMBA_DISABLE_JIT": "0" if jit else "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *arguments]
    result = subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_all_but_slow_tests_run_where_all_can(checkout):
    (checkout.parent / "shared" / "data").mkdir(parents=True)
    assert "4 passed, 1 deselected" in run_pytest(checkout, jit=True)


def test_what_cannot_run_is_skipped_and_said(checkout):
    output = run_pytest(checkout, jit=False)
    assert "4 skipped, 1 deselected" in output
    assert output.count(f": no folder {checkout.parent / 'shared' / 'data'}\n") == 2
    assert output.count(": not with NUMBA_DISABLE_JIT=1\n") == 2


def test_the_fixture_brings_its_marker(checkout):
    (checkout.parent / "shared" / "data").mkdir(parents=True)
    assert "3 passed, 2 deselected" in run_pytest(checkout, "-m", "shared or slow", jit=True)
