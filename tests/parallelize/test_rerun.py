"""A program that is run again up to a call: what it leaves, and how it may end."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("torch")

from depgraph.apply.verdicts import Verdicts
from depgraph.errors import ApplyError, RecorderError
from depgraph.recorder import build
from depgraph.torch import rerun

BEGIN = """
import os, pathlib, sys, time
sys.path[:0] = {path!r}
from depgraph.apply.kernel_code import KernelCode
from depgraph.apply.verdicts import Verdict, Verdicts
from depgraph.torch.rerun import FUNCTION, GRAPH, Stage, call_to_check
stage = Stage.from_environment()
print("words that nobody reads")
"""


@pytest.fixture
def checked(tmp_path):
    """Return what runs a program again that ends in some lines."""
    path = tmp_path / "program.py"

    def run(text, seconds=60):
        path.write_text(BEGIN.format(path=sys.path) + text)
        return rerun.run_again([sys.executable, str(path)], 3, seconds)

    return run


def test_what_was_found_comes_back(checked):
    found = checked(
        "stage.ends(Verdicts(refused='no', inputs=call_to_check()))\nraise SystemExit(1)"
    )
    assert found == Verdicts(refused="no", inputs=3)


def test_a_program_has_no_input(checked):
    assert checked("stage.ends(Verdicts(notes=[sys.stdin.read()]))").notes == [""]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise ValueError('no such file')", "exit code 1 before it came to parallelize: ValueEr"),
        ("stage.begins('warming up'); os._exit(7)", "exit code 7 at: warming up: it said nothing"),
        ("os.kill(os.getpid(), 9)", "exit code -9 before it came to parallelize"),
        ("", "exit code 0 before it came to parallelize"),
    ],
)
def test_a_program_that_ends_is_one_line(checked, text, said):
    with pytest.raises(ApplyError) as error:
        checked(text)
    assert str(error.value).startswith("run again to check it, the program ended with ")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_program_that_does_not_end_is_stopped(checked):
    with pytest.raises(ApplyError, match=r"has not ended after 1 s.*give a larger time_limit="):
        checked("time.sleep(60)", seconds=1)


def test_all_runs_together_have_the_time_that_was_given(checked):
    with pytest.raises(ApplyError, match="has not ended after 3 s"):
        checked(
            "time.sleep(2)\nstage.begins(FUNCTION)\nos._exit(1)  # twice, and then gently",
            seconds=3,
        )


def test_a_function_that_asserts_what_was_changed_is_run_again_gently(checked):
    found = checked(
        "stage.begins(FUNCTION)\n"
        "if not stage.is_gentle:\n"
        "    os._exit(1)  # an index beyond its tensor\n"
        "stage.ends(Verdicts(inputs=1))"
    )
    assert found.inputs == 1


def test_graphs_that_end_the_process_are_left_out(checked):
    found = checked(
        "for name in ('free', 'branches'):\n"
        "    if name not in stage.left_out:\n"
        "        stage.begins(GRAPH + name)\n"
        "        os.abort()\n"
        "stage.ends(Verdicts(notes=sorted(stage.left_out)))"
    )
    assert found.notes == ["branches", "free"]


WANTS_CODE = """
if stage.modules:
    assert os.environ["CUDA_INJECTION64_PATH"] == "/modules.so"
    stage.ends(Verdicts(codes={"k": KernelCode("it loads addresses")}))
stage.ends(Verdicts(wants_code=stage.codes is None, notes=[repr(stage.codes)]))
"""


def test_machine_code_is_read_in_a_process_of_its_own(checked, monkeypatch):
    monkeypatch.setattr(build.Builder, "modules", lambda _: "/modules.so")
    (said,) = checked(WANTS_CODE).notes
    assert "it loads addresses" in said


def test_where_no_code_can_be_read_the_check_goes_on_without(checked, monkeypatch):
    def broken(_):
        raise RecorderError("no compiler")

    monkeypatch.setattr(build.Builder, "modules", broken)
    assert checked(WANTS_CODE).notes == ["{}"]


@pytest.mark.parametrize(
    ("environment", "words", "said"),
    [
        ({}, ["python", "train.py"], ""),
        ({"WORLD_SIZE": "1"}, ["python", "-m", "train"], ""),
        ({"WORLD_SIZE": "2"}, ["python", "train.py"], "under torchrun"),
        ({"TORCHELASTIC_RUN_ID": "x"}, ["python", "train.py"], "under torchrun"),
        ({}, ["python"], "what runs here cannot be run again"),
        ({}, ["python", "-"], "what runs here cannot be run again"),
    ],
)
def test_what_cannot_be_run_again(environment, words, said, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", words)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)  # left by tests of notebooks
    found = rerun.why_not_again(environment)
    assert found.startswith(said)
    assert bool(found) == bool(said)
    assert not said or "recording=" in found
