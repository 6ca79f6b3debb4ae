"""``depgraph overlap``."""

import csv
import json

import pytest
from profiles_made import kineto

from depgraph.samples import KERNEL_TIMES, sample_path

RANKS = [sample_path(f"timing/overlap/rank{rank}.json.gz") for rank in (0, 1)]


@pytest.fixture
def run(program):
    """Return a function that runs the command: exit code, stdout, stderr."""
    return lambda *words: program("overlap", *words)


def test_the_first_lines_answer(run):
    code, out, _ = run(*RANKS)
    assert code == 0
    assert out.startswith(
        "rank 0, ProfilerStep#2: 3824 us, 1.23x faster than one after the other, 47.4 %\n"
        "of the ideal 1.49x; 463.6 us of communication have no computation beside them;\n"
        "collectives take 24.00 of 132 SMs\n"
    )


def test_a_profile_without_communication(run):
    out = " ".join(run(sample_path(KERNEL_TIMES))[1].split())
    assert "54.15 us of work; nothing communicates, so that nothing could overlap" in out


def test_all_formats_have_all_iterations(run):
    found = json.loads(run(*RANKS, "--format", "json", "--rows", 1)[1])
    assert (found["n_ranks"], found["n_iterations"], found["sms"]) == (2, 6, 132)
    rows = list(csv.DictReader(run(*RANKS, "--format", "csv")[1].splitlines()))
    assert len(rows) == len(found["iterations"]) == 6
    assert float(rows[0]["share"]) == found["iterations"][0]["share"]
    assert "5 more rows: --rows 6" in run(*RANKS, "--format", "markdown", "--rows", 1)[1]


def test_bad_input_is_one_line(run, tmp_path):
    alone = kineto(tmp_path / "t.json", [("gemm", 10, 100, 132)])
    assert run(alone, "--isolated", alone, "--isolated", alone)[0] == 1
    code, out, err = run(tmp_path / "missing.json")
    assert (code, out) == (1, "")
    assert err.startswith("depgraph: error: ")
    assert err.count("\n") == 1
    assert run()[0] == 2
