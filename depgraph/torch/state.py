"""What a function changes: saved before it runs, and restored as if it had not run."""

from __future__ import annotations

import random
import sys
import threading
from typing import TYPE_CHECKING, Any

import torch

from depgraph.apply.operators import rule_of
from depgraph.torch.operator_log import OperatorLog

if TYPE_CHECKING:
    from collections.abc import Iterable

    from depgraph.torch.executed import Executed


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
        name = func.name() if hasattr(func, "name") else str(func)
        rule = rule_of(name.split(".", maxsplit=1)[0])
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
        numpy = sys.modules.get("numpy")
        self._numpy = None if numpy is None else numpy.random.get_state()

    def drew_on_host(self) -> bool:
        """Tell whether random numbers were drawn on the CPU since."""
        numpy = sys.modules.get("numpy")
        if self._device.type != "cpu" and not torch.equal(torch.get_rng_state(), self._cpu):
            return True
        if random.getstate() != self._python:
            return True
        if numpy is None or self._numpy is None:
            return False
        _, keys, *rest = numpy.random.get_state()
        return bool((keys != self._numpy[1]).any() or rest != list(self._numpy[2:]))

    def restore(self) -> None:
        """Set them back."""
        if self._gpu is not None:
            torch.cuda.set_rng_state(self._gpu, self._device)
        torch.set_rng_state(self._cpu)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
