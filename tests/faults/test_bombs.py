"""Small files that unpack to much end in one line, in no more memory than they may take."""

import pytest
from faults.bombs import BOMBS, LARGE, LIMIT, run

from depgraph.system.workers import BASE_BYTES

REFUSED, FINE = 1, 0
LONG = {
    *LARGE, "300 thousand members", "maps", "tiles of a million rows", "tiles of too many rows",
    "events by bzip2 that lie", "members of an event", "table of zeros, as large as may be",
}  # fmt: skip
ALL = [pytest.param(n, marks=[pytest.mark.slow] * (n in LONG)) for n in (*BOMBS, *LARGE)]


@pytest.mark.jit_only
@pytest.mark.parametrize("name", ALL)
def test_a_bomb_is_refused_within_the_memory_limit(tmp_path, name):
    took = run(name, tmp_path)
    assert took.peak < LIMIT + BASE_BYTES
    assert took.code in {REFUSED, FINE}
    if took.code == REFUSED:
        assert took.err.startswith("depgraph: error: ")
        assert took.err.count("\n") == 1
        assert not (tmp_path / "out").exists()
    else:
        assert name in {*LARGE, "tiles of too many rows", "tiles of a million rows"}
