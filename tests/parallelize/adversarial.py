"""Programs that would show a wrong graph: each prints what came of it. Run by test_adversarial_gpu.py.

python adversarial.py NAME | --list
"""

from __future__ import annotations

import gc
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import library, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

import depgraph.torch
from depgraph.errors import DepgraphError

PROGRAMS = {}
PATIENT = 3_000_000  # cycles


def program(function):
    PROGRAMS[function.__name__] = function
    return function


class WrongError(Exception):
    pass


def need(truth, said):
    if not truth:
        raise WrongError(said)


def branches(n=6, depth=3, width=128, **more):
    torch.manual_seed(0)
    made = [
        nn.Sequential(
            *[m for _ in range(depth) for m in (nn.Linear(width, width, **more), nn.Tanh())]
        )
        for _ in range(n)
    ]
    return nn.ModuleList(made).cuda().requires_grad_(False)


def numbers(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).cuda()


def copies(tree):
    return pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), tree)


def same(found, wanted, said, rtol=1e-3):
    pairs = zip(pytree.tree_leaves(found), pytree.tree_leaves(wanted), strict=True)
    for place, (a, b) in enumerate(pairs):
        if isinstance(a, torch.Tensor):
            near = rtol * float(b.double().abs().nan_to_num(0, 0, 0).max()) if b.numel() else 0
            close = torch.allclose(a.double(), b.double(), rtol=rtol, atol=near, equal_nan=True)
            need(close, f"{said}: result {place} differs")
        else:
            need(a == b, f"{said}: {a} is not {b}")


def compare(fast, function, calls, state=()):
    """Call both on the same inputs from the same state, one call after another."""
    start, runs = copies(state), []
    for run in (fast, function):
        with torch.no_grad():
            for now, then in zip(state, start, strict=True):
                now.copy_(then)
        found = []
        for args in calls:
            given = copies(args)
            out = copies(run(*given))
            found.append((out, given, copies(state)))
        torch.cuda.synchronize()
        runs.append(found)
    for place, (mine, its) in enumerate(zip(*runs, strict=True)):
        same(mine, its, f"call {place}")


def parallel(function, example, **more):
    return depgraph.torch.parallelize(function, example, **more)


# What addresses depend on.


@program
def scatter_adds():
    net = branches()

    def run(x, rows):
        y = torch.zeros(64, 128, device="cuda")
        for i, b in enumerate(net):
            y.index_add_(0, rows[i], b(x)[:8])
        return y

    rows = torch.arange(48).reshape(6, 8).cuda()
    fast = parallel(run, (numbers(16, 128), rows))
    compare(fast, run, [(numbers(16, 128, seed=i), rows % (i + 1)) for i in range(3)])
    return fast


@program
def puts_where_a_mask_says():
    net = branches()

    def run(x, masks):
        y = torch.zeros(16, 128, device="cuda")
        for i, b in enumerate(net):
            y = torch.where(masks[i], b(x), y)
            y.masked_fill_(masks[i - 1], float(i))
        return y

    masks = torch.zeros(6, 16, 1, dtype=torch.bool, device="cuda")
    fast = parallel(run, (numbers(16, 128), masks))
    compare(
        fast,
        run,
        [(numbers(16, 128, seed=i), torch.rand(6, 16, 1, device="cuda") < 0.5) for i in range(3)],
    )
    return fast


@program
def routes_by_topk():
    experts, gate = branches(), nn.Linear(128, 6).cuda().requires_grad_(False)

    def run(x):
        weight, which = gate(x).topk(2)
        y = torch.zeros_like(x)
        for i, e in enumerate(experts):
            share = (weight * (which == i)).sum(-1, keepdim=True)
            y = y + share * e(x)
        order = which[:, 0].sort(stable=True).indices
        return y[order], y.gather(0, order[:, None].expand(-1, 128))

    fast = parallel(run, numbers(32, 128))
    compare(fast, run, [(numbers(32, 128, seed=i),) for i in range(4)])
    return fast


@program
def samples_a_grid():
    net = [nn.Conv2d(8, 8, 3, padding=1).cuda().requires_grad_(False) for _ in range(4)]

    def run(x, grid):
        made = [c(x).relu() for c in net]
        image = torch.cat(made, 1)
        return functional.grid_sample(image, grid, align_corners=False), image.sum()

    grids = [torch.rand(1, 8, 8, 2, device="cuda") * (i - 1) for i in range(4)]
    fast = parallel(run, (numbers(1, 8, 16, 16), grids[1] * 0))
    compare(fast, run, [(numbers(1, 8, 16, 16, seed=i), g) for i, g in enumerate(grids)])
    return fast


@program
def pages_of_a_cache():
    net = branches(4)
    pages = torch.zeros(32, 16, 128, device="cuda")

    def run(x, table, at):
        found = []
        for i, b in enumerate(net):
            pages.index_put_((table[i], at), b(x))
            found.append(pages[table[i]].mean(0))
        return torch.stack(found)

    def inputs(seed):
        generator = torch.Generator().manual_seed(seed)
        table = torch.randperm(32, generator=generator)[:4].cuda()
        at = torch.randint(16, (1,), generator=generator).cuda()
        return numbers(1, 128, seed=seed), table[:, None], at

    fast = parallel(run, inputs(0))
    compare(fast, run, [inputs(i) for i in range(5)], [pages])
    return fast


@program
def sparse_and_jagged():
    net = branches(3)
    matrix = (torch.rand(128, 128) < 0.05).float().cuda()
    sparse, rows = matrix.to_sparse(), matrix.to_sparse_csr()

    def run(x):
        made = [torch.sparse.mm(sparse, x), rows @ x, *(b(x) for b in net)]
        sparse._values().mul_(1.01)
        return torch.stack(made)

    fast = parallel(run, numbers(128, 128))
    compare(fast, run, [(numbers(128, 128, seed=i),) for i in range(3)], [sparse._values()])
    return fast


