"""Arguments go into buffers if they fit; what is returned belongs to the caller."""

from __future__ import annotations

import ctypes

import pytest

torch = pytest.importorskip("torch")

from depgraph.errors import ApplyError  # noqa: E402
from depgraph.torch.arguments import Arguments, own_copies  # noqa: E402
from depgraph.torch.operator_log import OperatorLog  # noqa: E402
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
    assert made.matched((both[:3], both[2:5]), {})[1] == ""  # nothing is changed
    start = state.data_ptr()
    made.note_changed({made.buffers[0].untyped_storage().data_ptr()}, [(start, start + 48)])
    assert made.matched((both[:3], both[3:]), {})[1] == ""
    assert made.matched((both[:3], both[2:5]), {})[1] == SHARED
    assert made.matched((both[:3], state), {})[1] == SHARED


def test_a_function_may_ask_whether_two_arguments_are_one():
    def attend(query, keys):
        return query * 2 if query is keys else query + keys

    other, one = X + 1, "one tensor is given where the example has two, or two where it has one"
    two, same = arguments(X, other), arguments(X, X)
    assert two.matched((other, X), {})[1] == same.matched((other, other), {})[1] == ""
    assert two.matched((X, X), {})[1] == same.matched((X, other), {})[1] == one
    assert torch.equal(two.call(attend), X + other)
    assert torch.equal(same.call(attend), X * 2)
    assert torch.equal(same.call(attend, own_copies([other, other])), other * 2)
    assert same.alike([X, other]) == [X, X]
    named = arguments(3, X, mask=X)
    assert named.matched((3, other), {"mask": other})[1] == ""
    assert named.matched((3, other), {"mask": X})[1] == one
    assert named.alike([3, other, X])[2] is other


def test_hooks_on_what_requires_gradients_are_not_left_out():
    made = arguments(X.clone().requires_grad_(), X)
    mine = X.clone().requires_grad_()
    assert made.matched((mine, X), {})[1] == ""
    handle = mine.register_hook(lambda gradient: gradient * 2)
    assert made.matched((mine, X), {})[1] == "argument 0 has hooks"
    handle.remove()
    assert made.matched((mine, X), {})[1] == ""


def test_tensors_elsewhere_are_refused():
    with pytest.raises(ApplyError, match="argument 0 is a tensor on the CPU; move it to the GPU"):
        Arguments(X)
    with pytest.raises(ApplyError, match="argument 0 is no strided tensor"):
        arguments(torch.eye(3).to_sparse())


@pytest.fixture
def returned():
    """Return a function that hands out copies of what was returned for an argument."""

    def make(function, x=X, state=(), *, is_used=True):
        made = arguments(x)
        outputs = made.call(function)
        outside = {t.untyped_storage().data_ptr() for t in state if is_used}
        return Outputs(outputs, made, outside, bound={*map(id, state)}), outputs

    return make


def test_a_result_belongs_to_the_caller(returned):
    outputs, mine = returned(lambda x: x * 2)
    found = outputs.copied_out([X])
    mine.zero_()
    assert torch.equal(found, X * 2)


def test_results_that_share_memory_share_it_again(returned):
    def run(x):
        y = x * 2
        return {"all": y, "row": y[1], "n": 3, "none": None}

    outputs, _ = returned(run)
    found = outputs.copied_out([X])
    found["all"][1, 0] = 77.0
    assert float(found["row"][0]) == 77.0
    assert (found["n"], found["none"]) == (3, None)


def test_views_of_arguments_and_of_state_are_those_of_the_caller(returned):
    state = torch.ones(4)
    outputs, _ = returned(lambda x: (x, x[1:], state), state=[state])
    mine = X.clone()
    whole, rows, same = outputs.copied_out([mine])
    assert whole is mine
    assert rows.data_ptr() == mine[1:].data_ptr()
    assert same is state
    assert outputs.not_copied()[2] is state


def test_state_that_no_operator_uses_is_returned_as_it_is(returned):
    state = torch.ones(4)
    outputs, _ = returned(lambda x: (state, x + 1), state=[state], is_used=False)
    assert outputs.copied_out([X])[0] is state
    assert outputs.not_copied()[0] is state


@pytest.mark.parametrize("view_of", [lambda x: x.view(4, 3), lambda x: x[1:], lambda x: x[...]])
def test_gradients_go_through_views_of_an_argument_into_it(returned, view_of):
    outputs, _ = returned(view_of)
    weight, mine = torch.ones(1, requires_grad=True), X.clone()
    view = outputs.copied_out([mine])
    view.mul_(weight)
    assert view._base is mine
    mine.sum().backward()
    assert weight.grad == view_of(X).sum()


