"""Options that say which GPU and which durations a schedule is for, and what they come to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict, TypeVar, Unpack

import click

from depgraph.cli.option_types import ID, OCCUPANCY, SMS, Bandwidth, LaunchGap
from depgraph.cli.options import say
from depgraph.limits import LARGEST_ID, whole_number
from depgraph.text import in_short, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from depgraph.fit import Fit
    from depgraph.footprint import Footprints
    from depgraph.model import Model, Where
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
    allow_mismatch: bool
    measured_sms: int | None
    gpu: str | None
    gpu_file: Path | None
    fixed_occupancy: int | None
    launch_gap: float | Literal["measured"]
    what_ifs: tuple[Statement, ...]
    memory_bandwidth: NotRequired[float | Literal["gpu"] | None]


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
    """Add --device, --process, --context, --stream, --iteration and --allow-mismatch."""
    for option in reversed(
        [
            *(
                click.option(
                    f"--{what}", type=ID, metavar="N",
                    help=f"Take only kernels of one {what} of the profile.",
                )
                for what in ("device", "process", "context", "stream")
            ),
            click.option(
                "--iteration", default="mean", show_default=True, metavar="N|mean|min|last",
                help="What to take of a profile of several iterations, numbered from 0.",
            ),
            click.option(
                "--allow-mismatch", is_flag=True,
                help="Use what fits of a profile though it seems to be of another program.",
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
                "--measured-sms", type=SMS, metavar="N",
                help="SMs of the GPU that kernel times were measured on [default: the profile's].",
            ),
            click.option(
                "--gpu", metavar="NAME",
                help="GPU whose occupancy limits apply; depgraph gpus lists them.",
            ),
            click.option(
                "--gpu-file", type=click.Path(path_type=Path), metavar="TOML",
                help="GPU model of your own.",
            ),
            click.option(
                "--occupancy", "fixed_occupancy", type=OCCUPANCY, metavar="N",
                help="Resident blocks per SM of every kernel, instead of the GPU's limits.",
            ),
            click.option(
                "--launch-gap", type=LaunchGap(), default="0", metavar="TIME|measured",
                help="Time lost before each kernel when run serially, in the durations' unit.",
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
        help="Let no schedule be shorter than the touched bytes take at this bandwidth.",
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
    from depgraph.model import Where

    if iteration not in PICKS and whole_number(iteration, 0, LARGEST_ID) is None:
        message = f"--iteration {in_short(iteration)!r}: give {', '.join(PICKS)} or a number from 0"
        raise click.UsageError(message)
    return Where(device, process, context, stream, iteration)


def model_from(
    store: Store, kinds: Collection[str] | None, **options: Unpack[ModelOptions]
) -> Model:
    """Work out the graph, durations and occupancies from the options.

    Raises
    ------
    ModelError, ProfileError
        If an option or a file makes no sense for the store.
    """
    from depgraph.gpu import load_gpu, load_gpu_file
    from depgraph.model import build_model

    gpu, gpu_file, timing = options["gpu"], options["gpu_file"], options["timing"]
    if gpu and gpu_file:
        message = "--gpu and --gpu-file: give one of them"
        raise click.UsageError(message)
    granularity = int(store.metadata["options"]["granularity"])

    def footprints() -> Footprints:
        graph = store.graph(kinds)
        return store.footprints().rounded(granularity, graph.n_blocks)

    profile = None
    if timing is not None:
        from depgraph.parsers.profiles import read_profile

        profile = read_profile(timing)
    model = build_model(
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
        allow_mismatch=options["allow_mismatch"],
        measured_sms=options["measured_sms"],
        gpu=load_gpu_file(gpu_file) if gpu_file else load_gpu(gpu) if gpu else None,
        fixed_occupancy=options["fixed_occupancy"],
        launch_gap=options["launch_gap"],
        what_ifs=options["what_ifs"],
        memory_gb_per_s=options.get("memory_bandwidth"),
        footprints=footprints,
    )
    warn_of_mismatch(model.fit)
    return model


def warn_of_mismatch(fit: Fit | None) -> None:
    """Tell the user if not all of a profile fits the trace."""
    if fit is not None and fit.warning:
        say(f"depgraph: {one_line(fit.warning)}")