# State.


@program
def everything_is_as_if_it_had_not_been_called():
    net = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Dropout(0.5)).cuda()
    net.requires_grad_(False)
    cache, at = torch.zeros(8, 64, device="cuda"), torch.tensor([2], device="cuda")

    def run(x):
        y = net(x)
        cache.index_copy_(0, at, y[:1])
        at.add_(1).remainder_(8)
        return y.sum()

    state = [*net.buffers(), cache, at]
    before, generator = copies(state), torch.cuda.get_rng_state()
    grads = [p.grad for p in net.parameters()]
    fast = parallel(run, numbers(16, 64))
    same(copies(state), before, "state", rtol=0)
    need(torch.equal(generator, torch.cuda.get_rng_state()), "random numbers were drawn")
    need(
        all(p.grad is g for p, g in zip(net.parameters(), grads, strict=True)), "gradients were set"
    )
    return fast


@program
def a_position_that_moves_out_of_a_buffer():
    net, cache = branches(4, width=64), torch.zeros(4, 12, 64, device="cuda")
    at = torch.zeros(1, dtype=torch.long, device="cuda")

    def run(x):
        for i, b in enumerate(net):
            cache[i].index_copy_(0, at, b(x))
        at.add_(1)
        return cache.sum((0, 1))

    fast = parallel(run, numbers(1, 64))
    need(int(at) == 0, f"the position is {int(at)}")
    compare(fast, run, [(numbers(1, 64, seed=i),) for i in range(11)], [cache, at])
    return fast


def training(optimizer, n=4, **more):
    torch.manual_seed(0)
    net = nn.ModuleList(
        [nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)) for _ in range(n)]
    )
    net = net.cuda()
    opt = optimizer(net.parameters(), **more)
    return net, opt


@program
def trains_with_momentum():
    net, opt = training(torch.optim.SGD, lr=0.1, momentum=0.9)

    def step(x):
        opt.zero_grad()
        loss = sum(b(x).square().mean() for b in net)
        loss.backward()
        opt.step()
        return loss.detach()

    step(numbers(16, 64))
    fast = parallel(step, numbers(16, 64))
    state = [*net.parameters(), *(s["momentum_buffer"] for s in opt.state.values())]
    compare(fast, step, [(numbers(16, 64, seed=i),) for i in range(4)], state)
    grads = copies([p.grad for p in net.parameters()])
    x = numbers(16, 64, seed=9)
    start = copies(state)
    fast(x)
    mine = copies([p.grad for p in net.parameters()])
    with torch.no_grad():
        for now, then in zip(state, start, strict=True):
            now.copy_(then)
    step(x)
    same(mine, [p.grad for p in net.parameters()], "gradients")
    del grads
    return fast


@program
def a_learning_rate_that_changes():
    net, opt = training(torch.optim.Adam, lr=1e-3, foreach=True, capturable=True)

    def step(x):
        opt.zero_grad()
        loss = sum(b(x).square().mean() for b in net)
        loss.backward()
        opt.step()
        return loss.detach()

    fast = parallel(step, numbers(16, 64))
    for group in opt.param_groups:
        group["lr"] = 0.05
    tensors = [t for s in opt.state.values() for t in s.values()]
    compare(
        fast, step, [(numbers(16, 64, seed=i),) for i in range(3)], [*net.parameters(), *tensors]
    )
    return fast


@program
def gradients_that_add_up():
    net, _ = training(torch.optim.SGD, lr=0.1)
    for p in net.parameters():
        p.grad = torch.zeros_like(p)

    def step(x):
        loss = sum(b(x).square().mean() for b in net)
        loss.backward()
        return loss.detach()

    fast = parallel(step, numbers(16, 64))
    need(all(not p.grad.any() for p in net.parameters()), "gradients were added to")
    compare(
        fast,
        step,
        [(numbers(16, 64, seed=i),) for i in range(3)],
        [p.grad for p in net.parameters()],
    )
    return fast


# What is bound to what.


def replaced(change, run, x):
    fast = parallel(run, x)
    change()
    compare(fast, run, [(numbers(*x.shape, seed=i),) for i in range(3)])
    return fast


class Scaled(nn.Module):
    offset = 1.0

    def __init__(self):
        super().__init__()
        self.net, self.scale, self.drop = branches(), 2.0, nn.Dropout(0.5)
        self.shift = torch.tensor(0.5)  # on the CPU
        self.table = {"a": torch.ones(128, device="cuda")}
        self.steps = [1.0, 2.0]

    def forward(self, x):
        y = torch.stack([b(x) for b in self.net]) * self.scale + self.offset
        y = self.drop(y) * self.table["a"] + self.shift
        return y * self.steps[0]


def scaled(change):
    net = Scaled().eval()
    return replaced(lambda: change(net), net, numbers(16, 128))


@program
def a_number_of_the_model():
    return scaled(lambda net: setattr(net, "scale", 3.0))


@program
def a_number_of_the_class():
    try:
        return scaled(lambda _: setattr(Scaled, "offset", 5.0))
    finally:
        Scaled.offset = 1.0


@program
def a_tensor_on_the_cpu():
    return scaled(lambda net: net.shift.fill_(7.0))


@program
def a_tensor_in_a_dictionary():
    return scaled(lambda net: net.table.update(a=torch.zeros(128, device="cuda")))


@program
def an_item_of_a_list():
    return scaled(lambda net: net.steps.__setitem__(0, 4.0))


@program
def a_module_that_is_replaced():
    return scaled(
        lambda net: net.net.__setitem__(2, nn.Linear(128, 128).cuda().requires_grad_(False))
    )


