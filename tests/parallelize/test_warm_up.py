"""A function is run until it is warm, and everything is as if it had not been."""

from __future__ import annotations

import random
from array import array
from collections import OrderedDict
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from depgraph.errors import ApplyError  # noqa: E402
from depgraph.torch.bindings import find_bindings  # noqa: E402
from depgraph.torch.warm_up import warm_up  # noqa: E402

CPU = torch.device("cpu")


def warmed(function, *inputs):
    return warm_up(
        partial(function, *inputs), lambda ran: find_bindings({"f": function}, ran), CPU, "f"
    )


def test_state_statistics_and_random_numbers_are_restored():
    net, cache = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout()), torch.zeros(8, 4)
    net.requires_grad_(requires_grad=False)
    at = torch.tensor([3])

    def run(x):
        y = net(x)
        cache.index_copy_(0, at, y[:1])
        at.add_(1)
        return y

    before = [t.clone() for t in (*net.buffers(), cache, at)]
    torch.manual_seed(5)
    random = torch.get_rng_state()
    warm = warmed(run, torch.randn(6, 4))
    assert cache.any()
    warm.undo()
    after = [*net.buffers(), cache, at]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert not torch.equal(torch.get_rng_state(), random)  # of torch.randn, before the first run
    assert warm.made == ""


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Linear(4, 4)


def step_of(net, optimizer, **more):
    def step(x):
        optimizer.zero_grad(**more)
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def test_gradients_that_each_run_makes_anew_are_not_read(net):
    warm = warmed(step_of(net, torch.optim.SGD(net.parameters(), lr=0.1)), torch.randn(2, 4))
    weight = net.weight.detach().clone()
    assert {id(t) for t, _ in warm.anew} == {id(p) for p in net.parameters()}
    warm.undo()
    assert net.weight.grad is None
    assert not torch.equal(net.weight, weight)
    assert warm.made == ""


def test_what_the_first_run_makes_stays_and_so_that_run_counts(net):
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    step, x = step_of(net, optimizer), torch.randn(2, 4)
    twin = nn.Linear(4, 4)
    twin.load_state_dict(net.state_dict())
    step_of(twin, torch.optim.Adam(twin.parameters(), lr=0.1))(x)
    warm = warmed(step, x)
    warm.undo()
    assert warm.made == "optimizer.state"
    assert torch.equal(net.weight, twin.weight)
    assert all(int(s["step"]) == 1 for s in optimizer.state.values())


def test_gradients_that_the_first_run_makes_and_others_add_to(net):
    step = step_of(net, torch.optim.SGD(net.parameters(), lr=0.1), set_to_none=False)
    warm = warmed(step, torch.randn(2, 4))
    assert (warm.made, warm.anew) == ("gradients", [])
    assert net.weight.grad is not None


class Counter:
    calls = 0
    kept = ()


def test_a_value_that_is_bound_anew_in_each_run_is_refused():
    def count(x):
        Counter.calls += 1
        return x * Counter.calls

    def keep(x):
        Counter.kept = (*Counter.kept, x * 2)
        return Counter.kept[-1]

    made = []

    def collect(x):
        made.append(x)
        return x * len(made)

    for function, name in ((count, "Counter.calls"), (keep, "Counter.kept"), (collect, "made")):
        with pytest.raises(ApplyError, match=rf"f reads {name}.* and binds something else to it"):
            warmed(function, torch.ones(4))


@pytest.mark.parametrize("counter", [np.zeros(1), array("i", [0]), bytearray(1)])
def test_an_array_that_counts_runs_is_refused(counter):
    """What it counts to is far away: no run that is compared would show it."""

    def count(x):
        counter[0] += 1
        return x * 2 if counter[0] < 100 else x

    with pytest.raises(ApplyError, match="f reads counter and binds something else to it"):
        warmed(count, torch.ones(4))


GENERATORS = {
    "python": (random.Random(0), lambda chance: chance.random()),  # noqa: S311
    "numpy": (np.random.default_rng(0), lambda chance: chance.random()),
    "numpy's old one": (np.random.RandomState(0), lambda chance: chance.rand()),
    "torch": (
        torch.Generator().manual_seed(0), lambda chance: float(torch.rand(1, generator=chance))
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", GENERATORS)
def test_a_generator_of_ones_own_that_each_run_draws_from_is_refused(kind):
    """It leaves out a layer in one of a thousand calls, which no comparison would meet."""
    chance, draw = GENERATORS[kind]
    layer = nn.Module()
    layer.chance, layer.forward = chance, lambda x: x if draw(layer.chance) < 0.001 else x * 2
    with pytest.raises(ApplyError, match=r"f reads .*chance and binds something else to it"):
        warmed(layer, torch.ones(4))


@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_a_dictionary_whose_order_each_run_changes_is_refused(kind):
    held = kind(a=1.0, b=2.0)

    def take_turns(x):
        name = next(iter(held))
        held[name] = held.pop(name)
        return x * held[name]

    with pytest.raises(ApplyError, match="f reads held and binds something else to it"):
        warmed(take_turns, torch.ones(4))


def test_a_result_that_needs_gradients_is_refused_and_nothing_is_changed(net):
    state = torch.zeros(4)

    def run(x):
        state.add_(1)
        return net(x)

    with pytest.raises(ApplyError, match="what f returns requires gradients"):
        warmed(run, torch.ones(2, 4))
    assert not state.any()


def test_a_function_that_fails_leaves_things_as_they_were():
    state = torch.zeros(4)

    def run(x):
        state.add_(1)
        raise ValueError(x.shape)

    with pytest.raises(ValueError, match="4"):
        warmed(run, torch.ones(4))
    assert not state.any()


def test_backward_passes_and_libraries_are_noticed(net):
    training = warmed(step_of(net, torch.optim.SGD(net.parameters(), lr=0.1)), torch.randn(2, 4))
    assert training.uses_libraries
    assert not warmed(lambda x: x.relu() + 1, torch.ones(4)).uses_libraries


@pytest.mark.parametrize("name", ["DistributedDataParallel", "FullyShardedDataParallel"])
def test_what_several_processes_do_together_is_refused_by_name(name, net):
    wrapper = type(name, (nn.Sequential,), {"__module__": "torch.nn.parallel"})(net)
    wrapper.requires_grad_(requires_grad=False)
    for function in (wrapper, lambda x: wrapper(x) * 2):
        with pytest.raises(ApplyError, match=f"f uses {name}, .*; give the module that it wraps"):
            warmed(function, torch.ones(2, 4))
    own = type(name, (nn.Sequential,), {})(net)
    assert warmed(own, torch.ones(2, 4)).made == ""
