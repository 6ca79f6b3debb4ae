"""The CUDA driver's graph calls, through ctypes."""

import ctypes
from collections.abc import Callable, Sequence
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_char_p,
    c_int,
    c_size_t,
    c_uint,
    c_ulonglong,
    c_void_p,
)
from typing import Any

from depgraph.apply.captured import COPY, EMPTY, KERNEL, MEMSET
from depgraph.errors import ApplyError

Three = tuple[int, int, int]
Edge = tuple[int, int, int]  # two nodes, and what the driver knows of the edge: 0 for a full one
_LIBRARY = "libcuda.so.1"
_KINDS = {
    0: KERNEL, 1: COPY, 2: MEMSET, 3: "host function", 4: "child graph", 5: EMPTY,
    6: "event wait", 7: "event record", 8: "semaphore signal", 9: "semaphore wait",
    10: "allocation", 11: "free", 12: "memory operations", 13: "conditional",
}  # fmt: skip
_LAST_OF_PARAMETERS = 1  # CUDA_ERROR_INVALID_VALUE
_HOST = 1  # CU_MEMORYTYPE_HOST
_BUFFER, _SIZE, _END = 1, 2, 0  # CU_LAUNCH_PARAM_*
_ACTIVE = 1  # CU_STREAM_CAPTURE_STATUS_ACTIVE
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING


class _Kernel(Structure):  # CUDA_KERNEL_NODE_PARAMS_v2
    _fields_ = (
        ("func", c_void_p), ("grid", c_uint * 3), ("block", c_uint * 3), ("shared", c_uint),
        ("params", POINTER(c_void_p)), ("extra", POINTER(c_void_p)), ("kern", c_void_p),
        ("ctx", c_void_p),
    )  # fmt: skip


class _Memset(Structure):  # CUDA_MEMSET_NODE_PARAMS_v1
    _fields_ = (
        ("dst", c_size_t), ("pitch", c_size_t), ("value", c_uint), ("element", c_uint),
        ("width", c_size_t), ("height", c_size_t),
    )  # fmt: skip


def _end(prefix: str) -> list[tuple[str, Any]]:
    names = "x", "y", "z", "lod", "type", "host", "device", "array", "reserved", "pitch", "height"
    return [(f"{prefix}_{name}", c_uint if name == "type" else c_size_t) for name in names]


class _Copy(Structure):  # CUDA_MEMCPY3D_v2
    _fields_ = (
        *_end("src"), *_end("dst"), ("width", c_size_t), ("height", c_size_t), ("depth", c_size_t),
    )  # fmt: skip


