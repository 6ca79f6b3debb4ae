"""A function that runs as a CUDA graph wherever nothing has changed that the graph rests on."""

import threading
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from depgraph.apply.applied import Applied
from depgraph.errors import ApplyError
from depgraph.torch.arguments import Arguments, is_dense
from depgraph.torch.guards import Guards, WarnOnce
from depgraph.torch.lanes import Lanes
from depgraph.torch.nesting import Nesting
from depgraph.torch.values import is_strided

_RETURN_THEMSELVES = frozenset(
    """
    apply bfloat16 cpu cuda double eval float half requires_grad_ share_memory to to_empty train
    type
    """.split()  # noqa: SIM905 - easier to read
)
_CONSTANTS = (
    bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size,
)  # fmt: skip


def is_capturing() -> bool:
    """Tell whether a graph is being captured here, also where a function is not to know it."""
    return bool(torch._C._cuda_isCurrentStreamCapturing())


class Outputs:
    """What a captured function returned, to be handed out anew for each call."""

    def __init__(
        self,
        outputs: Any,
        arguments: Arguments,
        outside: Container[int],  # storages that were there before the function ran
        device: Any = None,  # of all tensors; default that of the arguments
        copy: Callable[[int, int, int, int], int] | None = None,  # the driver's, twice as quick
        bound: Container[int] = frozenset(),  # identities of tensors that it refers to
    ) -> None:
        device = arguments.device if device is None else device
        self._nesting = Nesting(outputs)
        self._leaves = self._nesting.leaves
        of_argument = {
            buffer.untyped_storage().data_ptr(): number
            for number, buffer in enumerate(arguments.buffers)
            if isinstance(buffer, torch.Tensor)
        }
        self._of_argument: dict[int, int] = {}  # leaves in the memory of one
        buffers = {id(each) for each in arguments.buffers if isinstance(each, torch.Tensor)}
        self._arguments = {i for i, leaf in enumerate(self._leaves) if id(leaf) in buffers}
        self._others: list[int] = []  # leaves that are made of what was there before
        self._state: set[int] = set()  # those that are themselves what was there before
        group_of: dict[int, list[int]] = {}  # leaves that share memory
        for number, leaf in enumerate(self._leaves):
            if not isinstance(leaf, torch.Tensor):
                if not isinstance(leaf, _CONSTANTS):
                    what = type(leaf).__qualname__
                    raise ApplyError(
                        f"the function returns a {what}, which cannot be copied",
                        "return tensors, tuples, lists, dictionaries or registered pytrees",
                    )
                continue
            if not is_strided(leaf) or leaf.device != device:
                raise ApplyError(
                    "the function returns a tensor that is not strided or not on the GPU",
                    "return its parts",
                )
            at = leaf.untyped_storage().data_ptr() or -1 - number  # its own if it is empty
            if at in of_argument:
                self._of_argument[number] = of_argument[at]
            elif id(leaf) in bound:  # whether or not an operator was given it
                self._state.add(number)
            elif at not in outside:
                group_of.setdefault(at, []).append(number)
            else:
                self._others.append(number)
        self._groups = [*group_of.values()]
        self._views = {i for i in self._of_argument if id(self._leaves[i]._base) in buffers}
        for number in self._of_argument.keys() - self._arguments:
            _refuse_part_of(self._of_argument[number], arguments)
        self._leaves = [self._of_its_own(number) for number in range(len(self._leaves))]
        self._copy = copy
        self._dense = {
            id(leaf): leaf.numel() * leaf.element_size()
            for leaf in self._leaves
            if isinstance(leaf, torch.Tensor) and is_dense(leaf) and not _is_lazy(leaf)
        }
        self._is_one = isinstance(outputs, torch.Tensor) and self._groups == [[0]]

    @property
    def tensors(self) -> list[tuple[str, Any]]:
        """The tensors that a run of the graph writes, with names."""
        return [
            (f"output {number}", leaf)
            for number, leaf in enumerate(self._leaves)
            if isinstance(leaf, torch.Tensor)
        ]

    def not_copied(self) -> Any:
        """Return tensors whose memory the next run overwrites."""
        return self._nesting.filled([self._of_its_own(i) for i in range(len(self._leaves))])

    def _of_its_own(self, number: int) -> Any:
        """Return a leaf as another tensor each time: a caller may change all but the memory."""
        leaf = self._leaves[number]
        is_other = isinstance(leaf, torch.Tensor) and number not in self._state
        return leaf.detach() if is_other else leaf

    def _copied(self, tensor: Any, stream: int) -> Any:
        size = self._dense.get(id(tensor))
        if self._copy is None or size is None:
            return tensor.clone()
        made = torch.empty_like(tensor)
        if self._copy(made.data_ptr(), tensor.data_ptr(), size, stream):
            made.copy_(tensor)  # the driver has no context yet
        return made

    def copied_out(self, arguments: Sequence[Any], stream: int = 0) -> Any:
        """Return copies that belong to the caller; views of arguments are views of the caller's."""
        if self._is_one:
            return self._copied(self._leaves[0], stream)
        made = list(self._leaves)
        alone = [group[0] for group in self._groups if len(group) == 1]
        if len(alone) == 1:
            made[alone[0]] = self._copied(made[alone[0]], stream)
        elif alone:
            copies = [torch.empty_like(made[i]) for i in alone]
            torch._foreach_copy_(copies, [made[i] for i in alone])  # one kernel for many
            for number, copy in zip(alone, copies, strict=True):
                made[number] = copy
        for group in self._groups:
            if len(group) > 1:
                self._copy_together(group, made)
        for number in self._others:
            made[number] = self._of_its_own(number)
        for number, argument in self._of_argument.items():
            given = arguments[argument]
            if number not in self._arguments:
                is_view = number in self._views and not given.requires_grad  # for autograd, too
                given = _same_view(made[number], given if is_view else given.detach())
            made[number] = given
        return self._nesting.filled(made)

    @staticmethod
    def _copy_together(group: Sequence[int], made: list[Any]) -> None:
        first = made[group[0]]
        whole = torch.empty(0, dtype=torch.uint8, device=first.device)
        whole = whole.set_(first.untyped_storage()).clone()
        for number in group:
            made[number] = _placed_as(made[number], whole, made[number].storage_offset())


