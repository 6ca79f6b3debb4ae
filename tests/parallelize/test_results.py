"""Results of runs are compared bit by bit, and by how much they vary where nothing is wrong."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from depgraph.torch.bench import Result, first_difference, not_close, spread_of  # noqa: E402


def results(*tensors):
    return [Result(f"output {i}", tensor) for i, tensor in enumerate(tensors)]


def summed(seed, n=1000, messages=12):
    """Return sums whose terms are added in another order each time, as atomics add them."""
    terms = torch.randn(messages, n, generator=torch.Generator().manual_seed(0))
    order = torch.randperm(messages, generator=torch.Generator().manual_seed(seed))
    total = torch.zeros(n)
    for place in order:
        total += terms[place]
    return total


def test_what_is_the_same_in_all_runs_must_have_the_same_bits():
    one = torch.randn(8)
    assert spread_of([results(one), results(one.clone())]) is None
    assert first_difference(results(one), results(one.clone())) == ""
    other = one.clone()
    other[3] = torch.nextafter(one[3], torch.tensor(9.0))
    assert first_difference(results(other), results(one)) == "output 0 differs in 1 of 8 elements"


def test_sums_in_other_orders_differ_as_they_did_between_runs_and_no_more():
    wanted = summed(0)
    spread = spread_of([results(summed(seed)) for seed in range(3)])
    for seed in range(3, 30):
        assert first_difference(results(summed(seed)), results(wanted), spread) == ""
    wrong = summed(5)
    wrong[7] += 1e-4
    assert first_difference(results(wrong), results(wanted), spread).endswith("1 of 1000 elements")


def test_an_element_that_has_not_varied_yet_may_as_others_did():
    """Three runs show few of those that may: in most elements the order made no difference."""
    wanted = torch.ones(1000)
    other = wanted.clone()
    other[0] += 1e-6
    spread = spread_of([results(wanted), results(other)])
    found = wanted.clone()
    found[500] += 1e-6
    assert first_difference(results(found), results(wanted), spread) == ""
    found[500] += 1e-4
    assert first_difference(results(found), results(wanted), spread)


def test_whole_numbers_may_vary_only_where_they_did():
    wanted, other = torch.zeros(4, dtype=torch.int64), torch.tensor([0, 1, 0, 0])
    spread = spread_of([results(wanted), results(other)])
    assert first_difference(results(torch.tensor([0, 9, 0, 0])), results(wanted), spread) == ""
    assert first_difference(results(torch.tensor([1, 0, 0, 0])), results(wanted), spread)
    assert (
        not_close(results(other), results(wanted), spread) == "output 0 differs in 1 of 4 elements"
    )


def test_a_graph_is_as_close_to_the_function_as_rounding_and_its_own_runs_are_to_each_other():
    wanted = torch.randn(100, generator=torch.Generator().manual_seed(0))
    apart = wanted + 5e-3 * wanted.abs().max()
    said = "output 0 differs in 100 of 100 elements"
    assert not_close(results(wanted * (1 + 1e-5)), results(wanted)) == ""
    assert not_close(results(apart), results(wanted)) == said
    assert not_close(results(apart), results(wanted), [None]) == said
    varies = spread_of([results(wanted), results(wanted + 2e-3 * wanted.abs().max())])
    assert not_close(results(apart), results(wanted), varies) == ""
    assert not_close(results(wanted + 1.0), results(wanted), varies) == said
    # Where it reads what was left in memory, nothing follows from how its runs vary.
    anything = spread_of([results(wanted), results(wanted + 100.0), results(wanted * float("nan"))])
    assert not_close(results(wanted + 1.0), results(wanted), anything) == said
