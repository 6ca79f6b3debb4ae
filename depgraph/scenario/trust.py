"""How far predictions can be trusted: what was measured, and on which GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from depgraph.gpu.sm_resources import calibrated_gpu
from depgraph.system.text import show_percent

if TYPE_CHECKING:
    from depgraph.gpu.model import Gpu
    from depgraph.gpu.model_file import MeasuredErrors


@dataclass(frozen=True, slots=True)
class Trust:
    """How far predictions can be trusted."""

    gpu: str  # that they are for
    constants_of: str  # the GPU that their constants were fitted on, the same or another one
    contention: bool  # whether they count it
    errors: tuple[MeasuredErrors, ...]  # how far predictions with them were off, by family

    def of(self, family: str) -> MeasuredErrors | None:
        """Return how far predictions of a family were off; None where that is not validated.

        It is not where constants are of another GPU, or contention is left out.
        """
        if self.gpu != self.constants_of or not self.contention:
            return None
        return next((each for each in self.errors if each.family == family), None)

    @property
    def caveat(self) -> str:
        """All of it in a sentence."""
        if not self.errors:
            measured = "nobody compared them with measurements (depgraph calibrate does)"
        else:
            off = (
                f"{e.family} {show_percent(e.mean)}, {show_percent(e.nine_of_ten)}"
                for e in self.errors
            )
            measured = (
                f"of programs measured on an {self.errors[0].gpu} that no constant was fitted to, "
                f"times were off by (on average, nine of ten at most): {'; '.join(off)}"
            )
        if self.constants_of != self.gpu:
            of = f"constants of the {self.constants_of}"
            return f"predictions on {self.gpu} are not validated: {of}; {measured}"
        without = "" if self.contention else " not validated without contention;"
        return f"predictions:{without} {measured}"


def trust_in(gpu: Gpu, *, contention: bool) -> Trust:
    """Return how far predictions for a GPU can be trusted."""
    calibrated = calibrated_gpu(gpu)
    return Trust(gpu.name, calibrated.name, contention, calibrated.errors)
