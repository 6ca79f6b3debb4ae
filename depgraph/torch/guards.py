"""What a captured graph takes for granted, looked at before each call."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import RemovableHandle

from depgraph.errors import ApplyError
from depgraph.torch.bindings import ITEM, is_simple, leading_to
from depgraph.torch.operator_log import addresses_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from depgraph.torch.bindings import Bindings, Slot

_CALLABLE = (type(lambda: 0), type, type(len))
_GONE = (LookupError, AttributeError, TypeError, ValueError)


def settings() -> tuple[Any, ...]:
    """Return PyTorch's settings that decide which kernels run, and how exact they are."""
    get = torch._C  # the public ways take twenty times as long
    return (
        torch.get_default_dtype(),
        torch.get_autocast_dtype("cuda"),
        torch.is_autocast_enabled("cuda"),
        get._get_float32_matmul_precision(),
        get._get_deterministic_algorithms(),
        get._get_cublas_allow_fp16_reduced_precision_reduction(),
        get._get_cublas_allow_bf16_reduced_precision_reduction(),
        get._get_cudnn_allow_tf32(),
        get._get_cudnn_enabled(),
        get._get_cudnn_benchmark(),
        get._get_cudnn_deterministic(),
        get._get_flash_sdp_enabled(),
        get._get_mem_efficient_sdp_enabled(),
        get._get_math_sdp_enabled(),
        get._get_cudnn_sdp_enabled(),
    )


