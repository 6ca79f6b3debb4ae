"""One process an item: results come back, and one that is lost harms no other."""

from processed import square_or_die

from depgraph.system.processes import Lost, Processes
from depgraph.system.workers import available_jobs, limit_jobs


def test_each_item_gets_a_result_or_why_it_has_none():
    found = dict(Processes(2).attempt(square_or_die, range(5)))
    assert {i: found[i] for i in (0, 1, 4)} == {0: 0, 1: 1, 4: 16}
    assert isinstance(found[2], Lost)
    assert found[2].reason.startswith("its process was ended by SIGKILL")
    assert found[3] == Lost("its process ended with exit code 7")


def test_nothing_is_left_running_where_the_caller_stops():
    pool = Processes(2)
    results = pool.attempt(square_or_die, [4] * 10)
    assert next(results)[1] == 16
    results.close()
    assert not pool._running


def test_a_process_may_be_told_to_use_fewer_processors(monkeypatch):
    monkeypatch.setattr("depgraph.system.workers._Limit.jobs", 1 << 20)
    limit_jobs(1)
    assert available_jobs() == 1
