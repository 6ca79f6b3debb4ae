"""The documentation tells the truth: every command and its output, every example, every page."""

import contextlib
import importlib.util
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from depgraph.cli.progress import FIRST_RUN
from depgraph.samples import KERNEL_TIMES, sample_path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if path.parent.name != "commands")
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BASH = shutil.which("bash") or "bash"
NOT_RUN = "# not run here"


def generator():
    spec = importlib.util.spec_from_file_location("generate", DOCS / "_generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_what_the_program_says():
    outdated = [
        path.relative_to(ROOT).as_posix()
        for path, text in generator().pages().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    assert outdated == [], "run: python docs/_generate.py"


@pytest.mark.jit_only
def test_the_picture_in_readme_is_what_the_program_draws():
    module = generator()
    drawn, result = module.picture()
    kept = module.PICTURE.read_text(encoding="utf-8")
    assert result in drawn
    assert result in kept, "run: python docs/_generate.py"
    assert len(kept) < 150_000
    assert f"docs/{module.PICTURE.name}" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_command_has_a_page_and_every_page_a_command():
    from depgraph.cli.app import COMMANDS

    assert {path.stem for path in (DOCS / "commands").glob("*.md")} == set(COMMANDS)


def test_every_command_and_option_has_help():
    from depgraph.cli.app import COMMANDS, depgraph

    context = click.Context(depgraph)
    for name in COMMANDS:
        command = depgraph.get_command(context, name)
        assert command.help, name
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, (name, parameter.name)


@pytest.fixture(scope="module")
def on_path(tmp_path_factory):
    """Return an environment in which `depgraph` is the program under test."""
    folder = tmp_path_factory.mktemp("bin")
    script = folder / "depgraph"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m depgraph "$@"\n')
    script.chmod(0o755)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GITHUB_")}
    return {**environment, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def pattern_of(expected):
    """Return a pattern for output: `...` stands for lines, or for part of a line."""
    lines = [
        "(?:.*\n)*?" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + "\n"
        for line in expected
    ]
    return re.compile("".join(lines) + r"\Z")


def run_command(command, environment, program):
    """Return exit code and output; what needs no shell runs in the process of the test."""
    if command.startswith("depgraph ") and not re.search(r"[|<>&;$*`~]", command):
        code, out, err = program(*shlex.split(command, comments=True)[1:])
        return code, out + err
    done = subprocess.run(
        [BASH, "-c", command], env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr.replace(f"{FIRST_RUN}\n", "")


def run_console(text, environment, program):
    if all(line.startswith("$ ") for line in text.splitlines()):
        return  # commands alone, on files of the reader's
    for block in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *expected = block.rstrip("\n").split("\n")
        code = 0
        if expected and (found := re.fullmatch(r"\[exit code (\d+)\]", expected[-1])):
            code = int(found[1])
            expected.pop()
        ended, output = run_command(command, environment, program)
        assert ended == code, f"$ {command}\n{output}"
        assert pattern_of(expected).match(output), f"$ {command}\n{output}"


EXAMPLES = [
    page for page in PAGES if re.search(r"^```(console|python)\b", page.read_text(), re.MULTILINE)
]


@pytest.mark.jit_only
@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.stem)
def test_the_examples_of_a_page_do_what_it_says(page, on_path, program, monkeypatch):
    text = page.read_text(encoding="utf-8")
    if "import duckdb" in text:
        pytest.importorskip("duckdb", reason="depgraph[test-all] is not installed")
    for name in set(os.environ) - set(on_path):
        monkeypatch.delenv(name)
    names = {}
    for kind, block in BLOCK.findall(text):
        if kind == "console":
            run_console(block, on_path, program)
        elif kind == "python" and not block.startswith(NOT_RUN):
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(block, page.name, "exec"), names)  # noqa: S102


def shown_commands():
    for page in PAGES:
        for kind, block in BLOCK.findall(page.read_text(encoding="utf-8")):
            if kind in {"console", "sh", "bash", "shell", "text"}:
                for line in re.findall(r"^\$? ?(depgraph \w.*)$", block, re.MULTILINE):
                    yield page.name, line


def test_every_command_that_is_shown_has_the_options_that_are_shown():
    from depgraph.cli.app import COMMANDS, depgraph

    context = click.Context(depgraph)
    shown = list(shown_commands())
    assert len(shown) > 10
    for page, line in shown:
        name, *words = line.split("#")[0].split(" -- ")[0].split()[1:]
        assert name in COMMANDS, f"{page}: {line}"
        command = depgraph.get_command(context, name)
        known = {option for parameter in command.params for option in parameter.opts}
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert options <= known, f"{page}: {line}"


@pytest.mark.slow
@pytest.mark.jit_only
def test_the_ci_script_passes_and_fails_as_it_should(on_path, sample_trace, tmp_path):
    script = ROOT / "samples" / "ci" / "check.sh"

    def run(*words, **environment):
        return subprocess.run(
            [BASH, script, *words], cwd=tmp_path, env={**on_path, **environment},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    summary = tmp_path / "summary.md"
    passed = run(sample_trace, sample_trace, GITHUB_STEP_SUMMARY=str(summary))
    assert passed.returncode == 0, passed.stderr
    assert (tmp_path / "report" / "index.html").is_file()
    assert summary.read_text().startswith("## depgraph: ")
    assert 0 < float((tmp_path / "utilization.txt").read_text()) < 1
    times = str(sample_path(KERNEL_TIMES))
    timed = run(sample_trace, sample_trace, TIMES=times, BASELINE_TIMES=times)
    assert timed.returncode == 0, timed.stderr
    assert "5.03 ms now" in timed.stdout
    failed = run(sample_trace, MOST_SPEEDUP_LEFT="1.1")
    assert failed.returncode == 3
    assert "upper_bound: expected at most 1.1, got 1.333" in failed.stderr


def test_the_ci_files_of_the_docs_are_those_that_are_run():
    page = (DOCS / "ci.md").read_text()
    for name in ("check.sh", "github.yml", "gitlab.yml"):
        assert f'--8<-- "samples/ci/{name}"' in page
        if name.endswith(".yml"):
            assert "bash samples/ci/check.sh" in (ROOT / "samples" / "ci" / name).read_text()
