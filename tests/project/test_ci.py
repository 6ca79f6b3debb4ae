"""The gate runs what README and CONTRIBUTING say, and pre-commit and the workflows run the gate."""

import json
import re
import subprocess

import pytest
from checkout import PYPROJECT, ROOT

THIS = "tests/project/test_ci.py"
CHECKS = ["lint", "format", "types", "imports", "docs"]


@pytest.fixture(scope="module")
def steps():
    """Return the lines that the gate prints of what it would run."""
    command = [ROOT / ".ci" / "run", "--dry-run"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_gate_runs_the_commands_of_the_readme(steps):
    section = (ROOT / "README.md").read_text().partition("## Try it\n")[2].partition("\n## ")[0]
    commands = [line for line in section.splitlines() if line.startswith("python3 -m venv ")]
    assert len(commands) == 2
    assert [command for command in commands if command not in steps] == []


def test_the_gate_and_pre_commit_run_every_check(steps):
    by_default = re.search(r"set -- (.*)", (ROOT / ".ci" / "checks").read_text())[1]
    hooks = re.findall(r"- id: (\S+)", (ROOT / ".pre-commit-config.yaml").read_text())
    assert by_default.split() == hooks == CHECKS
    assert [step for step in steps if step.startswith("=== ") and step[4:] in CHECKS] == [
        f"=== {check}" for check in CHECKS
    ]


def test_the_lowest_versions_are_those_that_are_allowed():
    extras = PYPROJECT["project"]["optional-dependencies"]
    found = subprocess.run(
        [ROOT / ".ci" / "lowest-versions"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert [version.replace("==", ">=") for version in found] == [
        requirement.partition(";")[0]
        for requirement in (
            PYPROJECT["project"]["dependencies"] + extras["test"] + extras["test-all"]
        )
        if not requirement.startswith("depgraph[")
    ]


def test_the_gate_runs_what_the_environment_of_the_readme_leaves_out(steps):
    text = {path.relative_to(ROOT): path.read_text() for path in ROOT.glob("tests/*/test_*.py")}
    marks = "depgraph[test-all] is not installed", "@needs_browser", 'importorskip("yaml")'
    skipped = {str(p) for p in text if any(mark in text[p] for mark in marks)} - {THIS}
    (installs,) = (n for n, line in enumerate(steps) if "pip install" in line and "cluster" in line)
    (runs,) = (line for line in steps[installs:] if "pytest -q tests/" in line and "hooks" in line)
    assert {word.partition("::")[0] for word in runs.split() if "tests/" in word} == skipped


def test_one_room_without_tests_fails_the_gate(tmp_path):
    def lines(reached, of):
        counts = {"covered_lines": reached, "num_statements": of}
        return {"summary": counts | {"covered_branches": 0, "num_branches": 0}}

    def ends(files, *own):
        (tmp_path / "coverage.json").write_text(json.dumps({"files": files}))
        command = [ROOT / ".ci" / "coverage-of-rooms", tmp_path / "coverage.json", "90", *own]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        return found.returncode, found.stdout

    large = {"depgraph/graph/fuse.py": lines(999, 1000), "depgraph/gpu/__init__.py": lines(0, 0)}
    assert ends({**large, "depgraph/gpu/model.py": lines(9, 10)})[0] == 0
    for name, room in (("model.py", "depgraph/gpu"), ("some_jit.py", "depgraph/gpu/*_jit.py")):
        code, said = ends({**large, f"depgraph/gpu/{name}": lines(8, 10)})
        assert code == 1
        assert f" 80.0 %  {room}: less than 90 %\n" in said
    assert ends({**large, "depgraph/gpu/models/a.py": lines(8, 10)}, "depgraph/gpu=80")[0] == 0


def test_the_workflows_run_the_gate():
    for workflow in ("ci.yml", "release.yml"):
        assert "bash .ci/run" in (ROOT / ".github" / "workflows" / workflow).read_text()
