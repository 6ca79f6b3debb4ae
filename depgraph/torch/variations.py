"""Other inputs for a function: the values of its examples changed as its operators allow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from depgraph.apply.captured import Call, Captured

# Where an integer tensor stands among the arguments of operators, and which tensor bounds it.
_INDICES = {
    "aten::embedding": ("indices", "weight"),
    "aten::index_select": ("index", "self"),
    "aten::index": ("indices", "self"),
    "aten::_unsafe_index": ("indices", "self"),
    "aten::index_put": ("indices", "self"),
    "aten::_index_put_impl": ("indices", "self"),
    "aten::_unsafe_index_put": ("indices", "self"),
    "aten::index_copy": ("index", "self"),
    "aten::index_add": ("index", "self"),
    "aten::index_fill": ("index", "self"),
    "aten::gather": ("index", "self"),
    "aten::scatter": ("index", "self"),
    "aten::scatter_add": ("index", "self"),
    "aten::scatter_reduce": ("index", "self"),
    "aten::nll_loss_forward": ("target", "self"),
    "aten::take": ("index", "self"),
}
_COMPARISONS = frozenset(f"aten::{name}" for name in ("eq", "ne", "lt", "le", "gt", "ge"))
_VIEWS = frozenset(
    f"aten::{name}"
    for name in (
        "view", "_unsafe_view", "expand", "unsqueeze", "squeeze", "slice", "select", "t",
        "transpose", "permute", "detach", "alias", "as_strided", "split", "unbind",
        "_reshape_alias",
    )
)  # fmt: skip
_LOOKS_FOR_INFINITIES = "aten::_amp_foreach_non_finite_check_and_unscale"
_OUTLIER = 64.0


def varied(
    leaves: Sequence[Any], buffers: Sequence[Any], captured: Captured, n: int, *, integers: bool
) -> list[list[Any]]:
    """Return other inputs: floats in other orders, with outliers; with `integers` other indices."""
    generator = torch.Generator(device="cpu").manual_seed(0)
    bounds = {
        number: _bound_of(buffers[number], captured)
        for number, leaf in enumerate(leaves)
        if integers and isinstance(leaf, torch.Tensor)
    }
    found = [
        [
            _varied(leaf, bounds.get(number, 0), generator, outliers=place % 2 == 1)
            for number, leaf in enumerate(leaves)
        ]
        for place in range(n)
    ]
    scales = any(call.operator.startswith(_LOOKS_FOR_INFINITIES) for call in captured.calls)
    floats = [i for i, leaf in enumerate(leaves) if _is_floating(leaf)]
    if scales and floats:
        found.append(list(found[-1] if found else leaves))
        overflowing = leaves[floats[-1]].detach().clone()
        overflowing.reshape(-1)[0] = float("inf")
        found[-1][floats[-1]] = overflowing
    return found


def _is_floating(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.numel() > 0


def _varied(leaf: Any, bound: int, generator: Any, *, outliers: bool) -> Any:
    if not isinstance(leaf, torch.Tensor) or not leaf.numel():
        return leaf
    if leaf.is_floating_point() or leaf.is_complex():
        order = torch.randperm(leaf.numel(), generator=generator).to(leaf.device)
        made = leaf.detach().reshape(-1)[order]
        if outliers:
            few = torch.rand(made.shape, generator=generator) < 1 / 64
            made = torch.where(few.to(leaf.device), made * _OUTLIER, made)
    elif leaf.dtype is torch.bool:
        if not bound:
            return leaf
        made = (torch.rand(leaf.numel(), generator=generator) < 0.5).to(leaf.device)  # noqa: PLR2004
    elif bound:
        made = _other_indices(leaf.detach().reshape(-1), bound, generator)
    else:
        return leaf
    return made.reshape(leaf.shape).requires_grad_(leaf.requires_grad)


def _other_indices(values: Any, bound: int, generator: Any) -> Any:
    """Return other indices below a bound: none twice where there was none twice."""
    n = values.numel()
    if n <= bound and len(values.unique()) == n:
        made = torch.randperm(bound, generator=generator)[:n]
    else:
        made = torch.randint(bound, (n,), generator=generator)
    return made.to(values.device, values.dtype)


def _bound_of(buffer: Any, captured: Captured) -> int:
    """Return below what a tensor's values may be chosen anew; 0 where they had better stay."""
    if buffer.is_floating_point() or buffer.is_complex():
        return 0
    storage = buffer.untyped_storage().data_ptr()
    least = 0
    for call in captured.calls:
        for operand in call.operands:
            if not operand.name or operand.view.memory.start != storage:
                continue
            bound = _bound_in(call, operand.name, is_mask=buffer.dtype is torch.bool)
            if bound == 0:
                return 0
            if bound > 0:
                least = min(least or bound, bound)
    return least


def _bound_in(call: Call, name: str, *, is_mask: bool) -> int:
    """Return the bound that one operator sets; -1 for none, 0 if nobody knows."""
    operator = call.operator.removesuffix("_")
    if operator in _VIEWS or operator in _COMPARISONS:
        return -1
    if is_mask:
        return 1
    if operator in _INDICES and _INDICES[operator][0] == name:
        shapes = [o.view.shape for o in call.operands if o.name == _INDICES[operator][1]]
        return min((min(shape) for shape in shapes if shape), default=0)
    return 0