@program
def a_hook_that_is_added():
    return scaled(lambda net: net.net[1].register_forward_hook(lambda m, i, o: o * 3))


@program
def a_forward_of_ones_own():
    return scaled(lambda net: setattr(net.net[1][0], "forward", lambda x: x * 0 + 1))


@program
def weights_moved_by_data():
    return scaled(lambda net: [setattr(p, "data", p.data * 0.5) for p in net.parameters()])


@program
def a_weight_that_is_set():
    return scaled(lambda net: net.net[0][0].weight.set_(torch.ones(128, 128, device="cuda")))


FACTOR = 2.0


@program
def a_global_number():
    net = branches()

    def run(x):
        return torch.stack([b(x) for b in net]) * FACTOR

    def change():
        globals()["FACTOR"] = 3.0

    return replaced(change, run, numbers(16, 128))


@program
def a_cell_of_a_closure():
    net, factor = branches(), 2.0

    def run(x):
        return torch.stack([b(x) for b in net]) * factor

    def change():
        nonlocal factor
        factor = 5.0

    return replaced(change, run, numbers(16, 128))


def helper(x):
    return x + 1


@program
def a_helper_that_is_replaced():
    net = branches()
    old = helper

    def run(x):
        return torch.stack([helper(b(x)) for b in net])

    def change():
        globals()["helper"] = lambda x: old(x) * 2

    return replaced(change, run, numbers(16, 128))


@program
def autocast_afterwards():
    net = branches()
    run = lambda x: torch.stack([b(x) for b in net])
    fast = parallel(run, numbers(16, 128), name="run")
    with torch.autocast("cuda", torch.bfloat16):
        compare(fast, run, [(numbers(16, 128, seed=2),)])
        need(fast(numbers(16, 128)).dtype is torch.bfloat16, "not in bfloat16")
    return fast


@program
def tf32_afterwards():
    net = branches(width=512)
    run = lambda x: torch.stack([b(x) for b in net])
    torch.backends.cuda.matmul.allow_tf32 = False
    fast = parallel(run, numbers(64, 512), name="run")
    torch.backends.cuda.matmul.allow_tf32 = True
    x = numbers(64, 512, seed=3)
    need(torch.equal(fast(x), run(x)), "not with TF32")
    return fast


# Arguments and results.


@program
def an_argument_that_is_a_weight():
    net, shared = branches(), torch.ones(16, 128, device="cuda")

    def run(x):
        shared.mul_(0.5)
        return torch.stack([b(x) for b in net])

    fast = parallel(run, numbers(16, 128))
    mine = copies(fast(shared))
    shared.fill_(1.0)
    same(mine, run(shared), "an argument that is changed on the way")
    return fast


@program
def overlapping_arguments():
    net = branches()

    def run(a, b):
        a.add_(1)
        return torch.stack([m(b) for m in net])

    fast = parallel(run, (numbers(16, 128), numbers(16, 128)))
    found = []
    for f in (fast, run):
        both = numbers(24, 128, seed=4)
        found.append((copies(f(both[:16], both[8:])), both))
    same(*found, "overlapping arguments")
    return fast


@program
def results_stay_as_they_are():
    net = branches()
    run = lambda x: {"all": torch.stack([b(x) for b in net]), "x": (x, x[:2]), "n": 3}
    fast = parallel(run, numbers(16, 128), name="run")
    xs = [numbers(16, 128, seed=i) for i in range(4)]
    found = [fast(x) for x in xs]
    torch.cuda.synchronize()
    for x, mine in zip(xs, found, strict=True):
        same(mine, run(x), "a result of an earlier call")
        need(mine["x"][0].data_ptr() == x.data_ptr(), "not the caller's own tensor")
    return fast


@program
def results_that_share_memory():
    net = branches()

    def run(x):
        y = torch.stack([b(x) for b in net])
        return y, y[0], y.view(-1)

    fast = parallel(run, numbers(16, 128))
    y, first, flat = fast(numbers(16, 128))
    y[0, 0, 0] = 77.0
    need(float(first[0, 0]) == float(flat[0]) == 77.0, "results no longer share memory")
    return fast


@program
def a_view_of_a_cache_is_returned():
    net, cache = branches(), torch.zeros(6, 16, 128, device="cuda")

    def run(x):
        for i, b in enumerate(net):
            cache[i] = b(x)
        return cache[2:4]

    fast = parallel(run, numbers(16, 128))
    found = fast(numbers(16, 128, seed=5))
    need(found.data_ptr() == cache[2].data_ptr(), "not a view of the cache")
    compare(fast, run, [(numbers(16, 128, seed=i),) for i in range(3)], [cache])
    return fast


@program
def keyword_and_nested_arguments():
    net = branches()

    def run(pair, scale=1.0):
        return torch.stack([b(pair["a"]) * scale for b in net]) + pair["b"][0].sum()

    def inputs(seed):
        return {"a": numbers(16, 128, seed=seed), "b": [numbers(4, seed=seed)]}

    fast = parallel(run, (inputs(0),))
    for seed in range(3):
        same(fast(inputs(seed)), run(inputs(seed)), "nested")
        same(fast(inputs(seed), scale=2.0), run(inputs(seed), scale=2.0), "with a keyword")
    return fast


@program
def other_strides_and_types():
    net = branches()
    run = lambda x: torch.stack([b(x) for b in net])
    x = numbers(16, 128)
    fast = parallel(run, x, name="run")
    odd = [x.t().contiguous().t(), numbers(32, 128)[::2], x[:1].expand(16, 128), numbers(8, 128)]
    compare(fast, run, [(each,) for each in odd])
    same(fast(x.requires_grad_()), run(x), "an input that needs gradients")
    return fast


