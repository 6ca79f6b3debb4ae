"""One line in a program of PyTorch: what its profiler has seen is answered."""

import gzip
import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch.profiler import profile  # noqa: E402

from depgraph.errors import DepgraphError  # noqa: E402
from depgraph.samples import KERNEL_TIMES, sample_path  # noqa: E402
from depgraph.torch import on_trace_ready  # noqa: E402


class Profiler:
    """Exports a trace of a GPU, as PyTorch's profiler does after a run on one."""

    def __init__(self, content=None):
        self.content = sample_path(KERNEL_TIMES).read_bytes() if content is None else content

    def export_chrome_trace(self, path):
        packed = gzip.compress(self.content) if path.endswith(".gz") else self.content
        Path(path).write_bytes(packed)


def answered(capsys, *profilers, **options):
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
    with pytest.raises(error, match=says):
        on_trace_ready(**options)


def test_torch_calls_it(tmp_path, capsys):
    hook = on_trace_ready(tmp_path / "cpu.json")
    with profile(on_trace_ready=hook):
        torch.ones(4).sum()
    # Without a GPU there is nothing to say of one, and the trace is there.
    assert "no kernel" in capsys.readouterr().err
    assert "traceEvents" in json.loads((tmp_path / "cpu.json").read_text())
