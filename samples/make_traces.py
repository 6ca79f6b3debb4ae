"""The PyTorch programs behind the sample traces.

Made on one NVIDIA H100 80GB with driver 580, CUDA 13, PyTorch 2.11, in float32 with TF32 off.
One pass of a program was traced, once with NVBit 1.7.6's ``mem_trace`` and once with Accel-Sim's
tracer (version 5), both preloaded into it::

    LD_PRELOAD=mem_trace.so   python make_traces.py gru_train trace > gru_train.log
    LD_PRELOAD=tracer_tool.so python make_traces.py gru_train trace

The kernel times come from an untraced run of the same program in steady state::

    python make_traces.py gru_train profile gru_train.kineto.json

which also prints the time of one pass, eager and replayed as a CUDA graph. Needs ``torch`` and an
NVIDIA GPU; nothing else in depgraph does.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

if TYPE_CHECKING:
    from collections.abc import Callable

    Program = Callable[[], Tensor]

DEVICE = "cuda"
WARM_UP_PASSES = 5
TIMED_PASSES = 50


def recurrent(
    cell_class: type[nn.RNNCellBase], *, hidden: int, batch: int, steps: int, train: bool = False
) -> Program:
    """Return a pass of a recurrent cell over `steps` inputs, with a backward pass to train it."""
    cell = cell_class(hidden, hidden).to(DEVICE)
    # Everything here is made on the CPU and copied, so that only the program launches kernels.
    inputs = torch.randn(steps, batch, hidden).to(DEVICE)
    start = torch.zeros(batch, hidden).to(DEVICE)
    if cell_class is nn.LSTMCell:
        start = (start, torch.zeros(batch, hidden).to(DEVICE))

    def run() -> Tensor:
        state = start
        for step in range(steps):
            state = cell(inputs[step], state)
        output = state[0] if isinstance(state, tuple) else state
        if train:
            output.sum().backward()
        return output

    return run


def mlp(*, rows: int, width: int, inner: int) -> Program:
    """Return a forward pass of two linear layers with a GELU between them."""
    first = nn.Linear(width, inner, bias=False).to(DEVICE)
    second = nn.Linear(inner, width, bias=False).to(DEVICE)
    inputs = torch.randn(rows, width).to(DEVICE)

    def run() -> Tensor:
        with torch.no_grad():
            return second(functional.gelu(first(inputs)))

    return run


class TransformerBlock(nn.Module):
    """One GPT-2 block, attention written out in full: matrix product, softmax, matrix product."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_before_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm_before_mlp = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the same shape."""
        batch, tokens, width = x.shape

        def split_heads(tensor: Tensor) -> Tensor:
            return tensor.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2)

        joined = self.query_key_value(self.norm_before_attention(x))
        query, key, value = (split_heads(part) for part in joined.split(width, -1))
        scores = (query @ key.transpose(-1, -2)) * (width // self.heads) ** -0.5
        attended = scores.softmax(-1) @ value
        x = x + self.project(attended.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.narrow(functional.gelu(self.widen(self.norm_before_mlp(x))))


def gpt2(*, width: int, heads: int, tokens: int, train: bool = False) -> Program:
    """Return a pass of one GPT-2 block over a batch of one."""
    net = nn.Sequential(TransformerBlock(width, heads)).to(DEVICE)
    inputs = torch.randn(1, tokens, width).to(DEVICE)

    def run() -> Tensor:
        if train:
            output = net(inputs)
            output.sum().backward()
            return output
        with torch.no_grad():
            return net(inputs)

    return run


def residual_convolutions(*, channels: int, side: int, batch: int, layers: int) -> Program:
    """Return a forward pass of 3x3 convolutions, each added to the input."""
    weights = [torch.randn(channels, channels, 3, 3).to(DEVICE) * 0.05 for _ in range(layers)]
    inputs = torch.randn(batch, channels, side, side).to(DEVICE)

    def run() -> Tensor:
        with torch.no_grad():
            output = inputs
            for weight in weights:
                output = functional.relu(functional.conv2d(output, weight, padding=1)) + inputs
            return output

    return run


def branches(*, streams: int, rows: int, width: int) -> Program:
    """Return independent branches, each on a stream of its own, joined at the end."""
    weights = [torch.randn(width, width).to(DEVICE) for _ in range(streams)]
    inputs = torch.randn(rows, width).to(DEVICE)
    branch_streams = [torch.cuda.Stream() for _ in range(streams)]

    def run() -> Tensor:
        main_stream = torch.cuda.current_stream()
        outputs = []
        for stream, weight in zip(branch_streams, weights, strict=True):
            stream.wait_stream(main_stream)
            with torch.cuda.stream(stream):
                outputs.append(torch.relu(inputs @ weight) @ weight)
        for stream in branch_streams:
            main_stream.wait_stream(stream)
        return torch.stack(outputs).sum(0)

    return run


def mixture_of_experts(*, items: int, width: int, layers: int, experts: int = 6) -> Program:
    """Return a graph of many small kernels in which the data pick two experts an item and layer."""
    networks = [
        nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)).to(DEVICE)
        for _ in range(experts)
    ]
    inputs = [torch.randn(8, width).to(DEVICE) for _ in range(items)]
    picks = torch.randint(0, experts, (layers, items, 2)).tolist()

    def run() -> Tensor:
        with torch.no_grad():
            current = inputs
            for layer in picks:
                current = [
                    networks[first](item) + networks[second](item)
                    for (first, second), item in zip(layer, current, strict=True)
                ]
            return torch.stack(current).mean(0)

    return run


