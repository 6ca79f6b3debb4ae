"""Programs for `depgraph apply`: unchanged PyTorch, from mixtures of experts to training steps.

depgraph apply -- python samples/validation/applied.py dyn_moe
python samples/validation/applied.py --list
"""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

Program = tuple["Callable[..., Any]", tuple[Any, ...]]


def _mlp(*sizes: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(pairwise(sizes)):
        layers += [nn.Linear(a, b)] + ([activation()] if i < len(sizes) - 2 else [])
    return nn.Sequential(*layers)


class Sum(nn.Module):
    """The sum, or the concatenation, of what branches make of one input."""

    def __init__(self, branches: list[nn.Module], dim: int | None = None) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)
        self.dim = dim

    def forward(self, x: Any) -> Any:
        """Run all branches."""
        found = [branch(x) for branch in self.branches]
        return torch.stack(found).sum(0) if self.dim is None else torch.cat(found, self.dim)


class Block(nn.Module):
    """A transformer block; with `split`, projections and heads are kernels of their own."""

    def __init__(self, d: int, heads: int, *, split: bool = False) -> None:
        super().__init__()
        self.heads, self.split = heads, split
        self.before, self.after = nn.LayerNorm(d), nn.LayerNorm(d)
        self.q, self.k, self.v, self.out = (nn.Linear(d, d) for _ in range(4))
        self.mlp = _mlp(d, 4 * d, d, activation=nn.GELU)

    def forward(self, x: Any) -> Any:
        """Attend, then map."""
        y = self.before(x)
        q, k, v = self.q(y), self.k(y), self.v(y)
        if self.split:
            parts = zip(*(t.chunk(self.heads, -1) for t in (q, k, v)), strict=True)
            mixed = torch.cat([_attend(*part) for part in parts], -1)
        else:
            q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(-2, -3) for t in (q, k, v))
            mixed = _attend(q, k, v).transpose(-2, -3).flatten(-2)
        x = x + self.out(mixed)
        return x + self.mlp(self.after(x))


def _attend(q: Any, k: Any, v: Any) -> Any:
    return (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1) @ v


class Mixture(nn.Module):
    """A block, then every expert, weighted."""

    def __init__(self, d: int = 256, experts: int = 8) -> None:
        super().__init__()
        self.block, self.gate = Block(d, 4), nn.Linear(d, experts)
        self.experts = nn.ModuleList(
            [_mlp(d, 4 * d, d, activation=nn.GELU) for _ in range(experts)]
        )

    def forward(self, x: Any) -> Any:
        """Weigh all experts."""
        x = self.block(x)
        weight = self.gate(x).softmax(-1)
        return x + sum(e(x) * weight[..., i : i + 1] for i, e in enumerate(self.experts))


