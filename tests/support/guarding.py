"""Functions that are guarded as `parallelize` guards them, on the CPU."""

from __future__ import annotations

import torch

from depgraph.torch.bindings import find_bindings
from depgraph.torch.executed import Executed
from depgraph.torch.guards import Guards
from depgraph.torch.operator_log import OperatorLog


def guarded(function, *inputs):
    """Return the guards of a function, and what it was called on."""
    executed, log = Executed(), OperatorLog(torch.device("cpu"))
    with executed.listening(), log:
        function(*inputs)
    return guards_of(function, executed, log, inputs)


def guards_of(function, executed, log, inputs=()):
    """Return the guards of a function that ran while it was listened to."""
    given = {t.untyped_storage().data_ptr() for t in inputs}
    used = [t for at, t in log.outside.items() if at not in given]
    bindings = find_bindings({"function": function}, executed)
    return Guards(bindings, used, list(log.on_host.values()))
