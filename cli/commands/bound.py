"""``depgraph bound``: stores to upper bounds on the speedup."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import click

from depgraph.cli.options.mechanisms import hypothetical_option, mechanism_options, parse_costs
from depgraph.cli.options.model import (
    contention_option,
    gpu_of,
    invocation_of,
    is_given,
    memory_option,
    model_options,
    refuse_given,
    sizes_or_default,
    timed_scenario_from,
    wall_option,
    where_from,
)
from depgraph.cli.options.shared import (
    Command,
    deps_option,
    details_option,
    format_option,
    is_quiet,
    print_report,
    stores_argument,
    suite_options,
)
from depgraph.cli.options.values import SmCounts, wrong_usage
from depgraph.cli.progress import step_progress
from depgraph.system.steps import NOBODY

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from depgraph.analysis.answer import Answer
    from depgraph.analysis.bound import BoundTable
    from depgraph.analysis.compare_mechanisms import Comparison
    from depgraph.analysis.next_steps import Step
    from depgraph.analysis.suite import ProgramResult
    from depgraph.cli.options.model import ModelOptions
    from depgraph.cli.suite import Task
    from depgraph.mechanisms import Mechanism
    from depgraph.reports.tables.table import Report
    from depgraph.scenario.scenario import Scenario
    from depgraph.system.steps import Steps


def _checked_sharing(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        from depgraph.mechanisms.shared_gpu import find_sharing

        with wrong_usage():
            find_sharing(value)
    return value


@click.command("bound", cls=Command)
@stores_argument
@click.option(
    "--sms", type=SmCounts(),
    help="SM counts: 80, 8,16,80, 8:132, 8:132:4 or inf [default: the GPU's].",
)  # fmt: skip
@click.option(
    "--share", callback=_checked_sharing, metavar="HOW[,...]",
    help="Run two stores side by side on one GPU: streams, partition(SMS) (of the first), blocks.",
)  # fmt: skip
@mechanism_options
@hypothetical_option
@deps_option
@model_options
@contention_option
@memory_option
@suite_options
@wall_option
@details_option
@format_option
def command(
    *,
    stores: tuple[Path, ...],
    jobs: int | None,
    scheduler: str | None,
    form: str,
    share: str | None,
    **options: Any,
) -> int | None:
    """Bound the speedup over serialized launches on a GPU, and compare mechanisms.

    Prints the serial time, critical path, work, the lower bound on the makespan, the upper bound on
    the speedup, and what block-level dataflow schedules reach: with all dependences, and with RAW
    only, as if every buffer were renamed.

    With --mechanism it compares synchronisation mechanisms instead, one row each: makespan,
    speedup, share of the bound, slot utilization, and what was assumed.

    Of several stores, a folder of stores, or a suite file (TOML) it prints one table with a row
    for each program, and geometric means. A program that fails is a row that says why; the exit
    code is 1 then.

    Two stores with --share are run side by side on one GPU: a stream each, a stream each on SMs of
    its own, or all blocks in one pool.

    Of a profile alone (PyTorch, nsys) it says what needs no trace: how long a step takes now and as
    a CUDA graph, and why the GPU is idle.
    """
    from depgraph.cli.suite import policies_step, run_suite, suite_of

    if share is not None:
        print_report(_share_report(stores, share, **options), form)
        return None
    if any(map(_is_profile, stores)):
        print_report(_report_of_profile(stores, form, **options), form)
        return None
    suite = suite_of(stores, jobs=jobs, scheduler=scheduler)
    if suite is not None:
        from depgraph.reports.tables.suite_table import suite_report

        done = run_suite(suite)
        has_policies = bool(options["mechanisms"])
        steps = [] if has_policies else [policies_step(suite)]
        report = suite_report(done.suite, has_policies=has_policies, steps=steps)
        print_report(report, form)
        return done.exit_code()
    print_report(_report(stores[0], **options), form)
    return None


_NOT_SHARED = {"mechanisms", "hypothetical", "costs", "jobs", "scheduler"}


def _share_report(
    stores: tuple[Path, ...], share: str, *, sms: tuple[float, ...] | None,
    kinds: frozenset[str] | None, **options: Any,
) -> Report:  # fmt: skip
    """Run two programs side by side."""
    from depgraph.analysis.share import share_gpu
    from depgraph.reports.tables.share_table import share_report
    from depgraph.store.store import Store

    refuse_given(_NOT_SHARED, "does not go with --share")
    refuse_given({"timing", "wall", "what_ifs"}, "is of one program: it does not go with --share")
    if len(stores) != len(("first", "second")):
        message = f"--share needs two stores, not {len(stores)}"
        raise click.UsageError(message)
    model = {name: value for name, value in options.items() if name not in _NOT_SHARED}
    first, second = (timed_scenario_from(Store(path), kinds, **model) for path in stores)
    names = [path.stem for path in stores]
    if names[0] == names[1]:
        names = [f"{names[0]} ({place})" for place in ("first", "second")]
    found = share_gpu((names[0], first), (names[1], second), sizes_or_default(first, sms), share)
    return share_report(found)


def _is_profile(path: Path) -> bool:
    if not path.is_file():
        return False
    from depgraph.parsers.profiles import is_profile

    return is_profile(path)


_OF_A_PROFILE = {
    "details", "quiet", "verbose", "debug", "device", "process", "context", "stream", "iteration",
    "gpu", "gpu_file", "launch", "wall", "form", "sms", "stores",
}  # fmt: skip


def _report_of_profile(profiles: tuple[Path, ...], form: str, **options: Any) -> Report:
    """Answer what a profile does without a trace."""
    from depgraph.analysis.profiled_step import profiled_step
    from depgraph.errors import ProfileError
    from depgraph.parsers.profiles import read_profile
    from depgraph.reports.tables.profiled_step_table import profiled_step_report
    from depgraph.scenario.of_store import named_gpu
    from depgraph.timing.profile import KernelProfile

    given = {each.name or "" for each in click.get_current_context().command.params}
    refuse_given(
        given - _OF_A_PROFILE, "needs a trace or a recording: a profile has no dependences"
    )
    path, *others = sorted(profiles, key=_is_profile, reverse=True)
    sizes = options["sms"] or (None,)
    if others or len(sizes) > 1 or sizes[0] == math.inf:
        message = (
            f"{path} is a profile: give it alone, or with --timing beside a store, and one size"
        )
        raise click.UsageError(message)
    model = cast("ModelOptions", options)
    where, gpu = where_from(model), gpu_of(model)
    if options["launch"].base == "measured":
        message = "--launch measured needs a trace or a recording"
        raise click.UsageError(message)
    profile = read_profile(path)
    if not isinstance(profile, KernelProfile):
        raise ProfileError(path, "has times of blocks, not a timeline of kernels")
    found = profiled_step(
        profile.only(
            device=where.device, process=where.process, context=where.context, stream=where.stream
        ),
        gpu=None if gpu is None else named_gpu(gpu),
        sms=None if sizes[0] is None else int(sizes[0]),
        launch=options["launch"] if is_given("launch") else None,
        iteration=where.iteration,
        wall=options["wall"],
    )
    return profiled_step_report(found, path, *(() if form in ("table", "markdown") else (None,)))


def _report(path: Path, **options: Any) -> Report:
    with step_progress(quiet=is_quiet()) as steps:
        _, found = _answer(path, steps, **options)
        from depgraph.reports.tables.answer_report import answer_report

        sms = found.conclusion.sms
        return answer_report(found, () if options["mechanisms"] else _page_step(sms, path))


def suite_results(
    task: Task, stores: tuple[Path, ...], **options: Any
) -> tuple[list[ProgramResult], list[str]]:
    """Return what a suite shows of one program, for each GPU size."""
    from depgraph.analysis.answer import program_results

    for other in ("form", "jobs", "scheduler", "share"):
        options.pop(other)
    scenario, found = _answer(stores[0], NOBODY, **options)
    return program_results(task.program.name, task.program.store, scenario, found), []


def _answer(
    path: Path,
    steps: Steps,
    *,
    sms: tuple[float, ...] | None,
    mechanisms: tuple[str, ...],
    hypothetical: bool,
    costs: tuple[str, ...],
    kinds: frozenset[str] | None,
    **model: Any,
) -> tuple[Scenario, Answer[BoundTable] | Answer[Comparison]]:
    """Work out what one store answers."""
    from depgraph.analysis.answer import answer_bound, answer_mechanisms
    from depgraph.store.store import Store

    if costs and not mechanisms:
        message = "--cost needs --mechanism"
        raise click.UsageError(message)
    if hypothetical and "all" not in mechanisms:
        message = "--hypothetical needs --mechanism all; a mechanism that is named always has a row"
        raise click.UsageError(message)
    known = _named(mechanisms, hypothetical=hypothetical) if mechanisms else ()
    scenario = timed_scenario_from(Store(path), kinds, **model)
    sizes, words = sizes_or_default(scenario, sms), invocation_of(path)
    if not known:
        return scenario, answer_bound(scenario, sizes, invocation=words, steps=steps)
    return scenario, answer_mechanisms(
        scenario, sizes, known, costs=parse_costs(costs), invocation=words, steps=steps
    )


def _named(names: tuple[str, ...], *, hypothetical: bool) -> Sequence[Mechanism]:
    from depgraph.mechanisms import find_mechanisms

    return find_mechanisms(names, hypothetical=hypothetical)


def _page_step(sms: float, path: Path) -> list[Step]:
    from depgraph.analysis.next_steps import Step

    if math.isinf(sms):
        return []
    return [Step("see it on a page:", invocation_of(path).command("report", "--sms", f"{sms:g}"))]
