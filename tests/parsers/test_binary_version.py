"""Which GPU a trace is taken to be of: tracers leave the number of the kernels uninitialised."""

import pytest
from kernel_texts import GLOBAL, Form, header_text

from depgraph.extraction.pipeline import extract
from depgraph.parsers import open_trace


@pytest.fixture
def store_of(tmp_path):
    """Return a function that extracts a trace whose kernels name some versions."""

    def make(*versions):
        folder = tmp_path / "traces"
        folder.mkdir()
        for number, version in enumerate(versions, start=1):
            header = header_text(Form()).replace("version = 80", f"version = {version}")
            block = "#BEGIN_TB\nthread block = 0,0,0\nwarp = 0\ninsts = 1\n"
            access = f"0090 00000001 1 R0 LDG.E 1 R4 4 1 0x{GLOBAL:x} 0 0 \n#END_TB\n"
            (folder / f"kernel-{number}.traceg").write_text(header + block + access)
        extract(open_trace(folder), tmp_path / "store")
        return tmp_path / "store"

    return make


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ((80, 80, 120), "the trace is for sm_80: the limits of A100"),
        ((86, 86, 0, 1184189536), "no architecture is named: the limits of H100"),
        ((0, 1, -5), "no architecture is named: the limits of H100"),
        ((80, 90), "no architecture is named: the limits of H100"),
        ((88, 88), "the trace names sm_88, of which there is no model: the limits of H100"),
        ((35,), "the trace names sm_35, of which there is no model: the limits of H100"),
    ],
)
def test_the_gpu_is_that_of_more_than_half_of_the_kernels(program, store_of, versions, said):
    outcome = program("bound", store_of(*versions), "--sms", "4", "--details")
    assert outcome.code == 0
    assert said in " ".join(outcome.out.split())


@pytest.mark.jit_only
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("option", [(), ("--gpu", "V100"), ("--occupancy", "2")])
def test_every_command_takes_a_trace_of_a_gpu_without_model(program, store_of, tmp_path, option):
    store, out = store_of(88), tmp_path / "out"
    for words in (
        ("bound", store, "--sms", "4"),
        ("report", store, "--sms", "4", "-o", out),
        ("show", store, "path"),
        ("compare", store, store, "--sms", "4"),
        ("export", store, "--what", "schedule", "--to", "json", "--sms", "4", "-o", f"{out}.json"),
    ):
        outcome = program(*words, *option)
        assert (outcome.code, outcome.err.count("error")) == (0, 0), words
