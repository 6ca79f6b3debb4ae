"""Capturing a PyTorch function as a CUDA graph, and describing it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from depgraph.apply.broken_capture import why_not_captured
from depgraph.errors import ApplyError
from depgraph.torch.allocations import listening
from depgraph.torch.describe import describe
from depgraph.torch.operator_log import OperatorLog, refuse_faults

if TYPE_CHECKING:
    from collections.abc import Callable

    from depgraph.apply.captured import Captured
    from depgraph.apply.plan import Layout
    from depgraph.torch.driver import Driver
    from depgraph.torch.lanes import Lanes


@dataclass(slots=True)
class Program:
    """A captured function.

    Attributes
    ----------
    graph : torch.cuda.CUDAGraph
        As it was captured, not yet instantiated.
    pool : (int, int)
        The private pool that its memory lies in.
    outputs : object
        What the function returned: tensors in it are those that a replay writes.
    handles : list of int
        The driver's nodes, in the order of `captured.nodes`.
    captured : Captured
    outside, on_host : dict
        The tensors that it uses and that were there before, by the address of their storages: on
        the GPU, and on the CPU.
    first_use : dict
        From these addresses to the operator that used them first.
    kept_bytes : int
        Of memory that is kept so that no two tensors share it.
    gradients : list of (tensor, tensor)
        Parameters, and the gradients that it writes for them.
    of_host : list of storage
        What it made on the CPU, which a replay may read.
    """

    graph: Any
    pool: tuple[int, int]
    outputs: Any
    handles: list[int]
    captured: Captured
    outside: dict[int, Any] = field(default_factory=dict)
    on_host: dict[int, Any] = field(default_factory=dict)
    first_use: dict[int, str] = field(default_factory=dict)
    kept_bytes: int = 0
    gradients: list[tuple[Any, Any]] = field(default_factory=list)
    of_host: list[Any] = field(default_factory=list)

    @property
    def raw(self) -> int:
        """The driver's graph."""
        return int(self.graph.raw_cuda_graph())


def capture_plainly(run: Callable[[], Any], lanes: Lanes) -> Any:
    """Capture a function as anybody would; return the graph and what the function returned."""
    graph = _new_graph()
    try:
        with torch.cuda.graph(graph, stream=lanes.stream(0)):
            outputs = run()
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:
        _forget_capture()
        raise ApplyError(why_not_captured(error)) from error
    graph.instantiate()
    return graph, outputs


def capture(
    run: Callable[[], Any],
    lanes: Lanes,
    driver: Driver,
    device: Any,
    layout: Layout,
    *,
    most_bytes: int = 0,
    listens: bool = True,
    name: str = "it",
    place: int = 0,
) -> Program:
    """Capture a function that is warm, and note what it calls.

    Parameters
    ----------
    run : callable
        The function; tensors that it is given are read where they lie whenever the graph runs.
    layout : Layout
        On which lane each operator runs.
    most_bytes : int
        Of tensors that are kept so that no later one gets their memory.
    listens : bool
        Whether to listen to the dispatcher: compiled functions are not compiled then.
    name : str
        Of the function.
    place : int
        Which call of `depgraph.torch.parallelize` it is.

    Raises
    ------
    ApplyError
        If it cannot be captured, with the line of Python at fault; or if it does on the way what
        no graph does again.
    """
    graph = _new_graph()
    main = lanes.stream(0)
    pool = torch.cuda.graph_pool_handle()  # as if nothing had been captured before
    raw = 0

    def nodes() -> int:
        nonlocal raw
        raw = raw or driver.captures_into(main.cuda_stream)
        return driver.count(raw)

    def around(call: int) -> Any:
        return lanes.on(layout.lanes[call] if call < len(layout.lanes) else 0)

    with listening(device.index, lanes.workspaces) as allocations:
        log = OperatorLog(
            device, lambda: (nodes(), allocations.now()), around,
            most_bytes if layout.keeps else 0,
        )  # fmt: skip
        try:
            with torch.cuda.graph(graph, pool=pool, stream=main):
                if listens:
                    with log:
                        outputs = run()
                else:
                    outputs = run()
        except (torch.cuda.OutOfMemoryError, ApplyError):
            _forget_capture()
            raise
        except Exception as error:
            _forget_capture()
            raise ApplyError(why_not_captured(error)) from error
        timeline = allocations.timeline()
    refuse_faults(log, name)
    handles = driver.nodes(int(graph.raw_cuda_graph()))
    edges = [(a, b) for a, b, _ in driver.edges(int(graph.raw_cuda_graph()))]
    number = {handle: i for i, handle in enumerate(handles)}
    if any(number[a] > number[b] for a, b in edges):
        raise ApplyError(f"{name} cannot run as a graph: it changes the graph that is captured")
    captured = describe(driver, handles, edges, log.calls, timeline, place)
    first_use: dict[int, str] = {}
    for call in log.calls:
        for at in [*(tensor.storage for tensor in call.tensors), *call.others]:
            first_use.setdefault(at[0], call.name)
    return Program(
        graph, pool, outputs, handles, captured, log.outside, log.on_host, first_use,
        log.kept_bytes, of_host=log.of_host,
    )  # fmt: skip


def _new_graph() -> Any:
    try:
        return torch.cuda.CUDAGraph(keep_graph=True)
    except TypeError:
        raise ApplyError(
            f"PyTorch {torch.__version__} is too old", "2.8 or later is needed"
        ) from None


def _forget_capture() -> None:
    """Capture nothing: after a capture that failed the random generator waits for one that ends."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the graph is empty
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=torch.cuda.Stream()):
            pass