def test_what_is_detached_from_an_argument_is_no_view_of_it_beside_one_that_is_none():
    made = arguments(X, None)
    outputs = Outputs(made.call(lambda x, _: x.detach()), made, frozenset())
    mine = X.clone()
    assert outputs.copied_out([mine, None])._base is not mine


@pytest.mark.parametrize("part_of", [torch.Tensor.detach, lambda x: x[:2]])
def test_a_part_of_an_argument_whose_elements_share_memory_is_refused(returned, part_of):
    with pytest.raises(ApplyError, match="a part of argument 0, whose elements share memory"):
        returned(part_of, X[:, :1].expand(3, 4))


@pytest.mark.parametrize("hand_out", [lambda o: o.copied_out([X]), lambda o: o.not_copied()])
@pytest.mark.parametrize(
    "made_of", [torch.Tensor.detach, lambda state: state.data, lambda state: state[:4]]
)
def test_what_a_caller_makes_of_a_result_is_not_seen_in_the_next(returned, hand_out, made_of):
    """Of one that is not copied, either: only its memory is the next call's."""
    state = torch.ones(4)
    outputs, _ = returned(lambda x: (made_of(state), x + 1), state=[state])
    for made in hand_out(outputs):
        made.unsqueeze_(0).requires_grad_()
    part, whole = hand_out(outputs)
    assert (part.shape, whole.shape) == ((4,), (3, 4))
    assert {part.requires_grad, whole.requires_grad} == {False}
    assert part.data_ptr() == state.data_ptr()


def test_what_is_made_of_an_argument_is_not_the_argument(returned):
    made_of = (torch.Tensor.detach, lambda x: x.data, lambda x: x.view(3, 4))
    outputs, _ = returned(lambda x: [make(x.detach()) for make in made_of])
    mine = X.clone().requires_grad_()
    for made in outputs.copied_out([mine]):
        assert made.data_ptr() == mine.data_ptr()
        assert not made.requires_grad
        made.unsqueeze_(0)
    assert mine.shape == (3, 4)


def test_what_cannot_be_copied_is_refused(returned):
    with pytest.raises(ApplyError, match="the function returns a object, which cannot be copied"):
        returned(lambda x: (x * 2, object()))


class Negating(torch.Tensor):
    """Tensors that operators treat in another way."""


C = torch.tensor([1 + 2j, 3 - 4j])


@pytest.mark.parametrize(
    ("example", "other", "said"),
    [
        ((C,), (C.conj(),), "argument 0 is of another kind: yet to be conjugated or negated"),
        ((C.real,), (C.conj().imag,), "argument 0 is of another kind: yet to be"),
        ((X,), (X.as_subclass(Negating),), "argument 0 is of another kind: Negating, not a plain"),
        ((X, 0.0), (X, -0.0), "argument 1 is not 0.0"),
        ((X, (1, 0.0)), (X, (1, -0.0)), "argument 2 is not 0.0"),
        ((X, {1}), (X, {1}), "argument 1 is not {1}"),
        (([X],), (X,), "the arguments are nested in another way"),
        ((X,), ([X],), "argument 0 is of another kind: list, not a tensor"),
    ],
)
def test_what_looks_alike_need_not_be_the_same(example, other, said):
    assert arguments(*example).matched(other, {})[1].startswith(said)


@pytest.mark.parametrize("given", [({"x": X},), (X, [X * 2]), (X, float("nan")), ((X, X + 1),)])
def test_the_example_fits_however_it_is_nested(given):
    made = arguments(*given)
    leaves, reason = made.matched(given, {})
    assert reason == ""
    made.copy_in(leaves)


def test_parameters_are_plain_tensors():
    parameter = torch.nn.Parameter(X.clone(), requires_grad=False)
    assert arguments(X).matched((parameter,), {})[1] == ""


@pytest.mark.parametrize("leaf", [C.conj(), C.conj().imag, X.as_subclass(Negating)])
def test_examples_are_plain_tensors(leaf):
    with pytest.raises(ApplyError):
        arguments(leaf)


def test_a_function_that_changes_what_holds_its_arguments_is_refused():
    def updates(x, state):
        state["h"] = x + state["h"]
        return state["h"] * 1

    def appends(x, found):
        found.append(x * 2)

    def leaves_a_gradient(x):
        x.square().sum().backward()
        return x.detach() * 1

    for function, given, said in (
        (updates, (X, {"h": X}), "changes a list or dictionary that it is given"),
        (appends, (X, []), "changes a list or dictionary that it is given"),
        (leaves_a_gradient, (X.clone().requires_grad_(),), "leaves a gradient of argument 0"),
    ):
        made = arguments(*given)
        with pytest.raises(ApplyError, match=said):
            made.call(function)