@program
def a_pinned_tensor_is_read_each_time():
    net, host = branches(), torch.zeros(16, 128).pin_memory()

    def run(x):
        x = x + host.to("cuda", non_blocking=True)
        return torch.stack([b(x) for b in net])

    fast = parallel(run, numbers(16, 128))
    for value in (1.0, 2.0):
        torch.cuda.synchronize()
        host.fill_(value)
        mine = copies(fast(numbers(16, 128)))
        torch.cuda.synchronize()
        same(mine, run(numbers(16, 128)), "what stands in pinned memory")
    return fast


# Streams, threads, and others' graphs.


@program
def two_functions_at_once():
    nets = [branches(4, 6, 256), branches(4, 6, 256)]
    runs = [lambda x, net=net: torch.stack([b(x) for b in net]) for net in nets]
    x = numbers(256, 256)
    fasts = [parallel(run, x, name=f"run{i}") for i, run in enumerate(runs)]
    wanted = [copies(run(x)) for run in runs]
    streams = [torch.cuda.Stream() for _ in runs]
    torch.cuda.synchronize()
    found = []
    for _ in range(30):
        for fast, stream, want in zip(fasts, streams, wanted, strict=True):
            with torch.cuda.stream(stream):
                found.append((fast(x), want))
    torch.cuda.synchronize()
    for mine, want in found:
        same(mine, want, "side by side")
    return fasts[0]


@program
def threads_with_streams_of_their_own():
    net = branches(6, 2, 256)
    run = lambda x: torch.stack([b(x) for b in net])
    xs = [numbers(64, 256, seed=i) for i in range(3)]
    fast = parallel(run, xs[0], name="run")
    wanted, wrong = [copies(run(x)) for x in xs], []
    torch.cuda.synchronize()

    def work(place):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(100):
                is_right = torch.allclose(fast(xs[place]), wanted[place], rtol=1e-3, atol=1e-3)
                wrong.extend([place] * (not is_right))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    need(not wrong, f"{len(wrong)} calls were wrong")
    return fast


