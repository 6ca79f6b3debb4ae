"""Programs of the kinds that papers on overlapping kernels measure; needs PyTorch and a GPU.

    python programs.py --list
    depgraph record --region profiler -o lstm.out -- python programs.py lstm_512_16_25
    python programs.py --profile FOLDER [NAME...]

The first iteration warms up; the second is between `cudaProfilerStart` and `cudaProfilerStop`, or
in a profile of PyTorch's own. Recurrent networks of DeepBench go by hidden_batch_timesteps, and run
a step at a time, as kernels of cuBLAS and not as cuDNN's persistent ones. Weights are random,
nothing is loaded.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

Iteration = Callable[[], object]
FP32 = torch.float32
CELLS = {"rnn": nn.RNNCell, "lstm": nn.LSTMCell, "gru": nn.GRUCell}
DEEPBENCH = (
    "rnn_1760_16_50", "rnn_2048_32_50", "lstm_512_16_25", "lstm_1024_32_25", "lstm_256_16_150",
    "gru_512_1_25", "gru_1024_32_25", "gru_2816_32_10",
)  # fmt: skip


def recurrent(name: str) -> Iteration:
    """Make a layer of DeepBench."""
    kind, *sizes = name.split("_")
    hidden, batch, steps = map(int, sizes)
    cell = CELLS[kind](hidden, hidden).cuda()
    inputs = torch.randn(steps, batch, hidden, device="cuda")

    def run() -> object:
        state = None
        for step in inputs:
            state = cell(step, state)
        return state

    return run


def transformer(
    layers: int, width: int, heads: int, tokens: int, *, causal: bool, dtype: torch.dtype = FP32
) -> Iteration:
    """Make layers of BERT or GPT, attention written out as in their papers."""
    made = {"device": "cuda", "dtype": dtype}
    blocks = [
        {
            name: nn.Linear(a, b, **made)
            for name, a, b in (
                ("q", width, width), ("k", width, width), ("v", width, width),
                ("out", width, width), ("up", width, 4 * width), ("down", 4 * width, width),
            )
        }
        for _ in range(layers)
    ]  # fmt: skip
    norm = nn.LayerNorm(width, **made)
    x = torch.randn(1, tokens, width, **made)
    mask = torch.full((tokens, tokens), float("-inf"), **made).triu(1)

    def split(y: Tensor) -> Tensor:
        return y.view(1, tokens, heads, width // heads).transpose(1, 2)

    def run() -> object:
        y = x
        for block in blocks:
            z = norm(y) if causal else y
            q, k, v = (split(block[name](z)) for name in "qkv")
            scores = q @ k.transpose(-1, -2) / (width // heads) ** 0.5
            scores = torch.softmax(scores + mask if causal else scores, -1)
            z = (scores @ v).transpose(1, 2).reshape(1, tokens, width)
            y = y + block["out"](z)
            y = y if causal else norm(y)
            y = y + block["down"](functional.gelu(block["up"](norm(y) if causal else y)))
            y = y if causal else norm(y)
        return y

    return run


def cusync_attention(tokens: int, width: int = 12288, gpus: int = 8) -> Iteration:
    """Make one GPU's part of GPT-3's attention as cuSync measures it: one head of its share.

    That is what src/ml-bench/transformer/attention.cu of microsoft/cusync computes.
    """
    share = width // gpus
    made = {"device": "cuda", "dtype": torch.float16}
    weights = torch.randn(width, 3 * share, **made), torch.randn(share, width, **made)
    x = torch.randn(tokens, width, **made)

    def run() -> object:
        q, k, v = (x @ weights[0]).split(share, 1)
        return torch.softmax(q @ k.T, -1) @ v @ weights[1]

    return run


def gnmt(hidden: int = 512, batch: int = 8, words: int = 8) -> Iteration:
    """Make a small GNMT: both directions, two layers more, a decoder with attention."""
    both = [nn.LSTMCell(hidden, hidden).cuda() for _ in range(2)]
    more = [nn.LSTMCell(2 * hidden if i == 0 else hidden, hidden).cuda() for i in range(2)]
    decoder, out = nn.LSTMCell(2 * hidden, hidden).cuda(), nn.Linear(hidden, 4096).cuda()
    x = torch.randn(words, batch, hidden, device="cuda")

    def layer(cell: nn.LSTMCell, steps: list[Tensor]) -> list[Tensor]:
        state, outputs = None, []
        for step in steps:
            state = cell(step, state)
            outputs.append(state[0])
        return outputs

    def run() -> object:
        steps = list(x)
        ahead, back = layer(both[0], steps), layer(both[1], steps[::-1])[::-1]
        encoded = [torch.cat(pair, 1) for pair in zip(ahead, back, strict=True)]
        for cell in more:
            encoded = layer(cell, encoded)
        memory = torch.stack(encoded, 1)
        state, said = (memory[:, -1], memory[:, -1]), []
        for step in steps:
            weights = torch.softmax(torch.bmm(memory, state[0].unsqueeze(2)), 1)
            context = (weights * memory).sum(1)
            state = decoder(torch.cat([step, context], 1), state)
            said.append(out(state[0]))
        return said

    return run


def deep_speech_2(hidden: int = 400, batch: int = 4, steps: int = 40) -> Iteration:
    """Make a small DeepSpeech 2: two convolutions, two layers of GRUs in both directions."""
    first = nn.Conv2d(1, 32, (41, 11), (2, 2), (20, 5)).cuda()
    second = nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5)).cuda()
    width = 32 * 41
    cells = [
        [nn.GRUCell(width if layer == 0 else hidden, hidden).cuda() for _ in range(2)]
        for layer in range(2)
    ]
    sound = torch.randn(batch, 1, 161, steps, device="cuda")

    def one_way(cell: nn.GRUCell, inputs: list[Tensor]) -> list[Tensor]:
        state, outputs = None, []
        for step in inputs:
            state = cell(step, state)
            outputs.append(state)
        return outputs

    def run() -> object:
        y = functional.hardtanh(second(functional.hardtanh(first(sound), 0, 20)), 0, 20)
        inputs = list(y.flatten(1, 2).permute(2, 0, 1).contiguous())
        for ahead, back in cells:
            outputs = one_way(ahead, inputs), one_way(back, inputs[::-1])[::-1]
            inputs = [a + b for a, b in zip(*outputs, strict=True)]
        return inputs

    return run


def simulation(environments: int = 8, bodies: int = 512, steps: int = 2) -> Iteration:
    """Make a physics simulation for deep reinforcement learning, ACS's kind of program.

    An environment comes after the other, each a chain of small kernels; how many depends on its
    state.
    """
    policy = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 3)).cuda()
    feel = [torch.randn(bodies, 64, device="cuda") for _ in range(environments)]
    place = [torch.randn(bodies, 3, device="cuda") for _ in range(environments)]
    speed = [torch.randn(bodies, 3, device="cuda") for _ in range(environments)]
    rounds = [1 + i % 3 for i in range(environments)]  # of the solver, by the state

    def run() -> object:
        for _ in range(steps):
            for i in range(environments):
                force = policy(feel[i])
                for _ in range(rounds[i]):
                    apart = place[i].unsqueeze(0) - place[i].unsqueeze(1)
                    push = apart / (apart.square().sum(-1, keepdim=True) + 1)
                    force = force - 0.1 * push.sum(1)
                speed[i] = 0.99 * speed[i] + 0.01 * force
                place[i] = place[i] + 0.01 * speed[i]
        return place

    return run


def dynamic_network(layers: int = 4, tokens: int = 64, width: int = 256) -> Iteration:
    """Make a network whose path depends on its input: each token takes two of eight experts."""
    gates = [nn.Linear(width, 8).cuda() for _ in range(layers)]
    experts = [[nn.Linear(width, width).cuda() for _ in range(8)] for _ in range(layers)]
    x = torch.randn(tokens, width, device="cuda")

    def run() -> object:
        y = x
        for gate, layer in zip(gates, experts, strict=True):
            weights, chosen = torch.softmax(gate(y), 1).topk(2)
            total = torch.zeros_like(y)
            for number, expert in enumerate(layer):
                rows, place = (chosen == number).nonzero(as_tuple=True)
                if len(rows):
                    done = torch.relu(expert(y[rows])) * weights[rows, place, None]
                    total.index_add_(0, rows, done)
            y = y + total
        return y

    return run


def dynamic_branches(branches: int = 6, size: int = 28) -> Iteration:
    """Make a cell of a searched network, InstaNAS's kind: branches of different depth, joined."""
    depths = [1 + i % 3 for i in range(branches)]
    chains = [[nn.Conv2d(32, 32, 3, padding=1).cuda() for _ in range(d)] for d in depths]
    x = torch.randn(1, 32, size, size, device="cuda")

    def run() -> object:
        y = x
        for _ in range(2):
            outputs = []
            for chain in chains:
                z = y
                for layer in chain:
                    z = torch.relu(layer(z))
                outputs.append(z)
            y = torch.stack(outputs).mean(0)
        return y

    return run


