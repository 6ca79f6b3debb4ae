"""The numbers that a CI can set thresholds on, and that two programs are compared by."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from depgraph.analysis.outcome import Bound
    from depgraph.scenario.scenario import Scenario

METRICS = (
    "upper_bound", "bound_raw", "speedup", "utilization", "untraced", "edges", "serial",
    "launched_serial", "critical_path",
)  # fmt: skip


def metrics_of(bound: Bound, scenario: Scenario, renamed: Bound) -> dict[str, float]:
    """Return the value of each of `METRICS`.

    Parameters
    ----------
    bound : Bound
        With the schedules that it is compared with.
    renamed : Bound
        With RAW dependences only.

    Returns
    -------
    dict
        upper_bound: serial time over lower bound; bound_raw: with RAW dependences only. speedup:
        serial time over the makespan of the best schedule. utilization: of the serial schedule,
        0 to 1. untraced: share of the kernels with accesses that the trace does not show. edges:
        distinct edges between blocks. serial,
        launched_serial, critical_path: times, in the unit of the durations; the second with what
        launches cost.
    """
    return {
        "upper_bound": bound.upper_bound,
        "bound_raw": renamed.upper_bound,
        "speedup": bound.reached.speedup,
        "utilization": bound.schedules[0].utilization,
        "untraced": len(scenario.uncertainty.opaque) / max(1, len(scenario.kernels)),
        "edges": sum(p.edges for p in scenario.pairs),
        "serial": bound.serial,
        "launched_serial": bound.launched_serial,
        "critical_path": bound.critical_path,
    }
