"""The numbers that a CI can set thresholds on, and that two programs are compared by."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from depgraph.analysis.bound import Bound
    from depgraph.scenario.scenario import Scenario

METRICS = (
    "upper_bound",  # serial time over lower bound
    "bound_raw",  # the same with RAW dependences only
    "speedup",  # serial time over the makespan of the best schedule
    "utilization",  # of the serial schedule, 0 to 1
    "untraced",  # share of the kernels with accesses that the trace does not show
    "edges",  # distinct ones, between blocks
    "serial",  # this and the next are times, in the unit of the durations
    "launched_serial",  # with what launches cost
    "critical_path",
)


def metrics_of(bound: Bound, scenario: Scenario, renamed: Bound) -> dict[str, float]:
    """Return the value of each of `METRICS`; `renamed` has RAW dependences only."""
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
