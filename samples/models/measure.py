"""One model, in one process: whether it runs with its real edges alone, and how long a call takes.

python -m depgraph.samples.models.measure googlenet --type bf16 --add-to rows.jsonl
python -m depgraph.samples.models.measure googlenet --peers --add-to peers.jsonl

Adds a JSON object to the file; nothing where the model's package is not installed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

import depgraph.torch
from depgraph.errors import DepgraphError
from depgraph.samples.models.zoo import MODELS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_LEARNING = 1e-4
_SHORT = 300  # characters of a message


def prepared(
    name: str, type_: str, batch: int, *, trains: bool
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Return a model or a step that trains it, and what it is called with."""
    torch.manual_seed(0)
    found = MODELS[name]
    model, inputs = found.make().cuda(), found.inputs(batch)
    kind = TYPES[type_]

    def moved(tensor: Any) -> Any:
        return tensor.cuda().to(kind) if tensor.is_floating_point() else tensor.cuda()

    given = pytree.tree_map_only(torch.Tensor, moved, dict(inputs))
    args = given.pop("args", ())
    if trains:
        return _step(model.train(), type_), args, given
    return model.to(kind).eval().requires_grad_(requires_grad=False), args, given


def _step(model: Any, type_: str) -> Callable[..., Any]:
    """Return a training step: with autocast where the type is not FP32."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING, fused=True, capturable=True)
    kind = TYPES[type_]

    def step(*args: Any, **keywords: Any) -> Any:
        optimizer.zero_grad()
        with torch.autocast("cuda", kind, enabled=kind is not torch.float32, cache_enabled=False):
            outputs = pytree.tree_leaves(model(*args, **keywords))
        floats = [each for each in outputs if isinstance(each, torch.Tensor) and each.requires_grad]
        loss = torch.stack([_loss(each.float()) for each in floats]).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _loss(outputs: Any) -> Any:
    """Return how far outputs are from a pattern: what is normalised must have gradients, too."""
    pattern = torch.arange(outputs.numel(), device=outputs.device) % 7 / 3 - 1
    return (outputs - pattern.view(outputs.shape)).square().mean()


def _in_short(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{text[0] if text else type(error).__name__}"[:_SHORT]


def measured_with() -> dict[str, str]:
    """Return on and with what a row was measured."""
    return {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
        "depgraph": os.environ.get("DEPGRAPH_COMMIT") or version("depgraph"),
    }  # fmt: skip


def row_of(name: str, type_: str, batch: int, kind: str, seconds: float) -> dict[str, Any]:
    """Return what came of a model."""
    row: dict[str, Any] = {
        "model": name, "package": MODELS[name].package, "type": type_, "batch": batch, "kind": kind,
        **measured_with(),
    }  # fmt: skip
    began = time.perf_counter()
    function, args, keywords = prepared(name, type_, batch, trains=kind == "step")
    row["made_s"] = time.perf_counter() - began
    began = time.perf_counter()
    grad = torch.set_grad_enabled(kind == "step")
    with grad:
        try:
            fast = depgraph.torch.parallelize(
                function, args, keywords, name=name, time_limit=seconds, compile=kind == "compiled"
            )
        except (DepgraphError, RuntimeError) as error:
            row |= {"came": "refused", "why": _in_short(error)}
            row |= _captured(function, args, keywords)
            return row
    report = fast.report
    if report is None:
        message = "this process looks at another call"
        raise RuntimeError(message)
    return row | {
        "came": "plain" if report.is_plain else "re-edged",
        "captured": True,
        "prepare_s": time.perf_counter() - began,
        "nodes": report.nodes,
        "graph": report.chosen,
        "plain_graph_us": report.before.measured,
        "graph_us": report.after.measured,
        "plain_call_us": report.plain_call_us,
        "call_us": report.call_us,
        "inputs": report.inputs,
        "orders": report.after.orders,
        "more_bytes": report.more_bytes,
        "bits_vary": report.varies,
        "guards": report.guards,
        "keep_their_place": report.fixed or {},
        "wrong": [each.refused for each in report.tried if each.refused],
        "costs": [[e.reason, e.edges, round(e.costs_us, 1)] for e in report.edges[:3]],
        "notes": list(report.notes),
    }


def _captured(
    function: Callable[..., Any], args: tuple[Any, ...], keywords: Mapping[str, Any]
) -> dict[str, Any]:
    """Tell whether PyTorch itself can capture a function that was refused, and why not."""
    try:
        plain_graph(lambda: function(*args, **keywords))
    except Exception as error:  # noqa: BLE001 - whatever a model raises
        return {"captured": False, "not_captured": _in_short(error)}
    return {"captured": True}


def plain_graph(run: Callable[[], Any]) -> tuple[Any, Any]:
    """Capture a function as PyTorch's documentation does it; return graph and outputs."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = run()
    return graph, outputs


def main() -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS, metavar="MODEL")
    parser.add_argument("--type", choices=TYPES, default="fp32")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--kind", choices=("call", "compiled", "step"), default="call")
    parser.add_argument("--peers", action="store_true", help="beside what others would use")
    parser.add_argument("--ways", nargs="+", metavar="WAY", help="of the peers; default all")
    parser.add_argument("--seconds", type=float, default=300.0, help="to be checked in")
    parser.add_argument("--beside-others", action="store_true", help="so that times do not count")
    parser.add_argument(
        "--turn", type=Path, metavar="FILE", help="time peers when it is there, one model at a time"
    )
    parser.add_argument("--add-to", type=Path, required=True)
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what it has started ends, too
    try:
        if chosen.peers:
            from depgraph.samples.models.peers import peers_of

            asked = chosen.model, chosen.type, chosen.batch, chosen.seconds
            row = peers_of(*asked, ways=chosen.ways, turn=chosen.turn)
        else:
            row = row_of(chosen.model, chosen.type, chosen.batch, chosen.kind, chosen.seconds)
            row["alone"] = not chosen.beside_others
    except ImportError as error:
        print(f"{chosen.model}: not measured: {error}")
        return
    with chosen.add_to.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
