"""The programs in benchmarks/ run, and the hot paths keep their place beside plain NumPy."""

from __future__ import annotations

import lzma
import os
import runpy
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from depgraph.dependence.sweep import find_dependences
from depgraph.parsers.nvbit.log import NvbitTrace

if TYPE_CHECKING:
    from collections.abc import Callable

    from depgraph.store.store import Store

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"

pytestmark = pytest.mark.jit_only


def output_of(*arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("program", "row"),
    [
        ("extract_speed.py", "two-kernel log"),
        ("large_input.py", "`--memory-limit 512MiB`"),
        ("first_run.py", "first `check`, packaged log"),
        ("bound_speed.py", "all-to-all"),
        ("against_dataframes.py", "pandas"),
    ],
)
def test_a_program_prints_its_table(program: str, row: str, tmp_path: Path) -> None:
    printed = output_of(
        BENCHMARKS / program, "--quick", "--data", tmp_path / "none", "--work", tmp_path
    )
    assert "| what | cores | measured | target | |" in printed
    assert row in printed
    assert f"{len(os.sched_getaffinity(0))} cores of " in printed
    assert [line for line in printed.splitlines() if "the same" in line and "missed" in line] == []
    assert list(tmp_path.iterdir()) == []


def test_a_large_log_numbers_its_launches_on(tmp_path: Path, sample_trace: Path) -> None:
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


def test_tables_go_between_the_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    replace_tables = runpy.run_path(str(BENCHMARKS / "pages.py"))["replace_tables"]
    page = "a\n<!-- tables: begin -->\nold\n<!-- tables: end -->\nb\n"
    once = replace_tables(page, "new")
    assert once == "a\n<!-- tables: begin -->\n\nnew\n<!-- tables: end -->\nb\n"
    assert replace_tables(once, "new") == once
    with pytest.raises(ValueError, match="lacks the lines"):
        replace_tables("a\n", "new")


def test_the_page_has_the_marks() -> None:
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert page.count("<!-- tables: begin -->") == page.count("<!-- tables: end -->") == 1


def seconds(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def ratio(work: Callable[[], None], reference: Callable[[], None]) -> float:
    """Return the median ratio of processor times, measured side by side after one warm round."""
    rounds = [(seconds(work), seconds(reference)) for _ in range(8)][1:]
    return statistics.median(one / other for one, other in rounds)


def test_scanning_keeps_up_with_counting_lines(tmp_path: Path, sample_trace: Path) -> None:
    path = tmp_path / "trace.log"
    path.write_bytes(lzma.decompress(sample_trace.read_bytes()))

    def scan() -> None:
        for task in NvbitTrace(path).tasks():
            task.scan()

    def count() -> None:
        np.count_nonzero(np.fromfile(path, np.uint8) == ord("\n"))

    found = ratio(scan, count)
    assert found < 12, f"a scan takes {found:.1f} times as long as counting lines with NumPy"


def test_finding_dependences_keeps_up_with_sorting(sample_store: Store) -> None:
    footprints, graph = sample_store.footprints(), sample_store.graph()

    def find() -> None:
        for _ in range(20):
            find_dependences(footprints, graph.first_block, graph.kernel)

    def sort() -> None:
        for _ in range(20):
            np.lexsort((footprints.end, footprints.start, footprints.kind, footprints.block))

    found = ratio(find, sort)
    assert found < 60, f"dependences take {found:.1f} times as long as sorting the footprints"
