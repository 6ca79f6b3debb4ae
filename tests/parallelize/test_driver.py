"""What is asked of the CUDA driver, with one made up in the place of `cuda-bindings`."""

from __future__ import annotations

import ctypes
import re
import sys
from enum import IntEnum
from inspect import getsource
from itertools import chain
from types import ModuleType, SimpleNamespace

import pytest

pytest.importorskip("torch")

from depgraph.errors import ApplyError
from depgraph.torch import bench, driver, lanes
from depgraph.torch.driver import Driver

CUresult = IntEnum(
    "CUresult", {"CUDA_SUCCESS": 0, "CUDA_ERROR_INVALID_VALUE": 1, "CUDA_ERROR_NOT_FOUND": 500}
)
CUmemorytype = IntEnum("CUmemorytype", {"CU_MEMORYTYPE_HOST": 1, "CU_MEMORYTYPE_DEVICE": 2})
CUstreamCaptureStatus = IntEnum(
    "CUstreamCaptureStatus",
    {f"CU_STREAM_CAPTURE_STATUS_{name}": i for i, name in enumerate(("NONE", "ACTIVE"))},
)
CUgraphNodeType = IntEnum(
    "CUgraphNodeType",
    {
        f"CU_GRAPH_NODE_TYPE_{name}": i
        for i, name in enumerate(
            ("KERNEL", "MEMCPY", "MEMSET", "HOST", "GRAPH", "EMPTY", "WAIT_EVENT")
        )
    },
)
DONE, INVALID, NOT_FOUND = CUresult


class CUgraphNode:
    """A handle, as they all are: no number, but it becomes one."""

    def __init__(self, number):
        self.number = number

    def __int__(self):
        return self.number


class Cuda(ModuleType):
    """The calls of one graph: its nodes by address, and its edges with what makes them special."""

    CUresult, CUmemorytype, CUgraphNode = CUresult, CUmemorytype, CUgraphNode
    CUstreamCaptureStatus = CUstreamCaptureStatus

    def __init__(self, version, nodes=(), edges=()):
        super().__init__("cuda.bindings.driver")
        self.given, self.edges = dict(nodes), dict(edges)
        v2, v3 = ("_v2", "_v3") if version == 12 else ("", "")
        setattr(self, f"cuGraphGetEdges{v2}", self.get_edges)
        setattr(self, f"cuGraphAddDependencies{v2}", self.add_dependencies)
        setattr(self, f"cuGraphRemoveDependencies{v2}", self.remove_dependencies)
        setattr(self, f"cuStreamGetCaptureInfo{v3}", self.capture_info)
        for kind in ("Kernel", "Memset", "Memcpy"):
            setattr(self, f"cuGraph{kind}NodeGetParams", self.parameters_of)

    def cuGraphGetNodes(self, _, numNodes=0):
        return DONE, [CUgraphNode(node) for node in self.given][:numNodes], len(self.given)

    def get_edges(self, _, numEdges=0):
        ends = [[CUgraphNode(edge[i]) for edge in self.edges][:numEdges] for i in (0, 1)]
        return DONE, *ends, list(self.edges.values())[:numEdges], len(self.edges)

    def add_dependencies(self, _, sources, targets, data, number):
        assert data is None
        assert len(sources) == len(targets) == number
        assert all(isinstance(node, CUgraphNode) for node in chain(sources, targets))
        self.edges |= {(int(a), int(b)): "full" for a, b in zip(sources, targets, strict=True)}
        return (DONE,)

    def remove_dependencies(self, _, sources, targets, data, number):
        edges = {(int(a), int(b)): what for a, b, what in zip(sources, targets, data, strict=True)}
        if edges.items() - self.edges.items() or len(edges) != number:
            return (INVALID,)
        self.edges = {edge: what for edge, what in self.edges.items() if edge not in edges}
        return (DONE,)

    def capture_info(self, stream):
        return DONE, CUstreamCaptureStatus(stream), 7, CUgraphNode(40 + stream), [], 0

    def cuGraphNodeGetType(self, node):
        return DONE, CUgraphNodeType(self.given[node])

    def parameters_of(self, node):
        return DONE, self.given[node]

    def cuGraphAddKernelNode(self, _, dependencies, number, kernel):
        assert (dependencies, number) == (None, 0)
        self.given[99] = kernel
        return DONE, CUgraphNode(99)

    def cuFuncGetName(self, function):
        return DONE, b"function%d" % int(function)

    def cuKernelGetName(self, kernel):
        return DONE, b"kernel%d" % int(kernel)

    def cuFuncGetParamInfo(self, _, index):
        return (DONE, 8 * index, 8 - 4 * index) if index < 2 else (INVALID, None, None)

    def cuKernelGetParamInfo(self, *_):
        return NOT_FOUND, None, None

    def cuMemGetAddressRange(self, address):
        return (DONE, CUgraphNode(4096), 512) if 4096 <= address < 4608 else (NOT_FOUND, None, None)

    def cuGraphClone(self, _):
        raise RuntimeError('Function "cuGraphClone" not found')

    def cuMemcpyDtoDAsync(self, *places):
        return (INVALID if places[-1] else DONE,)


@pytest.fixture(params=[12, 13])
def driver_of(request, monkeypatch):
    """Return what makes a driver for a graph, as each version of cuda-bindings shows it."""

    def make(nodes=(), edges=()):
        package = ModuleType("cuda.bindings")
        package.driver = Cuda(request.param, nodes, edges)
        monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
        monkeypatch.setitem(sys.modules, "cuda.bindings", package)
        return Driver(), package.driver

    return make


