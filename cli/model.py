"""Options that say which GPU and which durations a schedule is for, and what they come to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from depgraph.bounds import Occupancies
    from depgraph.graph import BlockGraph
    from depgraph.timing import Durations

Function = TypeVar("Function", bound="Callable[..., Any]")


@dataclass(frozen=True, slots=True)
class Model:
    """The GPU and the times that a schedule is for.

    Attributes
    ----------
    launch_gap : float
        In the unit of the durations.
    """

    durations: Durations
    occupancy: Occupancies
    launch_gap: float


def model_options(function: Function) -> Function:
    """Add --timing, --measured-sms, --gpu, --gpu-file, --occupancy and --launch-gap."""
    for option in reversed(
        [
            click.option(
                "--timing", type=click.Path(path_type=Path), metavar="FILE",
                help="Measured times: blocks (kernel,block,duration) or kernels (kernel,duration_us).",
            ),
            click.option(
                "--measured-sms", type=click.IntRange(1), metavar="N",
                help="SMs of the GPU that kernel times were measured on [default: the GPU model's].",
            ),
            click.option("--gpu", metavar="NAME", help="GPU whose occupancy limits apply."),
            click.option(
                "--gpu-file", type=click.Path(path_type=Path), metavar="TOML",
                help="GPU model of your own.",
            ),
            click.option(
                "--occupancy", "fixed_occupancy", type=click.IntRange(1, 64), metavar="N",
                help="Resident blocks per SM of every kernel, instead of the GPU's limits.",
            ),
            click.option(
                "--launch-gap", type=click.FloatRange(0), default=0.0, metavar="TIME",
                help="Time lost before each kernel when run serially, in the durations' unit.",
            ),
        ]
    ):  # fmt: skip
        function = option(function)
    return function


def model_from(
    graph: BlockGraph,
    *,
    timing: Path | None,
    measured_sms: int | None,
    gpu: str | None,
    gpu_file: Path | None,
    fixed_occupancy: int | None,
    launch_gap: float,
) -> Model:
    """Work out durations and occupancies from the options.

    Raises
    ------
    ModelError, ProfileError
        If an option or a file makes no sense for the graph.
    """
    from depgraph.bounds import fixed_occupancies, gpu_occupancies
    from depgraph.timing import counted_durations, profiled_durations

    if gpu and gpu_file:
        message = "--gpu and --gpu-file: give one of them"
        raise click.UsageError(message)
    occupancy = gpu_occupancies(graph, gpu, gpu_file)
    if fixed_occupancy is not None:
        occupancy = fixed_occupancies(graph, fixed_occupancy, occupancy.gpu)
    if timing is None:
        durations = counted_durations(graph)
    else:
        from depgraph.parsers.profiles import read_profile

        durations = profiled_durations(
            graph,
            read_profile(timing),
            occupancy.values,
            measured_sms=measured_sms,
            default_sms=occupancy.gpu.sms,
        )
    return Model(durations, occupancy, launch_gap)
