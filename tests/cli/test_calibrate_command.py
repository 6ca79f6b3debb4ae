"""``depgraph calibrate``: from measurements to a GPU model that reports quote."""

import json
import sys

import pytest
from program_runs import is_one_line

from depgraph.analysis import calibration
from depgraph.parsers.measurements import read_measurements
from depgraph.samples import KERNEL_TIMES, sample_path

PACKAGED = sample_path("validation/measured/h100.json.xz")


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """Return a file with some of the packaged measurements, of small programs."""
    import lzma

    content = json.loads(lzma.decompress(PACKAGED.read_bytes()))
    small = [p for p in content["programs"] if len(p["kernels"]) < 6]
    content["programs"] = [
        *[p for p in small if p["half"] == 0][:8], *[p for p in small if p["half"] == 1][:8],
    ]  # fmt: skip
    path = tmp_path_factory.mktemp("measured") / "few.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.slow
@pytest.mark.jit_only
def test_it_writes_a_gpu_that_reports_quote(program, few, sample_store, monkeypatch):
    monkeypatch.setattr(calibration, "_FACTORS", calibration._FACTORS[:1])
    done = program("calibrate", "--from", few, "--format", "json")
    assert done.code == 0, done.err
    content = json.loads(done.out)
    assert content["gpu"] == "NVIDIA H100 80GB HBM3"
    assert {"contention", "block_spread"} < {row["name"] for row in content["constants"]}
    assert "round 1 of 1: mean error" in done.err
    assert "Wrote my-gpu.toml (" in done.err
    again = program("calibrate", "--from", few)
    assert is_one_line(again, "my-gpu.toml: already exists; pass --force")

    asked = program(
        "bound", sample_store.path, "--sms", 132, "--timing", sample_path(KERNEL_TIMES),
        "--gpu", "my-gpu.toml", "--mechanism", "cuda-graph", "--format", "json",
    )  # fmt: skip
    content = json.loads(asked.out)
    assert content["gpu"] == "NVIDIA H100 80GB HBM3, calibrated"
    families = {e["family"] for e in content["trust"]["errors"]}
    assert families == {"fans", "branches", "chains", "streams"}
    (caveat,) = (note for note in content["notes"] if note.startswith("predictions: "))
    assert caveat.startswith("predictions: of programs measured on an NVIDIA H100")


def test_without_pytorch_it_says_so(program, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    done = program("calibrate")
    assert done.code == 1
    assert is_one_line(done, "measuring needs PyTorch", "pip install torch", "--from FILE")
    assert list(tmp_path.iterdir()) == []


def test_without_a_gpu_it_says_so(program, monkeypatch):
    class Cuda:
        @staticmethod
        def is_available():
            return False

    class Torch:
        cuda = Cuda
        __version__ = "2.0"

    monkeypatch.setitem(sys.modules, "torch", Torch)
    done = program("calibrate", "--quick")
    assert done.code == 1
    assert is_one_line(done, "measuring needs an NVIDIA GPU; PyTorch 2.0 sees none")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--from", PACKAGED, "--quick"), 2, "--quick is about measuring"),
        (("--from", PACKAGED, "--keep", "kept.json"), 2, "--keep is about measuring"),
        (("--from", "none.json"), 1, "none.json"),
        (("--from", PACKAGED, "--gpu", "wafer"), 1, "no GPU model is called 'wafer'"),
    ],
)
def test_what_makes_no_sense_is_refused(program, tmp_path, words, code, said):
    done = program("calibrate", *words)
    assert (done.code, said in done.err) == (code, True), done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.jit_only
def test_what_was_measured_is_kept(program, few, tmp_path, monkeypatch):
    """Measuring itself needs a GPU: here it returns what one gave."""
    import depgraph.cli.commands.calibrate as module

    content = json.loads(few.read_text())
    monkeypatch.setattr(module, "_measurer", lambda: Measurer(content))
    monkeypatch.setattr(calibration, "_FACTORS", ())  # what is fitted, other tests look at
    done = program("calibrate", "--keep", "kept.json.xz", "-o", "mine.toml")
    assert done.code == 0, done.err
    assert {path.name for path in tmp_path.iterdir()} == {"kept.json.xz", "mine.toml"}
    assert read_measurements(tmp_path / "kept.json.xz") == read_measurements(few)
    assert "one: RuntimeError: out of memory" in done.err


class Measurer:
    """Stands for the programs of ``depgraph.samples.validation.measure`` on a GPU."""

    def __init__(self, content):
        self.content = content

    def all_programs(self):
        return [*self.content["programs"], {}]

    def measure_all(self, programs, *, brief):
        assert brief
        assert len(programs) == 17
        for row in self.content["programs"]:
            yield row, self.content
        yield {"name": "one", "error": "RuntimeError: out of memory"}, self.content
