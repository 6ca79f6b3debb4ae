"""Capturing a PyTorch function as a CUDA graph, and describing it."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from depgraph.apply.broken_capture import why_not_captured
from depgraph.apply.captured import Region
from depgraph.errors import ApplyError
from depgraph.torch.describe import describe, in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from depgraph.apply.captured import Captured
    from depgraph.torch.driver import Driver

_WARM_UPS = 3


@dataclass(slots=True)
class Program:
    """A captured function.

    Attributes
    ----------
    graph : torch.cuda.CUDAGraph
        As it was captured, not yet instantiated.
    outputs : object
        What the function returned: tensors in it are those that a replay writes.
    handles : list of int
        The driver's nodes, in the order of `captured.nodes`.
    """

    graph: Any
    outputs: Any
    handles: list[int]
    captured: Captured

    @property
    def raw(self) -> int:
        """The driver's graph."""
        return int(self.graph.raw_cuda_graph())


class _Kept(TorchDispatchMode):
    """Keeps the memory of every tensor that is made, so that no other one gets it.

    Some kernels read what they are about to write without using it. Where that is what another
    tensor has left, the recording cannot tell it from a dependence.

    Parameters
    ----------
    most_bytes : int
        Beyond it tensors come and go as usual.
    """

    def __init__(self, most_bytes: int) -> None:
        super().__init__()
        self._left = most_bytes
        self._known: dict[int, Any] = {}
        self.bytes = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call an operator, and keep what it returns."""
        del types
        given = {storage.data_ptr() for storage in _storages((args, kwargs))}
        made = func(*args, **(kwargs or {}))
        for storage in _storages(made):
            at, size = storage.data_ptr(), storage.nbytes()
            if at not in given and at not in self._known and size <= self._left:
                self._known[at] = storage
                self._left -= size
                self.bytes += size
        return made


def _storages(tree: Any) -> list[Any]:
    return [
        leaf.untyped_storage()
        for leaf in pytree.tree_leaves(tree)
        if isinstance(leaf, torch.Tensor) and leaf.is_cuda and leaf.layout is torch.strided
    ]


def capture(
    function: Callable[..., Any], arguments: Sequence[Any], driver: Driver, most_bytes: int = 0
) -> Program:
    """Run a function until it is warm, and capture it.

    Parameters
    ----------
    arguments : sequence
        Tensors among them are read where they lie whenever the graph runs.
    most_bytes : int
        Of tensors that are kept so that no other one gets their memory.

    Raises
    ------
    ApplyError
        If it cannot be captured: the line of Python at fault is named.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS):
            function(*arguments)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    gc.collect()
    # Libraries are to take their workspaces from the memory of the graph.
    _give_workspaces_back()
    try:
        graph = torch.cuda.CUDAGraph(keep_graph=True)
    except TypeError:
        raise ApplyError(
            f"PyTorch {torch.__version__} is too old", "2.8 or later is needed"
        ) from None
    try:
        kept = _Kept(most_bytes)
        with torch.cuda.graph(graph, stream=stream), kept:
            outputs = function(*arguments)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:
        raise ApplyError(why_not_captured(error)) from error
    kept_bytes = kept.bytes
    del kept  # the graph's memory is its own; what is in use from here on outlives a run
    # What is only there for a backward pass is not to outlive a run.
    outputs = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, outputs)
    raw = int(graph.raw_cuda_graph())
    handles = in_order(driver, raw)
    _give_workspaces_back()  # what is in use still is no workspace
    segments, in_use = _memory_of(graph)
    captured = describe(driver, raw, handles, [*segments, *_others()])
    results = tuple(sorted(in_use, key=lambda region: region.start))
    captured = replace(captured, kept=results, most_bytes=most_bytes, kept_bytes=kept_bytes)
    return Program(graph, outputs, handles, captured)


def _give_workspaces_back() -> None:
    """Let libraries give the memory back that they work in."""
    torch._C._cuda_clearCublasWorkspaces()  # noqa: SLF001 - PyTorch has no other way


def _memory_of(graph: Any) -> tuple[list[Region], set[Region]]:
    """Return the segments of a graph's own memory, and its blocks that are in use."""
    pool = tuple(graph.pool())
    mine = [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) == pool]
    segments = [Region(s["address"], s["total_size"], is_own=True) for s in mine]
    return segments, {Region(*block, is_own=True) for s in mine for block in _in_use(s)}


def _others() -> list[Region]:
    """Return what tensors outside of graphs hold."""
    return [
        Region(*block, is_own=False)
        for segment in torch.cuda.memory_snapshot()
        if tuple(segment["segment_pool_id"]) == (0, 0)
        for block in _in_use(segment)
    ]


def _in_use(segment: dict[str, Any]) -> list[tuple[int, int]]:
    return [
        (b["address"], b["size"]) for b in segment["blocks"] if b["state"] == "active_allocated"
    ]
