"""One line in other programs: PyTorch's profiler, notebooks, pytest."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numba  # noqa: F401 - pytester forgets modules that are new, and numba cannot be loaded twice
import pytest

from depgraph.cli import hooks
from depgraph.errors import DepgraphError
from depgraph.samples import KERNEL_TIMES, sample_path

pytest_plugins = ["pytester"]


class Profiler:
    """Exports a trace of a GPU, as PyTorch's profiler does after a run on one."""

    def __init__(self, content=None):
        self.content = sample_path(KERNEL_TIMES).read_bytes() if content is None else content

    def export_chrome_trace(self, path):
        packed = gzip.compress(self.content) if path.endswith(".gz") else self.content
        Path(path).write_bytes(packed)


def answered(capsys, *profilers, **options):
    pytest.importorskip("torch")
    from depgraph.torch import on_trace_ready

    hook = on_trace_ready(**options)
    for profiler in profilers:
        hook(profiler)
    return capsys.readouterr()


def test_the_answer_is_that_of_bound(tmp_path, capsys, program):
    profile = tmp_path / "profile.json"
    printed = answered(capsys, Profiler(), path=profile).out
    assert printed == program("bound", profile).out
    assert printed.startswith("5.03 ms now; predicted 60.5 us as a CUDA graph")


def test_a_trace_that_is_not_kept_is_in_no_next_step(capsys):
    printed = answered(capsys, Profiler()).out
    assert "profile.json" not in printed
    assert "--details" not in printed
    assert "5.03 ms now" in printed


def test_each_cycle_has_a_file_of_its_own(tmp_path, capsys):
    answered(capsys, Profiler(), Profiler(), path=tmp_path / "it.json.gz")
    assert {path.name for path in tmp_path.glob("it*")} == {"it.json.gz", "it-2.json.gz"}


def test_what_cannot_be_read_does_not_end_the_program(capsys):
    printed = answered(capsys, Profiler(b'{"traceEvents": []}'))
    assert printed.out == ""
    assert printed.err.startswith("depgraph: the profile: ")
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"gpu": "nonsense"}, DepgraphError, "nonsense"),
        ({"gpu": "nonsense.toml"}, DepgraphError, "nonsense.toml"),
        ({"wall_us": 0.0}, ValueError, "wall_us"),
        ({"wall_us": float("nan")}, ValueError, "wall_us"),
        ({"path": "no such folder/it.json"}, FileNotFoundError, "no such folder"),
    ],
)
def test_what_makes_no_sense_is_said_before_the_profile(options, error, says):
    pytest.importorskip("torch")
    from depgraph.torch import on_trace_ready

    with pytest.raises(error, match=says):
        on_trace_ready(**options)


def test_torch_calls_it(tmp_path, capsys):
    torch = pytest.importorskip("torch")
    from torch.profiler import profile

    import depgraph.torch

    hook = depgraph.torch.on_trace_ready(tmp_path / "cpu.json")
    with profile(on_trace_ready=hook):
        torch.ones(4).sum()
    # Without a GPU there is nothing to say of one, and the trace is there.
    assert "no kernel" in capsys.readouterr().err
    assert "traceEvents" in json.loads((tmp_path / "cpu.json").read_text())


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
    pytest.importorskip("IPython")
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
