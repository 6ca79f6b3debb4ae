"""The first screen of a command: the answer, in times where there are any, on 25 lines."""

import os
import re
import shutil
from pathlib import Path

import pytest
from checkout import ROOT

from depgraph.reports.tables.render import SCREEN
from depgraph.samples import sample_path

SCREENS = Path(__file__).with_name("screens")
SAMPLES = Path(__file__).parents[2] / "samples"
FILES = {
    "trace.log.xz": sample_path(),
    "profile.json": sample_path("timing/gru_train.kineto.json"),
    "gru.recording": sample_path("recording/gru_train.recording"),
    "rank0.json.gz": sample_path("timing/overlap/rank0.json.gz"),
    "rank1.json.gz": sample_path("timing/overlap/rank1.json.gz"),
    "traces": SAMPLES / "accelsim/gru_train",
    "inception.toml": SAMPLES / "workloads/inception_block.toml",
    "llama.toml": SAMPLES / "workloads/llama_mlp_1024.toml",
    "uneven.toml": SAMPLES / "workloads/uneven_tiles.toml",
    "stencil.toml": SAMPLES / "workloads/stencil_sweeps.toml",
}
CASES = {
    "extract-trace": ["extract trace.log.xz -o gru"],
    "extract-recording": ["extract gru.recording -o recorded"],
    "bound-trace": ["extract trace.log.xz -o gru", "bound gru --sms 80"],
    "bound-trace-with-times": ["extract trace.log.xz -o gru", "bound gru --timing profile.json"],
    "bound-accel-sim": ["extract traces -o simulated", "bound simulated --sms 46"],
    "bound-recording": ["extract gru.recording -o recorded", "bound recorded --sms 132"],
    "bound-branches": ["extract inception.toml -o inception", "bound inception --gpu H100"],
    "bound-chain": ["extract llama.toml -o llama", "bound llama --gpu A100"],
    "bound-uneven": ["extract uneven.toml -o uneven", "bound uneven --gpu V100"],
    "bound-stencil": ["extract stencil.toml -o stencil", "bound stencil --gpu H100"],
    "bound-curve": ["extract trace.log.xz -o gru", "bound gru --sms 8:132:4"],
    "bound-mechanisms": [
        "extract trace.log.xz -o gru", "bound gru --timing profile.json --mechanism all",
    ],
    "bound-profile-alone": ["bound profile.json"],
    "bound-suite": [
        "extract trace.log.xz -o all/gru.out", "extract gru.recording -o all/recorded.out",
        "bound all --sms 80",
    ],
    "overlap": ["overlap rank0.json.gz rank1.json.gz"],
    "demo": ["demo"],
    "mechanisms": ["mechanisms"],
}  # fmt: skip


@pytest.mark.jit_only
@pytest.mark.parametrize("name", CASES)
def test_the_first_screen(program, tmp_path, name):
    for link, source in FILES.items():
        if any(link in command for command in CASES[name]):
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, tmp_path / link)
    (tmp_path / "all").mkdir()
    for command in CASES[name]:
        shown = program(*command.split())
        assert shown.code == 0, shown.err
    text = re.sub(r"in [\d.]+ s\b", "in ... s", re.sub(r"\d+ MB/s", "... MB/s", shown.out))
    lines = text.splitlines()
    assert len(lines) <= SCREEN
    assert all(len(line) <= 80 or line.startswith("      depgraph ") for line in lines)
    golden = SCREENS / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


OLD = (
    "No schedule can do better",
    "upper bound on what is left",
    "x is left",
    "keep independent work apart",
    "limited by work below",
    "by the critical path above",
    "only fill with zeros",
    "a recording would tell",
    "changes what an edge is called",
    "is only remarked",
    "is taken to store",
    "stand among its parameters",
    "takes the chain's edges away",
    "RAW alone",
    "which of them must is not in",
    "over one after the other",
    "of communication beside no computation",
)
WRITTEN = [
    *SCREENS.glob("*.txt"), ROOT / "README.md", *(ROOT / "docs").rglob("*.md"),
    *(path for room in ("cli", "depgraph", "parsers", "reports", "samples")
      for path in (ROOT / room).rglob("*") if path.suffix in {".py", ".html", ".js", ".md"}),
]  # fmt: skip


@pytest.fixture(scope="module")
def written():
    """Return what users read, each on one line, strings of code put together."""
    texts = {path: path.read_text(encoding="utf-8") for path in WRITTEN}
    joined = {path: re.sub(r'"\s+f?"', "", text) for path, text in texts.items()}
    return {path: " ".join(text.split()) for path, text in joined.items()}


@pytest.mark.parametrize("sentence", OLD)
def test_nothing_is_said_in_the_old_words(written, sentence):
    assert not [path for path, text in written.items() if sentence in text]
