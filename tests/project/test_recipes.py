"""The recipes of docs/extending.md work as they are written: format, mechanism, event, report."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT, copy_packages

PAGE = ROOT / "docs" / "extending.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = [pytest.mark.jit_only, pytest.mark.slow]


def section(title):
    """Return the text below a heading."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(f"\n## {title}\n")
    assert rest, f"no section {title!r} in {PAGE.name}"
    return rest.partition("\n## ")[0]


def fences(text, language):
    return [block for kind, block in FENCE.findall(text) if kind == language]


def file_of(text):
    """Return the example that names its file in the first line, and that name."""
    (block,) = (b for b in fences(text, "python") if re.match(r"# \S+\.py\n", b))
    return block.partition("\n")[0].removeprefix("# "), block


@pytest.fixture
def extended(tmp_path):
    """Return a checkout into which the example of a recipe is put, and what runs in it."""
    checkout = copy_packages(tmp_path / "checkout", compiled=True)
    environment = {**os.environ, "PYTHONPATH": str(checkout), "COLUMNS": "200"}

    def run(*arguments, code=0):
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done.stdout

    return checkout, run


def test_a_trace_format(extended, tmp_path):
    checkout, run = extended
    recipe = section("A trace format")
    name, module = file_of(recipe)
    (checkout / name).write_text(module)
    (line,) = re.findall(r'"depgraph\.parsers\.\w+"', recipe)
    formats = checkout / "parsers" / "formats.py"
    text = formats.read_text(encoding="utf-8")
    assert text.count("\n_FORMATS = (\n") == 1
    formats.write_text(text.replace("\n_FORMATS = (\n", f"\n_FORMATS = (\n    {line},\n"))
    (example,) = fences(recipe, "text")
    (tmp_path / "copies.txt").write_text(example + example.partition("\n")[2])

    run("-m", "depgraph", "extract", "copies.txt", "-q")
    pairs = json.loads(run("-m", "depgraph", "show", "pairs", "--format", "json"))["pairs"]
    # The second copy writes what the first has written and does not read it.
    assert [(p["source"], p["target"], p["waw"], p["raw"]) for p in pairs] == [(0, 1, 1, 0)]

    (tmp_path / "cut.txt").write_text(example + "read 0,0,0 0x1000\n")
    checked = run("-m", "depgraph", "check", "cut.txt", code=1)
    assert "neither a kernel nor a range" in checked


def test_a_mechanism(extended, tmp_path, sample_store):
    _, run = extended
    recipe = section("A mechanism")
    name, module = file_of(recipe)
    (tmp_path / name).write_text(module)
    commands = re.findall(r"^    depgraph (bound .*)$", recipe, re.MULTILINE)
    (command,) = (each for each in commands if Path(name).stem in each)
    _, *options = command.split()
    found = run("-m", "depgraph", "bound", sample_store.path, *options, "--format", "json")
    (row,) = (r for r in json.loads(found)["mechanisms"] if r["mechanism"] == "two-at-a-time")
    assert row["makespan"] > 0


def patch(checkout, diff):
    """Change a file as a recipe says: what each hunk shows of it must be there once."""
    name, *hunks = re.split(r"^@@\n", diff.removeprefix("--- "), flags=re.MULTILINE)
    path = checkout / name.strip()
    text = path.read_text(encoding="utf-8")
    for hunk in hunks:
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] != "+")
        assert text.count(before) == 1, f"{name} has not one {before!r}"
        text = text.replace(before, "".join(line[1:] or line for line in lines if line[0] != "-"))
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def with_an_event(extended):
    """Return what the recipe of an event says to run, and what runs it."""
    checkout, run = extended
    recipe = section("A kind of event")
    diffs = fences(recipe, "diff")
    assert len(diffs) == 4
    for diff in diffs:
        patch(checkout, diff)
    (use,) = fences(recipe, "python")
    return use, run


def test_a_kind_of_event(with_an_event):
    use, run = with_an_event
    assert re.fullmatch(r"all are answered after \d+ \w+\n", run("-c", use))


def test_a_kind_of_event_is_compiled_as_it_is_interpreted(with_an_event):
    use, run = with_an_event
    compiled = f"from depgraph.system.compiled import compile_always\ncompile_always()\n{use}"
    assert run("-c", compiled.replace("requests.out", "compiled.out")) == run(
        "-c", use.replace("requests.out", "again.out")
    )


def test_a_report(extended):
    checkout, run = extended
    recipe = section("A report")
    name, module = file_of(recipe)
    (checkout / name).write_text(module)
    (use,) = (b for b in fences(recipe, "python") if b not in module)
    (function,) = re.findall(r"^def (\w+)\(", module, re.MULTILINE)
    imported = name.removesuffix(".py").replace("/", ".")
    shown = run("-c", f"from depgraph.{imported} import {function}\n{use}")
    assert re.search(r"^\|.*\|$", shown, re.MULTILINE), shown


def test_a_package_of_its_own(tmp_path):
    """Built, installed into a folder, and used from there beside depgraph."""
    source, site = tmp_path / "source", tmp_path / "site"
    source.mkdir()
    for title in ("A trace format", "A mechanism", "A package of your own"):
        name, code = file_of(section(title))
        (source / Path(name).name).write_text(code)
    (about,) = fences(section("A package of your own"), "toml")
    (source / "pyproject.toml").write_text(about)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", site]
    command = [sys.executable, "-m", "pip", "install", *options, source]
    subprocess.run([*map(str, command)], check=True, capture_output=True)
    (text,) = fences(section("A trace format"), "text")
    (tmp_path / "copies.ranges").write_text(text)
    environment = {
        **os.environ,
        "PYTHONPATH": f"{site}{os.pathsep}{copy_packages(tmp_path / 'it')}",
    }

    def run(*words):
        return subprocess.run(
            [sys.executable, "-m", "depgraph", *words],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip

    assert run("extract", "copies.ranges", "-q").returncode == 0
    rows = run("bound", "--sms", "8", "--mechanism", "serial,two-at-a-time", "--format", "json")
    assert "two-at-a-time" in rows.stdout
    assert "two-at-a-time" in run("mechanisms").stdout
    export = ("export", "--what", "scenario", "-o", "kernels.txt", "--to")
    assert run(*export, "kernel-list").returncode == 0
    assert (tmp_path / "kernels.txt").read_text() == "copy\n"
    wrong = run(*export, "csv", "--force")
    assert (wrong.returncode, "scenario can be written as kernel-list, not" in wrong.stderr) == (
        2, True
    )  # fmt: skip
    (site / "two_at_a_time.py").write_text("raise RuntimeError('no')")
    broken = run("bound", "--sms", "8", "--mechanism", "two-at-a-time")
    assert broken.returncode == 2
    assert "our-depgraph cannot provide 'two-at-a-time'" in broken.stderr
