"""Whatever is damaged: an answer with a word about it, or one clear line, soon.

`pytest tests/faults --seeds 100` runs ten thousand cases; `python tests/faults` does the same with
the figures at the end, and runs a single case again.
"""

import pytest
from faults import inputs
from faults.campaign import findings_in, pool, show
from faults.cases import KINDS, cases_of

from depgraph.parsers import open_trace
from depgraph.pipeline import analyse


@pytest.fixture(scope="module")
def run_all():
    with pool() as run:
        yield run


WHOLE = [
    (name, packing)
    for name in inputs.traces()
    for packing in inputs.PACKERS
    if packing == "plain" or name != "packed kernel"  # nothing packs a .tracez again
]


@pytest.mark.parametrize(("name", "packing"), WHOLE)
def test_undamaged_traces_are_read(tmp_path, name, packing):
    for file, text in inputs.kernel_files(name).items():
        (tmp_path / file).write_bytes(text)
    path = tmp_path / inputs.file_name(name)
    path.write_bytes(inputs.PACKERS[packing](inputs.traces()[name]))
    extraction = analyse(open_trace(path), jobs=1)
    assert extraction.metadata["warnings"] == {}
    assert sum(k.accesses for k in extraction.kernels) > 0


@pytest.mark.jit_only
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_worse_than_a_refusal(run_all, pytestconfig, kind):
    results = list(run_all(cases_of(kind, pytestconfig.getoption("--seeds"))))
    found = "\n\n".join(map(show, findings_in(results)))
    assert not found, f"python tests/faults --only CASE runs one again\n\n{found}"
