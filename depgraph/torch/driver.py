"""The CUDA driver's graph calls, through `cuda-bindings`, which PyTorch for CUDA brings."""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from ctypes import POINTER, c_size_t, c_void_p
from itertools import count, takewhile
from typing import Any

from depgraph.apply.captured import COPY, EMPTY, KERNEL, MEMSET
from depgraph.errors import ApplyError

Three = tuple[int, int, int]
_TYPE = "CU_GRAPH_NODE_TYPE_"
_KINDS = {"KERNEL": KERNEL, "MEMCPY": COPY, "MEMSET": MEMSET, "EMPTY": EMPTY}
_BUFFER, _SIZE = 1, 2  # CU_LAUNCH_PARAM_*


class Driver:
    """The graph calls needed, on addresses in PyTorch's context; `ApplyError` where one fails."""

    def __init__(self) -> None:
        try:
            from cuda.bindings import driver
        except ImportError:
            hint = "pip install 'depgraph[apply]'"
            raise ApplyError("cuda-bindings is not installed", hint) from None
        self._cuda = driver
        # In cuda-bindings 12, the calls that know of programmatic edges have names of their own.
        is_12 = hasattr(driver, "cuGraphGetEdges_v2")
        self._v2, self._v3 = ("_v2", "_v3") if is_12 else ("", "")

    def call(self, name: str, *arguments: Any, end: Any = None) -> Any:
        """Return what the driver hands out: nothing, one value or a list; None for code `end`."""
        try:
            code, *values = getattr(self._cuda, name)(*arguments)
        except RuntimeError as error:  # the driver is older than cuda-bindings
            hint = "install cuda-bindings of the version of CUDA that nvidia-smi names"
            raise ApplyError(f"the CUDA driver has no {name}: {error}", hint) from None
        except ValueError as error:  # it is newer: a kind of node, say, that they do not name
            hint = "install a newer cuda-bindings"
            raise ApplyError(
                f"cuda-bindings does not know {name}'s answer: {error}", hint
            ) from None
        if code and code != end:
            raise ApplyError(f"the CUDA driver refused {name}: {code.name}")
        return None if code else values[0] if len(values) == 1 else values

    def captures_into(self, stream: int) -> int:
        """Return the graph that a stream is being captured into, 0 if it is not."""
        status, _, graph, *_ = self.call(f"cuStreamGetCaptureInfo{self._v3}", stream)
        active = self._cuda.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
        return int(graph) if status == active else 0

    def count(self, graph: int) -> int:
        """Return how many nodes a graph has."""
        return int(self.call("cuGraphGetNodes", graph)[1])

    def nodes(self, graph: int) -> list[int]:
        """Return the nodes of a graph, in the order in which they were made."""
        nodes, _ = self.call("cuGraphGetNodes", graph, self.count(graph))
        return list(map(int, nodes))

    def edges(self, graph: int) -> list[tuple[int, int]]:
        """Return the edges of a graph, those of programmatic launches among them."""
        sources, targets, *_ = self._edges(graph)
        return list(zip(map(int, sources), map(int, targets), strict=True))

    def _edges(self, graph: int) -> list[Any]:
        """Return the ends of all edges, what the driver knows of each, and how many there are."""
        name = f"cuGraphGetEdges{self._v2}"
        *_, n = self.call(name, graph)
        return list(self.call(name, graph, n))

    def add_edges(self, graph: int, edges: Sequence[tuple[int, int]]) -> None:
        """Let nodes wait for all of others."""
        if edges:
            sources, targets = ([self._cuda.CUgraphNode(edge[i]) for edge in edges] for i in (0, 1))
            name = f"cuGraphAddDependencies{self._v2}"
            self.call(name, graph, sources, targets, None, len(edges))

    def remove_edges(self, graph: int) -> None:
        """Let no node of a graph wait for another."""
        *edges, n = self._edges(graph)
        if n:
            self.call(f"cuGraphRemoveDependencies{self._v2}", graph, *edges, n)

    def kind(self, node: int) -> str:
        """Return what a node is, as `Node.kind` has it."""
        name: str = self.call("cuGraphNodeGetType", node).name.removeprefix(_TYPE)
        return _KINDS.get(name) or name.lower().replace("_", " ")

    def copier(self) -> Callable[[int, int, int, int], int]:
        """Return what copies on the GPU: called with target, source, bytes and stream."""
        copy = self._cuda.cuMemcpyDtoDAsync
        return lambda *places: copy(*places)[0]

    def allocation(self, address: int) -> tuple[int, int] | None:
        """Return start and size of the allocation, also of the host's, that holds an address."""
        code, start, size = self._cuda.cuMemGetAddressRange(address)
        return None if code else (int(start), size)

    def kernel(self, node: int) -> tuple[str, Three, Three, int]:
        """Return mangled name, grid, block, and bytes of dynamic shared memory of a kernel node."""
        found = self.call("cuGraphKernelNodeGetParams", node)
        name, function = _call_about(found, "GetName")
        text = self.call(name, function).decode(errors="replace")
        grid = found.gridDimX, found.gridDimY, found.gridDimZ
        return text, grid, (found.blockDimX, found.blockDimY, found.blockDimZ), found.sharedMemBytes

    def parameters(self, node: int) -> list[tuple[int, bytes]]:
        """Return the parameters of a kernel node: where each begins, and its bytes."""
        kernel = self.call("cuGraphKernelNodeGetParams", node)
        if kernel.kernelParams:
            at = ctypes.cast(kernel.kernelParams, POINTER(c_void_p))
            return [
                (begin, ctypes.string_at(at[i] or 0, size))
                for i, (begin, size) in enumerate(self._parameter_places(kernel))
            ]
        words = ctypes.cast(kernel.extra, POINTER(c_void_p))  # keys, each before what it says
        keys = takewhile(lambda i: words[i], count(0, 2) if kernel.extra else ())
        given = {words[i]: words[i + 1] for i in keys}
        if not given.keys() >= {_BUFFER, _SIZE}:
            return []
        return [(0, ctypes.string_at(given[_BUFFER], c_size_t.from_address(given[_SIZE]).value))]

    def _parameter_places(self, kernel: Any) -> Iterator[tuple[int, int]]:
        """Yield where each parameter of a kernel begins, and its size."""
        name, function = _call_about(kernel, "GetParamInfo")
        end = self._cuda.CUresult.CUDA_ERROR_INVALID_VALUE
        for number in count():
            place = self.call(name, function, number, end=end)
            if place is None:
                return
            yield place

    def add_before(self, graph: int, like: int, node: int) -> None:
        """Add a kernel node like another graph's, and let a node wait for it."""
        kernel = self.call("cuGraphKernelNodeGetParams", like)
        made = self.call("cuGraphAddKernelNode", graph, None, 0, kernel)
        self.add_edges(graph, [(int(made), node)])

    def memset(self, node: int) -> int:
        """Return the address that a memset node begins at."""
        return int(self.call("cuGraphMemsetNodeGetParams", node).dst)

    def copy(self, node: int) -> tuple[int, int, bool]:
        """Return source and destination of a copy node, and whether that is the host."""
        found = self.call("cuGraphMemcpyNodeGetParams", node)
        host = self._cuda.CUmemorytype.CU_MEMORYTYPE_HOST
        source = found.srcHost if found.srcMemoryType == host else found.srcDevice
        target = found.dstHost if found.dstMemoryType == host else found.dstDevice
        return int(source), int(target), found.dstMemoryType == host


def _call_about(kernel: Any, what: str) -> tuple[str, Any]:
    """Return the call that tells something of a node's kernel, and what it takes."""
    if int(kernel.func):
        return f"cuFunc{what}", kernel.func
    return f"cuKernel{what}", kernel.kern