def _refuse_part_of(number: int, arguments: Arguments) -> None:
    """Refuse to hand out parts of an argument whose buffer is laid out in another way."""
    if arguments.leaves[number].stride() != arguments.buffers[number].stride():
        raise ApplyError(
            f"the function returns a part of argument {number}, whose elements share memory",
            "return a copy of it",
        )


def _is_lazy(tensor: Any) -> bool:
    """Tell whether a tensor's bytes are yet to be conjugated or negated."""
    return bool(tensor.is_conj() or tensor.is_neg())


def _placed_as(view: Any, memory: Any, offset: int) -> Any:
    """Return the tensor that lies in other memory as one lies in its own, from an element on."""
    made = torch.empty(0, dtype=view.dtype, device=view.device).set_(
        memory.untyped_storage(), offset, view.shape, view.stride()
    )
    made = torch._neg_view(made) if view.is_neg() else made
    return made.conj() if view.is_conj() else made


def _same_view(view: Any, argument: Any) -> Any:
    """Return the view of a caller's argument that another one is of its buffer."""
    if view.dtype == argument.dtype and not _is_lazy(view):
        offset = view.storage_offset() + argument.storage_offset()
        return argument.as_strided(view.shape, view.stride(), offset)
    before = argument.storage_offset() * argument.element_size()
    places, rest = divmod(before, view.element_size())
    if rest:  # it begins between two elements of the view's type
        argument, places = argument.clone(memory_format=torch.preserve_format), 0
    return _placed_as(view, argument, places + view.storage_offset())


@dataclass(frozen=True, slots=True)
class Replay:
    """A graph that can be launched, and where it leaves its results."""

    run: Callable[[], object]  # launches it on the current stream
    outputs: Outputs
    gradients: Sequence[tuple[Any, Any]]  # parameters, and the gradients that it writes for them

    def left(self) -> list[tuple[str, Any]]:
        """Return what a run has left in its own memory, with names."""
        named = ((f"gradient {i}", gradient) for i, (_, gradient) in enumerate(self.gradients))
        return [*self.outputs.tensors, *named]

    def set_gradients(self) -> None:
        """Let parameters have the gradients that it writes."""
        for tensor, gradient in self.gradients:
            if tensor.grad is not gradient:
                tensor.grad = gradient


@dataclass(slots=True)
class Ready:
    """All that a graph needs to run."""

    graph: Replay
    plain: Replay  # as it was captured; the same results
    guards: Guards
    device: Any
    state: list[tuple[str, Any]]  # storages outside of its own memory that it may change
    is_pure: bool  # changes neither these nor arguments, gradients or a random generator's state
    held: Any  # what must live as long as the graph
    lanes: Lanes  # to be handed on


class StandIn:
    """Is called in a function's place, and has its attributes."""

    _OWN = frozenset({"report"})

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the function, such as a model's parameters."""
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self._function, name)
        if name in _RETURN_THEMSELVES and isinstance(self._function, torch.nn.Module):
            return partial(self._changed, found)
        return found

    def _changed(self, change: Callable[..., Any], *args: Any, **keywords: Any) -> "StandIn":
        change(*args, **keywords)
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name in self._OWN:
            super().__setattr__(name, value)
        else:
            setattr(self._function, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._function, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._function)})


