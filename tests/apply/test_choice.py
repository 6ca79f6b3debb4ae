"""Which graph is used: the fastest of those whose results are right, never one that is slower."""

from __future__ import annotations

from depgraph.apply.applied import Applied, Tried, read_applied, write_applied
from depgraph.apply.plan import Bought, Candidate
from depgraph.apply.trial import Difference, choose

CHAIN, ALL, OWN, TWO = (
    Candidate(name, edges)
    for name, edges in (
        ("as captured", ((0, 1), (1, 2))), ("all", ((0, 2),)), ("own buffers", ()),
        ("2 branches", ((0, 1),)),
    )
)  # fmt: skip


class Bench:
    """Times and results that are stated."""

    def __init__(self, times, wrong=()):
        self.times, self.wrong = times, wrong
        self.compared = []

    def measure(self, candidate):
        return self.times[candidate.name]

    def compare(self, candidate):
        self.compared.append(candidate.name)
        return Difference(1, "node 1, gemm") if candidate.name in self.wrong else None


def test_of_two_that_are_as_fast_the_one_with_less_memory_is_used():
    own = Candidate("own buffers", (), frozenset({1, 2}))
    few = Candidate("few own buffers", ((1, 2),), frozenset({1}))
    for time, used in ((50.9, few), (52.0, own)):
        bench = Bench({"as captured": 100.0, "own buffers": 50.0, "few own buffers": time})
        assert tried(bench, (CHAIN, own, few))[0] is used


def tried(bench, candidates=(CHAIN, ALL, OWN, TWO)):
    return choose(bench, candidates, lambda _: None, lambda edges: float(len(edges)))


TIMES = {"as captured": 100.0, "all": 60.0, "own buffers": 20.0, "2 branches": 40.0}


def test_the_fastest_is_used_and_compared():
    bench = Bench(TIMES)
    chosen, rows = tried(bench)
    assert (chosen, bench.compared) == (OWN, ["own buffers"])
    assert [row.name for row in rows] == ["as captured", "own buffers", "2 branches", "all"]


def test_one_with_another_result_is_not_used_and_the_kernel_is_named():
    bench = Bench(TIMES, wrong=["own buffers", "2 branches"])
    chosen, rows = tried(bench)
    assert (chosen, bench.compared) == (ALL, ["own buffers", "2 branches", "all"])
    assert [row.refused for row in rows][:3] == ["", *["another result: node 1, gemm"] * 2]


def test_the_less_promising_are_tried_where_none_of_the_others_is_right():
    others = [Candidate(f"graph {i}", ((0, 1),) * i) for i in range(8)]
    times = {"as captured": 100.0} | {each.name: 10.0 + i for i, each in enumerate(others)}
    bench = Bench(times, wrong=[each.name for each in others[:7]])
    chosen, rows = tried(bench, (CHAIN, *others))
    assert chosen is others[7]
    assert [bool(row.refused) for row in rows] == [False, *[True] * 7, False]
    bench = Bench(times)
    assert tried(bench, (CHAIN, *others))[0] is others[0]
    assert bench.compared == ["graph 0"]


def test_where_nothing_can_be_compared_the_captured_graph_is_used_and_it_is_said_why():
    bench = Bench(TIMES)
    bench.compare = lambda _: Difference(None, "no two runs are alike")
    chosen, rows = tried(bench)
    assert chosen is CHAIN
    assert [row.refused for row in rows] == ["", *["no two runs are alike"] * 3]


def test_only_a_reproducible_graph_is_bit_equal():
    tried_ = (Tried("as captured", 2, 104.0, 100.0),)
    for is_reproducible, tolerance, equal in ((True, 0.0, True), (False, 0.0, False)):
        applied = Applied(
            "f", "GPU", 3, 3, 90.0, {}, tried_, "as captured", 0, (), 3, is_reproducible, tolerance
        )
        assert applied.row()["bit_equal"] is equal


def test_none_is_used_that_is_not_faster():
    chosen, rows = tried(Bench(dict.fromkeys(TIMES, 99.5) | {"as captured": 100.0}))
    assert chosen is CHAIN
    assert len(rows) == 4


def test_only_those_that_promise_most_are_measured():
    many = [Candidate(f"{n}", tuple((i, i + 1) for i in range(n))) for n in range(3, 12)]
    bench = Bench({"as captured": 100.0, **{each.name: 50.0 for each in many}})
    _, rows = choose(bench, [CHAIN, *many], lambda edges: 200.0 - len(edges), lambda _: 0.0)
    assert {row.name for row in rows} == {"as captured", "11", "10", "9", "8", "7", "6"}


def test_what_came_of_it_is_written_and_read(tmp_path):
    applied = Applied(
        name="Ensemble", gpu="NVIDIA H100", nodes=3, kernels=3, kernel_us=90.0, fixed={"opaque": 1},
        tried=(Tried("as captured", 2, 104.0, 100.0), Tried("own buffers", 0, 25.0, 20.0)),
        chosen="own buffers", more_bytes=1024, bought=(Bought(0, 512, 2, 1024, 80.0, (0, 1)),),
        inputs=3,
    )  # fmt: skip
    write_applied(tmp_path / "applied.json", [applied])
    (found,) = read_applied(tmp_path / "applied.json")
    assert found == applied
    assert (found.speedup, found.predicted_speedup) == (5.0, 4.16)
    assert str(found).splitlines() == [
        "Ensemble: 100 us as captured, 20 us as own buffers: 5.00x",
        "predicted: 104 us and 25 us",
    ]