def kernel(function=3, parameters=0, extra=0):
    return SimpleNamespace(
        func=CUgraphNode(function), kern=CUgraphNode(5), kernelParams=parameters, extra=extra,
        gridDimX=2, gridDimY=3, gridDimZ=4, blockDimX=32, blockDimY=1, blockDimZ=1, sharedMemBytes=16,
    )  # fmt: skip


def test_edges_are_taken_away_as_they_are_and_others_wait_for_all(driver_of):
    made, cuda = driver_of({1: 0, 2: 0, 3: 0}, {(1, 2): "full", (2, 3): "programmatic"})
    assert made.nodes(7) == [1, 2, 3]
    assert made.edges(7) == [(1, 2), (2, 3)]
    made.remove_edges(7)
    assert made.edges(7) == []
    made.remove_edges(7)  # there are none
    made.add_edges(7, [])
    made.add_edges(7, [(1, 3), (2, 3)])
    assert cuda.edges == {(1, 3): "full", (2, 3): "full"}


def test_a_kernel_node_is_put_before_another(driver_of):
    like = kernel()
    made, cuda = driver_of({1: like, 2: 0})
    made.add_before(7, 1, 2)
    assert cuda.given[99] is like
    assert made.edges(7) == [(99, 2)]


def test_a_stream_is_captured_into_a_graph_or_not(driver_of):
    made, _ = driver_of()
    assert [made.captures_into(stream) for stream in (0, 1)] == [0, 41]


def test_kinds_have_the_names_of_a_captured_graph(driver_of):
    made, _ = driver_of({i: i for i in range(7)})
    kinds = [made.kind(i) for i in range(7)]
    assert kinds == ["kernel", "copy", "memset", "host", "graph", "empty", "wait event"]


def test_a_kernel_is_a_function_or_of_a_library(driver_of):
    made, _ = driver_of({1: kernel(), 2: kernel(0)})
    assert made.kernel(1) == ("function3", (2, 3, 4), (32, 1, 1), 16)
    assert made.kernel(2)[0] == "kernel5"


def test_parameters_are_read_from_where_they_lie(driver_of):
    words = (ctypes.c_uint64 * 2)(0x1122334455667788, 0x99AABBCC)
    at = (ctypes.c_void_p * 2)(ctypes.addressof(words), ctypes.addressof(words) + 8)
    made, _ = driver_of({1: kernel(parameters=ctypes.addressof(at))})
    assert made.parameters(1) == [
        (0, bytes.fromhex("8877665544332211")), (8, bytes.fromhex("ccbbaa99")),
    ]  # fmt: skip


def test_parameters_may_lie_in_one_buffer(driver_of):
    buffer, size = ctypes.create_string_buffer(b"sixteen in a row"), ctypes.c_size_t(16)
    given = [2, ctypes.addressof(size), 1, ctypes.addressof(buffer), None]
    extra = (ctypes.c_void_p * 5)(*given)
    made, _ = driver_of({1: kernel(extra=ctypes.addressof(extra)), 2: kernel()})
    assert made.parameters(1) == [(0, b"sixteen in a row")]
    assert made.parameters(2) == []


def test_an_error_is_not_the_end_of_the_parameters(driver_of):
    at = (ctypes.c_void_p * 1)(1)
    made, _ = driver_of({1: kernel(0, ctypes.addressof(at))})
    with pytest.raises(ApplyError, match="refused cuKernelGetParamInfo: CUDA_ERROR_NOT_FOUND"):
        made.parameters(1)


def test_a_copy_goes_to_the_host_or_not(driver_of):
    device, host = (
        {"srcMemoryType": source, "dstMemoryType": 3 - source, "srcHost": 1, "dstHost": 2}
        | {"srcDevice": CUgraphNode(3), "dstDevice": CUgraphNode(4)}
        for source in (1, 2)
    )
    made, _ = driver_of(
        {
            1: SimpleNamespace(**device),
            2: SimpleNamespace(**host),
            3: SimpleNamespace(dst=CUgraphNode(6)),
        }
    )
    assert made.copy(1) == (1, 4, False)
    assert made.copy(2) == (3, 2, True)
    assert made.memset(3) == 6


def test_what_the_driver_does_not_know_is_no_allocation(driver_of):
    made, _ = driver_of()
    assert made.allocation(4100) == (4096, 512)
    assert made.allocation(0) is None


def test_the_copy_of_a_call_tells_whether_it_failed(driver_of):
    copy = driver_of()[0].copier()
    assert [bool(copy(1, 2, 3, stream)) for stream in (0, 1)] == [False, True]


def test_a_driver_that_lacks_a_call_is_named(driver_of):
    made, _ = driver_of()
    with pytest.raises(ApplyError, match='has no cuGraphClone: Function "cuGraphClone" not found'):
        made.call("cuGraphClone", 1)


def test_a_kind_of_node_that_cuda_bindings_do_not_know_is_refused(driver_of):
    made, _ = driver_of({1: 16})
    with pytest.raises(ApplyError, match="16 is not a valid CUgraphNodeType; install a newer"):
        made.kind(1)


def test_without_cuda_bindings_there_is_one_line_that_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(ApplyError, match="cuda-bindings is not installed; pip install"):
        Driver()


def test_cuda_bindings_has_every_name():
    cuda = pytest.importorskip("cuda.bindings.driver")
    sources = "".join(map(getsource, (driver, bench, lanes)))
    names = set(re.findall(r'"(cu[A-Z]\w+)|_cuda\.(\w+)', sources))
    names = {name.removesuffix("_v2") for found in names for name in found if name}
    kernels = {f"cu{of}{what}" for of in ("Func", "Kernel") for what in ("GetName", "GetParamInfo")}
    names = names - {"cuFunc", "cuKernel"} | kernels
    assert len(names) > 20
    ends = ("", "_v2", "_v3")
    assert not [name for name in names if not any(hasattr(cuda, name + end) for end in ends)]
