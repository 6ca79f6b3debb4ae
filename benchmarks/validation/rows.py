"""What a validation compares: a time that was published or measured, and the one predicted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from depgraph.analysis.measured_programs import errors_of


@dataclass(frozen=True, slots=True)
class Row:
    """One case; times in microseconds."""

    source: str  # where the measured time comes from
    case: str  # program and size
    policy: str  # the mechanism that predicts it
    serial: float  # kernels one after another, as published
    predicted: float
    measured: float
    family: str = ""  # programs that it is like
    half: int = 1  # 0 where constants may have been fitted to it
    by_clock: bool = False  # whether its kernels only wait for a clock, as no user's do
    is_rooted: bool = False  # whether its graph was put between two empty kernels

    @property
    def error(self) -> float:
        """Relative error of the predicted time; above 0 it is too long."""
        return self.predicted / self.measured - 1


def summary(rows: list[Row]) -> str:
    """Say in one line how large the errors are."""
    times = np.array([(row.predicted, row.measured, row.serial) for row in rows])
    found = errors_of("", "", *times.T)
    return (
        f"{len(rows)} rows: mean error {found.mean:.1%}, nine of ten within "
        f"{found.nine_of_ten:.1%}, worst {found.worst:.1%}; faster or slower told right in "
        f"{found.direction:.0%}"
    )
