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
    """A captured function."""

    graph: Any  # as it was captured, not yet instantiated
    pool: tuple[int, int]  # the private pool that its memory lies in
    outputs: Any  # what the function returned: tensors in it are those that a replay writes
    handles: list[int]  # the driver's nodes, in the order of `captured.nodes`
    captured: Captured
    # the tensors that it uses and that were there before, by the address of their storages:
    # on the GPU, and on the CPU
    outside: dict[int, Any] = field(default_factory=dict)
    on_host: dict[int, Any] = field(default_factory=dict)
    # from these addresses to the operator that used them first
    first_use: dict[int, str] = field(default_factory=dict)
    kept_bytes: int = 0  # of memory that is kept so that no two tensors share it
    # parameters, and the gradients that it writes for them
    gradients: list[tuple[Any, Any]] = field(default_factory=list)
    # what it made on the CPU, which a replay may read
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
    # the function; tensors that it is given are read where they lie whenever the graph runs
    run: Callable[[], Any],
    lanes: Lanes,
    driver: Driver,
    device: Any,
    layout: Layout,  # on which lane each operator runs
    *,
    most_bytes: int = 0,  # of tensors that are kept so that no later one gets their memory
    # whether to listen to the dispatcher: compiled functions are not compiled then
    listens: bool = True,
    name: str = "it",
    place: int = 0,  # which call of `depgraph.torch.parallelize` it is
) -> Program:
    """Capture a function that is warm, note what it calls, and refuse what no graph does again."""
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
