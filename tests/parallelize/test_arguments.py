"""Arguments go into buffers if they fit; what is returned belongs to the caller."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from depgraph.errors import ApplyError  # noqa: E402
from depgraph.torch.arguments import Arguments  # noqa: E402
from depgraph.torch.parallelized import Outputs  # noqa: E402


def arguments(*given, **keywords):
    return Arguments(given, keywords, gpu="cpu")


X = torch.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (X.clone(), ""),
        (X[:2], "argument 0 is of another kind: shape (2, 4), not (3, 4)"),
        (X.double(), "argument 0 is of another kind: dtype torch.float64, not torch.float32"),
        (X.t().contiguous().t(), "argument 0 is of another kind: strides (1, 3), not (4, 1)"),
        (
            X.clone().requires_grad_(),
            "argument 0 is of another kind: requires_grad True, not False",
        ),
        (3, "argument 0 is of another kind: int, not a tensor"),
    ],
)
def test_a_tensor_must_be_like_the_example(other, said):
    assert arguments(X).matched((other,), {})[1] == said


def test_numbers_and_nesting_must_be_the_same():
    made = arguments([X, {"n": 2}], scale=1.5)
    assert made.matched(([X, {"n": 2}],), {"scale": 1.5})[1] == ""
    assert made.matched(([X, {"n": 3}],), {"scale": 1.5})[1] == "argument 1 is not 2"
    assert made.matched(([X],), {"scale": 1.5})[1] == "the arguments are nested in another way"
    assert made.matched(([X, {"n": 2}],), {})[1] == "the arguments are nested in another way"


def test_values_are_copied_in_and_back():
    made = arguments(X, X[:, ::2])
    leaves = [X * 2, X[:, 1::2]]
    made.copy_in(leaves)
    assert torch.equal(made.buffers[0], X * 2)
    assert torch.equal(made.buffers[1], X[:, 1::2])
    assert made.buffers[1].stride() == X[:, ::2].stride()
    made.note_changed({made.buffers[0].untyped_storage().data_ptr()}, [])
    made.buffers[0].add_(1)
    made.copy_back(leaves)
    assert torch.equal(leaves[0], X * 2 + 1)


SHARED = "arguments share memory with each other or with what is changed"


def test_what_is_changed_must_not_share_memory_with_what_is_used():
    both, state = torch.zeros(6, 4), torch.zeros(3, 4)
    made = arguments(X, X.clone())
    assert made.matched((both[:3], both[:3]), {})[1] == ""  # nothing is changed
    start = state.data_ptr()
    made.note_changed({made.buffers[0].untyped_storage().data_ptr()}, [(start, start + 48)])
    assert made.matched((both[:3], both[3:]), {})[1] == ""
    assert made.matched((both[:3], both[2:5]), {})[1] == SHARED
    assert made.matched((both[:3], state), {})[1] == SHARED


def test_tensors_elsewhere_are_refused():
    with pytest.raises(ApplyError, match="argument 0 is a tensor on the CPU; move it to the GPU"):
        Arguments(X)
    with pytest.raises(ApplyError, match="argument 0 is no strided tensor"):
        arguments(torch.eye(3).to_sparse())


@pytest.fixture
def returned():
    """Return a function that hands out copies of what was returned for an argument."""

    def make(function, x=X, state=()):
        made = arguments(x)
        outputs = made.call(function)
        outside = {t.untyped_storage().data_ptr() for t in state}
        return Outputs(outputs, made, outside.__contains__), outputs

    return make


def test_a_result_belongs_to_the_caller(returned):
    outputs, mine = returned(lambda x: x * 2)
    found = outputs.handed_out([X])
    mine.zero_()
    assert torch.equal(found, X * 2)


def test_results_that_share_memory_share_it_again(returned):
    def run(x):
        y = x * 2
        return {"all": y, "row": y[1], "n": 3, "none": None}

    outputs, _ = returned(run)
    found = outputs.handed_out([X])
    found["all"][1, 0] = 77.0
    assert float(found["row"][0]) == 77.0
    assert (found["n"], found["none"]) == (3, None)


def test_views_of_arguments_and_of_state_are_those_of_the_caller(returned):
    state = torch.ones(4)
    outputs, _ = returned(lambda x: (x, x[1:], state), state=[state])
    mine = X.clone()
    whole, rows, same = outputs.handed_out([mine])
    assert whole is mine
    assert rows.data_ptr() == mine[1:].data_ptr()
    assert same is state


def test_what_cannot_be_copied_is_refused(returned):
    with pytest.raises(ApplyError, match="the function returns a object, which cannot be copied"):
        returned(lambda x: (x * 2, object()))
