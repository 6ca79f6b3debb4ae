"""The action, the workflow, the conda recipe and the release, as far as no service is needed."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from checkout import PYPROJECT, ROOT

from depgraph.samples import RECORDING, sample_path

yaml = pytest.importorskip("yaml")


@pytest.fixture
def compare(tmp_path):
    """Return a function that runs what the action runs."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    command = bin_folder / "depgraph"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m depgraph "$@"\n')
    command.chmod(0o755)
    summary, output = tmp_path / "step.md", tmp_path / "output.txt"

    def run(**settings):
        environment = {
            **os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
            "FOLDER": str(tmp_path / "work"), "GITHUB_STEP_SUMMARY": str(summary),
            "GITHUB_OUTPUT": str(output), "BASE": str(sample_path(RECORDING)),
            "NEW": str(sample_path(RECORDING)), "SMS": "8", **settings,
        }  # fmt: skip
        script = ["bash", str(ROOT / "samples" / "ci" / "compare.sh")]
        done = subprocess.run(
            script, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        return done, summary, output

    return run


def test_the_script_of_the_action(compare, recorded_store):
    done, summary, output = compare(
        NEW=str(recorded_store), OPTIONS="--fail-on-decrease upper_bound"
    )
    assert done.returncode == 0, done.stderr
    assert "25 same, 0 changed" in summary.read_text()
    (line,) = output.read_text().splitlines()
    assert line.startswith("summary=")
    assert "25 same" in Path(line.removeprefix("summary=")).read_text()


def test_a_program_that_cannot_be_compared_fails(compare, tmp_path):
    done, summary, _ = compare(NEW=str(tmp_path / "missing"))
    assert done.returncode == 1
    assert "no such file" in done.stderr
    assert not summary.exists()


GH = """#!/bin/sh
for word; do case $word in body=@*) body=${word#body=@} ;; esac; done
echo "$*" >> calls.txt
[ -z "$body" ] && cat known.txt || cat "$body" > body.md
"""


@pytest.mark.parametrize("known", ["", "17\n"])
def test_later_runs_edit_the_comment_of_the_same_program_and_no_other(tmp_path, known):
    (tmp_path / "gh").write_text(GH)
    (tmp_path / "gh").chmod(0o755)
    (tmp_path / "known.txt").write_text(known)
    (tmp_path / "summary.md").write_text("what changed\n" * 9000)
    environment = {
        **os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "GITHUB_REPOSITORY": "o/r",
        "NUMBER": "5", "NEW": "new.recording", "SUMMARY": "summary.md",
    }  # fmt: skip
    script = ["bash", str(ROOT / "samples" / "ci" / "comment.sh")]
    subprocess.run(script, env=environment, cwd=tmp_path, check=True)
    asked, said = (tmp_path / "calls.txt").read_text().splitlines()
    mark, _, text = (tmp_path / "body.md").read_text().partition("\n")
    assert text.startswith("what changed")
    assert len(mark) + len(text) < 65_536
    assert f'startswith("{mark}")' in asked
    found = "PATCH repos/o/r/issues/comments/17" if known else "POST repos/o/r/issues/5/comments"
    assert found in said
    (tmp_path / "calls.txt").unlink()
    subprocess.run(script, env={**environment, "SUMMARY": ""}, cwd=tmp_path, check=True)
    assert not (tmp_path / "calls.txt").exists()


def action():
    return yaml.safe_load((ROOT / "action.yml").read_text())


def test_the_action_hands_over_its_inputs():
    text = (ROOT / "action.yml").read_text()
    used = set(re.findall(r"inputs\.([\w-]+)", text))
    assert used == action()["inputs"].keys()
    script = (ROOT / "samples" / "ci" / "compare.sh").read_text()
    (compares,) = (s for s in action()["runs"]["steps"] if s.get("id") == "compare")
    assert all(name in script for name in compares["env"])
    # What a pull request says is never part of a script.
    assert not any("${{" in step.get("run", "") for step in action()["runs"]["steps"])


def test_the_workflow_is_the_sample_and_uses_inputs_that_there_are():
    workflow = ROOT / ".github" / "workflows" / "pull-request.yml"
    sample = ROOT / "samples" / "ci" / "pull-request.yml"
    assert workflow.read_text() == sample.read_text()
    (job,) = yaml.safe_load(sample.read_text())["jobs"].values()
    (step,) = (s for s in job["steps"] if s["uses"] == "./")
    assert step["with"].keys() <= action()["inputs"].keys()


def test_the_conda_recipe_needs_what_the_project_needs():
    text = (ROOT / "conda" / "meta.yaml").read_text()
    needs = text.partition("  run:\n")[2].partition("\n\n")[0]
    found = {tuple(line.strip(" -").split()) for line in needs.splitlines()}
    found = {(name.removesuffix("-base"), least) for name, least in found} - {("python", ">=3.11")}
    wanted = {
        re.match(r"([\w.]+)(>=[\d.]+)", each) for each in PYPROJECT["project"]["dependencies"]
    }
    assert found == {(match[1], match[2]) for match in wanted}
    assert f"python {PYPROJECT['project']['requires-python']}" in needs


def test_a_release_names_its_repository(tmp_path):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    script = [sys.executable, str(ROOT / ".ci" / "project-urls")]
    subprocess.run([*script, "https://github.com/o/r"], cwd=tmp_path, check=True)
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]
    assert project["urls"]["Issues"] == "https://github.com/o/r/issues"
    assert project.pop("urls")
    assert project == PYPROJECT["project"]
    again = subprocess.run(
        [*script, "https://github.com/o/r"], cwd=tmp_path, capture_output=True, check=False
    )
    assert again.returncode == 1
