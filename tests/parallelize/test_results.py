"""Results of runs are compared bit by bit, and by how much they vary where nothing is wrong."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from depgraph.torch.bench import Result, first_difference, not_close, spread_of, wider  # noqa: E402


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


def test_what_varies_in_either_of_two_comparisons_varies():
    runs = [results(summed(seed), torch.tensor([0, seed])) for seed in range(5)]
    at_once = spread_of(runs)
    by_two = None
    for other in runs[1:]:
        by_two = wider(by_two, spread_of([runs[0], other]))
    assert all(map(torch.equal, by_two, at_once))
    assert wider(None, None) is None
    assert wider([None], at_once[:1]) == at_once[:1] == wider(at_once[:1], [None])


def test_sums_of_large_numbers_may_differ_by_their_rounding():
    """Two of 64 000 elements of a graph network did that no run had shown to vary so much."""
    wanted = torch.cat([torch.full((999,), 1e-3), torch.full((1,), 64.0)])
    other = wanted.clone()
    other[:9] += 1e-10
    spread = spread_of([results(wanted), results(other)])
    found = wanted.clone()
    found[-1] = torch.nextafter(torch.nextafter(wanted[-1], torch.tensor(99.0)), torch.tensor(99.0))
    assert first_difference(results(found), results(wanted), spread) == ""
    found[-1] += 1e-4
    assert first_difference(results(found), results(wanted), spread)


def test_elements_that_nobody_writes_hide_nothing_of_others():
    wanted = torch.randn(100, generator=torch.Generator().manual_seed(0))
    garbage = wanted.clone()
    garbage[:3] = torch.tensor([float("nan"), 1e30, 0.0])
    other = wanted * (1 + 1e-7)
    spread = spread_of([results(wanted), results(garbage), results(other)])
    assert first_difference(results(garbage), results(wanted), spread) == ""
    wrong = wanted.clone()
    wrong[50] += 1e-4
    assert first_difference(results(wrong), results(wanted), spread).endswith("1 of 100 elements")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_beside_a_large_number_others_are_compared_as_closely(dtype):
    """One channel of a transformer holds thousands: what rounds it is more than all others are."""
    generator = torch.Generator().manual_seed(0)
    wanted = torch.randn(100, generator=generator).to(dtype)
    wanted[7] = 1e3 / torch.finfo(dtype).eps
    runs = [wanted.clone() for _ in range(2)]
    runs[1][50:60] *= 1 + torch.finfo(dtype).eps
    spread = spread_of([results(each) for each in runs])
    assert first_difference(results(runs[1]), results(wanted), spread) == ""
    early = wanted.clone()  # as if what writes half of it were not waited for
    early[8:50] = 0.0
    assert first_difference(results(early), results(wanted), spread).endswith("of 100 elements")


def test_gradients_that_vary_about_zero_hide_nothing_of_others():
    wanted = torch.cat([torch.zeros(60), torch.linspace(1.0, 2.0, 40)])
    runs = [wanted.clone() for _ in range(3)]
    for seed, run in enumerate(runs):
        run[:60] = 1e-9 * torch.randn(60, generator=torch.Generator().manual_seed(seed))
    spread = spread_of([results(run) for run in runs])
    wrong = runs[0].clone()
    wrong[80] *= 0.9
    said = "output 0 differs in 1 of 100 elements"
    assert first_difference(results(wrong), results(runs[0]), spread) == said


def test_what_a_function_makes_of_sums_varies_by_a_share_of_what_it_is():
    """Most elements of a softmax are next to nothing, and so is by how much they vary."""
    logits = 30 * torch.randn(50, 32, generator=torch.Generator().manual_seed(1))

    def run(seed):
        generator = torch.Generator().manual_seed(seed)
        noise = (torch.rand(logits.shape, generator=generator) < 0.1) * 4e-6
        return results((logits + noise).softmax(-1))

    spread = spread_of([run(seed) for seed in range(9)])
    for seed in range(9, 60):
        assert first_difference(run(seed), run(0), spread) == ""


def test_what_is_another_thing_in_each_run_hides_nothing_of_what_never_varies():
    """Tokens that a rounded router sends elsewhere, beside those that it does not."""
    wanted = torch.linspace(1.0, 2.0, 100)
    runs = [wanted.clone() for _ in range(9)]
    for seed, run in enumerate(runs):
        run[:60] = torch.randn(60, generator=torch.Generator().manual_seed(seed))
    spread = spread_of([results(run) for run in runs])
    other = runs[1].clone()
    other[80] *= 1.0001
    assert first_difference(results(other), results(runs[0]), spread) == ""
    other[80] *= 1.1
    said = "output 0 differs in 1 of 100 elements"
    assert first_difference(results(other), results(runs[0]), spread) == said


def test_a_sum_that_overflows_in_some_orders_hides_nothing_of_others():
    wanted = torch.linspace(1.0, 2.0, 100).half()
    wanted[3] = float("inf")
    other = wanted.clone()
    other[3] = 6e4
    spread = spread_of([results(wanted), results(other)])
    assert first_difference(results(other), results(wanted), spread) == ""
    said = "output 0 differs in 99 of 100 elements"
    assert first_difference(results(torch.zeros(100).half()), results(wanted), spread) == said


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


def test_what_is_nothing_but_rounding_is_as_close_as_its_runs_are_to_each_other():
    """The gradient of a bias before a batch norm is zero, but for sums in another order each time."""

    def noise(seed):
        return results(1e-9 * torch.randn(64, generator=torch.Generator().manual_seed(seed)))

    spread = spread_of([noise(seed) for seed in range(3)])
    for seed in range(3, 20):
        assert not_close(noise(seed), noise(0), spread) == ""
    wrong = noise(5)
    wrong[0].tensor[7] = 1e-7
    assert not_close(wrong, noise(0), spread) == "output 0 differs in 1 of 64 elements"
