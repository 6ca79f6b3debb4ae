"""Graphs are made when they are first wanted, one for each kind of arguments."""

from __future__ import annotations

import threading
import warnings

import pytest

torch = pytest.importorskip("torch")

from depgraph.apply.applied import Applied, Tried  # noqa: E402
from depgraph.errors import ApplyError  # noqa: E402
from depgraph.torch import parallel, parallelize  # noqa: E402
from depgraph.torch.arguments import Arguments  # noqa: E402
from depgraph.torch.on_demand import OnDemand  # noqa: E402
from depgraph.torch.operator_log import OperatorLog  # noqa: E402
from depgraph.torch.parallelized import Parallelized  # noqa: E402

X = torch.arange(8.0)


def applied(call_us, notes=()):
    tried = (Tried("as captured", 1, None, 10.0),)
    return Applied("f", "a GPU", 2, 2, tried, "as captured", 10.0, call_us, notes=tuple(notes))


@pytest.fixture
def made():
    """Return what graphs were asked for."""
    return []


@pytest.fixture
def on_demand(made):
    def of(function, most=8, wrong=""):
        def make(args, keywords):
            made.append((args, keywords))
            if wrong:
                raise ApplyError(wrong)
            found = Parallelized(function, Arguments(args, keywords, gpu="cpu"), "f")
            found.report = applied(len(made))
            return found

        return OnDemand(function, "f", make, most)

    return of


def twice(x, *_more, scale=2, **_others):
    return x * scale


def test_a_call_makes_a_graph_and_the_next_of_its_kind_does_not(on_demand, made):
    fast = on_demand(twice)
    for x in (X, X + 1, X[:4], X[::2], X.double(), X[:4] * 2):
        assert torch.equal(fast(x), x * 2)
    assert [args[0].shape[0] for args, _ in made] == [8, 4, 4, 8]
    assert [report.call_us for report in fast.reports] == [1, 2, 3, 4]


def test_names_nested_arguments_and_values_are_told_apart(on_demand, made):
    fast = on_demand(twice)
    calls = [
        ((X,), {}), ((X,), {"scale": 3}), ((X,), {"scale": 3.0}), ((X,), {"mask": X}),
        ((X, [X, {"a": X}]), {}), ((X, [X, {"b": X}]), {}), ((X, None), {}),
    ]  # fmt: skip
    for _ in range(2):
        for args, keywords in calls:
            assert torch.equal(fast(*args, **keywords), twice(*args, **keywords))
    assert len(made) == len(calls)
    assert made[3] == ((X,), {"mask": X})


def test_tensors_that_are_not_strided_are_of_one_kind(on_demand, made):
    fast = on_demand(twice)
    sparse = torch.diag(X).to_sparse()
    with pytest.warns(RuntimeWarning, match="argument 0 is no strided tensor"):
        assert torch.equal(fast(sparse).to_dense(), torch.diag(X) * 2)
    assert torch.equal(fast(sparse * 3).to_dense(), torch.diag(X) * 6)
    assert len(made) == 1


def test_one_tensor_given_twice_is_another_kind(on_demand, made):
    fast = on_demand(lambda x, y: x * 2 if x is y else x + y)
    for _ in range(2):
        assert torch.equal(fast(X, X + 1), X * 2 + 1)
        assert torch.equal(fast(X, X), X * 2)
    assert len(made) == 2


def test_modes_have_graphs_of_their_own(on_demand, made):
    net = torch.nn.Linear(8, 8)
    fast = on_demand(net)
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad, torch.no_grad):
        with mode():
            fast(X)
    assert len(made) == 3
    with torch.no_grad():
        fast.eval()(X)
    assert len(made) == 4


