"""One line in other programs: notebooks, pytest."""

import json
import subprocess
import sys

import numba  # noqa: F401 - pytester forgets modules that are new, and numba cannot be loaded twice
import pytest

from depgraph.cli import hooks
from depgraph.samples import sample_path

pytest_plugins = ["pytester"]


class FakeShell:
    def __init__(self):
        self.magics = {}

    def register_magic_function(self, func, magic_kind, magic_name):
        self.magics[magic_kind, magic_name] = func


def test_a_cell_runs_a_command(capsys):
    import depgraph

    shell = FakeShell()
    depgraph.load_ipython_extension(shell)
    shell.magics["line", "depgraph"]("gpus --format csv")
    assert "H100 SXM" in capsys.readouterr().out
    hooks.run_line("bound 'no such store'")
    assert "no such store" in capsys.readouterr().out
    hooks.run_line("bound 'no such store")
    assert capsys.readouterr().out == "depgraph: error: No closing quotation\n"


def test_a_real_shell_takes_it():
    code = (
        "import IPython; s = IPython.InteractiveShell(); s.run_line_magic('load_ext', 'depgraph')\n"
    )
    code += "s.run_line_magic('depgraph', '--version')"
    pytest.importorskip("IPython", reason="depgraph[test-all] is not installed")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("depgraph ")


# An installed depgraph is a plugin already.
PLUGIN = "-p", "no:depgraph", "-p", "depgraph.cli.pytest_plugin"
BASELINED = """
from depgraph.samples import sample_path

def test_overlap(depgraph_baseline):
    found = depgraph_baseline({path!r}, sms=8, tolerance=0.01)
    assert found["upper_bound"] > 1
"""


@pytest.mark.jit_only
def test_a_program_that_gets_worse_fails(pytester, sample_store):
    def run(*options):
        return pytester.runpytest_inprocess(*PLUGIN, "-n0", *options)

    pytester.makepyfile(BASELINED.format(path=str(sample_store.path)))
    run().stdout.fnmatch_lines(["*no baseline in *depgraph-baselines.json; run pytest --depgraph*"])
    run("--depgraph-update").assert_outcomes(passed=1)
    run().assert_outcomes(passed=1)
    path = pytester.path / "depgraph-baselines.json"
    ((key, numbers),) = json.loads(path.read_text()).items()
    assert key == "test_a_program_that_gets_worse_fails.py::test_overlap: sample.out on 8 SMs"
    for name, value in (("upper_bound", 9), ("bound_raw", 9), ("false_dependences", 1)):
        path.write_text(json.dumps({key: {**numbers, name: value}}))
        result = run()
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines([f"*{name} was {value} and is *"])
    unknown = json.dumps({key: {**numbers, "upper_bound": float("nan")}})
    for text in ("{", "[1]", json.dumps({key: {}}), unknown):
        path.write_text(text)
        run().stdout.fnmatch_lines(["*no baselines that can be read*run pytest --depgraph-update*"])


def test_what_cannot_be_read_fails_in_one_line(pytester):
    pytester.makepyfile(BASELINED.format(path="gone.out"))
    result = pytester.runpytest_inprocess(*PLUGIN, "-n0")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["gone.out: no such file*"])
    result.stdout.no_fnmatch_line("*another exception*")


def test_tests_of_one_name_have_baselines_of_their_own(pytester, sample_store):
    test = BASELINED.format(path=str(sample_store.path))
    pytester.makepyfile(test_one=test, test_other=test)
    options = *PLUGIN, "-n0", "--depgraph-update"
    pytester.runpytest_inprocess(*options).assert_outcomes(passed=2)
    assert len(json.loads((pytester.path / "depgraph-baselines.json").read_text())) == 2


def test_programs_of_one_name_in_one_test_must_be_named(pytester, sample_store):
    twice = f"""
def test_both(depgraph_baseline):
    depgraph_baseline({str(sample_store.path)!r}, sms=8)
    depgraph_baseline({str(sample_store.path)!r}, sms=8)
"""
    pytester.makepyfile(twice)
    result = pytester.runpytest_inprocess(*PLUGIN, "-n0", "--depgraph-update")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*sample.out on 8 SMs: compared before in this test; give each*"])


@pytest.mark.parametrize("tolerance", ["float('nan')", "1.0", "-0.1"])
def test_a_tolerance_that_lets_everything_pass_is_refused(pytester, sample_store, tolerance):
    test = BASELINED.format(path=str(sample_store.path)).replace("0.01", tolerance)
    pytester.makepyfile(test)
    result = pytester.runpytest_inprocess(*PLUGIN, "-n0", "--depgraph-update")
    result.stdout.fnmatch_lines(["*tolerance is *: give a share from 0 to below 1"])


@pytest.mark.jit_only
def test_several_processes_write_no_baselines(pytester, sample_store):
    pytest.importorskip("xdist")
    pytester.makepyfile(BASELINED.format(path=str(sample_store.path)))
    options = *PLUGIN, "-n1", "--depgraph-update"
    pytester.runpytest_subprocess(*options).stdout.fnmatch_lines(["*run it in one process*"])
    assert not (pytester.path / "depgraph-baselines.json").exists()


@pytest.mark.jit_only
def test_a_trace_is_extracted(pytester):
    pytester.makepyfile(BASELINED.format(path=str(sample_path("recording/gru_train.recording"))))
    options = *PLUGIN, "-n0", "--depgraph-update"
    pytester.runpytest_subprocess(*options).assert_outcomes(passed=1)
