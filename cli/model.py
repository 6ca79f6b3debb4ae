"""Options that say which GPU and which durations a schedule is for, and what they come to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict, TypeVar, Unpack

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from depgraph.launch import LaunchChoice
    from depgraph.scenario import Scenario
    from depgraph.scenario_builder import Where
    from depgraph.store import Store
    from depgraph.what_if import Statement

Function = TypeVar("Function", bound="Callable[..., Any]")


class ModelOptions(TypedDict):
    """What `model_options` hands to a command."""

    timing: Path | None
    device: int | None
    process: int | None
    context: int | None
    stream: int | None
    iteration: str
    measured_sms: int | None
    gpu: str | None
    gpu_file: Path | None
    fixed_occupancy: int | None
    launch: LaunchChoice
    what_ifs: tuple[Statement, ...]
    memory_bandwidth: NotRequired[float | Literal["gpu"] | None]


class Bandwidth(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A number of GB/s, or the word ``gpu``."""

    name = "GB/s"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | Literal["gpu"]:
        """Return the bandwidth, or the word."""
        if value == "gpu":
            return "gpu"
        try:
            bandwidth = float(str(value))
        except ValueError:
            bandwidth = 0.0
        if not 0 < bandwidth < float("inf"):
            self.fail(f"{value!r} is no bandwidth: give GB/s above 0, or gpu", param, ctx)
        return bandwidth


def _parse_launch(_: click.Context, __: click.Parameter, value: str) -> LaunchChoice:
    from depgraph.errors import ModelError
    from depgraph.launch import parse_launch

    try:
        return parse_launch(value)
    except ModelError as error:
        raise click.UsageError(str(error)) from None


def _parse_what_ifs(
    _: click.Context, __: click.Parameter, value: tuple[str, ...]
) -> tuple[Statement, ...]:
    if not value:
        return ()
    from depgraph.errors import ModelError
    from depgraph.what_if import parse_what_if

    try:
        return tuple(parse_what_if(text) for text in value)
    except ModelError as error:
        raise click.UsageError(str(error)) from None


def profile_options(function: Function) -> Function:
    """Add --device, --process, --context, --stream and --iteration."""
    for option in reversed(
        [
            *(
                click.option(
                    f"--{what}", type=click.IntRange(0), metavar="N",
                    help=f"Take only kernels of one {what} of the profile.",
                )
                for what in ("device", "process", "context", "stream")
            ),
            click.option(
                "--iteration", default="mean", show_default=True, metavar="N|mean|min|last",
                help="What to take of a profile of several iterations, numbered from 0.",
            ),
        ]
    ):  # fmt: skip
        function = option(function)
    return function


def model_options(function: Function) -> Function:
    """Add the options that say which durations, which GPU, and what to change."""
    for option in reversed(
        [
            click.option(
                "--timing", type=click.Path(path_type=Path), metavar="FILE",
                help="Measured times: a profile (PyTorch, nsys, ncu, nvprof), a simulator's log, "
                "or a table of kernel,duration_us or kernel,block,duration_us.",
            ),
            profile_options,
            click.option(
                "--measured-sms", type=click.IntRange(1), metavar="N",
                help="SMs of the GPU that kernel times were measured on [default: the profile's].",
            ),
            click.option(
                "--gpu", metavar="NAME",
                help="GPU whose limits apply; depgraph gpus lists them.",
            ),
            click.option(
                "--gpu-file", type=click.Path(path_type=Path), metavar="TOML",
                help="GPU model of your own.",
            ),
            click.option(
                "--occupancy", "fixed_occupancy", type=click.IntRange(1, 64), metavar="N",
                help="Resident blocks per SM of every kernel, instead of the GPU's limits.",
            ),
            click.option(
                "--launch", "--launch-gap", "launch", default="none", callback=_parse_launch,
                metavar="none|gpu|measured|HOST,GAP,NODE",
                help="What launches cost: nothing (default), what the GPU's model says, what the "
                "profile shows, or times in the durations' unit that the host needs to issue a "
                "launch, the GPU before a kernel, and a CUDA graph a node.",
            ),
            click.option(
                "--what-if", "what_ifs", multiple=True, callback=_parse_what_ifs,
                metavar="STATEMENT",
                help="Change the program: 'kernel=3 duration*=0.5', 'buffer=FROM:TO drop=war,waw', "
                "'merge=3,4', 'gap=0'. May be given several times.",
            ),
        ]
    ):  # fmt: skip
        function = option(function)
    return function


def memory_option(function: Function) -> Function:
    """Add --memory-bandwidth."""
    return click.option(
        "--memory-bandwidth", type=Bandwidth(), metavar="GB/s|gpu",
        help="Let no schedule be shorter than what the L2 cache cannot hold of the bytes that "
        "kernels touch takes at this bandwidth.",
    )(function)  # fmt: skip


def where_from(
    device: int | None, process: int | None, context: int | None, stream: int | None, iteration: str
) -> Where:
    """Return which kernels of a profile the options name.

    Raises
    ------
    click.UsageError
        If there is no such way to take iterations.
    """
    from depgraph.match import PICKS
    from depgraph.scenario_builder import Where

    if iteration not in PICKS and not iteration.isdecimal():
        message = f"--iteration {iteration!r}: give {', '.join(PICKS)} or a number from 0"
        raise click.UsageError(message)
    return Where(device, process, context, stream, iteration)


def scenario_from(
    store: Store, kinds: Collection[str] | None, **options: Unpack[ModelOptions]
) -> Scenario:
    """Put together what a store and the options describe: every command does it here.

    Raises
    ------
    ModelError, ProfileError
        If an option or a file makes no sense for the store.
    """
    from depgraph.gpu import load_gpu, load_gpu_file
    from depgraph.scenario_builder import build_scenario

    gpu, gpu_file, timing = options["gpu"], options["gpu_file"], options["timing"]
    if gpu and gpu_file:
        message = "--gpu and --gpu-file: give one of them"
        raise click.UsageError(message)
    profile = None
    if timing is not None:
        from depgraph.parsers.profiles import read_profile

        profile = read_profile(timing)
    return build_scenario(
        store.graph(kinds),
        store.kernels,
        profile=profile,
        where=where_from(
            options["device"],
            options["process"],
            options["context"],
            options["stream"],
            options["iteration"],
        ),
        measured_sms=options["measured_sms"],
        gpu=load_gpu_file(gpu_file) if gpu_file else load_gpu(gpu) if gpu else None,
        fixed_occupancy=options["fixed_occupancy"],
        launch=options["launch"],
        what_ifs=options["what_ifs"],
        memory_gb_per_s=options.get("memory_bandwidth"),
        footprints=store.footprints,
        granularity=int(store.metadata["options"]["granularity"]),
        metadata=store.metadata,
    )


def refuse_others(subject: str, *used: str) -> None:
    """Refuse what the user gave of the options about the program and its times, but for some.

    Parameters
    ----------
    subject : str
        What the command was asked for.
    *used : str
        Parameters that count for it.

    Raises
    ------
    click.UsageError
        If another one was given.
    """
    names = {*ModelOptions.__annotations__, "kinds"} - {*used}
    refuse_given(names, f"does not go with {subject}")


def refuse_given(names: Collection[str], reason: str) -> None:
    """Refuse options that the user gave.

    Raises
    ------
    click.UsageError
        If one of the parameters was given.
    """
    context = click.get_current_context()
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is not click.core.ParameterSource.DEFAULT:
            raise click.UsageError(f"{parameter.opts[0]} {reason}")
