"""Running a function until it is warm, and finding out what it changes."""

import gc
import random
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from depgraph.apply.operators import rule_of
from depgraph.errors import ApplyError
from depgraph.torch.bindings import Bindings, of_several_processes
from depgraph.torch.compiling import refuse_unseen, uncompiled
from depgraph.torch.executed import Executed
from depgraph.torch.operator_log import OperatorLog

_MOST_RUNS = 4  # until a function leaves everything bound as it was
_MORE_RUNS = 2  # until libraries have chosen their kernels

Gradients = list[tuple[Any, Any]]


def whole_storage(tensor: Any) -> Any:
    """Return all bytes of a tensor's storage as a tensor."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


class Saved:
    """Copies of storages, to be written back."""

    def __init__(self) -> None:
        self._copies: dict[tuple[str, int], tuple[Any, Any]] = {}

    def add(self, tensor: Any) -> None:
        """Copy a tensor's whole storage, unless there is a copy of it already."""
        key = str(tensor.device), tensor.untyped_storage().data_ptr()
        if key not in self._copies and tensor.untyped_storage().nbytes():
            with torch.inference_mode(mode=False), torch.no_grad():
                bytes_ = whole_storage(tensor)
                self._copies[key] = bytes_, bytes_.clone()

    def add_all(self, tensors: Iterable[Any]) -> None:
        """Copy the storages of several tensors."""
        for tensor in tensors:
            self.add(tensor)

    def restore(self) -> None:
        """Write everything back."""
        if self._copies:
            with torch.inference_mode(mode=False), torch.no_grad():
                for bytes_, copy in self._copies.values():
                    bytes_.copy_(copy)

    @property
    def size(self) -> int:
        """Bytes of all copies."""
        return sum(copy.numel() for _, copy in self._copies.values())


class Probe(OperatorLog):
    """Listens to a function that runs, and saves what was there before an operator changes it."""

    def __init__(self, device: Any, saved: Saved, executed: Executed) -> None:
        super().__init__(device)
        self._saved = saved
        self._executed = executed
        self._thread = threading.get_ident()

    def before(self, func: Any, written: list[Any], read: list[Any]) -> None:
        """Save what an operator may change, for all that is known of it."""
        if threading.get_ident() != self._thread:
            self._executed.note_stack(sys._getframe())
        rule = rule_of(self.name_of(func))
        tensors = written if rule is not None and not rule.also_writes else [*written, *read]
        for tensor in tensors:
            for part, _ in self.parts_outside(tensor):
                self._saved.add(part)


class RandomState:
    """The states of all random generators that a function may draw from."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        self._cpu = torch.get_rng_state()
        self._python = random.getstate()
        self._numpy: Any = np.random.get_state()  # noqa: NPY002 - the user's

    def drew_on_host(self) -> bool:
        """Tell whether random numbers were drawn on the CPU since."""
        if self._device.type != "cpu" and not torch.equal(torch.get_rng_state(), self._cpu):
            return True
        if random.getstate() != self._python:
            return True
        _, keys, *rest = np.random.get_state()  # noqa: NPY002
        return bool((keys != self._numpy[1]).any() or rest != list(self._numpy[2:]))

    def restore(self) -> None:
        """Set them back."""
        if self._gpu is not None:
            torch.cuda.set_rng_state(self._gpu, self._device)
        torch.set_rng_state(self._cpu)
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002


@dataclass(slots=True)
class Warm:
    """How things were before a run of a function, and what that run showed."""

    executed: Executed
    random: RandomState
    gradients: Gradients  # at first all that there are; once it is warm those that runs make anew
    saved: Saved = field(default_factory=Saved)  # what it changes
    changed: list[str] = field(default_factory=list)  # what it reads and bound anew
    remade: frozenset[int] = frozenset()  # the tensors whose gradients it made anew
    made: str = ""  # state that the first run made, such as an optimizer's: that run counts, then
    is_backward: bool = False  # whether other threads call operators, as backward passes do
    uses_libraries: bool = True  # whether kernels may be a library's that needs a workspace

    @property
    def anew(self) -> Gradients:
        """The tensors whose gradients each run makes anew, and those before."""
        return [(tensor, old) for tensor, old in self.gradients if id(tensor) in self.remade]

    def undo(self) -> None:
        """Let everything be as before, but for a run that counts."""
        self.saved.restore()
        self.random.restore()
        for tensor, gradient in self.gradients:
            tensor.grad = gradient


def warm_up(
    run: Callable[[], Any],
    bindings: Callable[[Executed | None], Bindings],  # of the function, given what ran
    device: Any,
    name: str,
    *,
    also: Iterable[str] = (),  # what leads to tensors that kernels of no operator may change
) -> Warm:
    """Run a function until it is warm, on the caller's stream: more streams would slow graphs."""
    executed = Executed()
    warm = _settled(_until_settled(run, bindings, device, name, executed, also))
    try:
        for _ in range(_MORE_RUNS):
            run()  # here functions are compiled
        refuse_unseen(run, name)
    except BaseException:
        warm.undo()
        raise
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    gc.collect()
    return warm


