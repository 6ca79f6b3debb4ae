"""Operators of the table touch the elements of their tensors and nothing else, as the table says."""

from __future__ import annotations

import itertools
import os
import tomllib
import warnings
from importlib.resources import files

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="PyTorch's own examples of its operators need it")

from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.testing._internal.common_utils import set_rng_seed  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

from depgraph.apply.operators import known_operators, rule_of  # noqa: E402
from depgraph.torch.operator_log import OperatorLog  # noqa: E402

DEVICE = os.environ.get("DEPGRAPH_TEST_DEVICE", "cpu")
SAMPLES = 3
MARGIN = 64
RANDOM = {name for name, rule in known_operators().items() if rule.family == "random"}
# Whose results are left as they were allocated, or are of no use to compare.
WITHOUT_VALUES = ("aten::empty", "aten::new_empty")
# Of one device: `torch.manual_seed` writes down who asks, for every kind of device that is absent.
CHANCE = torch.default_generator if DEVICE == "cpu" else torch.cuda


def surrounded(tensor, pattern):
    """Return a copy of a tensor in a larger storage full of a pattern."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        return tensor, None
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n)
    size = (last + 1) * tensor.element_size() + 2 * MARGIN
    whole = torch.full((size + MARGIN,), pattern, dtype=torch.uint8, device=tensor.device)
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
        whole.untyped_storage(), MARGIN // tensor.element_size(), tensor.shape, tensor.stride()
    )
    if not tensor.numel():
        return made, whole
    if any(s == 0 and n > 1 for n, s in zip(tensor.shape, tensor.stride(), strict=True)):
        order = [0 if s == 0 else slice(None) for s in tensor.stride()]
        made[tuple(order)].copy_(tensor[tuple(order)])
    else:
        made.copy_(tensor)
    return made, whole


def bits(tensor):
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return (
        flat.view(torch.uint8)
        if flat.numel() and flat.dim()
        else flat.reshape(-1).clone().view(torch.uint8)
    )


def inside(view, whole):
    """Return which bytes of a storage are elements of a view."""
    marks = torch.zeros_like(whole)
    mark = torch.empty(0, dtype=torch.uint8, device=whole.device).set_(marks.untyped_storage())
    start = view.storage_offset() * view.element_size()
    for byte in range(view.element_size()):
        strides = [s * view.element_size() for s in view.stride()]
        mark.as_strided(view.shape, strides, start + byte).fill_(1)
    return marks.bool()


class Poisoned(OperatorLog):
    """Calls every operator of the table again, with other bytes around its tensors."""

    def __init__(self, most_calls=SAMPLES):
        super().__init__(torch.device(DEVICE))
        self.most_calls, self.seen, self.faults_found = most_calls, {}, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        place = len(self.calls)
        name = func.name() if hasattr(func, "name") else ""
        before = pytree.tree_map(
            lambda t: t.clone() if isinstance(t, torch.Tensor) else t, (args, kwargs or {})
        )
        made = super().__torch_dispatch__(func, types, args, kwargs)
        is_leaf = len(self.calls) == place + 1 and self.calls[place].name == name
        rule = rule_of(name.split(".")[0]) if is_leaf else None
        if rule and not self.calls[place].others and self.seen.get(name, 0) < self.most_calls:
            self.seen[name] = self.seen.get(name, 0) + 1
            self.look(func, rule, *before)
        return made

    def look(self, func, rule, args, kwargs):
        name = func.name()
        operator = name.split(".")[0]
        results = [self.run(func, rule, args, kwargs, pattern) for pattern in (0xFF, 0x00)]
        if operator.removesuffix("_") not in RANDOM and not operator.startswith(WITHOUT_VALUES):
            for one, other in zip(*results, strict=True):
                if one.shape != other.shape or not torch.equal(one, other):
                    self.faults_found.append(f"{name} reads what lies around its tensors")

    def run(self, func, rule, args, kwargs, pattern):
        wholes = []

        def placed(value):
            if not isinstance(value, torch.Tensor):
                return value
            made, whole = surrounded(value, pattern)
            if whole is not None:
                wholes.append((made, whole, whole.clone()))
            return made

        given, words = pytree.tree_map(placed, (args, kwargs))
        CHANCE.manual_seed(0)
        with torch.no_grad():
            found = func(*given, **words)
        written = {
            id(leaf)
            for argument, value in named(func, given, words)
            if is_said_to_be_written(argument, rule)
            for leaf in pytree.tree_leaves(value)
        }
        for made, whole, old in wholes:
            changed = whole != old
            if id(made) in written:
                changed &= ~inside(made, whole)
            if bool(changed.any()):
                self.faults_found.append(f"{func.name()} writes what it does not say")
        return bits_of(found, [made for made, *_ in wholes if id(made) in written])


def named(func, args, kwargs):
    arguments = func._schema.arguments
    yield from zip(arguments, args, strict=False)
    by_name = {a.name: a for a in arguments}
    yield from ((by_name[name], value) for name, value in kwargs.items())


def bits_of(found, written):
    leaves = [t for t in pytree.tree_leaves(found) if isinstance(t, torch.Tensor)]
    return [bits(t).clone() for t in [*leaves, *written] if t.layout is torch.strided]


def is_said_to_be_written(argument, rule):
    alias = argument.alias_info
    return (alias is not None and alias.is_write) or argument.name in rule.also_writes


def examples(op, most=SAMPLES):
    dtypes = [
        d for d in (torch.float32, torch.int64, torch.bool) if d in op.supported_dtypes(DEVICE)
    ]
    for dtype in dtypes[:1]:
        needs_grad = op.supports_autograd and dtype.is_floating_point
        set_rng_seed(0)
        # `op.sample_inputs` looks through the stack of calls for a test of PyTorch's own.
        samples = op.sample_inputs_func(op, DEVICE, dtype, requires_grad=needs_grad)
        for sample in itertools.islice(samples, most):
            yield sample, needs_grad


ALL = [op for op in op_db if "jiterator" not in op.name]


def run(op, sample, needs_grad):
    """Run an example, and its backward pass if there is one; not all are good on all devices."""
    try:
        found = op(sample.input, *sample.args, **sample.kwargs)
        tensors = [t for t in pytree.tree_leaves(found) if isinstance(t, torch.Tensor)]
        if needs_grad and any(t.requires_grad for t in tensors):
            sum(t.sum().abs() for t in tensors if t.requires_grad).backward()
    except (RuntimeError, NotImplementedError, TypeError):
        return


@pytest.mark.parametrize("op", ALL, ids=lambda op: op.full_name)
@pytest.mark.parametrize("most", [1, pytest.param(SAMPLES, marks=pytest.mark.slow)])
def test_an_operator_touches_the_elements_of_its_tensors_alone(op, most):
    log = Poisoned(most)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample, needs_grad in examples(op, most):
            with log:
                run(op, sample, needs_grad)
    assert log.faults_found == []


def tensors(*shapes, seed=0, **more):
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(shape, generator=generator).to(DEVICE, **more) + 0.1 for shape in shapes]


def on_gpu(function):
    function.needs_gpu = True
    return function


X, Y, Z = ((4, 6),) * 3
FOREACH = {
    "add": (1.0,), "addcdiv": ([*"xx"], [*"xx"]), "addcmul": ([*"xx"], [*"xx"]), "clamp_max": (0.5,),
    "clamp_min": (0.5,), "copy": ([*"xx"],), "div": (2.0,), "lerp": ([*"xx"], 0.5), "maximum": (0.5,),
    "minimum": (0.5,), "mul": (2.0,), "norm": (), "pow": (2.0,), "sub": (1.0,),
}  # fmt: skip


def lists(name):
    """Call an operator over lists of tensors, and the one that changes them in place."""
    for ending in ("", "_"):
        operator = getattr(torch, f"_foreach_{name}{ending}", None)
        if operator is None:
            continue
        given = [tensors(X, Y) if isinstance(a, list) else a for a in FOREACH.get(name, ())]
        operator(tensors(X, Y, seed=1), *given)


def step(name, **more):
    lists_of = [tensors(X, Y, seed=i) for i in range(5 if "adam" in name else 3)]
    steps = [torch.ones((), device=DEVICE) for _ in range(2)]
    if "adam" in name:
        getattr(torch, name)(
            *lists_of, steps, amsgrad=True, lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.1,
            eps=1e-8, maximize=False, found_inf=torch.zeros((), device=DEVICE), **more,
        )  # fmt: skip
    else:
        torch._fused_sgd_(
            *lists_of, weight_decay=0.1, momentum=0.9, lr=0.1, dampening=0.0, nesterov=True,
            maximize=False, is_first_step=False, **more,
        )  # fmt: skip


def scaled():
    grads, found, scale = tensors(X, Y), torch.zeros(1, device=DEVICE), torch.ones(1, device=DEVICE)
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found, scale)
    growth = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    torch._amp_update_scale_(scale, growth, found, 2.0, 0.5, 100)


def with_gradients(function, *shapes, **more):
    given = [t.requires_grad_() for t in tensors(*shapes, **more)]
    outputs = [t for t in pytree.tree_leaves(function(*given)) if isinstance(t, torch.Tensor)]
    sum(t.sum() for t in outputs if t.requires_grad).backward()


def attend(backend):
    def run():
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel(getattr(SDPBackend, backend)):
            with_gradients(
                torch.nn.functional.scaled_dot_product_attention, *[(1, 2, 64, 32)] * 3,
                dtype=torch.float16,
            )  # fmt: skip

    return on_gpu(run)


def recurrent(kind):
    def run():
        cell = getattr(torch.nn, kind)(8, 8).to(DEVICE)
        with_gradients(cell, (4, 8))

    return on_gpu(run)


def batch_normalised():
    net = torch.nn.BatchNorm2d(4).to(DEVICE)
    with_gradients(net, (2, 4, 5, 5))
    with torch.no_grad():
        net.eval()(tensors((2, 4, 5, 5))[0])
        a = torch.ops.aten
        x, w, b, m, v = *tensors((2, 4, 5, 5)), *tensors(*[(4,)] * 4)
        a._native_batch_norm_legit_no_training(x, w, b, m, v, 0.1, 1e-5)
        a._batch_norm_no_update(x, w, b, m, v, 0.1, 1e-5)


F = torch.nn.functional
A = torch.ops.aten
OTHERS = {
    **{f"_foreach_{n}": (lambda n=n: lists(n)) for n in ["abs", "add", "addcdiv", "addcmul", "ceil", "clamp_max", "clamp_min", "copy", "cos", "div", "erf", "exp", "floor", "lerp", "log", "max", "maximum", "minimum", "mul", "neg", "norm", "pow", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sqrt", "sub", "tanh", "trunc", "zero"]},
    "__lshift__": lambda: A.__lshift__(torch.arange(4, device=DEVICE), 1),
    "__rshift__": lambda: A.__rshift__(torch.arange(4, device=DEVICE), 1),
    "_addmm_activation": lambda: A._addmm_activation(*tensors((6,), (4, 5), (5, 6))),
    "_amp_foreach_non_finite_check_and_unscale": scaled,
    "_amp_update_scale": scaled,
    "_batch_norm_no_update": batch_normalised,
    "_native_batch_norm_legit_no_training": batch_normalised,
    "_conv_depthwise2d": on_gpu(lambda: A._conv_depthwise2d(
        *tensors((1, 4, 8, 8), (4, 1, 3, 3)), [3, 3], None, [1, 1], [1, 1], [1, 1])),
    "_convolution": lambda: A._convolution(
        *tensors((1, 4, 8, 8), (4, 4, 3, 3), (4,)), [1, 1], [1, 1], [1, 1], False, [0, 0], 1,
        False, False, True, True),
    "_cummax_helper": lambda: A._cummax_helper(*tensors(X, X), torch.zeros(X, dtype=torch.int64, device=DEVICE), 1),
    "_cummin_helper": lambda: A._cummin_helper(*tensors(X, X), torch.zeros(X, dtype=torch.int64, device=DEVICE), 1),
    "_logcumsumexp": lambda: A._logcumsumexp(tensors(X)[0], 1),
    "_efficient_attention_backward": on_gpu(lambda: with_gradients(
        lambda q, k, v: A._efficient_attention_forward(
            q, k, v, None, None, None, None, None, 0.0, 0, True)[0],
        *[(1, 64, 2, 32)] * 3, dtype=torch.float16)),
    "_efficient_attention_forward": on_gpu(lambda: A._efficient_attention_forward(
        *tensors(*[(1, 64, 2, 32)] * 3, dtype=torch.float16), None, None, None, None, None, 0.0, 0)),
    "_flash_attention_backward": on_gpu(lambda: with_gradients(
        lambda q, k, v: A._flash_attention_forward(q, k, v, None, None, 64, 64, 0.0, False, False)[0],
        *[(1, 64, 2, 32)] * 3, dtype=torch.float16)),
    "_flash_attention_forward": on_gpu(lambda: A._flash_attention_forward(
        *tensors(*[(1, 64, 2, 32)] * 3, dtype=torch.float16), None, None, 64, 64, 0.0, False, False)),
    "_embedding_bag_backward": lambda: with_gradients(
        lambda w: F.embedding_bag(torch.tensor([[0, 2], [1, 1]], device=DEVICE), w), X),
    "_embedding_bag_forward_only": lambda: A._embedding_bag_forward_only(
        tensors(X)[0], torch.tensor([0, 2, 1, 1], device=DEVICE), torch.tensor([0, 2], device=DEVICE)),
    "_fused_adam": lambda: step("_fused_adam_"),
    "_fused_adamw": lambda: step("_fused_adamw_"),
    "_fused_sgd": lambda: step("_fused_sgd_"),
    "_fused_rms_norm": on_gpu(lambda: with_gradients(lambda x, w: F.rms_norm(x, (6,), w), X, (6,))),
    "_fused_rms_norm_backward": on_gpu(lambda: with_gradients(lambda x, w: F.rms_norm(x, (6,), w), X, (6,))),
    "_fused_sdp_choice": lambda: A._fused_sdp_choice(*tensors(*[(1, 2, 8, 8)] * 3)),
    "_int_mm": lambda: A._int_mm(*(t.to(torch.int8) for t in tensors((32, 32), (32, 32)))),
    "_scaled_mm": on_gpu(lambda: A._scaled_mm(
        tensors((32, 32))[0].to(torch.float8_e4m3fn), tensors((32, 32))[0].to(torch.float8_e4m3fn).t(),
        torch.ones((), device=DEVICE), torch.ones((), device=DEVICE), out_dtype=torch.bfloat16)),
    "_scaled_dot_product_cudnn_attention": attend("CUDNN_ATTENTION"),
    "_scaled_dot_product_cudnn_attention_backward": attend("CUDNN_ATTENTION"),
    "_scaled_dot_product_efficient_attention": attend("EFFICIENT_ATTENTION"),
    "_scaled_dot_product_efficient_attention_backward": attend("EFFICIENT_ATTENTION"),
    "_scaled_dot_product_flash_attention": attend("FLASH_ATTENTION"),
    "_scaled_dot_product_flash_attention_backward": attend("FLASH_ATTENTION"),
    "_slow_conv2d_backward": on_gpu(lambda: with_gradients(
        lambda x, w: A._slow_conv2d_forward(x, w, [3, 3], None, [1, 1], [1, 1]), (1, 4, 8, 8), (4, 4, 3, 3))),
    "_slow_conv2d_forward": on_gpu(lambda: A._slow_conv2d_forward(
        *tensors((1, 4, 8, 8), (4, 4, 3, 3)), [3, 3], None, [1, 1], [1, 1])),
    "slow_conv_dilated2d": lambda: A.slow_conv_dilated2d(
        *tensors((1, 4, 8, 8), (4, 4, 3, 3)), [3, 3], None, [1, 1], [1, 1], [2, 2]),
    "slow_conv_transpose2d": lambda: A.slow_conv_transpose2d(
        *tensors((1, 4, 8, 8), (4, 4, 3, 3)), [3, 3]),
    "slow_conv_transpose3d": lambda: A.slow_conv_transpose3d(
        *tensors((1, 4, 5, 5, 5), (4, 4, 3, 3, 3)), [3, 3, 3]),
    "_thnn_fused_gru_cell": recurrent("GRUCell"),
    "_thnn_fused_gru_cell_backward": recurrent("GRUCell"),
    "_thnn_fused_lstm_cell": recurrent("LSTMCell"),
    "_thnn_fused_lstm_cell_backward_impl": recurrent("LSTMCell"),
    "_upsample_bicubic2d_aa": lambda: F.interpolate(
        tensors((1, 2, 8, 8))[0], scale_factor=0.5, mode="bicubic", antialias=True),
    "_upsample_nearest_exact2d": lambda: with_gradients(
        lambda x: F.interpolate(x, scale_factor=2, mode="nearest-exact"), (1, 2, 4, 4)),
    "_upsample_nearest_exact2d_backward": lambda: with_gradients(
        lambda x: F.interpolate(x, scale_factor=2, mode="nearest-exact"), (1, 2, 4, 4)),
    "upsample_nearest2d": lambda: with_gradients(lambda x: F.interpolate(x, scale_factor=2), (1, 2, 4, 4)),
    "upsample_nearest2d_backward": lambda: with_gradients(
        lambda x: F.interpolate(x, scale_factor=2), (1, 2, 4, 4)),
    "upsample_nearest3d": lambda: F.interpolate(tensors((1, 2, 4, 4, 4))[0], scale_factor=2),
    "affine_grid_generator": lambda: A.affine_grid_generator(tensors((1, 2, 3))[0], [1, 1, 4, 4], False),
    "conj_physical": lambda: torch.complex(*tensors(X, Y)).conj_physical_(),
    "mish_backward": lambda: with_gradients(F.mish, X),
    "silu_backward": lambda: with_gradients(F.silu, X),
    "native_dropout": lambda: A.native_dropout(tensors(X)[0], 0.5, True),
    "poisson": lambda: torch.poisson(tensors(X)[0]),
    "rand_like": lambda: torch.rand_like(tensors(X)[0]),
    "random": tensors(X)[0].random_,
    "randperm": lambda: torch.randperm(8, device=DEVICE),
    "reflection_pad2d": lambda: with_gradients(lambda x: F.pad(x, (1, 1, 1, 1), "reflect"), (1, 2, 4, 4)),
    "reflection_pad2d_backward": lambda: with_gradients(
        lambda x: F.pad(x, (1, 1, 1, 1), "reflect"), (1, 2, 4, 4)),
    "_cudnn_rnn": on_gpu(lambda: torch.nn.LSTM(8, 16, 2, bidirectional=True, device=DEVICE)(
        tensors((5, 3, 8))[0])),
    "cudnn_batch_norm": on_gpu(lambda: A.cudnn_batch_norm(
        *tensors((2, 4, 5, 5), *[(4,)] * 4), True, 0.1, 1e-5)),
    "cudnn_batch_norm_backward": on_gpu(lambda: with_gradients(
        lambda x, w, b: A.cudnn_batch_norm(x, w, b, *tensors((4,), (4,)), True, 0.1, 1e-5)[0],
        (2, 4, 5, 5), (4,), (4,))),
    "cudnn_convolution": on_gpu(lambda: A.cudnn_convolution(
        *tensors((1, 4, 8, 8), (4, 4, 3, 3)), [1, 1], [1, 1], [1, 1], 1, False, True, False)),
    "cudnn_convolution_add_relu": on_gpu(lambda: A.cudnn_convolution_add_relu(
        *tensors((1, 4, 8, 8), (4, 4, 3, 3), (1, 4, 8, 8)), 1.0, tensors((4,))[0],
        [1, 1], [1, 1], [1, 1], 1)),
    "cudnn_convolution_relu": on_gpu(lambda: A.cudnn_convolution_relu(
        *tensors((1, 4, 8, 8), (4, 4, 3, 3), (4,)), [1, 1], [1, 1], [1, 1], 1)),
    "cudnn_convolution_transpose": on_gpu(lambda: A.cudnn_convolution_transpose(
        *tensors((1, 4, 8, 8), (4, 4, 3, 3)), [1, 1], [0, 0], [1, 1], [1, 1], 1, False, True, False)),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_an_operator_that_pytorch_has_no_example_of(name):
    if getattr(OTHERS[name], "needs_gpu", False) and DEVICE == "cpu":
        pytest.skip("it is on GPUs alone")
    log = Poisoned()
    with warnings.catch_warnings(), log:
        warnings.simplefilter("ignore")
        OTHERS[name]()
    assert log.faults_found == []
    seen = {each.split(".")[0].removeprefix("aten::") for each in log.seen}
    assert not seen.isdisjoint({name, f"{name}_"})


def test_the_operators_of_the_table_are_pytorchs_own():
    log = OperatorLog(torch.device("cuda"))  # by what is registered, a GPU or none
    packets = [getattr(A, name.removeprefix("aten::"), None) for name in known_operators()]
    known = [getattr(each, name) for each in packets if each for name in each.overloads()]
    assert len(known) > 1000
    assert [each.name() for each in known if log.name_of(each) != each.name()] == []


def test_each_family_of_the_table_says_why():
    text = (files("depgraph.apply") / "operators.toml").read_text(encoding="utf-8")
    assert all(family["reason"] for family in tomllib.loads(text).values())


@pytest.mark.parametrize("key", ["CPU", "CompositeExplicitAutograd"])
def test_an_operator_that_others_have_replaced_is_none_of_the_table(key):
    """Its kernels may share a counter, or a table of pointers, that no operator is given."""
    library, log = torch.library.Library("aten", "IMPL"), OperatorLog(torch.device("cpu"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl("frac", lambda x: x - x.trunc(), key)
    try:
        with log:
            torch.ones(3).frac().trunc()
    finally:
        library._destroy()
    names = [call.name for call in log.calls]
    assert names[-2:] == ["another aten::frac", "aten::trunc"]
    assert rule_of(names[-2]) is None
    assert OperatorLog(torch.device("cpu")).name_of(A.frac.default) == "aten::frac"


@pytest.mark.slow
def test_every_operator_of_the_table_has_an_example():
    log = Poisoned()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in ALL:
            for sample, needs_grad in examples(op):
                with log:
                    run(op, sample, needs_grad)
    seen = {name.split(".")[0].removesuffix("_") for name in log.seen}
    missing = {name.removeprefix("aten::") for name in known_operators()} - {
        name.removeprefix("aten::") for name in seen
    }
    assert missing - set(OTHERS) == set()
