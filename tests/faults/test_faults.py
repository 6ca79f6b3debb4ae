"""Whatever is damaged: an answer with a word about it, or one clear line, soon.

Every fifth of a hundred cases runs if nothing is said. `pytest tests/faults --seeds 100` runs ten
thousand; `python tests/faults` does the same with the figures at the end, and runs a single case
again.
"""

import pytest
from faults import inputs, readings
from faults.campaign import findings_in, pool, show
from faults.cases import KINDS, cases_of
from faults.ground import edges_in
from faults.profiles import profiles

import depgraph
from depgraph.extraction.pipeline import analyse
from depgraph.parsers import open_trace
from depgraph.parsers.profiles import read_profile


@pytest.fixture(scope="module")
def run_all():
    with pool(1) as run:  # pytest itself has a process for each core
        yield run


PLAIN, *PACKED = inputs.PACKERS
WHOLE = [
    (name, packing)
    for number, name in enumerate(inputs.traces())
    for packing in (PLAIN, PACKED[number % len(PACKED)])
    if packing == PLAIN or name != "packed kernel"  # nothing packs a .tracez again
]


@pytest.mark.parametrize(("name", "packing"), WHOLE)
def test_undamaged_traces_are_read(tmp_path, name, packing):
    extraction = analyse(open_trace(inputs.write_trace(tmp_path, name, packing)), jobs=1)
    assert extraction.metadata["warnings"] == {}
    assert sum(k.accesses for k in extraction.kernels) > 0


@pytest.mark.parametrize("name", readings.TRACES)
def test_slow_readings_of_whole_traces(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    path = inputs.write_trace(tmp_path, name)
    given = tmp_path if name == "chain kernel" else path
    store = depgraph.extract(open_trace(given), tmp_path / "out")
    its_format, read = readings.TRACES[name]
    assert store.metadata["format"] == its_format
    assert read(path.read_bytes(), tmp_path) == edges_in(store.path)


@pytest.mark.parametrize("name", readings.PROFILES)
def test_slow_readings_of_whole_profiles(tmp_path, name):
    path = tmp_path / "profile"
    path.write_bytes(profiles()[name])
    found = read_profile(path).duration * (1000 if name == "blocks-csv" else 1)
    assert readings.PROFILES[name](path) == pytest.approx(found.tolist())


@pytest.mark.jit_only
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_worse_than_a_refusal(run_all, pytestconfig, kind):
    seeds, first = map(pytestconfig.getoption, ("--seeds", "--first-seed"))
    cases = cases_of(kind, seeds or 1, first)
    results = list(run_all(cases if seeds else cases[::5]))
    found = "\n\n".join(map(show, findings_in(results)))
    assert not found, f"python tests/faults --only CASE runs one again\n\n{found}"