class Parallelized(StandIn):
    """A function that runs as a CUDA graph.

    Call it as the function. Tensors are copied into the buffers of the graph, and those that the
    function changes in place are copied back; what it returns belongs to the caller. Where the
    arguments are of another kind than the examples, or something was replaced that the function
    reads, the function itself runs, with one warning.

    Attributes
    ----------
    report : Applied or None
        What came of it; None while the program is run again to look at it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Arguments,
        name: str,
        *,
        outputs: str = "own",
        verify_every: int = 0,
    ) -> None:
        super().__init__(function)
        self._arguments = arguments
        self._warned = WarnOnce(name)
        self._is_own = outputs == "own"
        self._verify_every = verify_every
        self._ready: Ready | None = None
        self._lock = threading.Lock()
        self._stream = -1
        self._last: Any = None  # the same, as PyTorch's object
        self._calls = 0
        self._name = name
        self.report: Applied | None = None

    def add_note(self, text: str) -> None:
        """Add what else to know to the report."""
        if self.report is not None:
            self.report = replace(self.report, notes=(*self.report.notes, text))

    def set_ready(self, ready: Ready | None) -> None:
        """Let calls run a graph from now on; the function itself where there is none."""
        self._ready = ready

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Run the graph on some inputs, or the function itself."""
        ready = self._ready
        if ready is None:
            return self._function(*args, **keywords)
        leaves: Sequence[Any] = ()
        reason = ready.guards.in_other_modes()
        if not reason:
            leaves, reason = self._arguments.matched(args, keywords)
        if not reason and is_capturing():
            reason = "a graph is being captured"
        if not reason:
            with self._lock:
                if ready.device.index == torch._C._cuda_getDevice():
                    reason, found = self._run(ready, leaves)
                else:
                    with torch.cuda.device(ready.device):
                        reason, found = self._run(ready, leaves)
            if not reason:
                return found
        self._warned.say(reason)
        return self._function(*args, **keywords)

    def _run(self, ready: Ready, leaves: Sequence[Any]) -> tuple[str, Any]:
        """Run the graph; return why its results are of no use, or "", and these."""
        stream = torch._C._cuda_getCurrentRawStream(ready.device.index)
        if stream != self._stream:
            self._go_on_with(stream)
        self._calls += 1
        runs = ready.graph
        self._arguments.copy_in(leaves, stream)
        # What changes nothing may run before it is known whether it should have.
        if not ready.is_pure and (reason := ready.guards.failed()):
            return reason, None
        if self._verify_every and self._calls % self._verify_every == 0:
            runs = self._verified(ready, leaves)
        else:
            runs.run()
        if ready.is_pure:
            if reason := ready.guards.failed():
                return reason, None
        else:
            self._arguments.copy_back(leaves)
            runs.set_gradients()
        if self._is_own:
            return "", runs.outputs.copied_out(leaves, stream)
        return "", runs.outputs.not_copied()

    def _go_on_with(self, stream: int) -> None:
        """Let a stream wait for what the one before was given."""
        now = torch.cuda.current_stream()
        if self._last is not None:
            try:
                now.wait_stream(self._last)
            except RuntimeError:  # it was destroyed
                torch.cuda.synchronize()
        self._stream, self._last = stream, now

    def _verified(self, ready: Ready, leaves: Sequence[Any]) -> Replay:
        """Run the graph, and beside it the one that was captured, whose results are returned."""
        from depgraph.torch.bench import copied, not_close

        changed = [*self._arguments.changed(), *ready.state]
        with torch.no_grad():
            before = [tensor.clone() for _, tensor in ready.state]
            generator = torch.cuda.get_rng_state(ready.device)
            ready.graph.run()
            mine = copied([*ready.graph.left(), *changed])
            for (_, tensor), old in zip(ready.state, before, strict=True):
                tensor.copy_(old)
            torch.cuda.set_rng_state(generator, ready.device)
            self._arguments.copy_in(leaves, self._stream)
            ready.plain.run()
            wrong = not_close(mine, copied([*ready.plain.left(), *changed]))
        if wrong:
            ready.graph = ready.plain
            self._verify_every = 0
            text = f"call {self._calls}: {wrong}; from now on the graph as it was captured runs"
            self._warned.warn(f"depgraph: {self._name}: {text}")
        return ready.plain

    def __del__(self) -> None:
        self.let_go()

    def let_go(self) -> None:
        """Wait for the graph, whose memory others get now; the function itself runs afterwards."""
        ready, self._ready = getattr(self, "_ready", None), None
        if ready is None:
            return
        try:
            if self._last is not None:
                self._last.synchronize()
            ready.lanes.release()
        except Exception:  # noqa: BLE001, S110 - the interpreter, or the GPU's context, is gone
            pass
