"""What README shows is what the program prints."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"


@pytest.mark.jit_only
def test_the_output_in_readme_is_that_of_the_demo(tmp_path):
    text = README.read_text(encoding="utf-8")
    (shown,) = re.findall(
        r"depgraph demo`: begin -->(.*)<!-- .*depgraph demo`: end", text, re.DOTALL
    )
    blocks = re.findall(r"```text\n(.*?)```", shown, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-m", "depgraph", "demo"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(README.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(blocks) == 1
    for block in blocks:
        assert block in done.stdout
