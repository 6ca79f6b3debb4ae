"""Fitting the constants of predictions to what a GPU was measured to do.

Constants are changed one at a time, by ever smaller factors, as long as programs of half 0 are
predicted better on average; those of half 1 say how good the result is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.analysis.measured_programs import (
    errors_by_family,
    graph_time,
    predict_graph,
    with_launches,
)
from depgraph.errors import ModelError
from depgraph.gpu.model import CONSTANTS, available_gpus, gpu_for_architecture, load_gpu
from depgraph.gpu.sm_resources import DEFAULT_GPU, calibrated_gpu
from depgraph.system.toml_file import toml_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from depgraph.analysis.measured_programs import MeasuredProgram, Measurements
    from depgraph.gpu.model import Gpu
    from depgraph.gpu.model_file import MeasuredErrors
    from depgraph.scenario.scenario import Scenario

    Errors = tuple[MeasuredErrors, ...]

_SHARING = ("contention", "block_spread", "kernel_lead_us")
# What tells most comes first, so that the others need not make up for it.
_FITTED = (
    *_SHARING, "graph_path_us", "graph_node_us", "graph_root_us", "graph_fork_us",
    "graph_launch_us",
)  # fmt: skip
_FACTORS = (1.6, 1.25, 1.1)
_FEWEST = 8
# A constant moves by a factor of two only if a hundred programs are predicted better by 0.1 points,
# and fewer, whose mean is less certain, by more: where they hardly tell, it stays.
_INERTIA = 1e-2
_LEAST, _MOST = 1 / 32, 32
_LARGEST_SPREAD = 0.9
_DIGITS = 3


@dataclass(frozen=True)
class Calibration:
    """Constants that were fitted, and how good predictions with them are."""

    gpu: Gpu  # with the constants, and the errors for programs that they were not fitted to
    start: Gpu  # the same with the constants that the search began with
    constants_of: str  # the GPU that these are of
    measurements: Measurements
    fitted: Errors  # for the programs that the constants were fitted to
    before: Errors  # with the constants of `start`, for programs that none were fitted to

    @property
    def errors(self) -> Errors:
        """For the programs that no constant was fitted to."""
        return self.gpu.errors


def model_of(measurements: Measurements, given: Gpu | None = None) -> Gpu:
    """Return the limits of the GPU that was measured: those given, of its model or architecture."""
    base = given
    if base is None:
        try:
            base = load_gpu(measurements.gpu)
        except ModelError:
            if measurements.architecture is None:
                message = (
                    f"there is no model of {measurements.gpu}, and the measurements do not state "
                    "its architecture: name a GPU whose limits it has with --gpu"
                )
                raise ModelError(message) from None
            base = replace(
                gpu_for_architecture(measurements.architecture),
                name=measurements.gpu, aliases=(), l2_bytes=measurements.l2_bytes,
            )  # fmt: skip
    return replace(base, sms=measurements.sms)


def calibrate(
    measurements: Measurements,
    gpu: Gpu,
    on_round: Callable[[int, int, float], None] = lambda *_: None,
) -> Calibration:
    """Fit the constants of predictions to measurements of a GPU with these limits; see `model_of`.

    `on_round` is called after each round with its number, how many there are, and the mean error.
    """
    halves = [[p for p in measurements.programs if p.half == half] for half in (0, 1)]
    if min(map(len, halves)) < _FEWEST:
        message = (
            f"{len(measurements.programs)} programs were measured, {len(halves[0])} to fit to and "
            f"{len(halves[1])} to check with: at least {_FEWEST} of each are needed"
        )
        raise ModelError(message)
    start = _with_all_constants(gpu)
    search = _Search(halves[0], start)
    constants = search.run(on_round)
    found = with_constants(start, constants)

    def errors(programs: Sequence[MeasuredProgram], of: Gpu) -> Errors:
        graphs = (predict_graph(p, of) for p in programs)
        chains = (predict_graph(p, of, as_chain=True) for p in programs)
        return errors_by_family(measurements.gpu, [*graphs, *chains])

    return Calibration(
        gpu=replace(found, errors=errors(halves[1], found)),
        start=start,
        constants_of=calibrated_gpu(gpu).name,
        measurements=measurements,
        fitted=errors(halves[0], found),
        before=errors(halves[1], start),
    )


def to_toml(calibration: Calibration) -> str:
    """Return the file of the GPU that was calibrated, as `load_gpu_file` reads it."""
    gpu, of = calibration.gpu, calibration.measurements
    packaged = {each.name: each for each in available_gpus()}
    lines = [f"name = {toml_text(f'{of.gpu}, calibrated')}", f"aliases = [{toml_text(of.gpu)}]"]
    if gpu.name in packaged:
        lines.append(f"based_on = {toml_text(gpu.name)}")
    else:
        lines.append(f"architecture = {gpu.architecture}")
        lines += [f"l2_bytes = {gpu.l2_bytes}"] * (gpu.l2_bytes is not None)
    lines += [f"sms = {gpu.sms}", *(f"{name} = {getattr(gpu, name):g}" for name in CONSTANTS)]
    machine = ", ".join(f"{name} {value}" for name, value in of.details.items())
    title = (
        f"depgraph calibrate on {of.gpu}, fitted to {sum(p.half == 0 for p in of.programs)} of "
        f"{len(of.programs)} programs{f' ({machine})' if machine else ''}"
    )
    numbers = ", ".join(map(toml_text, CONSTANTS))
    lines += ["", "[[sources]]", f"title = {toml_text(title)}", f"numbers = [{numbers}]", ""]
    return "\n".join([*lines, *(errors.to_toml() for errors in calibration.errors)])


def with_constants(gpu: Gpu, constants: Mapping[str, float]) -> Gpu:
    """Return a GPU with other constants, and no errors that were found with the old ones."""
    changed: dict[str, Any] = dict(constants)
    return replace(gpu, errors=(), **changed)


def _with_all_constants(gpu: Gpu) -> Gpu:
    """Return the GPU with the H100's constants where it has none."""
    other = load_gpu(DEFAULT_GPU)
    missing = {n: getattr(other, n) for n in CONSTANTS if getattr(gpu, n) is None}
    return replace(gpu, **missing)


