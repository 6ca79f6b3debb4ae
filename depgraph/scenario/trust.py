"""How far predictions can be trusted: what was measured, and on which GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from depgraph.gpu.sm_resources import calibrated_gpu

if TYPE_CHECKING:
    from depgraph.gpu.model import Gpu
    from depgraph.gpu.model_file import MeasuredErrors


@dataclass(frozen=True, slots=True)
class Trust:
    """How far predictions can be trusted."""

    gpu: str  # that they are for
    constants_of: str  # the GPU that their constants were fitted on, the same or another one
    contention: bool  # whether they count it
    # how far predictions with these constants were off; None if nobody measured that
    errors: MeasuredErrors | None

    @property
    def caveat(self) -> str:
        """All of it in a sentence."""
        measured = "nobody compared them with measurements (depgraph calibrate does)"
        if self.errors is not None:
            measured = self.errors.sentence(contention=self.contention)
        if self.constants_of == self.gpu:
            return f"predictions: {measured}"
        of = f"constants of the {self.constants_of}"
        return f"predictions on {self.gpu} are uncalibrated: {of}; {measured}"


def trust_in(gpu: Gpu, *, contention: bool) -> Trust:
    """Return how far predictions for a GPU can be trusted."""
    calibrated = calibrated_gpu(gpu)
    return Trust(gpu.name, calibrated.name, contention, calibrated.errors)
