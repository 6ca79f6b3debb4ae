"""How long all guards of a function take that reads 300 tensors, beside a loop over them.

``python benchmarks/guard_speed.py`` runs without a GPU.
"""

from __future__ import annotations

from timeit import repeat

import torch
from torch import nn

from depgraph.torch.bindings import find_bindings
from depgraph.torch.executed import Executed
from depgraph.torch.guards import Guards
from depgraph.torch.operator_log import OperatorLog

TENSORS = 300
CALLS = 2000


def microseconds(function: object) -> float:
    """Return how long a call takes, the best of five rounds."""
    return 1e6 * min(repeat(function, number=CALLS, repeat=5)) / CALLS  # type: ignore[arg-type]


def main() -> None:
    """Measure a model of 150 layers, each with a weight and a bias."""
    net = nn.Sequential(*(nn.Linear(8, 8) for _ in range(TENSORS // 2))).requires_grad_(
        requires_grad=False
    )
    x = torch.ones(1, 8)
    executed, log = Executed(), OperatorLog(torch.device("cpu"))
    net(x)
    with executed.listening(), log:
        net(x)
    given = x.untyped_storage().data_ptr()
    used = [tensor for at, tensor in log.outside.items() if at != given]
    guards = Guards(find_bindings({"net": net}, executed), used)
    assert guards.failed() == ""  # noqa: S101 - it is no test
    tensors = [*net.parameters()]
    then = [t.data_ptr() for t in tensors]

    def loop() -> bool:
        return all(t.data_ptr() == at for t, at in zip(tensors, then, strict=True))

    ours, theirs = microseconds(guards.failed), microseconds(loop)
    print(
        f"{guards.count} places, {len(tensors)} tensors: {ours:.1f} us, {ours / theirs:.2f} times "
        f"a loop that compares their addresses alone ({theirs:.1f} us)"
    )


if __name__ == "__main__":
    main()
