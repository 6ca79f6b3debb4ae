"""Functions that `torch.compile` has made are captured as compiled, and stay compiled."""

from __future__ import annotations

import queue
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from cpu_graphs import captured_on_cpu  # noqa: E402
from guarding import guards_of  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from depgraph.apply.captured import KERNEL, Allocation, Operand, View  # noqa: E402
from depgraph.apply.kernel_code import KernelCode  # noqa: E402
from depgraph.apply.may_sets import conflicts, reached_by_others, units_of  # noqa: E402
from depgraph.errors import ApplyError  # noqa: E402
from depgraph.torch.allocations import Timeline  # noqa: E402
from depgraph.torch.bindings import find_bindings  # noqa: E402
from depgraph.torch.capture import describe  # noqa: E402
from depgraph.torch.compiling import (  # noqa: E402
    allocation_hook,
    compiled,
    refuse_unseen,
    without_own_graphs,
)
from depgraph.torch.operator_log import OperatorLog, SeenCall  # noqa: E402
from depgraph.torch.warm_up import warm_up  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

CPU = torch.device("cpu")
X = torch.arange(8.0)


@pytest.fixture
def backend():
    """Return a backend that counts what it has compiled, and how often that has run."""
    torch._dynamo.reset()
    counters.clear()

    def compiled(graph, _):
        compiled.made += 1

        def run(*inputs):
            compiled.runs += 1
            return graph(*inputs)

        return run

    compiled.made = compiled.runs = 0
    return compiled


def warmed(function, *inputs):
    return warm_up(
        partial(function, *inputs), lambda ran: find_bindings({"f": function}, ran), CPU, "f"
    )


def test_a_function_is_compiled_while_it_is_listened_to_and_stays_so(backend):
    function = torch.compile(lambda x: (x.relu() + 1).tanh(), backend=backend)
    warmed(function, X)
    assert (backend.made, backend.runs > 0) == (1, True)
    runs = backend.runs
    captured_on_cpu(partial(function, X))
    assert (backend.made, backend.runs) == (1, runs + 1)
    function(X)
    assert (backend.made, backend.runs) == (1, runs + 2)
    assert counters["frames"]["ok"] == counters["frames"]["total"] > 0  # none was skipped


def test_what_is_first_met_while_operators_are_noted_is_compiled_then(backend):
    function = torch.compile(lambda x: (x.relu() + 1).tanh(), backend=backend)
    with OperatorLog(CPU) as log:
        function(X)
    assert backend.made == 1
    assert [call.name for call in log.calls] == ["aten::relu", "aten::add.Tensor", "aten::tanh"]


def test_a_function_inside_that_is_compiled_stays_so(backend):
    inner = torch.compile(torch.relu, backend=backend)
    warmed(lambda x: inner(x) * 2, X)
    assert backend.made == 1


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8), requires_grad=False)
        self.count = torch.nn.Buffer(torch.zeros(8))
        self.scale = 2.0

    def forward(self, x):
        self.count.add_(1)
        return x * self.weight * self.scale


def test_what_compiled_code_changes_is_undone(backend):
    net = Net()
    warm = warmed(torch.compile(net, backend=backend), X)
    assert net.count.any()
    warm.undo()
    assert not net.count.any()


def other_scale(net):
    net.scale = 3.0


def other_weight(net):
    net.weight = torch.nn.Parameter(torch.zeros(8), requires_grad=False)


@pytest.mark.parametrize("change", [other_scale, other_weight])
@pytest.mark.parametrize("of_module", [True, False])
def test_what_the_code_reads_that_was_compiled_is_looked_at(backend, change, of_module):
    net = Net()
    function = torch.compile(net if of_module else lambda x: net(x), backend=backend)  # noqa: PLW0108
    warm = warmed(function, X)
    with OperatorLog(CPU) as log:
        function(X)
    guards = guards_of(function, warm.executed, log, [X])
    function(X)
    assert guards.failed() == ""
    change(net)
    assert guards.failed()


class Searched(Net):
    def forward(self, x):
        return super().forward(x) * getattr(self, self.which)


def test_what_the_compiler_notes_on_a_module_is_not_looked_at():
    net = Searched()
    net.which = "scale"
    warm = warmed(net, X)
    with OperatorLog(CPU) as log:
        net(X)
    guards = guards_of(net, warm.executed, log, [X])
    for _ in range(2):
        net._compile_kwargs = {"mode": None}
        assert guards.failed() == ""
    net.other = 3.0
    assert guards.failed().startswith("Searched has ")


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_graphs_of_its_own_are_left_out_and_the_rest_is_compiled_as_before(mode):
    net = Net()
    for given in (net, net.forward):
        made = without_own_graphs(torch.compile(given, mode=mode))
        now, then = made.get_compiler_config(), torch.compile(net, mode=mode).get_compiler_config()
        assert not now["triton.cudagraphs"]
        assert now == {**then, "triton.cudagraphs": False}
    assert made._torchdynamo_orig_callable == net.forward


def test_what_is_compiled_here_keeps_tensors_apart_and_runs_without_own_graphs():
    made = compiled(Net())
    config, usual = made.get_compiler_config(), torch.compile(Net()).get_compiler_config()
    assert usual["allow_buffer_reuse"]
    assert usual["inplace_buffers"]
    assert config == {**usual, "allow_buffer_reuse": False, "inplace_buffers": False}
    assert without_own_graphs(made) is made


def test_other_functions_stay_what_they_are():
    for function in (Net(), torch.compile(Net()), torch.compile(torch.relu, backend="eager")):
        assert without_own_graphs(function) is function