def test_where_no_graph_can_be_made_the_function_runs_with_one_warning(on_demand, made):
    fast = on_demand(twice, wrong="what f returns requires gradients")
    with pytest.warns(RuntimeWarning, match="f runs by itself, not as a graph: what f returns"):
        fast(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(fast(X), X * 2)
    assert (len(made), fast.reports) == (1, [])


def test_no_more_graphs_are_made_than_there_may_be(on_demand, made):
    fast = on_demand(twice, most=2)
    with pytest.warns(RuntimeWarning, match="with 2 kinds of arguments before: a larger most_gra"):
        found = [fast(X[:n]) for n in (1, 2, 3, 4, 3, 1)]
    assert [len(y) for y in found] == [1, 2, 3, 4, 3, 1]
    assert len(made) == 2


def test_a_function_that_calls_itself_is_one_graph(made):
    def make(args, keywords):
        made.append(args)
        fast(*args)
        return Parallelized(twice, Arguments(args, keywords, gpu="cpu"), "f")

    fast = OnDemand(twice, "f", make, 8)
    assert torch.equal(fast(X), X * 2)
    assert len(made) == 1


def test_no_graph_is_made_while_one_is_made_of_what_calls_it(on_demand, made):
    """Its guards would ask for the mode that listens, and it would never run."""
    fast = on_demand(twice)
    with OperatorLog(torch.device("cpu")) as log:
        fast(X)
    assert (made, [call.name for call in log.calls]) == ([], ["aten::mul.Tensor"])
    fast(X)
    assert len(made) == 1


def test_while_a_thread_makes_a_graph_others_wait_with_what_shares_its_state(made):
    """What runs meanwhile is undone: a call of another thread would be, too."""
    state, inside, may_end = torch.zeros(8), threading.Event(), threading.Event()

    def count(x):
        return state.add_(x) * 1

    def make(args, keywords):
        made.append(args[0].shape[0])
        if len(made) > 1:
            before = state.clone()
            inside.set()
            may_end.wait(5)
            state.copy_(before)
        return Parallelized(count, Arguments(args, keywords, gpu="cpu"), "f")

    fast = OnDemand(count, "f", make, 8)
    fast(torch.ones(8))
    threads = [threading.Thread(target=fast, args=(torch.ones(n),)) for n in (1, 8)]
    threads[0].start()
    inside.wait(5)
    threads[1].start()
    threads[1].join(0.2)
    may_end.set()
    for each in threads:
        each.join()
    assert torch.equal(state, torch.full((8,), 3.0))


def test_while_another_graph_is_made_the_function_itself_runs_and_later_a_graph(monkeypatch):
    waits, may_end = threading.Event(), threading.Event()

    def make(request):
        if request.name == "slow":
            waits.set()
            may_end.wait(5)
        return parallelized(1)

    monkeypatch.setattr(parallel, "_parallelize", make)
    slow, fast = parallelize(lambda x: x, name="slow"), parallelize(twice, name="fast")
    thread = threading.Thread(target=slow, args=(X,))
    thread.start()
    waits.wait(5)
    assert torch.equal(fast(X), X * 2)
    assert fast.reports == []
    may_end.set()
    thread.join()
    fast(X)
    assert len(fast.reports) == 1


def test_an_error_of_the_function_is_its_own_and_nothing_is_kept(on_demand):
    fast = on_demand(twice)
    fast._make = lambda *_: int("none")
    for _ in range(2):
        with pytest.raises(ValueError, match="none"):
            fast(X)


def test_a_model_is_used_as_before(on_demand):
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout())
    fast = on_demand(net)
    assert [*fast.state_dict()] == [*net.state_dict()]
    assert [*fast.parameters()] == [*net.parameters()]
    assert fast.eval() is fast
    assert not net.training
    assert fast.train().to(torch.float64) is fast
    assert net.training
    assert net[0].weight.dtype is torch.float64
    seen = []
    with fast.register_forward_hook(lambda *_: seen.append(1)):
        fast.eval()(X.double())
    assert seen == [1]
    fast.extra = 3
    assert net.extra == 3
    del fast.extra
    assert not hasattr(net, "extra")
    assert "state_dict" in dir(fast)


def test_without_examples_nothing_runs_until_the_first_call():
    calls = []
    fast = parallelize(calls.append)
    assert (type(fast), calls) == (OnDemand, [])
    with pytest.raises(ApplyError, match="outputs='mine' is not known; give 'own' or 'reuse'"):
        parallelize(calls.append, outputs="mine")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this needs: no GPU")
def test_without_a_gpu_the_function_itself_runs_and_with_examples_that_is_an_error():
    with pytest.warns(RuntimeWarning, match="twice runs by itself, not as a graph: no GPU: PyTor"):
        assert torch.equal(parallelize(twice)(X), X * 2)
    for given in ({"example_inputs": X}, {"example_keywords": {"x": X}}):
        with pytest.raises(ApplyError, match="no GPU"):
            parallelize(twice, **given)


# The function as it is written, and compiled: the faster of both.


def parallelized(us):
    found = Parallelized(twice, Arguments(X, gpu="cpu"), "f")
    found.report = None if us is None else applied(us, ["first"])
    return found


@pytest.fixture
def both(monkeypatch):
    """Let graphs of a function and of it compiled take some time, and return what was kept."""

    def of(written, compiled):
        asked = []

        def make(request):
            asked.append(request)
            us = compiled if request.compiles else written
            if isinstance(us, ApplyError):
                raise us
            return parallelized(us)

        monkeypatch.setattr(parallel, "_parallelize", make)
        found = parallelize(twice, X, compile=True, name="f")
        assert [(each.name, each.compiles) for each in asked] == [
            ("f", False), ("f, compiled", True),
        ]  # fmt: skip
        assert asked[1].call == asked[0].call + 1
        return found.report

    return of


@pytest.mark.parametrize(("written", "compiled", "us"), [(8, 5, 5), (5, 8, 5), (5, 5, 5)])
def test_the_faster_of_both_is_kept_and_the_report_has_both(both, written, compiled, us):
    report = both(written, compiled)
    assert report.call_us == us
    assert report.notes == ("first", f"{written} us a call as written, {compiled} compiled")


def test_what_cannot_be_compiled_runs_as_it_is_written(both):
    report = both(8, ApplyError("cannot be captured: a.py:3"))
    assert (report.call_us, report.notes[-1]) == (8, "compiled: cannot be captured: a.py:3")


def test_in_a_process_that_looks_at_another_call_nothing_is_kept(both):
    assert both(None, None) is None
