"""Options that say which GPU and which durations a schedule is for, and what they come to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict, Unpack

import click

from depgraph.cli.options.shared import given_options, say, together
from depgraph.cli.options.values import ID, OCCUPANCY, SMS, Bandwidth, Time, wrong_usage
from depgraph.system.limits import LARGEST_ID, whole_number
from depgraph.system.text import in_short, one_line

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from depgraph.analysis.next_steps import Invocation
    from depgraph.scenario.scenario import Scenario
    from depgraph.scenario.what_if import Statement
    from depgraph.scenario.work_alone import Contention
    from depgraph.store.store import Store
    from depgraph.timing.launch_model import LaunchChoice
    from depgraph.timing.profile import BlockProfile, KernelProfile, Where

ONE_GPU = "--gpu and --gpu-file: give one of them"


class ProfileOptions(TypedDict):
    """What `profile_options` hands to a command."""

    device: int | None
    process: int | None
    context: int | None
    stream: int | None
    iteration: str
    allow_mismatch: bool


class ModelOptions(ProfileOptions):
    """What `model_options` hands to a command."""

    timing: Path | None
    measured_sms: int | None
    gpu: str | None
    gpu_file: Path | None
    fixed_occupancy: int | None
    launch: LaunchChoice
    what_ifs: tuple[Statement, ...]
    ignore_waits_inside: bool
    contention: NotRequired[Contention | None]
    memory_bandwidth: NotRequired[float | Literal["gpu"] | None]
    wall: NotRequired[float | None]


def _parse_launch(_: click.Context, __: click.Parameter, value: str) -> LaunchChoice:
    from depgraph.timing.launch_model import parse_launch

    with wrong_usage():
        return parse_launch(value)


def _parse_what_ifs(
    _: click.Context, __: click.Parameter, value: tuple[str, ...]
) -> tuple[Statement, ...]:
    if not value:
        return ()
    from depgraph.scenario.what_if import parse_what_if

    with wrong_usage():
        return tuple(parse_what_if(text) for text in value)


def _known_gpu(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value.endswith(".toml"):
        from depgraph.gpu.model import load_gpu

        with wrong_usage():
            load_gpu(value)
    return value


profile_options = together(
    *(
        click.option(
            f"--{what}", type=ID, metavar="N",
            help=f"Take only kernels of one {what} of the profile.",
        )
        for what in ("device", "process", "context", "stream")
    ),
    click.option(
        "--iteration", default="median", show_default=True,
        metavar="N|median|mean|min|last",
        help="What to take of a profile of several iterations, numbered from 0.",
    ),
    click.option(
        "--allow-mismatch", is_flag=True,
        help="Use what fits of a profile that seems to be of another program.",
    ),
)  # fmt: skip
model_options = together(
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
        "--gpu", metavar="NAME", callback=_known_gpu,
        help="GPU whose limits apply: a name that depgraph gpus lists, or a .toml file.",
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
        "--launch", "--launch-gap", "launch", default="none", callback=_parse_launch,
        metavar="none|gpu|measured|HOST,GAP,NODE",
        help="Launch costs: none (default), from the GPU's model, from the profile, or "
        "times in the durations' unit: the host's for each launch, the GPU's before each "
        "kernel, a CUDA graph's for each node.",
    ),
    click.option(
        "--what-if", "what_ifs", multiple=True, callback=_parse_what_ifs,
        metavar="STATEMENT",
        help="Change the program: 'kernel=3 duration*=0.5', 'buffer=FROM:TO drop=war,waw', "
        "'merge=3,4', 'gap=0'. May be repeated.",
    ),
    click.option(
        "--ignore-waits-inside", is_flag=True,
        help="Let blocks depend on single blocks of a kernel whose blocks wait for each "
        "other (split-K), not on the whole kernel.",
    ),
)  # fmt: skip
memory_option = click.option(
    "--memory-bandwidth", type=Bandwidth(), metavar="GB/s|gpu",
    help="Limit schedules by DRAM bandwidth: the bytes that kernels touch and the L2 cache "
    "cannot hold cross the bus at this rate.",
)  # fmt: skip
contention_option = click.option(
    "--contention", type=click.Choice(("none", "sm", "full")),
    help="What predictions let blocks on one SM do to each other: nothing, slow each other, or "
    "that and kernels that need different shared-memory carve-outs share no SM. "
    "[default: full with --timing, else none]",
)  # fmt: skip
"""For a command that predicts."""
wall_option = click.option(
    "--wall", type=Time(), metavar="TIME",
    help="How long an iteration of the profile takes without a profiler, such as 2.3ms.",
)  # fmt: skip
"""For a command that says how long the program takes now."""


def where_from(options: ProfileOptions) -> Where:
    """Return which kernels of a profile the options name."""
    from depgraph.timing.matched_profile import PICKS
    from depgraph.timing.profile import Where

    iteration = options["iteration"]
    if iteration not in PICKS and whole_number(iteration, 0, LARGEST_ID) is None:
        message = f"--iteration {in_short(iteration)!r}: give {', '.join(PICKS)} or a number from 0"
        raise click.UsageError(message)
    return Where(
        options["device"], options["process"], options["context"], options["stream"], iteration
    )


def scenario_from(
    store: Store, kinds: Collection[str] | None, **options: Unpack[ModelOptions]
) -> Scenario:
    """Put together what a store and the options describe: every command does it here."""
    from depgraph.scenario.of_store import Request
    from depgraph.scenario.scenario import Scenario

    request = Request(
        kinds=kinds,
        times=options["timing"],
        read_profile=read_times,
        where=where_from(options),
        allow_mismatch=options["allow_mismatch"],
        measured_sms=options["measured_sms"],
        gpu=gpu_of(options),
        fixed_occupancy=options["fixed_occupancy"],
        launch=options["launch"],
        contention=options.get("contention"),
        what_ifs=options["what_ifs"],
        ignore_waits_inside=options["ignore_waits_inside"],
        memory_gb_per_s=options.get("memory_bandwidth"),
        wall_us=options.get("wall"),
    )
    return Scenario.of_store(store, request, tell=warn)


def gpu_of(options: ModelOptions) -> str | Path | None:
    """Return the name or the file of the GPU that the options ask for; None where they do not.

    Raises
    ------
    click.UsageError
        If they ask for two.
    """
    gpu, gpu_file = options["gpu"], options["gpu_file"]
    if gpu and gpu_file:
        raise click.UsageError(ONE_GPU)
    return gpu_file or gpu


def is_given(parameter: str) -> bool:
    """Tell whether the user gave a parameter of the current command."""
    source = click.get_current_context().get_parameter_source(parameter)
    return source is not click.core.ParameterSource.DEFAULT


def read_times(path: Path) -> KernelProfile | BlockProfile:
    """Read a file of measured times; what reads them is imported where there is one."""
    from depgraph.parsers.profiles import read_profile

    return read_profile(path)


def warn(message: str) -> None:
    """Tell the user what is odd about the times."""
    say(f"depgraph: {one_line(message)}")


def invocation_of(path: Path) -> Invocation:
    """Return how the user asked about a store, so that next steps can ask the same way."""
    from depgraph.analysis.next_steps import Invocation

    return Invocation(str(path), given_options({*ModelOptions.__annotations__, "kinds"}))


def timed_scenario_from(
    store: Store, kinds: Collection[str] | None, **options: Unpack[ModelOptions]
) -> Scenario:
    """As `scenario_from`, but refuse a program whose blocks take no time: it has no speedup."""
    from depgraph.errors import ModelError

    scenario = scenario_from(store, kinds, **options)
    if len(scenario.durations) and not scenario.durations.any():
        changed = ", changed by --what-if" if options["what_ifs"] else ""
        message = (
            f"{store.path}: no block takes any time ({scenario.timing.source}{changed}): pass "
            "--timing FILE with times above 0"
        )
        raise ModelError(message)
    return scenario


def sizes_or_default(scenario: Scenario, sizes: Sequence[float] | None) -> Sequence[float]:
    """Return SM counts as given, else that of the GPU; the user is told which."""
    if sizes is not None:
        return sizes
    gpu = scenario.resources.gpu
    whose = "which the profile names" if gpu.name == _gpu_of_profile(scenario) else "see --gpu"
    say(f"depgraph: --sms is not given: {gpu.sms} SMs, those of {gpu.name} ({whose})")
    return [gpu.sms]


def on_size(scenario: Scenario, sms: float | None) -> Scenario:
    """Return the scenario on as many SMs as given, else on those of the GPU."""
    (size,) = sizes_or_default(scenario, None if sms is None else [sms])
    return scenario.on(size)


def _gpu_of_profile(scenario: Scenario) -> str:
    match = None if scenario.fit is None else scenario.fit.match
    name = None if match is None else match.device_name
    if name is None:
        return ""
    from depgraph.errors import ModelError
    from depgraph.gpu.model import load_gpu

    try:
        return load_gpu(name).name
    except ModelError:
        return ""


OF_PROFILE = (
    "timing", "device", "process", "context", "stream", "iteration", "allow_mismatch",
)  # fmt: skip
"""Parameters that say which profile, and what of it, is meant."""


def refuse_others(subject: str, *used: str) -> None:
    """Refuse what the user gave of options about the program and its times, but for `used`."""
    names = {*ModelOptions.__annotations__, "kinds"} - {*used}
    refuse_given(names, f"does not go with {subject}")


def refuse_given(names: Collection[str], reason: str) -> None:
    """Refuse options that the user gave."""
    context = click.get_current_context()
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is not click.core.ParameterSource.DEFAULT:
            raise click.UsageError(f"{parameter.opts[0]} {reason}")
