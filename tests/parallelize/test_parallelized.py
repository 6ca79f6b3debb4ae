"""Calls run the graph or the function itself, from any thread, on a GPU that is not there."""

from __future__ import annotations

import threading
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from depgraph.torch.arguments import Arguments  # noqa: E402
from depgraph.torch.parallelized import Outputs, Parallelized, Ready, Replay  # noqa: E402

X = torch.arange(8.0)


class Stream:
    def wait_stream(self, other):
        self.waited_for = other

    def synchronize(self):
        pass


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    """Let the CPU stand for a GPU; return what its current stream is."""
    gpu = SimpleNamespace(stream=7, capturing=False, streams={})
    names = {
        "_cuda_isCurrentStreamCapturing": lambda: gpu.capturing,
        "_cuda_getDevice": lambda: None,
        "_cuda_getCurrentRawStream": lambda _: gpu.stream,
    }
    for name, function in names.items():
        monkeypatch.setattr(torch._C, name, function, raising=False)
    current = lambda: gpu.streams.setdefault(gpu.stream, Stream())
    monkeypatch.setattr(torch.cuda, "current_stream", current)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda _: None)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda *_: None)
    return gpu


class Fake:
    """A graph that does what the function does, or something wrong."""

    def __init__(self, function, *, is_pure=True, wrong=0.0, state=(), gradients=((), ()), **more):
        self.reason, self.runs, self.wrong = "", 0, wrong
        self.arguments = Arguments(X, gpu="cpu")
        self.function, self.state = function, list(state)
        outputs = self.arguments.call(function)
        self.outputs = Outputs(outputs, self.arguments, set())
        self.written = [t for _, t in self.outputs.tensors]
        self.fast = Parallelized(function, self.arguments, "f", **more)
        self.fast.set_ready(
            Ready(
                graph=Replay(self.replay, self.outputs, gradients[0]),
                plain=Replay(self.plainly, self.outputs, gradients[1]),
                guards=SimpleNamespace(failed=lambda: self.reason, in_other_modes=lambda: ""),
                device=torch.device("cpu"),
                state=[(str(i), t) for i, t in enumerate(self.state)], is_pure=is_pure, held=None,
                lanes=SimpleNamespace(release=lambda: None),
            )
        )  # fmt: skip

    def plainly(self):
        self.runs += 1
        found = self.arguments.call(self.function)
        self.written[0].copy_(found)

    def replay(self):
        self.plainly()
        self.written[0].add_(self.wrong)


def twice(x):
    return x * 2


def test_a_call_runs_the_graph_and_results_stay():
    fake = Fake(twice)
    found = [fake.fast(X + i) for i in range(3)]
    assert fake.runs == 3
    assert all(torch.equal(y, (X + i) * 2) for i, y in enumerate(found))


def test_results_may_be_overwritten_where_that_is_wanted():
    fake = Fake(twice, outputs="reuse")
    first = fake.fast(X)
    fake.fast(X + 1)
    assert torch.equal(first, (X + 1) * 2)


@pytest.mark.parametrize("is_pure", [True, False])
def test_the_function_itself_runs_where_something_has_changed_with_one_warning(is_pure):
    fake = Fake(twice, is_pure=is_pure)
    fake.reason = "net.weight was replaced or changed"
    with pytest.warns(RuntimeWarning, match=r"f runs by itself, not as a graph: net.weight was"):
        assert torch.equal(fake.fast(X), X * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(fake.fast(X[:4]), X[:4] * 2)
        fake.reason = ""
        assert torch.equal(fake.fast(X), X * 2)
    assert fake.runs == (2 if is_pure else 1)  # what changes nothing runs before it is known


def test_inside_a_capture_the_function_itself_runs(gpu):
    fake = Fake(twice)
    gpu.capturing = True
    with pytest.warns(RuntimeWarning, match="a graph is being captured"):
        fake.fast(X)
    assert fake.runs == 0


def test_another_stream_waits_for_the_one_before(gpu):
    fake = Fake(twice)
    fake.fast(X)
    gpu.stream = 8
    fake.fast(X)
    assert gpu.streams[8].waited_for is gpu.streams[7]


def test_threads_take_turns():
    fake, wrong = Fake(twice), []

    def work(number):
        wrong.extend(
            number for _ in range(200) if not torch.equal(fake.fast(X + number), (X + number) * 2)
        )

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert wrong == []


def test_every_so_many_calls_are_verified_and_a_difference_ends_it_for_good():
    fake = Fake(twice, wrong=1.0, verify_every=2)
    assert torch.equal(fake.fast(X), X * 2 + 1)
    with pytest.warns(RuntimeWarning, match=r"f: call 2: output 0 differs in 8 of 8 elements"):
        assert torch.equal(fake.fast(X), X * 2)
    assert torch.equal(fake.fast(X + 1), (X + 1) * 2)


def test_verifying_changes_state_once():
    total = torch.zeros(8)

    def run(x):
        total.add_(x)
        return total * 1.0

    fake = Fake(run, is_pure=False, state=[total], verify_every=1)
    total.zero_()
    assert torch.equal(fake.fast(X), X)
    assert torch.equal(fake.fast(X), X * 2)


def test_gradients_are_verified_and_those_of_the_graph_that_runs_are_handed_out():
    weight = torch.ones(8, requires_grad=True)
    mine, plain = torch.zeros(8), torch.zeros(8)
    fake = Fake(
        twice, is_pure=False, verify_every=2, gradients=([(weight, mine)], [(weight, plain)])
    )

    def launch(gradient, wrong):
        fake.plainly()
        gradient.copy_(fake.arguments.buffers[0] + wrong)

    ready = fake.fast._ready
    ready.graph = replace(ready.graph, run=lambda: launch(mine, 1.0))
    ready.plain = replace(ready.plain, run=lambda: launch(plain, 0.0))
    fake.fast(X)
    assert weight.grad is mine
    with pytest.warns(RuntimeWarning, match=r"f: call 2: gradient 0 differs in 8 of 8 elements"):
        fake.fast(X + 1)
    assert torch.equal(weight.grad, X + 1)
    fake.fast(X + 2)
    assert torch.equal(weight.grad, X + 2)


def test_what_is_changed_in_place_is_verified():
    fake = Fake(lambda x: x.add_(1), is_pure=False, verify_every=1)
    fake.arguments.note_changed({fake.arguments.buffers[0].untyped_storage().data_ptr()}, [])
    buffer = fake.arguments.buffers[0]
    ready = fake.fast._ready
    ready.graph = replace(ready.graph, run=lambda: buffer.add_(2))
    ready.plain = replace(ready.plain, run=lambda: buffer.add_(1))
    x = X.clone()
    with pytest.warns(RuntimeWarning, match=r"f: call 1: .* differs in 8 of 8 elements"):
        fake.fast(x)
    assert torch.equal(x, X + 1)


def test_attributes_are_those_of_the_function():
    net = torch.nn.Linear(8, 8).requires_grad_(requires_grad=False)
    fake = Fake(net)
    assert fake.fast.weight is net.weight
    with pytest.raises(AttributeError):
        _ = fake.fast._nothing
