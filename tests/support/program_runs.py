"""Runs of the program: a small log, what a run said and left, and processes."""

import os
import subprocess
import sys

from checkout import ROOT
from programs import BASE, access_line, launch_line

from depgraph.cli.progress import FIRST_RUN

LOG = b"".join(
    [
        launch_line(0, name="producer(float*)"),
        access_line(0, 1, "STG.E", [BASE]),
        launch_line(1, name="consumer(float const*)"),
        access_line(1, 2, "LDG.E", [BASE]),
    ]
)


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def wrote(err, path):
    """Check that a run said where its result is, and else at most that it had to compile."""
    said, *rest = [line for line in err.splitlines() if line != FIRST_RUN]
    assert said.startswith(f"Wrote {path} ("), err
    assert rest == []
    return True


def is_one_line(outcome, *parts):
    """Check that a run failed with one line on stderr that holds all parts."""
    assert outcome.out == ""
    assert outcome.err.startswith("depgraph: error: "), outcome.err
    assert outcome.err.count("\n") == 1, outcome.err
    for part in parts:
        assert part in outcome.err, outcome.err
    return True


def run(*words, cwd, **options):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "depgraph", *words],
        cwd=cwd, env=environment, capture_output="stdout" not in options, check=False, **options,
    )  # fmt: skip


def start(*words, cwd):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", "depgraph", *words],
        cwd=cwd, env=environment,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