def copied_out(function, *given):
    """Return what a call hands out whose graph ran on buffers, as the driver copies."""

    def copy(target, source, size, _):
        ctypes.memmove(target, source, size)
        return 0

    made = arguments(*given)
    outputs = Outputs(made.call(function), made, set(), copy=copy)
    made.copy_with(copy)
    return outputs.copied_out(given)


def pair(x):
    y = x * 2
    return y, y.conj(), y.imag


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (lambda x: (x * 2).conj(), C),
        (lambda x: x.conj(), C),
        (lambda x: x.conj().imag, C),
        (pair, C),
        (torch.view_as_real, C),
        (lambda x: x.view(torch.int32), X),
        (lambda x: x.view(torch.int16)[:, 1::3], X),
        (lambda x: x.view(torch.int32), torch.arange(20.0)[3:]),
        (lambda x: x[1:, ::2].t(), X),
        (lambda x: (x[:0] * 1.5, x[:, :0].double()), X),
        (lambda x: torch.view_as_complex(x.view(3, 2, 2)), X),
        (lambda x: x.view(torch.complex64), torch.arange(12.0)[2:]),
    ],
)
def test_results_are_those_of_the_function(function, given):
    found, wanted = copied_out(function, given), function(given)
    found, wanted = (t if isinstance(t, tuple) else (t,) for t in (found, wanted))
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one.resolve_conj().resolve_neg(), other.resolve_conj().resolve_neg())


def test_casts_that_autocast_keeps_around_calls_are_made_in_each():
    net = torch.nn.Linear(8, 8)
    arguments = Arguments(torch.ones(2, 8), gpu="cpu")
    with torch.autocast("cpu", torch.bfloat16):
        net(torch.ones(2, 8))
        for _ in range(2):
            with OperatorLog(torch.device("cpu")) as log:
                arguments.call(lambda x: net(x).detach())
            casts = [call.name for call in log.calls].count("aten::_to_copy")
            assert casts == 3  # of input, weight and bias


def test_arguments_by_name_are_told_from_others_in_any_case():
    x, y = torch.zeros(3), torch.ones(3)
    arguments = Arguments((x,), {"scale": 2.0, "mask": y}, gpu="cpu")
    leaves, reason = arguments.matched((y,), {"scale": 2.0, "mask": x})
    assert (reason, leaves[0] is y, leaves[2] is x) == ("", True, True)
    others = [
        ((x,), {"scale": 3.0, "mask": y}, "argument 1 is not 2.0"),
        ((x,), {"scale": 2.0, "bias": y}, "the arguments are nested in another way"),
        ((x, 2.0), {"mask": y}, "the arguments are nested in another way"),
        ((x, 2.0, y), {}, "the arguments are nested in another way"),
        (([x],), {"scale": 2.0, "mask": y}, "argument 0 is of another kind: list, not a tensor"),
        ((x,), {"scale": [2.0], "mask": y}, "argument 1 is not 2.0"),
        ((x,), {"mask": y, "scale": 2.0}, "the arguments are nested in another way"),
    ]
    for args, keywords, said in others:
        assert arguments.matched(args, keywords)[1] == said


H, B, N = X.half(), X > 4, X.long()
PARAMETER = torch.nn.Parameter(X.clone())


@pytest.mark.parametrize(
    "given",
    [
        (X, N),
        (X, N.t(), H, B, torch.tensor(2), torch.tensor(2.5)),  # no words fit all of them
        (C, X, N[:, ::2], N[:0], torch.tensor(True)),
        (PARAMETER, N, C.double() if C.is_floating_point() else C.to(torch.cdouble)),
        (torch.zeros(1 << 20), torch.arange(1 << 20), B),  # too much to be copied as bytes
        (X.expand(2, 3, 4), X[None, ::2], N),
        (torch.tensor(3.0), torch.tensor(4)),
    ],
)
def test_tensors_of_many_types_are_copied_together(given):
    others = [
        (t.flip(0) if t.dim() else torch.zeros_like(t)).requires_grad_(t.requires_grad)
        for t in given
    ]
    others = [
        t.detach().as_strided_(t.shape, t.stride())
        if t.stride() == like.stride()
        else torch.empty_strided(like.shape, like.stride(), dtype=t.dtype).copy_(t)
        for t, like in zip(others, own_copies(given), strict=True)
    ]
    made = arguments(*given)
    for leaves in (others, list(given)):
        made.copy_in(leaves)
        for buffer, leaf in zip(made.buffers, leaves, strict=True):
            assert torch.equal(buffer, leaf)
            assert buffer.requires_grad or not buffer._base
