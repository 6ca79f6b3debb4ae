"""What a validation compares: a time that was published or measured, and the one predicted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Time saved, as a share, that is as good as none.
_NOTHING = 0.03


@dataclass(frozen=True, slots=True)
class Row:
    """One case.

    Attributes
    ----------
    source : str
        Where the measured time comes from.
    case : str
        Program and size.
    policy : str
        The mechanism that predicts it.
    serial, predicted, measured : float
        Microseconds; `serial` as published, kernels one after another.
    """

    source: str
    case: str
    policy: str
    serial: float
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Relative error of the predicted time; above 0 it is too long."""
        return self.predicted / self.measured - 1

    @property
    def direction_is_right(self) -> bool:
        """Whether faster or slower than serial is told right; within 3 % both are."""
        saved = 1 - self.measured / self.serial
        return abs(saved) < _NOTHING or saved * (1 - self.predicted / self.serial) > 0


def summary(rows: list[Row]) -> str:
    """Say in one line how large the errors are."""
    errors = np.abs([row.error for row in rows])
    right = np.mean([row.direction_is_right for row in rows])
    return (
        f"{len(rows)} rows: mean error {errors.mean():.1%}, nine of ten within "
        f"{np.quantile(errors, 0.9):.1%}, worst {errors.max():.1%}; faster or slower told right "
        f"in {right:.0%}"
    )
