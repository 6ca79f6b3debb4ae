"""Options that say which program runs on which GPU, for how long, and by which mechanisms."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from depgraph.analysis.next_steps import Invocation
from depgraph.cli.options.shared import deps_option, given_options, say, together
from depgraph.cli.options.values import BANDWIDTH, ID, OCCUPANCY, PATH, SMS, TIME, reading
from depgraph.system.text import LARGEST_ID, in_short, one_line, read_whole_number

if TYPE_CHECKING:
    from depgraph.mechanisms import Quantity
    from depgraph.scenario.scenario import Scenario
    from depgraph.scenario.what_if import Statement
    from depgraph.store.store import Store
    from depgraph.timing.profile import BlockProfile, KernelProfile, Where
    from depgraph.timing.program_times import LaunchChoice


ONE_GPU = "--gpu and --gpu-file: give one of them"


# Parameters that say which profile, and what of it, is meant; and all that say which scenario is.
OF_PROFILE = ("timing", "device", "process", "context", "stream", "iteration", "allow_mismatch")
OF_SCENARIO = frozenset({
    *OF_PROFILE, "kinds", "measured_sms", "gpu", "gpu_file", "fixed_occupancy", "launch",
    "what_ifs", "ignore_waits_inside", "contention", "memory_bandwidth", "wall",
})  # fmt: skip


def _read_launch(text: str) -> LaunchChoice:
    from depgraph.timing.program_times import parse_launch

    return parse_launch(text)


def _read_what_if(text: str) -> Statement:
    from depgraph.scenario.what_if import parse_what_if

    return parse_what_if(text)


def _read_gpu(text: str) -> str:
    from depgraph.gpu.model import load_gpu

    if not text.endswith(".toml"):
        load_gpu(text)
    return text


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
    deps_option,
    click.option(
        "--timing", type=PATH, metavar="FILE",
        help="Measured times: a profile (PyTorch, nsys, ncu, nvprof), a simulator's log, "
        "or a table of kernel,duration_us or kernel,block,duration_us.",
    ),
    profile_options,
    click.option(
        "--measured-sms", type=SMS, metavar="N",
        help="SMs of the GPU that kernel times were measured on [default: the profile's].",
    ),
    click.option(
        "--gpu", metavar="NAME", callback=reading(_read_gpu),
        help="GPU whose limits apply: a name that depgraph gpus lists, or a .toml file.",
    ),
    click.option(
        "--gpu-file", type=PATH, metavar="TOML",
        help="GPU model of your own.",
    ),
    click.option(
        "--occupancy", "fixed_occupancy", type=OCCUPANCY, metavar="N",
        help="Resident blocks per SM of every kernel, instead of the GPU's limits.",
    ),
    click.option(
        "--launch", "--launch-gap", "launch", default="none", callback=reading(_read_launch),
        metavar="none|gpu|measured|HOST,GAP,NODE",
        help="Launch costs: none (default), from the GPU's model, from the profile, or "
        "times in the durations' unit: the host's for each launch, the GPU's before each "
        "kernel, a CUDA graph's for each node.",
    ),
    click.option(
        "--what-if", "what_ifs", multiple=True, callback=reading(_read_what_if),
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
    "--memory-bandwidth", type=BANDWIDTH, metavar="GB/s|gpu",
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
    "--wall", type=TIME, metavar="TIME",
    help="How long an iteration of the profile takes without a profiler, such as 2.3ms.",
)  # fmt: skip
"""For a command that says how long the program takes now."""


def where_from(options: Mapping[str, Any]) -> Where:
    """Return which kernels of a profile the options name."""
    from depgraph.timing.matched_profile import PICKS
    from depgraph.timing.profile import Where

    iteration = options["iteration"]
    if iteration not in PICKS and read_whole_number(iteration, 0, LARGEST_ID) is None:
        message = f"--iteration {in_short(iteration)!r}: give {', '.join(PICKS)} or a number from 0"
        raise click.UsageError(message)
    named = {what: options[what] for what in ("device", "process", "context", "stream")}
    return Where(**named, iteration=iteration)


def scenario_of(store: Store | Path, options: Mapping[str, Any]) -> Scenario:
    """Put together what a store and the options describe: every command does it here."""
    from depgraph.scenario.of_store import Request
    from depgraph.scenario.scenario import Scenario
    from depgraph.store.store import Store

    request = Request(
        kinds=options["kinds"],
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
    opened = Store(store) if isinstance(store, Path) else store
    scenario = Scenario.of_store(opened, request, tell=warn)
    if scenario.fit is None:
        _refuse_without_times(opened.path, options)
    return scenario


def _refuse_without_times(store: Path, options: Mapping[str, Any]) -> None:
    """Refuse what chooses among measured times, where a store has none."""
    from depgraph.errors import ModelError

    chosen = [n for n in ("device", "process", "context", "stream") if options[n] is not None]
    chosen += ["iteration"] * (options["iteration"] != "median")
    chosen += ["measured-sms"] * (options["measured_sms"] is not None)
    if chosen:
        message = f"{store}: --{chosen[0]} needs measured times, with --timing or recorded"
        raise ModelError(message)


def gpu_of(options: Mapping[str, Any]) -> str | Path | None:
    """Return the name or the file of the GPU that the options ask for; None where they do not."""
    gpu: str | None = options["gpu"]
    gpu_file: Path | None = options["gpu_file"]
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
    return Invocation(str(path), given_options(OF_SCENARIO))


def timed_scenario_of(store: Store | Path, options: Mapping[str, Any]) -> Scenario:
    """As `scenario_of`, but refuse a program whose blocks take no time: it has no speedup."""
    from depgraph.errors import ModelError

    scenario = scenario_of(store, options)
    if len(scenario.durations) and not scenario.durations.any():
        changed = ", changed by --what-if" if options["what_ifs"] else ""
        path = store if isinstance(store, Path) else store.path
        message = (
            f"{path}: no block takes any time ({scenario.timing.source}{changed}): pass "
            "--timing FILE with times above 0"
        )
        raise ModelError(message)
    return scenario


def sized_scenario_of(store: Store | Path, options: Mapping[str, Any]) -> Scenario:
    """As `timed_scenario_of`, on as many SMs as given, else on those of the GPU."""
    return on_size(timed_scenario_of(store, options), options["sms"])


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


def refuse_others(subject: str, *used: str) -> None:
    """Refuse what the user gave of options about the program and its times, but for `used`."""
    refuse_given(OF_SCENARIO - {*used}, f"does not go with {subject}")


def refuse_given(names: Collection[str], reason: str) -> None:
    """Refuse options that the user gave."""
    context = click.get_current_context()
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is not click.core.ParameterSource.DEFAULT:
            long = next(name for name in parameter.opts if name.startswith("--"))
            raise click.UsageError(f"{long} {reason}")


def _read_names(text: str) -> tuple[str, ...]:
    from depgraph.mechanisms import find_mechanisms, split_names

    names = tuple(split_names(text))
    # What the user wrote is read later: whatever is wrong there is no wrong usage.
    find_mechanisms(n for n in names if ":" not in n and not n.endswith(".toml"))
    return names


def _read_cost(text: str) -> str:
    parse_costs([text])
    return text


mechanism_options = together(
    click.option(
        "--mechanism", "mechanisms", metavar="NAME[,...]",
        callback=reading(_read_names, missing=()),
        help="Mechanisms to compare, or all; MODULE:CLASS or FILE.toml for one of "
        "your own. See: depgraph mechanisms.",
    ),
    click.option(
        "--cost", "costs", multiple=True, metavar="M.COST=VALUE", callback=reading(_read_cost),
        help="Change a cost of a mechanism, such as acs-sw.launch=8us. May be repeated.",
    ),
)  # fmt: skip


hypothetical_option = click.option(
    "--hypothetical", is_flag=True,
    help="Let --mechanism all show what ships for other GPUs or kernels, too.",
)  # fmt: skip


def parse_costs(costs: Iterable[str]) -> dict[str, dict[str, Quantity]]:
    """Read the values of --cost."""
    from depgraph.mechanisms import parse_cost

    changed: dict[str, dict[str, Quantity]] = {}
    for text in costs:
        mechanism, name, quantity = parse_cost(text)
        changed.setdefault(mechanism, {})[name] = quantity
    return changed