def training(model: nn.Module, forward: Callable[[], Tensor], iterations: int = 4) -> Iteration:
    """Make iterations of training, the same each time."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def run() -> object:
        with torch.enable_grad():
            for _ in range(iterations):
                optimizer.zero_grad()
                forward().square().mean().backward()
                optimizer.step()
        return model

    return run


def gru_training() -> Iteration:
    """Make iterations of training a GRU of four time steps."""
    cell = nn.GRUCell(256, 256).cuda()
    inputs = torch.randn(4, 16, 256, device="cuda")

    def forward() -> Tensor:
        state = None
        for step in inputs:
            state = cell(step, state)
        return state

    return training(cell, forward)


def lenet_training() -> Iteration:
    """Make iterations of training LeNet-5."""
    layers = [
        nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10),
    ]  # fmt: skip
    model = nn.Sequential(*layers).cuda()
    inputs = torch.randn(32, 1, 28, 28, device="cuda")
    return training(model, lambda: model(inputs))


PROGRAMS: dict[str, Callable[[], Iteration]] = {
    **{name: partial(recurrent, name) for name in DEEPBENCH},
    "bert": lambda: transformer(2, 768, 12, 128, causal=False),
    "gpt2": lambda: transformer(2, 768, 12, 128, causal=True),
    "gpt3_128": lambda: transformer(1, 12288, 96, 128, causal=True, dtype=torch.bfloat16),
    "gpt3_512": lambda: transformer(1, 12288, 96, 512, causal=True, dtype=torch.bfloat16),
    "cusync_attention_512": lambda: cusync_attention(512),
    "gnmt": gnmt,
    "deep_speech_2": deep_speech_2,
    "simulation": simulation,
    "dynamic_network": dynamic_network,
    "dynamic_branches": dynamic_branches,
    "gru_training": gru_training,
    "lenet_training": lenet_training,
}


def profile(run: Iteration, path: Path) -> None:
    """Write a profile of PyTorch's of one iteration."""
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as taken:
        run()
        torch.cuda.synchronize()
    plain = path.with_suffix("")
    taken.export_chrome_trace(str(plain))
    with plain.open("rb") as source, gzip.open(path, "wb", 6) as target:
        shutil.copyfileobj(source, target)
    plain.unlink()


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true", help="say what there is")
    parser.add_argument("--profile", type=Path, metavar="FOLDER", help="profile instead")
    asked = parser.parse_args()
    if asked.list:
        print("\n".join(PROGRAMS))
        return
    for name in asked.names or PROGRAMS:
        torch.manual_seed(0)
        with torch.no_grad():
            run = PROGRAMS[name]()
            for _ in range(1 + 2 * (asked.profile is not None)):
                run()
            torch.cuda.synchronize()
            if asked.profile is not None:
                profile(run, asked.profile / f"{name}.kineto.json.gz")
                continue
            torch.cuda.profiler.start()
            run()
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()


if __name__ == "__main__":
    main()