def _convolution(a: int, b: int, size: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(a, b, size, padding=size // 2), nn.ReLU())


def _inception(c: int) -> nn.Module:
    return Sum(
        [
            _convolution(c, c // 4, 1),
            nn.Sequential(_convolution(c, c // 4, 1), _convolution(c // 4, c // 4, 3)),
            nn.Sequential(_convolution(c, c // 4, 1), _convolution(c // 4, c // 4, 5)),
            nn.Sequential(nn.MaxPool2d(3, 1, 1), _convolution(c, c // 4, 1)),
        ],
        dim=1,
    )


def _model(module: nn.Module, *shape: int) -> Program:
    return module.cuda().eval().requires_grad_(requires_grad=False), (torch.randn(shape).cuda(),)


def dyn_moe() -> Program:
    """Return a mixture in which each input chooses two experts a layer."""
    experts = [_mlp(64, 64, 64).cuda().requires_grad_(requires_grad=False) for _ in range(6)]
    picks = torch.randint(0, 6, (3, 12, 2)).tolist()

    def run(*inputs: Any) -> Any:
        now = list(inputs)
        for layer in picks:
            now = [experts[a](x) + experts[b](x) for (a, b), x in zip(layer, now, strict=True)]
        return torch.stack(now).mean(0)

    return run, tuple(torch.randn(8, 64).cuda() for _ in range(12))


def dynamic_tree() -> Program:
    """Return a tree of small cells, as a parser would make it."""
    cell = _mlp(128, 128, 64).cuda().requires_grad_(requires_grad=False)

    def run(x: Any) -> Any:
        nodes = list(x)
        while len(nodes) > 1:
            pairs = zip(nodes[::2], nodes[1::2], strict=True)
            nodes = [cell(torch.cat(pair, -1)) for pair in pairs]
        return nodes[0]

    return run, (torch.randn(16, 4, 64).cuda(),)


def dynamic_depth() -> Program:
    """Return a net whose inputs leave at different depths."""
    layers = [_mlp(128, 128).cuda().requires_grad_(requires_grad=False) for _ in range(6)]
    depth = torch.randint(1, 7, (8,)).tolist()

    def run(x: Any) -> Any:
        found = []
        for row, n in zip(x, depth, strict=True):
            for layer in layers[:n]:
                row = torch.relu(layer(row))  # noqa: PLW2901
            found.append(row)
        return torch.stack(found)

    return run, (torch.randn(8, 4, 128).cuda(),)


def recurrent(kind: str, hidden: int, batch: int, steps: int, layers: int = 1) -> Program:
    """Return a recurrent net of cells; DeepBench's sizes among the programs below."""
    make = {"rnn": nn.RNNCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}[kind]
    cells = [make(hidden, hidden).cuda().requires_grad_(requires_grad=False) for _ in range(layers)]

    def run(x: Any) -> Any:
        state: list[Any] = [None] * layers
        now = x[0]
        for t in range(steps):
            now = x[t]
            for i, cell in enumerate(cells):
                state[i] = cell(now, state[i])
                now = state[i][0] if kind == "lstm" else state[i]
        return now

    return run, (torch.randn(steps, batch, hidden).cuda(),)


def both_ways() -> Program:
    """Return a recurrent net that reads its input from both ends."""
    ahead, back = (
        nn.GRUCell(128, 128).cuda().requires_grad_(requires_grad=False) for _ in range(2)
    )

    def run(x: Any) -> Any:
        a = b = None
        for t in range(6):
            a, b = ahead(x[t], a), back(x[5 - t], b)
        return torch.cat([a, b], -1)

    return run, (torch.randn(6, 16, 128).cuda(),)


def training(module: nn.Module, *shape: int) -> Program:
    """Return a step of stochastic gradient descent."""
    module = module.cuda()
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)

    def step(x: Any) -> Any:
        optimizer.zero_grad(set_to_none=False)
        loss = module(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, (torch.randn(shape).cuda(),)


def recommender() -> Program:
    """Return tables and two towers, as recommenders have them."""
    tables = [nn.Embedding(1000, 64).cuda().requires_grad_(requires_grad=False) for _ in range(12)]
    below = _mlp(13, 128, 64).cuda().requires_grad_(requires_grad=False)
    above = _mlp(64 * 13, 256, 1).cuda().requires_grad_(requires_grad=False)

    def run(dense: Any, sparse: Any) -> Any:
        found = [table(sparse[:, i]) for i, table in enumerate(tables)]
        return above(torch.cat([below(dense), *found], -1))

    return run, (torch.randn(64, 13).cuda(), torch.randint(0, 1000, (64, 12)).cuda())


PROGRAMS: dict[str, Callable[[], Program]] = {
    "dyn_moe": dyn_moe,
    "dense_moe": lambda: _model(Mixture(), 1, 64, 256),
    "dense_moe_16": lambda: _model(Mixture(128, 16), 1, 32, 128),
    "ensemble_8": lambda: _model(Sum([_mlp(*[256] * 7) for _ in range(8)]), 32, 256),
    "ensemble_16": lambda: _model(Sum([_mlp(*[128] * 4) for _ in range(16)]), 16, 128),
    "heads_of_a_task": lambda: _model(
        nn.Sequential(_mlp(256, 256), Sum([_mlp(256, 128, 16) for _ in range(12)], 1)), 32, 256
    ),
    "inception": lambda: _model(nn.Sequential(_inception(64), _inception(64)), 1, 64, 28, 28),
    "resnext_like": lambda: _model(
        Sum(
            [
                nn.Sequential(_convolution(64, 8, 1), _convolution(8, 8, 3), _convolution(8, 64, 1))
                for _ in range(8)
            ]
        ),
        1,
        64,
        28,
        28,
    ),
    "pyramid": lambda: _model(
        Sum(
            [
                nn.Sequential(nn.AdaptiveAvgPool2d(s), _convolution(32, 16, 1), nn.Flatten(1))
                for s in (1, 2, 3, 6)
            ],
            1,
        ),
        1,
        32,
        24,
        24,
    ),
    "block_batch_1": lambda: _model(Block(256, 4), 1, 128, 256),
    "block_heads_apart": lambda: _model(Block(256, 8, split=True), 128, 256),
    "three_blocks": lambda: _model(Sum([Block(256, 4) for _ in range(3)]), 1, 64, 256),
    "rnn": lambda: recurrent("rnn", 256, 32, 3),
    "rnn_layers": lambda: recurrent("rnn", 256, 32, 6, 4),
    "gru_layers": lambda: recurrent("gru", 128, 16, 6, 3),
    "lstm_layers": lambda: recurrent("lstm", 128, 16, 6, 3),
    "deepbench_rnn": lambda: recurrent("rnn", 1760, 16, 4),
    "deepbench_lstm": lambda: recurrent("lstm", 512, 16, 6),
    "deepbench_gru": lambda: recurrent("gru", 1024, 32, 4),
    "both_ways": both_ways,
    "dynamic_tree": dynamic_tree,
    "dynamic_depth": dynamic_depth,
    "recommender": recommender,
    "train_mlp": lambda: training(_mlp(256, 512, 512, 10), 64, 256),
    "train_ensemble": lambda: training(Sum([_mlp(128, 128, 128) for _ in range(6)]), 32, 128),
    "train_convolutions": lambda: training(
        nn.Sequential(_inception(32), nn.Flatten(1), nn.Linear(32 * 14 * 14, 10)), 4, 32, 14, 14
    ),
}


def main() -> None:
    """Run the program that is named."""
    if sys.argv[1:] == ["--list"]:
        print(*PROGRAMS, sep="\n")
        return
    import depgraph.torch

    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    function, inputs = PROGRAMS[sys.argv[1]]()
    fast = depgraph.torch.parallelize(function, inputs, name=sys.argv[1])
    fast(*inputs)
    if fast.report is not None:
        print(fast.report)


if __name__ == "__main__":
    main()
