"""Damaged traces: thousands of mutants give a graph or one clear line, soon and in little memory.

`DEPGRAPH_MUTANTS` sets how many; a failure names the mutant, and `mutant(number, seeds())` is it.
"""

import os
import resource
import time

import mutants
import pytest

MUTANTS = int(os.environ.get("DEPGRAPH_MUTANTS", "4000"))
GROUPS = 8
SECONDS = 10
GROWTH_KIB = 1 << 20


@pytest.fixture(scope="module")
def traces():
    return mutants.seeds()


@pytest.fixture
def folder(tmp_path, traces):
    """Return a folder with the kernel files that the list of the seeds names."""
    (tmp_path / "kernel-1.traceg").write_bytes(traces["grouped kernel"])
    (tmp_path / "kernel-2.trace").write_bytes(traces["raw kernel"])
    return tmp_path


def write(folder, name, data):
    path = folder / ("kernelslist.g" if name == "list" else "trace")
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", mutants.seeds())
@pytest.mark.parametrize("packing", mutants.PACKERS)
def test_undamaged_traces_are_read(folder, traces, name, packing):
    path = write(folder, name, mutants.PACKERS[packing](traces[name]))
    extraction = mutants.survive(path, allow_damaged=False)
    assert extraction is not None
    assert extraction.metadata["warnings"] == {}
    assert sum(k.accesses for k in extraction.kernels) > 0


@pytest.mark.jit_only
@pytest.mark.parametrize("group", range(GROUPS))
def test_mutants_are_survived(folder, traces, group):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    graphs = 0
    for number in range(group, MUTANTS, GROUPS):
        name, packing, data = mutants.mutant(number, traces)
        path = write(folder, name, data)
        began = time.perf_counter()
        try:
            graphs += mutants.survive(path, allow_damaged=number % 3 > 0) is not None
        except Exception as error:
            raise AssertionError(f"mutant {number} of {name!r}, {packing}") from error
        assert time.perf_counter() - began < SECONDS, f"mutant {number} of {name!r}, {packing}"
        path.unlink()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH_KIB
    assert graphs > MUTANTS / GROUPS / 4
