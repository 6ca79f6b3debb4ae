"""What a small run does not load: it is what makes starting slow."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
from depgraph.cli import main
try:
    main(sys.argv[1:])
finally:
    print(*sorted(name for name in sys.modules if "." not in name), file=sys.stderr)
"""


def modules_after(*words, cwd):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words], cwd=cwd, capture_output=True, text=True, check=True
    )
    return set(done.stderr.splitlines()[-1].split())


def test_help_loads_no_numeric_library(tmp_path):
    loaded = modules_after("--help", cwd=tmp_path)
    assert "click" in loaded
    assert not loaded & {"numpy", "numba", "pyarrow", "pandas", "matplotlib", "networkx", "rich"}


@pytest.mark.jit_only
def test_the_main_job_loads_neither_pandas_nor_what_only_reports_need(tmp_path, sample_trace):
    loaded = modules_after("extract", str(sample_trace), cwd=tmp_path)
    assert "pyarrow" in loaded
    again = modules_after("extract", str(sample_trace), "--force", cwd=tmp_path)
    for_bound = modules_after("bound", "--sms", "80", cwd=tmp_path)
    # What it compiles is kept, or the graph is small.
    assert not {"numba", "llvmlite"} & (again | for_bound)
    loaded |= for_bound
    assert not loaded & {"pandas", "matplotlib", "networkx", "jinja2", "distributed"}
