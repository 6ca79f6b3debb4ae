"""Programs with and without each kind of order, `orders.cu`, as recorded on an H100."""

from pathlib import Path

from orders import judged

from depgraph.extraction.pipeline import extract
from depgraph.parsers import open_trace

DATA = Path(__file__).parent / "data"


def test_programs_race_that_lack_an_order(tmp_path):
    store = extract(open_trace(DATA / "orders.recording"), tmp_path / "it.out")
    racing, expected, found = judged(store, (DATA / "orders.txt").read_text())
    assert racing == expected
    assert len(racing) == 31
    assert found.unjudged == 4  # of nodes inside of a conditional one nobody knows