class Driver:
    """The graph calls needed, on addresses in PyTorch's context; `ApplyError` where one fails."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(_LIBRARY)
        except OSError:
            hint = "apply needs an NVIDIA GPU and its driver"
            raise ApplyError("no GPU: there is no CUDA driver here", hint) from None

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            text = c_char_p()
            self._library.cuGetErrorString(code, byref(text))
            reason = (text.value or b"unknown error").decode(errors="replace")
            raise ApplyError(f"the CUDA driver refused {name}: {reason}")

    def captures_into(self, stream: int) -> int:
        """Return the graph that a stream is being captured into, 0 if it is not."""
        status, number, graph = c_int(), c_ulonglong(), c_void_p()
        self._call(
            "cuStreamGetCaptureInfo_v2", c_void_p(stream), byref(status), byref(number),
            byref(graph), None, None,
        )  # fmt: skip
        return int(graph.value or 0) if status.value == _ACTIVE else 0

    def new_stream(self) -> int:
        """Return a stream of its own, which is never destroyed."""
        made = c_void_p()
        self._call("cuStreamCreate", byref(made), c_uint(_NON_BLOCKING))
        return int(made.value or 0)

    def count(self, graph: int) -> int:
        """Return how many nodes a graph has."""
        count = c_size_t()
        self._call("cuGraphGetNodes", c_void_p(graph), None, byref(count))
        return count.value

    def nodes(self, graph: int) -> list[int]:
        """Return the nodes of a graph, in the order in which they were made."""
        count = c_size_t(self.count(graph))
        found = (c_void_p * count.value)()
        self._call("cuGraphGetNodes", c_void_p(graph), found, byref(count))
        return [int(node or 0) for node in found]

    def edges(self, graph: int) -> list[Edge]:
        """Return the edges of a graph, those of programmatic launches among them."""
        count = c_size_t()
        self._call("cuGraphGetEdges_v2", c_void_p(graph), None, None, None, byref(count))
        n = count.value
        if not n:
            return []
        ends = (c_void_p * n)(), (c_void_p * n)()
        data = (c_ulonglong * n)()
        self._call("cuGraphGetEdges_v2", c_void_p(graph), *ends, data, byref(count))
        return [(int(a or 0), int(b or 0), d) for a, b, d in zip(*ends, data, strict=True)]

    def change_edges(
        self, graph: int, remove: Sequence[Edge], add: Sequence[tuple[int, int]]
    ) -> None:
        """Take edges of a graph away, then put others in, which wait for all of a node."""
        full = [(a, b, 0) for a, b in add]
        for name, edges in (("Remove", remove), ("Add", full)):
            if edges:
                sources, targets, data = zip(*edges, strict=True)
                n = len(edges)
                self._call(
                    f"cuGraph{name}Dependencies_v2", c_void_p(graph), (c_void_p * n)(*sources),
                    (c_void_p * n)(*targets), (c_ulonglong * n)(*data), c_size_t(n),
                )  # fmt: skip

    def kind(self, node: int) -> str:
        """Return what a node is, as `Node.kind` has it."""
        found = c_int()
        self._call("cuGraphNodeGetType", c_void_p(node), byref(found))
        return _KINDS.get(found.value, f"node of type {found.value}")

    def clone(self, graph: int) -> int:
        """Return a copy of a graph."""
        made = c_void_p()
        self._call("cuGraphClone", byref(made), c_void_p(graph))
        return int(made.value or 0)

    def in_clone(self, node: int, clone: int) -> int:
        """Return the node of a clone that a node has become."""
        found = c_void_p()
        self._call("cuGraphNodeFindInClone", byref(found), c_void_p(node), c_void_p(clone))
        return int(found.value or 0)

    def instantiate(self, graph: int) -> int:
        """Return a graph that can be launched."""
        made = c_void_p()
        self._call(
            "cuGraphInstantiateWithFlags", byref(made), c_void_p(graph), ctypes.c_ulonglong(0)
        )
        return int(made.value or 0)

    def copier(self) -> Callable[[int, int, int, int], int]:
        """Return what copies on the GPU: called with target, source, bytes and stream."""
        copy: Callable[[int, int, int, int], int] = self._library.cuMemcpyDtoDAsync_v2
        copy.argtypes = (c_size_t, c_size_t, c_size_t, c_void_p)  # type: ignore[attr-defined]
        return copy

    def launch(self, executable: int, stream: int) -> None:
        """Launch what `instantiate` returned."""
        self._call("cuGraphLaunch", c_void_p(executable), c_void_p(stream))

    def destroy(self, graph: int, executable: int = 0) -> None:
        """Give a graph, and what was instantiated of it, back."""
        if executable:
            self._call("cuGraphExecDestroy", c_void_p(executable))
        self._call("cuGraphDestroy", c_void_p(graph))

    def allocation(self, address: int) -> tuple[int, int] | None:
        """Return start and size of the allocation, also of the host's, that holds an address."""
        start, size = c_size_t(), c_size_t()
        code = self._library.cuMemGetAddressRange_v2(byref(start), byref(size), c_size_t(address))
        return None if code else (start.value, size.value)

    def kernel(self, node: int) -> tuple[str, Three, Three, int]:
        """Return mangled name, grid, block, and bytes of dynamic shared memory of a kernel node."""
        found = self._kernel(node)
        name = c_char_p()
        if found.func:
            self._call("cuFuncGetName", byref(name), c_void_p(found.func))
        else:
            self._call("cuKernelGetName", byref(name), c_void_p(found.kern))
        text = (name.value or b"").decode(errors="replace")
        grid, block = (
            (int(size[0]), int(size[1]), int(size[2])) for size in (found.grid, found.block)
        )
        return text, grid, block, int(found.shared)

    def _kernel(self, node: int) -> _Kernel:
        found = _Kernel()
        self._call("cuGraphKernelNodeGetParams_v2", c_void_p(node), byref(found))
        return found

    def _sizes(self, kernel: _Kernel) -> list[tuple[int, int]]:
        """Return where each parameter of a kernel begins, and its size."""
        name, of = (
            ("cuFuncGetParamInfo", kernel.func)
            if kernel.func
            else ("cuKernelGetParamInfo", kernel.kern)
        )
        sizes: list[tuple[int, int]] = []
        offset, size = c_size_t(), c_size_t()
        while True:
            code = getattr(self._library, name)(
                c_void_p(of), c_size_t(len(sizes)), byref(offset), byref(size)
            )
            if code == _LAST_OF_PARAMETERS:
                return sizes
            if code:
                raise ApplyError(f"the CUDA driver refused {name} (error {code})")
            sizes.append((offset.value, size.value))

    def parameters(self, node: int) -> list[tuple[int, bytes]]:
        """Return the parameters of a kernel node: where each begins, and its bytes."""
        kernel = self._kernel(node)
        sizes = self._sizes(kernel)
        if kernel.params:
            return [
                (begin, ctypes.string_at(kernel.params[i] or 0, size))
                for i, (begin, size) in enumerate(sizes)
            ]
        given: dict[int, int] = {}
        at = 0
        while kernel.extra and (key := kernel.extra[at] or _END) != _END:
            given[key] = kernel.extra[at + 1] or 0
            at += 2
        if _BUFFER not in given or _SIZE not in given:
            return []
        length = c_size_t.from_address(given[_SIZE]).value
        return [(0, ctypes.string_at(given[_BUFFER], length))]

    def add_before(self, graph: int, like: int, node: int) -> None:
        """Add a kernel node like another graph's, and let a node wait for it."""
        made, kernel = c_void_p(), self._kernel(like)
        self._call(
            "cuGraphAddKernelNode_v2", byref(made), c_void_p(graph), None, c_size_t(0),
            byref(kernel),
        )  # fmt: skip
        self.change_edges(graph, (), [(int(made.value or 0), node)])

    def memset(self, node: int) -> int:
        """Return the address that a memset node begins at."""
        found = _Memset()
        self._call("cuGraphMemsetNodeGetParams", c_void_p(node), byref(found))
        return int(found.dst)

    def copy(self, node: int) -> tuple[int, int, bool]:
        """Return source and destination of a copy node, and whether that is the host."""
        found = _Copy()
        self._call("cuGraphMemcpyNodeGetParams", c_void_p(node), byref(found))
        ends = [
            getattr(found, f"{end}_{'host' if kind == _HOST else 'device'}")
            for end, kind in (("src", found.src_type), ("dst", found.dst_type))
        ]
        return ends[0], ends[1], found.dst_type == _HOST
