"""The programs in benchmarks/ run, and their page takes their tables."""

import lzma
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"

pytestmark = pytest.mark.jit_only


def output_of(*arguments):
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("program", "row"),
    [
        ("extract_speed.py", "two-kernel log"),
        ("large_input.py", "`--memory-limit 512MiB`"),
        ("first_run.py", "first `check`, packaged log"),
        ("short_commands.py", "`bound` of gru_train with its profile"),
        ("bound_speed.py", "all-to-all"),
        ("contention_speed.py", "with contention"),
        ("growth.py", "networkx"),
        ("against_dataframes.py", "pandas"),
    ],
)
def test_a_program_prints_its_table(program, row, tmp_path):
    printed = output_of(
        BENCHMARKS / program, "--quick", "--data", tmp_path / "none", "--work", tmp_path
    )
    assert "| what | cores | measured | target | |" in printed
    assert row in printed
    assert f"{len(os.sched_getaffinity(0))} cores of " in printed
    assert [line for line in printed.splitlines() if "the same" in line and "missed" in line] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("program", ["suite_page.py", "hints_page.py"])
def test_a_page_has_the_tables_of_what_is_packaged(program):
    assert output_of(BENCHMARKS / program, "--check") == ""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_best_thresholds_of_child_kernels_are_those_that_were_measured():
    printed = output_of(BENCHMARKS / "validation" / "children.py")
    head, best, *_ = printed.split("\n\n")
    assert "77 runs with children" in head
    rows = [line.split("|") for line in best.splitlines()[2:]]
    assert len(rows) == 10
    assert all(row[2] == row[4] for row in rows)
    assert head in (ROOT / "docs" / "validation.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("model", ["h100_sxm", "h200"])
def test_the_errors_that_reports_quote_are_those_of_this_version(model):
    program = (
        "import sys; sys.path[:0] = sys.argv[1:3]; import families;"
        "print(*(each.to_toml() for each in families.errors(sys.argv[3])), sep='\\n')"
    )
    printed = output_of("-c", program, BENCHMARKS, BENCHMARKS / "validation", model)
    file = ROOT / "depgraph" / "gpu" / "models" / f"{model}.toml"
    assert printed.strip() in file.read_text(encoding="utf-8")


def test_a_large_log_numbers_its_launches_on(tmp_path, sample_trace):
    large = tmp_path / "large.log"
    output_of(BENCHMARKS / "make_large_log.py", sample_trace, large, "50")
    text = large.read_bytes()
    once = lzma.decompress(sample_trace.read_bytes())
    assert text.startswith(once)
    assert text.count(b"\n") == 2 * once.count(b"\n")
    assert text.count(b" - LAUNCH - ") == 50
    for launch in range(25):
        before = once.count(b"grid_launch_id %d " % launch)
        assert text.count(b"grid_launch_id %d " % (25 + launch)) == before


def test_tables_go_between_the_marks(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    replace_tables = runpy.run_path(str(BENCHMARKS / "pages.py"))["replace_tables"]
    page = "a\n<!-- tables: begin -->\nold\n<!-- tables: end -->\nb\n"
    once = replace_tables(page, "new")
    assert once == "a\n<!-- tables: begin -->\n\nnew\n<!-- tables: end -->\nb\n"
    assert replace_tables(once, "new") == once
    with pytest.raises(ValueError, match="lacks the lines"):
        replace_tables("a\n", "new")


def test_the_page_has_the_marks():
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert page.count("<!-- tables: begin -->") == page.count("<!-- tables: end -->") == 1
