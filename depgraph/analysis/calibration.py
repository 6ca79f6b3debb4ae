"""Fitting the constants of predictions to what a GPU was measured to do.

Constants are changed one at a time, by ever smaller factors, as long as programs of half 0 are
predicted better on average; those of half 1 say how good the result is.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from depgraph.analysis.measured_programs import (
    MeasuredProgram,
    Measurements,
    chain_time,
    errors_by_family,
    graph_time,
    predict_graph,
    predict_streams,
    streams_time,
    with_launches,
)
from depgraph.errors import ModelError
from depgraph.gpu.model import (
    CONSTANTS,
    DEFAULT_GPU,
    Gpu,
    MeasuredErrors,
    available_gpus,
    calibrated_gpu,
    gpu_for_architecture,
    load_gpu,
)
from depgraph.scenario.scenario import Scenario
from depgraph.system.described import toml_text

Errors = tuple[MeasuredErrors, ...]

_SHARING = (
    "contention", "contention_gemm32", "contention_convolution", "contention_attention",
    "contention_norm", "contention_rows", "block_spread", "kernel_lead_us",
)  # fmt: skip
# Each constant is fitted to the measured time that tells it; of all, what tells most comes first,
# so that the others need not make up for it.
_OF_GRAPHS = (
    *_SHARING, "graph_node_us", "graph_root_us", "graph_second_us", "graph_leaf_us",
    "graph_fork_us", "graph_wide_us", "graph_issue_us", "graph_launch_us",
)  # fmt: skip
_OF_CHAINS = ("graph_path_us", "graph_path_share")
_OF_STREAMS = ("stream_turn_us", "stream_event_us", "stream_kernel_us")
_FITTED = {
    **dict.fromkeys(_OF_CHAINS, "serial"),
    **dict.fromkeys(_OF_GRAPHS, "parallel"),
    **dict.fromkeys(_OF_STREAMS, "streams_ahead"),
}
_PREDICT = {"serial": chain_time, "parallel": graph_time, "streams_ahead": streams_time}
_FACTORS = (1.6, 1.25, 1.1)
_FEWEST = 8
# A constant moves by a factor of two only if a hundred programs are predicted better by 0.1 points,
# and fewer, whose mean is less certain, by more: where they hardly tell, it stays.
_INERTIA = 1e-2
_LEAST, _MOST = 1 / 32, 32
_LARGEST_SHARE = 0.9
_DIGITS = 3


@dataclass(frozen=True)
class Calibration:
    """Constants that were fitted, and how good predictions with them are."""

    gpu: Gpu  # with the constants, and the errors for programs that they were not fitted to
    start: Gpu  # the same with the constants that the search began with
    constants_of: str  # the GPU that these are of
    taken_over: tuple[str, ...]  # constants of that GPU of which these measurements tell nothing
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
    """Fit the constants of predictions to measurements of a GPU with these limits."""
    # `on_round` is called after each round with its number, how many there are, and the mean error.
    halves = [[p for p in measurements.programs if p.half == half] for half in (0, 1)]
    if min(map(len, halves)) < _FEWEST:
        message = (
            f"{len(measurements.programs)} programs were measured, {len(halves[0])} to fit to and "
            f"{len(halves[1])} to check with: at least {_FEWEST} of each are needed"
        )
        raise ModelError(message)
    usual = load_gpu(DEFAULT_GPU)
    missing = {n: getattr(usual, n) for n in CONSTANTS if getattr(gpu, n) is None}
    start = replace(gpu, **missing)
    search = _Search(halves[0], start)
    constants = search.run(on_round)
    fitted = with_constants(start, constants)

    def errors(programs: Sequence[MeasuredProgram], of: Gpu) -> Errors:
        graphs = (predict_graph(p, of) for p in programs)
        chains = (predict_graph(p, of, as_chain=True) for p in programs)
        streams = filter(None, (predict_streams(p, of) for p in programs))
        return errors_by_family(measurements.gpu, [*graphs, *chains, *streams])

    return Calibration(
        gpu=replace(fitted, errors=errors(halves[1], fitted)),
        start=start,
        constants_of=calibrated_gpu(gpu).name,
        taken_over=tuple(name for name in CONSTANTS if name not in search.measurable),
        measurements=measurements,
        fitted=errors(halves[0], fitted),
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
    over = calibration.taken_over
    unfitted = f"of the {calibration.constants_of}: these measurements tell nothing of them"
    fitted = [name for name in CONSTANTS if name not in over]
    for source, names in ((title, fitted), (unfitted, over)):
        numbers = ", ".join(map(toml_text, names))
        lines += ["", "[[sources]]", f"title = {toml_text(source)}", f"numbers = [{numbers}]"]
    lines.append("")
    return "\n".join([*lines, *(errors.to_toml() for errors in calibration.errors)])


def with_constants(gpu: Gpu, constants: Mapping[str, float]) -> Gpu:
    """Return a GPU with other constants, and no errors that were found with the old ones."""
    changed: dict[str, Any] = dict(constants)
    return replace(gpu, errors=(), **changed)


class _Search:
    """Looks for constants; what does not depend on the one that changes is kept."""

    def __init__(self, programs: Sequence[MeasuredProgram], start: Gpu) -> None:
        self.programs = programs
        self.start = start
        self.measurable: set[str] = set()  # constants that some measured time depends on
        self.bare = [program.scenario(start, "full") for program in programs]
        self._shared: dict[tuple[float, ...], list[Scenario]] = {}
        self.leaves = float(np.mean([_leaves(program) for program in programs]))

    def run(self, on_round: Callable[[int, int, float], None]) -> dict[str, float]:
        """Return the best constants, as they are written."""
        best = {name: float(getattr(self.start, name)) for name in _FITTED}
        for done, factor in enumerate(_FACTORS, 1):
            for time in _PREDICT:
                error = self.mean_error(best, time)
                for name in (name for name in _FITTED if _FITTED[name] == time):
                    best, error = self._improve(best, error, name, factor)
            on_round(done, len(_FACTORS), self.mean_error(best, "parallel"))
        return {name: float(f"{value:.{_DIGITS}g}") for name, value in best.items()}

    def _improve(
        self, best: dict[str, float], error: float, name: str, factor: float
    ) -> tuple[dict[str, float], float]:
        """Make one constant larger, or else smaller, for as long as that helps."""
        first = best[name]
        for step in (factor, 1 / factor):
            while self._is_allowed(name, best[name] * step):
                changed = self._with_changed(best, name, best[name] * step)
                changed_error = self.mean_error(changed, _FITTED[name])
                if changed_error != error:
                    self.measurable.add(name)
                if changed_error + self._moved(changed) >= error + self._moved(best):
                    break
                best, error = changed, changed_error
            if best[name] != first:
                break
        return best, error

    def _with_changed(
        self, constants: Mapping[str, float], name: str, value: float
    ) -> dict[str, float]:
        """Change a constant; of the waits for leaves only how they depend on the leaves' number."""
        changed = {**constants, name: value}
        if name == "graph_leaf_us":
            # A root waits for a time of its own and one for each leaf: fitted one after the other,
            # either would take the place of both.
            less = (value - constants[name]) * self.leaves
            changed["graph_root_us"] = max(constants["graph_root_us"] - less, 1e-3)
        return changed

    def _is_allowed(self, name: str, value: float) -> bool:
        if name in {"block_spread", "graph_path_share"} and value > _LARGEST_SHARE:
            return False
        start: float = getattr(self.start, name)
        return start > 0 and _LEAST <= value / start <= _MOST

    def _moved(self, constants: Mapping[str, float]) -> float:
        """Return what changes cost that hardly help."""
        starts = [(value, getattr(self.start, name)) for name, value in constants.items()]
        moved = sum(abs(math.log2(value / start)) for value, start in starts if start > 0)
        return _INERTIA * moved / math.sqrt(len(self.programs))

    def mean_error(self, constants: Mapping[str, float], time: str) -> float:
        """Return the mean error of one of the predicted times; 0 where it was not measured."""
        gpu = with_constants(self.start, constants)
        pairs = zip(self._with_sharing(gpu), self.programs, strict=True)
        errors = [
            abs(_PREDICT[time](with_launches(scenario, gpu)) / measured - 1)
            for scenario, program in pairs
            if (measured := getattr(program, time)) is not None
        ]
        return float(np.mean(errors)) if errors else 0.0

    def _with_sharing(self, gpu: Gpu) -> list[Scenario]:
        """Return the programs with the work of their blocks, which launches do not change."""
        key = tuple(getattr(gpu, name) for name in _SHARING)
        if key not in self._shared:
            if len(self._shared) > 1:
                self._shared.pop(next(iter(self._shared)))
            self._shared[key] = [_on(scenario, gpu) for scenario in self.bare]
        return self._shared[key]


def _leaves(program: MeasuredProgram) -> int:
    """Count the kernels that none waits for."""
    return len(program.kernels) - len({source for source, _ in program.edges})


def _on(scenario: Scenario, gpu: Gpu) -> Scenario:
    resources = replace(scenario.resources, gpu=gpu)
    changed = replace(scenario, resources_of=lambda _: resources)
    _ = changed.contended  # worked out here, so that copies with other launch costs have it
    return changed