@program
def graphs_of_the_users_own():
    net = branches(2, 4, 512)
    x = numbers(512, 512)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            net[0](x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        y = net[0](x)
    graph.replay()
    torch.cuda.synchronize()
    wanted = y.clone()
    run = lambda x: torch.stack([b(x) for b in net])
    fast = parallel(run, x, name="run")
    victims = [torch.zeros(4 << 20, device="cuda") for _ in range(16)]
    for _ in range(3):
        graph.replay()
        fast(x)
    torch.cuda.synchronize()
    need(torch.equal(y, wanted), "the user's graph gives something else")
    need(not any(bool(v.any()) for v in victims), "somebody else's memory was written")
    return fast


@program
def thrown_away_while_it_runs():
    net = branches(6, 8, 512)
    run = lambda x: torch.stack([b(x) for b in net])
    x = numbers(512, 512)
    fast = parallel(run, x, name="run", outputs="reuse")
    wanted = copies(run(x))
    for _ in range(50):
        y = fast(x)
    report = fast.report
    del fast
    gc.collect()
    victims = [torch.zeros(1 << 20, device="cuda") for _ in range(32)]
    torch.cuda.synchronize()
    need(not any(bool(v.any()) for v in victims), "memory was written after it was given back")
    del y, wanted
    return report


@program
def its_own_streams_inside():
    net = branches(4, 4, 256)
    streams = [torch.cuda.Stream() for _ in net]

    def run(x):
        here, found = torch.cuda.current_stream(), []
        for b, stream in zip(net, streams, strict=True):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                found.append(b(x))
        for stream in streams:
            here.wait_stream(stream)
        return torch.stack(found)

    fast = parallel(run, numbers(64, 256))
    compare(fast, run, [(numbers(64, 256, seed=i),) for i in range(3)])
    return fast


@program
def inside_a_capture_of_the_users():
    net = branches()
    run = lambda x: torch.stack([b(x) for b in net])
    x = numbers(16, 128)
    fast = parallel(run, x, name="run")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = fast(x)
    graph.replay()
    torch.cuda.synchronize()
    same(y, run(x), "captured by the user")
    return fast


# What is refused leaves nothing behind.


def refused(function, example, words):
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    try:
        parallel(function, example)
    except DepgraphError as error:
        said = str(error)
        need(all(word in said for word in words), f"refused with: {said}")
    else:
        raise WrongError("not refused")
    gc.collect()
    torch.randn(4, device="cuda")
    need(torch.cuda.memory_allocated() <= before + (1 << 20), "memory is still held")


@program
def a_value_that_is_asked_for():
    net = branches()
    refused(lambda x: net[0](x) * float(x.sum()), numbers(16, 128), ["cannot be captured", "float"])


class Counter:
    calls = 0


@program
def a_number_that_is_counted():
    net = branches()

    def run(x):
        Counter.calls += 1
        return net[0](x) * Counter.calls

    refused(run, numbers(16, 128), ["Counter.calls"])


@program
def a_result_that_is_kept():
    net, kept = branches(), []

    def run(x):
        kept.append(net[0](x))
        return kept[-1] * len(kept)

    refused(run, numbers(16, 128), ["kept"])


@program
def random_numbers_of_the_host():
    net = branches()
    refused(
        lambda x: net[0](x) + torch.rand(1).pin_memory().to("cuda", non_blocking=True),
        numbers(16, 128),
        ["random"],
    )


@program
def a_counter_on_the_host():
    net, count = branches(), torch.zeros(1)

    def run(x):
        count.add_(1)
        return net[0](x)

    refused(run, numbers(16, 128), ["CPU"])


# Kernels of no operator.


@program
def triton_kernels():
    import triton
    import triton.language as tl

    @triton.jit
    def scale(x, y, n, B: tl.constexpr):
        i = tl.program_id(0) * B + tl.arange(0, B)
        tl.store(y + i, tl.load(x + i, i < n) * 2, i < n)

    globals()["scale"] = scale
    net, kept = branches(), torch.zeros(6, 16, 128, device="cuda")

    def run(x):
        found = []
        for i, b in enumerate(net):
            y = b(x)
            scale[(2048 // 256,)](y, kept[i], y.numel(), 256)
            found.append(kept[i] + 1)
        return torch.stack(found)

    fast = parallel(run, numbers(16, 128))
    compare(fast, run, [(numbers(16, 128, seed=i),) for i in range(3)], [kept])
    return fast


@program
def triton_kernels_with_tables_of_pointers():
    import triton
    import triton.language as tl

    @triton.jit
    def fill(table, x, B: tl.constexpr):
        to = tl.load(table + tl.program_id(0)).to(tl.pointer_type(tl.float32))
        i = tl.arange(0, B)
        tl.store(to + i, tl.load(x + i))

    globals()["fill"] = fill
    net, rows = branches(width=128), [torch.zeros(128, device="cuda") for _ in range(12)]
    table = torch.tensor([r.data_ptr() for r in rows[:6]], device="cuda")

    def run(x):
        found = []
        for i, b in enumerate(net):
            fill[(6,)](table, b(x)[0], 128)
            found.append(torch.stack(rows).sum(0) + i)
        return torch.stack(found)

    fast = parallel(run, numbers(16, 128))
    table.copy_(torch.tensor([r.data_ptr() for r in rows[6:]]))
    compare(fast, run, [(numbers(16, 128, seed=i),) for i in range(3)], rows)
    return fast


@program
def triton_kernels_whose_functions_store():
    """Each adds, in a function that it calls, to what all others add to."""
    import triton
    import triton.language as tl

    @triton.jit(noinline=True)
    def put(to, i, value):
        tl.store(to + i, tl.load(to + i) / 3 + value)

    @triton.jit
    def add(x, y, B: tl.constexpr):
        i = tl.program_id(0)
        put(y, i, tl.sum(tl.abs(tl.load(x + i * B + tl.arange(0, B))), 0))

    globals().update(put=put, add=add)
    net, total = branches(), torch.zeros(8, device="cuda")

    def run(x):
        for b in net:
            add[(8,)](b(x), total, 256)
        return total.clone()

    fast = parallel(run, numbers(16, 128))
    compare(fast, run, [(numbers(16, 128, seed=i),) for i in range(3)], [total])
    return fast


@program
def triton_kernels_that_assert_what_an_index_is():
    """One reads the row that an index names, which another may have been told to change."""
    import triton
    import triton.language as tl

    @triton.jit(debug=True)
    def change(rows, x, to, B: tl.constexpr):
        row = tl.load(rows + tl.program_id(0))
        tl.device_assert((row >= 0) & (row < 16), "no such row")
        i = tl.arange(0, B)
        tl.atomic_add(to + 128 * row + i, tl.load(x + 128 * tl.program_id(0) + i))

    globals()["change"] = change
    net = branches()

    def run(x, rows):
        y = torch.zeros(16, 128, device="cuda")
        found = []
        for i, b in enumerate(net):
            change[(8,)](rows[i], b(x), y, 128)
            found.append(y[i] * 2)
        return y, torch.stack(found)

    rows = torch.arange(48).reshape(6, 8).cuda() % 16
    fast = parallel(run, (numbers(16, 128), rows))
    compare(fast, run, [(numbers(16, 128, seed=i), rows % (i + 1)) for i in range(3)])
    return fast


@program
def compiled_code_that_looks_up_rows_and_normalises():
    """Its kernels assert what indices are, and call functions for roots."""
    tables = [nn.Embedding(16, 128).cuda().requires_grad_(False) for _ in range(6)]
    norms = [nn.BatchNorm1d(128).cuda().eval().requires_grad_(False) for _ in range(6)]

    def run(x, rows):
        found = [n(x @ t(r).mT) for t, n, r in zip(tables, norms, rows, strict=True)]
        return torch.cat(found, 1).relu(), sum(found).cos()

    rows = torch.arange(768).reshape(6, 128).cuda() % 16
    fast = parallel(run, (numbers(128, 128), rows), compile=True)
    compare(fast, run, [(numbers(128, 128, seed=i), rows % (i + 1)) for i in range(3)])
    return fast


def of_a_module():
    """Return what sets a module's constants and variable, and what reads them; one module."""
    from cuda.bindings import driver, nvrtc

    source = b"""
    __constant__ float constants[128];
    __device__ float variable[128];
    extern "C" __global__ void write(const float* x) { variable[threadIdx.x] = x[threadIdx.x]; }
    extern "C" __global__ void read(float* y) {
        y[threadIdx.x] = variable[threadIdx.x] + 2 * constants[threadIdx.x];
    }
    """
    numbers(1)
    made = nvrtc.nvrtcCreateProgram(source, b"k.cu", 0, [], [])[1]
    arch = "--gpu-architecture=sm_{}{}".format(*torch.cuda.get_device_capability())
    need(not nvrtc.nvrtcCompileProgram(made, 1, [arch.encode()])[0], "it does not compile")
    code = b" " * nvrtc.nvrtcGetCUBINSize(made)[1]
    nvrtc.nvrtcGetCUBIN(made, code)
    module = driver.cuModuleLoadData(code)[1]
    held.append(module)
    address = int(driver.cuModuleGetGlobal(module, b"constants")[1])

    def launch(name, pointer):
        import ctypes

        kernel = driver.cuModuleGetFunction(module, name)[1]
        stream = torch.cuda.current_stream().cuda_stream
        arguments = ((pointer.data_ptr(),), (ctypes.c_void_p,))
        done = driver.cuLaunchKernel(kernel, 1, 1, 1, 128, 1, 1, 0, stream, arguments, 0)
        need(not done[0], f"{name} was not launched")

    def set_constants(x):
        stream = torch.cuda.current_stream().cuda_stream
        need(not driver.cuMemcpyDtoDAsync(address, x.data_ptr(), 512, stream)[0], "no copy")

    return launch, set_constants


held = []


@program
def kernels_that_share_what_lies_in_their_module():
    """One writes a variable, a copy sets constants, and the other reads both."""
    launch, set_constants = of_a_module()
    net = branches()

    def run(x):
        found = [torch.empty(128, device="cuda") for _ in net]
        for b, y in zip(net, found, strict=True):
            made = b(x)
            launch(b"write", made[0])
            set_constants(made[1])
            launch(b"read", y)
        return torch.stack(found)

    try:
        fast = parallel(run, numbers(16, 128))
    except DepgraphError as error:
        need("reaches memory of no tensor" in str(error), str(error))
        return None
    compare(fast, run, [(numbers(16, 128, seed=i),) for i in range(3)])
    return fast


@program
def results_put_into_an_empty_view():
    net, whole = branches(4), torch.zeros(16, 128, device="cuda")

    def run(x):
        found = [whole.sum(0)]
        for b in net:
            torch.mul(b(x), 2.0, out=whole[:0])
            found.append(whole.sum(0))
        return torch.stack(found)

    fast = parallel(run, numbers(16, 128))
    compare(fast, run, [(numbers(16, 128, seed=i),) for i in range(3)], [whole])
    return fast


@program
def an_operator_whose_kernels_share_a_variable():
    """Each call returns what the one before was given: no operand says so."""
    source = """
    __device__ float kept[2048];
    extern "C" __global__ void exchange(const float* x, float* y) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        y[i] = kept[i];
        kept[i] = x[i];
    }
    """
    kernel = torch.cuda._compile_kernel(source, "exchange")

    @library.custom_op("adversarial::exchange", mutates_args=())
    def exchange(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        kernel(grid=(8, 1, 1), block=(256, 1, 1), args=[x, y])
        return y

    net = branches()

    def run(x):
        return torch.stack([exchange(x), *(exchange(b(x)) for b in net)])[1:]

    fast = parallel(run, numbers(16, 128))
    compare(fast, run, [(numbers(16, 128, seed=i),) for i in range(3)])
    return fast


class Raw:
    """Memory that PyTorch did not allocate, as Triton takes it."""

    dtype = torch.float32

    def __init__(self, address):
        self.address = address

    def data_ptr(self):
        return self.address


def copies_through(box):
    import triton
    import triton.language as tl

    @triton.jit
    def move(x, y, B: tl.constexpr):
        i = tl.program_id(0) * B + tl.arange(0, B)
        tl.store(y + i, tl.load(x + i))

    globals()["move"] = move
    net = branches()

    def run(x):
        found = []
        for b in net:
            move[(8,)](b(x), box, 256)
            y = torch.empty_like(x)
            move[(8,)](box, y, 256)
            found.append(y)
        return torch.stack(found)

    return run


@program
def triton_kernels_that_meet_in_memory_of_the_host():
    run = copies_through(torch.zeros(2048).pin_memory())
    refused(run, numbers(16, 128), ["reaches memory of no tensor"])


@program
def triton_kernels_that_meet_in_memory_of_another_library():
    from cuda.bindings import driver

    numbers(1)
    code, address = driver.cuMemAlloc(8192)
    need(not code, "no memory")
    run = copies_through(Raw(int(address)))
    refused(run, numbers(16, 128), ["reaches memory of no tensor"])


@program
def a_function_that_asks_whether_it_is_captured():
    net, drop = branches(), nn.Dropout(0.5)

    def run(x):
        if torch.cuda.is_current_stream_capturing():
            x = drop(x)
        return torch.stack([drop(b(x)) for b in net])

    fast = parallel(run, numbers(16, 128))
    state = torch.cuda.get_rng_state()
    mine = fast(numbers(16, 128, seed=3))
    torch.cuda.set_rng_state(state)
    same(mine, run(numbers(16, 128, seed=3)), "with the same random numbers")
    return fast


@program
def a_function_that_works_in_threads():
    net, pool = branches(), ThreadPoolExecutor(2)

    def run(x):
        stream = torch.cuda.current_stream()

        def work(b):
            with torch.no_grad(), torch.cuda.stream(stream):
                return b(x)

        others = [pool.submit(work, b) for b in net[1:]]
        return torch.stack([net[0](x), *(each.result() for each in others)])

    refused(run, numbers(16, 128), ["threads of its own"])


@program
def one_made_at_its_first_call_inside_another():
    net, statistics = branches(), nn.BatchNorm1d(128).cuda().requires_grad_(False)
    inner = depgraph.torch.parallelize(statistics)

    def run(x):
        return torch.stack([inner(b(x)) for b in net])

    before = copies([*statistics.buffers()])
    fast = parallel(run, numbers(16, 128))
    same(copies([*statistics.buffers()]), before, "statistics", rtol=0)
    plain = lambda x: torch.stack([statistics(b(x)) for b in net])
    xs = [(numbers(16, 128, seed=i),) for i in range(3)]
    compare(fast, plain, xs, [*statistics.buffers()])
    return fast


@program
def a_step_that_rounding_turns_around():
    """CuDNN adds gradients in any order, and a ReLU makes of a rounded weight another gradient."""
    torch.manual_seed(0)
    net = nn.Sequential(
        *[
            m
            for i in range(6)
            for m in (nn.Conv2d(3 if not i else 64, 64, 3, 1 + i % 2), nn.BatchNorm2d(64), nn.ReLU())
        ],
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    ).cuda()  # fmt: skip
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2, fused=True, capturable=True)

    def step(x):
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        return loss.detach()

    return parallel(step, numbers(1, 3, 96, 96))


@program
def an_operator_of_ones_own():
    @library.custom_op("adversarial::bump", mutates_args={"y"})
    def bump(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y.add_(x)
        return x * 2

    net, total = branches(), torch.zeros(16, 128, device="cuda")

    def run(x):
        return torch.stack([bump(b(x), total) for b in net]), total.clone()

    fast = parallel(run, numbers(16, 128))
    compare(fast, run, [(numbers(16, 128, seed=i),) for i in range(3)], [total])
    return fast


@program
def a_compiled_function():
    net = branches()
    compiled = torch.compile(lambda x: torch.stack([b(x).relu() for b in net]))
    fast = parallel(compiled, numbers(16, 128), name="compiled")
    compare(fast, compiled, [(numbers(16, 128, seed=i),) for i in range(3)])
    return fast


@program
def a_compiled_function_inside():
    net, kept = branches(), torch.zeros(6, 16, 128, device="cuda")
    inner = torch.compile(lambda x, i: kept[i].add_(net[i](x).relu()) * 2)

    def run(x):
        return torch.stack([inner(x, i) for i in range(6)]), kept.sum(0)

    fast = parallel(run, numbers(16, 128))
    compare(fast, run, [(numbers(16, 128, seed=i),) for i in range(3)], [kept])
    found = torch._dynamo.utils.counters["frames"]
    need(found["ok"] == found["total"], f"some frames are not compiled: {found}")
    return fast


@program
def a_function_compiled_with_graphs_of_its_own():
    net = branches()
    compiled = torch.compile(
        lambda x: torch.stack([b(x).relu() for b in net]), mode="reduce-overhead"
    )
    fast = parallel(compiled, numbers(16, 128), name="compiled")
    with torch.no_grad():
        compare(fast, compiled, [(numbers(16, 128, seed=i),) for i in range(3)])
    return fast


@program
def one_inside_with_graphs_of_its_own_is_refused():
    net = branches()
    inner = torch.compile(lambda x: net[0](x).relu(), mode="reduce-overhead")
    refused(lambda x: inner(x) + 1, numbers(16, 128), ["CUDA graphs of its own"])


@program
def a_number_that_compiled_code_has_read():
    net = Scaled().eval()
    compiled = torch.compile(net)
    fast = parallel(compiled, numbers(16, 128), name="compiled")
    net.scale = 3.0
    x = numbers(16, 128, seed=5)
    same(fast(x), net(x), "after the change")
    return fast


@program
def written_or_compiled():
    net = branches()
    run = lambda x: torch.stack([b(x).relu().mul(2).tanh() for b in net])
    fast = parallel(run, numbers(16, 128), name="run", compile=True)
    compare(fast, run, [(numbers(16, 128, seed=i),) for i in range(3)])
    return fast


@program
def at_the_first_call():
    net = branches()
    model = nn.Sequential(nn.Linear(128, 128), nn.Tanh()).cuda()

    def run(x, *, scale=1.0, more=None):
        y = torch.stack([b(model(x)) for b in net]) * scale
        return y if more is None else {"y": y + more["bias"], "z": [y * 2]}

    fast = depgraph.torch.parallelize(run)
    with torch.no_grad():
        for n, scale in ((16, 1.0), (8, 1.0), (16, 2.0), (16, 1.0)):
            for seed in range(2):
                x = numbers(n, 128, seed=seed)
                same(fast(x, scale=scale), run(x, scale=scale), f"{n} rows")
        more = {"bias": numbers(128)}
        same(fast(x, more=more), run(x, more=more), "nested")
    need(len(fast.reports) == 4, f"{len(fast.reports)} graphs")
    return fast.reports[0]


@program
def autocast_around():
    net = nn.Sequential(*[nn.Linear(128, 128) for _ in range(3)]).cuda()
    run = lambda x: net(x).detach()
    with torch.no_grad(), torch.autocast("cuda", torch.float16):
        net(numbers(16, 128))
        fast = parallel(run, numbers(16, 128), name="run")
        for p in net.parameters():
            p.add_(0.01)
        compare(fast, run, [(numbers(16, 128, seed=i),) for i in range(3)])
    return fast


@program
def trains_in_half_precision():
    net = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(128, 128), nn.ReLU())]).cuda()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True, capturable=True)
    scaler = torch.amp.GradScaler("cuda")

    def step(x):
        opt.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = net(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        return loss.detach()

    fast = parallel(step, numbers(16, 128))
    xs = [numbers(16, 128, seed=i) for i in range(3)]
    xs[1][0, 0] = float("inf")
    slots = [t for s in opt.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
    compare(
        fast, step, [(x,) for x in xs],
        [*net.parameters(), *slots, scaler._scale, scaler._growth_tracker],
    )  # fmt: skip
    return fast


@program
def a_scaler_that_asks_the_cpu():
    net, opt = training(torch.optim.SGD, lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")

    def step(x):
        opt.zero_grad()
        loss = sum(b(x).square().mean() for b in net)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        return loss.detach()

    refused(step, numbers(16, 64), ["cannot be captured", "fused=True"])


# Half precision, other layouts, large and small.


@program
def half_precision():
    net = branches(4, 4, 1024).to(torch.bfloat16)
    run = lambda x: torch.stack([b(x) for b in net])
    x = numbers(128, 1024).to(torch.bfloat16)
    fast = parallel(run, x, name="run")
    compare(fast, run, [(numbers(128, 1024, seed=i).to(torch.bfloat16),) for i in range(3)])
    return fast


@program
def attention_in_half_precision():
    layers = [nn.TransformerEncoderLayer(256, 4, 512, batch_first=True) for _ in range(3)]
    net = nn.ModuleList(layers).cuda().half().eval().requires_grad_(False)
    run = lambda x: torch.stack([layer(x) for layer in net])
    x = numbers(2, 64, 256).half()
    fast = parallel(run, x, name="run")
    compare(fast, run, [(numbers(2, 64, 256, seed=i).half(),) for i in range(3)])
    return fast


@program
def channels_last():
    net = [
        nn.Sequential(nn.Conv2d(32, 32, k, padding=k // 2), nn.BatchNorm2d(32), nn.ReLU())
        for k in (1, 3, 5, 7)
    ]
    net = nn.ModuleList(net).cuda().half().to(memory_format=torch.channels_last).eval()
    net.requires_grad_(False)
    run = lambda x: torch.cat([b(x) for b in net], 1)
    x = numbers(1, 32, 28, 28).half().to(memory_format=torch.channels_last)
    fast = parallel(run, x, name="run")
    xs = [
        numbers(1, 32, 28, 28, seed=i).half().to(memory_format=torch.channels_last)
        for i in range(3)
    ]
    compare(fast, run, [(x,) for x in xs])
    return fast


@program
def recurrent_nets():
    nets = [nn.LSTM(64, 64, 2, bidirectional=True).cuda().requires_grad_(False) for _ in range(3)]
    run = lambda x: [net(x)[0] for net in nets]
    fast = parallel(run, numbers(8, 4, 64), name="run")
    compare(fast, run, [(numbers(8, 4, 64, seed=i),) for i in range(3)])
    return fast


@program
def nested_arguments_of_many_types():
    """Whose keys decide what is done: other keys, and other orders of them, are other calls."""
    net = branches(4)

    def run(x, more, flags=()):
        found = [b(x) * more["scale"][i] for i, b in enumerate(net)]
        for place, (name, rows) in enumerate(more["rows"].items()):
            picked = found[place][rows].masked_fill(more["mask"], 0)
            found.append(picked * (2 if name is True else 1))
        return {"all": torch.cat(found), "flags": len(flags)}

    def given(seed, a="a", b="b"):
        rows = {name: torch.arange(16).cuda().roll(seed + n) for n, name in enumerate((a, b))}
        mask = numbers(16, 128, seed=seed) > 0
        more = {"scale": numbers(4, seed=seed).half(), "rows": rows, "mask": mask}
        return numbers(16, 128, seed=seed), more, (None, [])

    def by_number(seed, a):
        return given(seed, a, 7)

    fast = parallel(run, given(0), name="run")
    compare(fast, run, [given(i) for i in range(3)])
    compare(fast, run, [given(3, "b", "a"), given(4, "a", "c"), given(5)])
    counted = parallel(run, by_number(0, 1), name="run")
    compare(counted, run, [by_number(1, 1), by_number(2, True), by_number(3, 1.0)])
    return fast


@program
def what_is_never_asked_changes():
    """Let a class, a slot, a list and a closure hold other tensors from one call to the next."""
    net = branches(4)

    class Held:
        __slots__ = ("gain",)

    class Base:
        shift = torch.ones(128, device="cuda")

    class Derived(Base):
        pass

    held, items, power = Held(), [torch.ones(128, device="cuda") for _ in range(4)], 2.0
    held.gain = torch.ones(128, device="cuda")

    def run(x):
        found = [
            b(x) * held.gain * item + Derived.shift for b, item in zip(net, items, strict=True)
        ]
        return torch.stack(found).pow(power)

    fast, x = parallel(run, numbers(16, 128), name="run"), numbers(16, 128, seed=2)
    three = torch.full((128,), 3.0, device="cuda")

    def change_power():
        nonlocal power
        power = 3.0

    before = held.gain, items[2]
    for change, undo in (
        (lambda: setattr(held, "gain", three), lambda: setattr(held, "gain", before[0])),
        (lambda: items.__setitem__(2, three), lambda: items.__setitem__(2, before[1])),
        (items.reverse, items.reverse),
        (lambda: setattr(Derived, "shift", three), lambda: delattr(Derived, "shift")),
        (change_power, lambda: None),
    ):
        compare(fast, run, [(x,)])
        change()
        compare(fast, run, [(x,), (x * 2,)])
        undo()
    return fast


@program
def hardly_any_memory():
    net = branches(8, 4, 256)
    run = lambda x: torch.stack([b(x) for b in net])
    fast = parallel(run, numbers(64, 256), name="run", max_extra_memory=0)
    compare(fast, run, [(numbers(64, 256, seed=i),) for i in range(3)])
    return fast


@program
def verified_now_and_then():
    net, total = branches(), torch.zeros(16, 128, device="cuda")

    def run(x):
        found = torch.stack([b(x) for b in net])
        total.add_(found.sum(0))
        return found, total.clone()

    fast = parallel(run, numbers(16, 128), verify_every=2)
    compare(fast, run, [(numbers(16, 128, seed=i),) for i in range(5)], [total])
    return fast


def main():
    if sys.argv[1:] == ["--list"]:
        print(*PROGRAMS, sep="\n")
        return
    name = sys.argv[1]
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    try:
        fast = PROGRAMS[name]()
        torch.cuda.synchronize()
    except WrongError as error:
        print(f"{name}: WRONG {error}")
        return
    except DepgraphError as error:
        print(f"{name}: REFUSED {error}")
        return
    report = getattr(fast, "report", fast)
    graph = f"  [{report.chosen}, {report.speedup:.2f}x]" if report is not None else ""
    print(f"{name}: OK{graph}")


if __name__ == "__main__":
    main()
