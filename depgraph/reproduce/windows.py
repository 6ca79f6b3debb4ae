"""ACS and BlockMaestro: windows of kernels, on programs of the kinds that their papers measure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depgraph.gpu.model import load_gpu
from depgraph.reproduce.figures import Published
from depgraph.reproduce.programs import geometric_mean, makespan, scenario_of
from depgraph.scenario.of_store import Request
from depgraph.scenario.scenario import Scenario
from depgraph.store.store import Store
from depgraph.timing.launch_model import parse_launch

if TYPE_CHECKING:
    from depgraph.reproduce.figures import Inputs, Reproduction
    from depgraph.timing.launch_model import LaunchChoice

_MIXTURE = "papers/dyn_moe.out", "papers/dyn_moe.times.csv"
_MEASURED_ON = "H100 SXM"
_STENCIL_SMS = 20
_BLOCKMAESTRO_LAUNCH_US = 5


def acs(inputs: Inputs) -> Reproduction:
    """Run a simulation and a mixture of experts through windows of 32 kernels."""
    published = Published(inputs, "acs")
    launch = parse_launch("gpu")
    programs = {
        "simulation": scenario_of(inputs.workload("simulation"), "RTX 3070", launch=launch),
        "mixture": _mixture(inputs, launch, kinds=None),
        "mixture renamed": _mixture(inputs, launch, kinds=("RAW",)),
    }
    found = {
        (policy, name): _speedup(scenario, policy)
        for policy in ("acs-sw", "acs-hw")
        for name, scenario in programs.items()
    }
    mean = geometric_mean(s for (policy, _), s in found.items() if policy == "acs-hw")
    singles = [published.figure(f"{policy} {name}", s) for (policy, name), s in found.items()]
    return published.found([*singles, published.figure("mean", mean)])


def blockmaestro(inputs: Inputs) -> Reproduction:
    """Run three programs whose kernels depend on each other, launches of 5 us as published."""
    published = Published(inputs, "blockmaestro")
    launch = parse_launch(f"0,{_BLOCKMAESTRO_LAUNCH_US},0")
    stencil = inputs.workload("stencil_sweeps")
    programs = {
        "stencil": scenario_of(stencil, "V100", _STENCIL_SMS, launch),
        "mixture": _mixture(inputs, launch, kinds=None),
        "training": _of_store(
            inputs, "simulator/gru_train.out", "timing/gru_train.kineto.json", launch
        ),
    }
    found = {name: _speedup(scenario, "blockmaestro(4)") for name, scenario in programs.items()}
    figures = [published.figure(name, speedup) for name, speedup in found.items()]
    mean = geometric_mean(found.values())
    return published.found([*figures, published.figure("mean", 100 * (mean - 1))])


def _mixture(inputs: Inputs, launch: LaunchChoice, kinds: tuple[str, ...] | None) -> Scenario:
    return _of_store(inputs, *_MIXTURE, launch, kinds)


def _of_store(
    inputs: Inputs, store: str, times: str, launch: LaunchChoice,
    kinds: tuple[str, ...] | None = None,
) -> Scenario:  # fmt: skip
    """Return a recorded program on the GPU that it was measured on, an H100."""
    request = Request(
        kinds=kinds, times=inputs.path(times), read_profile=inputs.read_profile, gpu=_MEASURED_ON,
        launch=launch,
    )  # fmt: skip
    found = Scenario.of_store(Store(inputs.path(store)), request, tell=_nobody)
    return found.on(load_gpu(_MEASURED_ON).sms)


def _speedup(scenario: Scenario, policy: str) -> float:
    return makespan(scenario, "serial") / makespan(scenario, policy)


def _nobody(_: str) -> None:
    """Take a remark about times that the notes already make."""