def _until_settled(
    run: Callable[[], Any],
    bindings: Callable[[Executed | None], Bindings],
    device: Any,
    name: str,
    executed: Executed,
    also: Iterable[str],
) -> list[Warm]:
    wanted = frozenset(also)
    runs: list[Warm] = []
    before = bindings(None)
    if found := of_several_processes(before):
        raise ApplyError(
            f"{name} uses {found}, and a graph here holds the kernels of one process on one GPU",
            "give the module that it wraps, as one process runs it",
        )
    then = before.state()
    while len(runs) < _MOST_RUNS:
        now = Warm(executed, RandomState(device), _gradients(before))
        runs.append(now)
        now.saved.add_all(slot.value for slot in before.tensors() if slot.path in wanted)
        try:
            _run_once(run, now, device, name)
        except BaseException:
            for each in reversed(runs):
                each.undo()
            raise
        read, before = bindings(executed).state(), bindings(None)
        left = before.state()
        now.changed = [
            path for path in read if then.get(path) != left.get(path) and not path.endswith(".grad")
        ]
        old = {id(tensor): gradient for tensor, gradient in now.gradients}
        now.remade = frozenset(id(t) for t, new in _gradients(before) if old.get(id(t)) is not new)
        then = left
        is_steady = not now.remade or (len(runs) > 1 and now.remade == runs[-2].remade)
        if not now.changed and is_steady:
            return runs
    what = runs[-1].changed[0] if runs[-1].changed else "some gradients"
    raise ApplyError(
        f"{name} reads {what} and binds something else to it in each run",
        "change a tensor in place instead, or return the value",
    )


def _run_once(run: Callable[[], Any], now: Warm, device: Any, name: str) -> None:
    probe = Probe(device, now.saved, now.executed)
    with now.executed.listening(), uncompiled(), probe:
        outputs = run()
    now.is_backward = len(probe.threads) > 1
    rules = [rule_of(call.name) for call in probe.calls]
    now.uses_libraries = any(rule is None or rule.is_library for rule in rules)
    if now.random.drew_on_host():
        raise ApplyError(
            f"{name} draws random numbers on the CPU, which a graph would not draw again",
            "draw them on the GPU, or pass them as arguments",
        )
    tensors = (t for t in pytree.tree_leaves(outputs) if isinstance(t, torch.Tensor))
    if any(tensor.requires_grad for tensor in tensors):
        raise ApplyError(
            f"what {name} returns requires gradients, and a graph has no backward pass",
            "call parallelize and the result under torch.no_grad(), or return it detached",
        )


def _settled(runs: Sequence[Warm]) -> Warm:
    """Keep what undoes all runs, but for the first if it made what the others use."""
    last = runs[-1]
    first = len(runs)
    while first and not runs[first - 1].changed and runs[first - 1].remade == last.remade:
        first -= 1
    warm = runs[first]
    if first:
        warm.made = (*runs[first - 1].changed, "gradients")[0]
    warm.remade = last.remade
    warm.gradients = warm.anew
    warm.is_backward, warm.uses_libraries = last.is_backward, last.uses_libraries
    return warm


def _gradients(bindings: Bindings) -> Gradients:
    """Return the tensors that may have gradients, and these."""
    return [(s.of, s.value) for s in bindings.slots if s.key == "grad" and s.of is s.owner]