def test_a_function_inside_with_graphs_of_its_own_is_refused_in_one_line():
    def run(x):
        return x

    trees = run.__code__.replace(co_filename="torch/_inductor/cudagraph_trees.py")
    refuse_unseen(lambda: run(X), "f")
    run.__code__ = trees
    with pytest.raises(ApplyError, match="f calls a function that was compiled with CUDA graphs"):
        refuse_unseen(lambda: run(X), "f")


def test_where_modes_end_compiling_for_good_compiled_functions_are_refused(backend, monkeypatch):
    function = torch.compile(torch.relu, backend=backend)
    function(X)
    refuse_unseen(lambda: function(X), "f")
    monkeypatch.delattr(TorchDispatchMode, "ignore_compile_internals")
    refuse_unseen(lambda: torch.compiler.disable(torch.relu)(X), "f")
    with pytest.raises(ApplyError, match=r"f runs a compiled function, which PyTorch .* would not"):
        refuse_unseen(lambda: function(X), "f")


def test_operators_of_other_threads_would_not_be_noted_and_are_refused():
    """They could be taken for those of an operator that runs here at the same time."""
    lines, said = queue.Queue(), "f lets threads of its own work, .*; call all operators in one"

    def in_a_pool():
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(torch.relu, X).result()

    def in_a_thread():
        thread = threading.Thread(target=torch.relu, args=[X])
        thread.start()
        thread.join()

    for run in (in_a_pool, in_a_thread, lambda: lines.put(X)):
        with pytest.raises(ApplyError, match=said):
            refuse_unseen(run, "f")
    step = torch.nn.Linear(8, 8)
    refuse_unseen(lambda: step(torch.ones(8)).sum().backward(), "f")  # a thread of PyTorch's


def test_tensors_that_no_operator_allocates_are_taken_for_its_own(monkeypatch):
    codecache = pytest.importorskip("torch._inductor.codecache")
    module = ModuleType("generated")
    module.empty_strided_cuda = allocate = torch._C._dynamo.guards._empty_strided_cpu
    monkeypatch.setattr(codecache.PyCodeCache, "modules", [module, sys])
    log = OperatorLog(CPU, most_bytes=1000)
    with log, allocation_hook(log.take):
        made = module.empty_strided_cuda((8,), (1,), torch.float32)
        made.fill_(1.0)
    assert module.empty_strided_cuda is allocate
    assert (log.outside, log.kept_bytes) == ({}, 32)


# What a kernel of no operator points to, of memory that no operator allocated.


class Driver:
    """Kernels with the addresses that they are given."""

    def __init__(self, *addresses):
        self.given = addresses

    def kind(self, _):
        return KERNEL

    def kernel(self, number):
        return f"k{number}", (1, 1, 1), (32, 1, 1), 0

    def parameters(self, number):
        words = self.given[number]
        return [(8 * i, word.to_bytes(8, "little")) for i, word in enumerate(words)]

    def allocation(self, address):
        return (HOST, 8192) if HOST <= address < HOST + 8192 else None


BEGIN, HOST = 1 << 30, 1 << 40
SEGMENT = [(BEGIN, BEGIN + (1 << 20))]


def waits(driver, timeline, seen=()):
    handles = range(len(driver.given))
    described = describe(driver, handles, [], seen, timeline)
    codes = {f"k{i}": KernelCode(stored=frozenset({-1})) for i in handles}
    found = conflicts(units_of(described, codes))
    return [sum(each.values()) for each in found], described


def test_kernels_wait_for_each_other_by_memory_that_compiled_code_allocated():
    a, b, c = (BEGIN + 4096 * i for i in range(3))
    timeline = Timeline([], 0, [(a, 64), (b, 64), (c, 64)], set(), SEGMENT)
    found, described = waits(Driver([a, b], [b, c], [c + 512]), timeline)
    assert [len(node.pointers) for node in described.nodes] == [2, 2, 0]
    assert found == [0, 0b01, 0]


def test_kernels_that_meet_in_memory_of_the_host_wait_for_each_other():
    a, b = BEGIN, BEGIN + 4096
    timeline = Timeline([], 0, [(a, 64), (b, 64)], set(), SEGMENT)
    found, described = waits(Driver([a, HOST], [HOST + 4096, b]), timeline)
    assert found == [0, 0b01]
    met = described.nodes[0].pointers[1].memory
    assert reached_by_others(described, units_of(described, {})) == [met]
    assert (met.start, met.size) == (HOST, 8192)


def test_memory_that_was_given_back_meanwhile_counts_as_both():
    """Nobody knows whether the kernel ran before the larger tensor got it, or afterwards."""
    timeline = Timeline([], 0, [(BEGIN, 512), (BEGIN, 4096)], {0}, SEGMENT)
    _, described = waits(Driver([BEGIN], [BEGIN + 2048]), timeline)
    assert [len(node.pointers) for node in described.nodes] == [2, 1]


def test_between_two_operators_their_memory_is_known():
    a, b, c = (BEGIN + 4096 * i for i in range(3))

    def call(begun, ended, at):
        view = View(at, (16,), (4,), 4, Allocation(at, 64))
        result = Operand("", view, is_written=True)
        return SeenCall("aten::relu", [result], begun=begun, ended=ended)

    timeline = Timeline([], 0, [(a, 64), (b, 64), (c, 64)], set(), SEGMENT)
    seen = [call((0, 0), (1, 1), a), call((2, 2), (3, 3), c)]
    _, described = waits(Driver([a], [a, b], [b, c]), timeline, seen)
    assert [node.call for node in described.nodes] == [0, -1, 1]
    assert [p.memory.start for p in described.nodes[1].pointers] == [a, b]
