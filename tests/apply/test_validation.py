"""The table of programs that were measured is that of the lines that were added."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_table_of_the_measured_programs():
    words = ["benchmarks/applied_table.py", "samples/validation/measured/h200-applied.jsonl"]
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() in (ROOT / "docs" / "validation.md").read_text(encoding="utf-8")