PROGRAMS: dict[str, Callable[[], Program]] = {
    "gru_h128": lambda: recurrent(nn.GRUCell, hidden=128, batch=16, steps=4),
    "lstm_h128": lambda: recurrent(nn.LSTMCell, hidden=128, batch=16, steps=4),
    "rnn_h256": lambda: recurrent(nn.RNNCell, hidden=256, batch=32, steps=3),
    "gru_h512": lambda: recurrent(nn.GRUCell, hidden=512, batch=64, steps=2),
    "gru_train": lambda: recurrent(nn.GRUCell, hidden=64, batch=8, steps=2, train=True),
    "mlp_m256": lambda: mlp(rows=256, width=512, inner=2048),
    "gpt2_d256": lambda: gpt2(width=256, heads=4, tokens=128),
    "gpt2_big": lambda: gpt2(width=768, heads=12, tokens=256),
    "gpt2_train": lambda: gpt2(width=128, heads=4, tokens=64, train=True),
    "conv_c32": lambda: residual_convolutions(channels=32, side=28, batch=4, layers=2),
    "streams4": lambda: branches(streams=4, rows=128, width=128),
    "dyn_moe": lambda: mixture_of_experts(items=12, width=64, layers=3),
}


def trace(run: Program) -> None:
    """Run one pass between the profiler's start and stop, which tracers can be told to obey."""
    torch.cuda.cudart().cudaProfilerStart()
    run()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


def milliseconds_per_pass(run: Callable[[], object]) -> float:
    """Return the mean time of a pass on the GPU."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(TIMED_PASSES):
        run()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / TIMED_PASSES


def as_cuda_graph(run: Program) -> Callable[[], object]:
    """Record one pass as a CUDA graph and return what replays it."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for _ in range(WARM_UP_PASSES):
        graph.replay()
    replay: Callable[[], object] = graph.replay
    return replay


def profile_steady_state(run: Program, output: Path) -> float:
    """Write the profiler's trace of one warm pass; return the milliseconds of an eager pass."""
    for _ in range(WARM_UP_PASSES):
        run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        run()
        torch.cuda.synchronize()
    profiler.export_chrome_trace(str(output))
    return milliseconds_per_pass(run)


def main() -> None:
    """Trace or profile the program named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program", choices=sorted(PROGRAMS))
    modes = parser.add_subparsers(dest="mode", required=True)
    modes.add_parser("trace", help="run one pass, for a tracer preloaded into this process")
    profiling = modes.add_parser("profile", help="write a PyTorch profiler trace of a warm pass")
    profiling.add_argument("output", type=Path, help="JSON file to write")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    run = PROGRAMS[arguments.program]()
    torch.cuda.synchronize()
    if arguments.mode == "trace":
        trace(run)
        return
    times: dict[str, float | str] = {"program": arguments.program}
    times["eager_ms"] = profile_steady_state(run, arguments.output)
    # A replayed training step would go on adding to its gradients.
    if not arguments.program.endswith("_train"):
        times["cuda_graph_ms"] = milliseconds_per_pass(as_cuda_graph(run))
    sys.stdout.write(json.dumps(times) + "\n")


if __name__ == "__main__":
    main()
