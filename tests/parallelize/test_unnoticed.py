"""A function makes the calls while it is captured that it makes else, also one that asks."""

from __future__ import annotations

import types

import pytest

torch = pytest.importorskip("torch")

from depgraph.errors import ApplyError  # noqa: E402
from depgraph.torch.arguments import Arguments  # noqa: E402
from depgraph.torch.capture import unnoticed  # noqa: E402
from depgraph.torch.check_here import other_call  # noqa: E402
from depgraph.torch.prepare import Prepared  # noqa: E402

ASKS = "def ask(torch):\n    return torch.cuda.is_current_stream_capturing()\n"


def asked_by(module):
    scope = {"__name__": module}
    exec(ASKS, scope)  # noqa: S102
    return scope["ask"](torch)


def test_code_that_asks_does_not_learn_of_a_capture_but_pytorch_does(monkeypatch):
    monkeypatch.setattr(torch.cuda.graphs, "_cuda_isCurrentStreamCapturing", lambda: True)
    with unnoticed():
        assert not asked_by("transformers.utils.import_utils")
        assert not asked_by("__main__")
        assert asked_by("torch.optim.optimizer")  # it refuses then what no graph does again
        assert asked_by("depgraph.torch.on_demand")
    assert asked_by("__main__")


def test_code_that_has_imported_what_it_asks_does_not_learn_of_a_capture(monkeypatch):
    monkeypatch.setattr(torch.cuda.graphs, "_cuda_isCurrentStreamCapturing", lambda: True)
    asks = torch.cuda.is_current_stream_capturing
    with unnoticed():
        assert not asks()
        assert torch.cuda.is_current_stream_capturing is asks  # compiled code looks whether it is
    assert asks()


@pytest.fixture
def prepared(monkeypatch):
    monkeypatch.setattr("depgraph.torch.prepare.Lanes.acquire", lambda *_: None)
    monkeypatch.setattr("depgraph.torch.prepare.Bench", lambda *_: None)
    monkeypatch.setattr("depgraph.torch.prepare.Driver", lambda: None)
    monkeypatch.setattr(torch.cuda.graphs, "_cuda_isCurrentStreamCapturing", lambda: True)
    arguments = Arguments(torch.zeros(2), gpu="cpu")
    request = types.SimpleNamespace(function=lambda x: x, name="f", compiles=False)
    return Prepared(request, arguments)


def test_what_cannot_be_captured_unless_it_knows_is_captured_so_from_then_on(prepared):
    """A mask is looked at on the CPU only where nothing is captured."""
    tried = []

    def capture():
        tried.append(asked_by("__main__"))
        if not tried[-1]:
            raise ApplyError("cannot be captured: masks.py:3: mask.all()")
        return "a graph"

    assert prepared._unnoticed(capture) == "a graph"
    assert prepared._unnoticed(capture) == "a graph"
    assert tried == [False, True, True]


def test_all_graphs_of_a_function_are_of_the_same_calls(prepared):
    """Only one is compared with the function: a later one must not learn what that did not."""
    told = []

    def fails():
        told.append(asked_by("__main__"))
        raise ApplyError("a graph of many lanes")

    assert prepared._unnoticed(lambda: asked_by("__main__")) is False
    with pytest.raises(ApplyError, match="many lanes"):
        prepared._unnoticed(fails)
    assert told == [False]
    assert prepared._unnoticed(lambda: asked_by("__main__")) is False


def test_what_cannot_be_captured_at_all_is_refused_as_it_is_captured_usually(prepared):
    def capture():
        raise ApplyError(f"cannot be captured: {asked_by('__main__')}")

    with pytest.raises(ApplyError, match="cannot be captured: True"):
        prepared._unnoticed(capture)


@pytest.mark.parametrize(
    ("itself", "captured", "said"),
    [
        (["a", "b"], ["a", "b"], "look for random numbers or values from outside of PyTorch"),
        (["a", "b"], ["a", "c", "b"], "while it is captured it calls c, else b: see what it asks"),
        (["a"], ["a", "b"], "while it is captured it calls b, else no more: "),
        (["a", "b"], ["a"], "while it is captured it calls no more, else b: "),
    ],
)
def test_where_results_differ_other_calls_are_named(itself, captured, said):
    assert other_call(itself, captured).startswith(said)