_SETTINGS = (
    "default dtype", "autocast's dtype", "autocast", "float32 matmul precision (TF32)",
    "deterministic algorithms", "fp16 reductions", "bf16 reductions", "TF32 in cuDNN", "cuDNN",
    "cudnn.benchmark", "cudnn.deterministic", "flash attention", "memory-efficient attention",
    "plain attention", "cuDNN attention",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Check:
    """One slot, and what it must hold."""

    slot: Slot
    pointer: Any = None  # of a tensor

    def holds(self) -> bool:
        """Tell whether the slot holds what it did."""
        now, then = self.slot.now(), self.slot.value
        if isinstance(then, torch.Tensor):
            return now is then and bool(_looks_up(now)() == self.pointer)
        if isinstance(then, (bool, int, float, complex, str, bytes)):
            return type(now) is type(then) and bool(now == then)
        return now is then or (not isinstance(now, torch.Tensor) and _is_equal(now, then))


def _is_equal(now: Any, then: Any) -> bool:
    try:
        return type(now) is type(then) and bool(now == then)
    except Exception:  # noqa: BLE001 - whatever a user's class raises
        return False


class Guards:
    """Tells whether a function would still make the same calls on the same memory.

    Parameters
    ----------
    bindings : Bindings
        Of the function.
    used : sequence of tensor
        The tensors on the GPU that it uses beside its arguments.
    on_host : sequence of tensor
        Those on the CPU: their values are part of the graph.
    names : mapping
        From the address of a storage to what first used it, for messages.
    needs_grad : bool
        Whether it depends on the grad mode: something it uses requires gradients.
    ignored : callable, optional
        Tells which slots the function sets anew in each call, without reading them.

    Raises
    ------
    ApplyError
        If nothing that can be looked at leads to a tensor that is used.
    """

    def __init__(
        self,
        bindings: Bindings,
        used: Sequence[Any],
        on_host: Sequence[Any] = (),
        names: Mapping[int, str] | None = None,
        *,
        needs_grad: bool = False,
        ignored: Callable[[Slot], bool] = lambda _: False,
    ) -> None:
        wanted = {at for tensor in used for at in addresses_of(tensor)}
        bound = {at: s.path for s in bindings.tensors() for at in addresses_of(s.value)}
        _refuse_unbound([t for t in used if not bound.keys() & addresses_of(t)], names or {})

        # Without gradients a parameter is left out by an optimizer, and by nobody else.
        steps = any(isinstance(slot.value, torch.optim.Optimizer) for slot in bindings.slots)

        def is_wanted(slot: Slot) -> bool:
            if ignored(slot):
                return False
            if isinstance(slot.value, torch.Tensor):
                return not wanted.isdisjoint(addresses_of(slot.value))
            if slot.key == "grad" and isinstance(slot.of, torch.Tensor):
                return steps
            return is_simple(slot.value) or isinstance(slot.value, _CALLABLE)

        slots = [s for s in leading_to(bindings, is_wanted) if s.kind and not ignored(s)]
        self._checks = [
            _Check(s, _looks_up(s.value)()) if isinstance(s.value, torch.Tensor) else _Check(s)
            for s in slots
        ]
        held = {id(thing) for s in slots for thing in (s.owner, getattr(s.of, "__dict__", None))}
        self._sizes = [each for each in bindings.sizes if id(each[0]) in held]
        self._host = [
            (tensor, tensor.detach().clone(), bound[at])
            for tensor in on_host
            for at in addresses_of(tensor)
            if at in bound
        ]
        self._hooked = [*bindings.hooks, *((d, len(d), "every module") for d in _of_all_modules())]
        self._hooks = RemovableHandle.next_id
        self._settings = settings()
        self._needs_grad = needs_grad
        self._grad = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        self._fast = self._generated()
        self.count = len(self._checks) + len(self._sizes)

    def failed(self) -> str:
        """Say what is not as it was; "" if all is."""
        grad = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        if self._needs_grad and grad != self._grad:
            return "grad mode or inference mode is another one"
        if (now := settings()) != self._settings:
            changed = zip(_SETTINGS, now, self._settings, strict=True)
            return next(f"{name} was changed" for name, a, b in changed if a != b)
        for tensor, then, path in self._host:
            if not torch.equal(tensor, then):
                return f"{path}, a tensor on the CPU, was changed"
        try:
            if RemovableHandle.next_id == self._hooks and self._fast():
                return ""
        except _GONE:
            pass
        return self._found()

    def _found(self) -> str:
        """Look at each slot: what it holds is expected from now on if all is well after all."""
        checks = []
        for check in self._checks:
            try:
                holds = check.holds()
            except _GONE:
                holds = False
            if not holds:
                return f"{check.slot.path} was replaced or changed"
            s = check.slot
            checks.append(_Check(replace(s, value=s.now()), check.pointer))
        for owner, size, path in self._sizes:
            if len(owner) != size:
                return f"{path} has {len(owner)} items, not {size}"
        for hooks, size, path in self._hooked:
            if len(hooks) != size:
                return f"{path} has other hooks"
        self._hooks = RemovableHandle.next_id
        self._checks = checks
        self._fast = self._generated()
        return ""

    def _generated(self) -> Callable[[], bool]:
        """Return one function that looks at everything: a loop takes three times as long."""
        held: dict[str, Any] = {}
        owners: dict[int, str] = {}

        def name_of(thing: Any) -> str:
            name = owners.setdefault(id(thing), f"v{len(owners)}")
            held[name] = thing
            return name

        tests = []
        for check in self._checks:
            slot = check.slot
            owner, value = name_of(slot.owner), name_of(slot.value)
            if slot.kind != ITEM:
                place = f"{owner}.{slot.key}"
            elif type(slot.key) in {str, int}:
                place = f"{owner}[{slot.key!r}]"
            else:
                place = f"{owner}[{name_of(slot.key)}]"
            tests.append(f"{place} is {value}")
            if check.pointer is not None:
                method = f"p{len(held)}"
                held[method] = _looks_up(slot.value)
                tests.append(f"{method}() == {check.pointer!r}")
        tests += [f"len({name_of(owner)}) == {size}" for owner, size, _ in self._sizes]
        text = f"def look({', '.join(f'{k}={k}' for k in held)}):\n    return (\n        "
        text += "\n        and ".join(tests or ["True"]) + "\n    )\n"
        scope = dict(held)
        exec(text, scope)  # noqa: S102 - of names made here, keys as Python writes them
        look: Callable[[], bool] = scope["look"]
        return look


def _looks_up(tensor: Any) -> Callable[[], Any]:
    """Return what tells where a tensor's memory is now."""
    is_plain = tensor.layout is torch.strided and not tensor.is_nested
    return tensor.data_ptr if is_plain else partial(addresses_of, tensor)


def _of_all_modules() -> list[dict[Any, Any]]:
    """Return the hooks that PyTorch calls for every module."""
    found = vars(torch.nn.modules.module)
    return [hooks for name, hooks in found.items() if re.fullmatch("_global_.*_hooks", name)]


def _refuse_unbound(tensors: Sequence[Any], names: Mapping[int, str]) -> None:
    """Refuse a function that uses a tensor that nothing leads to."""
    for tensor in tensors:
        storage = addresses_of(tensor)[0]
        what = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
        by = f", used by {names[storage]}" if storage in names else ""
        raise ApplyError(
            f"the function uses a tensor ({what}{by}) that nothing it refers to leads to",
            "pass it as an argument, or make it an attribute or a global name",
        )


class Warned:
    """Warns once that the function itself runs, and why.

    Parameters
    ----------
    name : str
        Of the function.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_said = False

    def say(self, reason: str) -> None:
        """Warn, unless there was a warning before."""
        if not self._is_said:
            self._is_said = True
            self.warn(f"depgraph: {self._name} runs by itself, not as a graph: {reason}")

    @staticmethod
    def warn(text: str) -> None:
        """Warn where the function was called."""
        warnings.warn(text, RuntimeWarning, stacklevel=4)
