"""How long a call looks at its arguments and at what its graph rests on.

``python benchmarks/guard_speed.py`` runs without a GPU: a function that reads 300 tensors, beside a
loop over them. ``python benchmarks/guard_speed.py hetero_gnn dlrm lstm``: public models.
"""

from __future__ import annotations

import sys
from timeit import repeat
from typing import Any

import torch
from torch import nn

from depgraph.torch.arguments import Arguments
from depgraph.torch.bindings import find_bindings
from depgraph.torch.executed import Executed
from depgraph.torch.guards import Guards
from depgraph.torch.operator_log import OperatorLog

TENSORS = 300
CALLS = 2000


def microseconds(function: object) -> float:
    """Return how long a call takes, the best of five rounds."""
    return 1e6 * min(repeat(function, number=CALLS, repeat=5)) / CALLS  # type: ignore[arg-type]


def show(name: str, net: nn.Module, *args: Any, **keywords: Any) -> None:
    """Measure the guards of a model, and what looks at its arguments."""
    net.eval().requires_grad_(requires_grad=False)
    arguments, log = Arguments(args, keywords, gpu="cpu"), OperatorLog(torch.device("cpu"))
    executed = Executed()
    arguments.call(net)
    with executed.listening(), log:
        arguments.call(net)
    used = [tensor for at, tensor in log.outside.items() if at not in arguments.addresses]
    guards = Guards(find_bindings({"net": net}, executed), used)
    assert guards.failed() == arguments.matched(args, keywords)[1] == ""  # noqa: S101 - it is no test
    tensors = [*net.parameters()]
    then = [t.data_ptr() for t in tensors]

    def loop() -> bool:
        return all(t.data_ptr() == at for t, at in zip(tensors, then, strict=True))

    ours, theirs = microseconds(guards.failed), microseconds(loop)
    given = microseconds(lambda: arguments.matched(args, keywords))
    print(
        f"{name}: {guards.count} places, {len(tensors)} tensors: {ours:.1f} us, "
        f"{ours / theirs:.2f} times a loop that compares their addresses alone ({theirs:.1f} us); "
        f"arguments {given:.1f} us"
    )


def main() -> None:
    """Measure public models that are named, or 150 layers, each with a weight and a bias."""
    for name in sys.argv[1:]:
        from depgraph.samples.models.zoo import MODELS

        given = dict(MODELS[name].inputs(1))
        show(name, MODELS[name].make(), *given.pop("args", ()), **given)
    if not sys.argv[1:]:
        layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(TENSORS // 2)))
        show("layers", layers, torch.ones(1, 8))


if __name__ == "__main__":
    main()