class _Search:
    """Looks for constants; what does not depend on the one that changes is kept."""

    def __init__(self, programs: Sequence[MeasuredProgram], start: Gpu) -> None:
        self.programs = programs
        self.start = start
        self.bare = [program.scenario(start, "full") for program in programs]
        self._shared: dict[tuple[float, ...], list[Scenario]] = {}

    def run(self, on_round: Callable[[int, int, float], None]) -> dict[str, float]:
        """Return the best constants, as they are written."""
        best = {name: float(getattr(self.start, name)) for name in _FITTED}
        lowest = self.cost(best)
        for done, factor in enumerate(_FACTORS, 1):
            for name in _FITTED:
                best, lowest = self._improve(best, lowest, name, factor)
            on_round(done, len(_FACTORS), self.mean_error(best))
        return {name: float(f"{value:.{_DIGITS}g}") for name, value in best.items()}

    def _improve(
        self, best: dict[str, float], lowest: float, name: str, factor: float
    ) -> tuple[dict[str, float], float]:
        """Make one constant larger, or else smaller, for as long as that helps."""
        for step in (factor, 1 / factor):
            improved = False
            while True:
                changed = {**best, name: best[name] * step}
                if not self._is_allowed(name, changed[name]):
                    break
                cost = self.cost(changed)
                if cost >= lowest:
                    break
                best, lowest, improved = changed, cost, True
            if improved:
                break
        return best, lowest

    def _is_allowed(self, name: str, value: float) -> bool:
        if name == "block_spread" and value > _LARGEST_SPREAD:
            return False
        start: float = getattr(self.start, name)
        return _LEAST <= value / start <= _MOST

    def cost(self, constants: Mapping[str, float]) -> float:
        """Return the mean error, and what changes cost that hardly help."""
        moved = sum(
            abs(math.log2(value / getattr(self.start, name))) for name, value in constants.items()
        )
        return self.mean_error(constants) + _INERTIA * moved / math.sqrt(len(self.programs))

    def mean_error(self, constants: Mapping[str, float]) -> float:
        """Return the mean error of the predicted times."""
        gpu = with_constants(self.start, constants)
        scenarios = self._with_sharing(gpu)
        times = np.array([graph_time(with_launches(scenario, gpu)) for scenario in scenarios])
        measured = np.array([program.parallel for program in self.programs])
        return float(np.abs(times / measured - 1).mean())

    def _with_sharing(self, gpu: Gpu) -> list[Scenario]:
        """Return the programs with the work of their blocks, which launches do not change."""
        key = tuple(getattr(gpu, name) for name in _SHARING)
        if key not in self._shared:
            if len(self._shared) > 1:
                self._shared.pop(next(iter(self._shared)))
            self._shared[key] = [_on(scenario, gpu) for scenario in self.bare]
        return self._shared[key]


def _on(scenario: Scenario, gpu: Gpu) -> Scenario:
    resources = replace(scenario.resources, gpu=gpu)
    changed = replace(scenario, resources_of=lambda _: resources)
    _ = changed.contended  # worked out here, so that copies with other launch costs have it
    return changed
