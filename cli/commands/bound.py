"""``depgraph bound``: stores to upper bounds on the speedup."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from depgraph.analysis.next_steps import Step
from depgraph.cli.options import model, shared, values
from depgraph.cli.progress import step_progress
from depgraph.system.workers import NOBODY, Steps

if TYPE_CHECKING:
    from depgraph.analysis.answer import Answer
    from depgraph.analysis.bound import BoundTable
    from depgraph.analysis.compare_mechanisms import Comparison
    from depgraph.analysis.suite import ProgramResult
    from depgraph.cli.suite import Task
    from depgraph.mechanisms import Mechanism
    from depgraph.reports.tables.table import Report
    from depgraph.scenario.scenario import Scenario


def _read_sharing(text: str) -> str:
    from depgraph.mechanisms.shared_gpu import find_sharing

    find_sharing(text)
    return text


@click.command("bound", cls=shared.Command)
@shared.stores_argument
@click.option(
    "--sms", type=values.SM_COUNTS,
    help="SM counts: 80, 8,16,80, 8:132, 8:132:4 or inf [default: the GPU's].",
)  # fmt: skip
@click.option(
    "--share", callback=values.reading(_read_sharing), metavar="HOW[,...]",
    help="Run two programs side by side on one GPU: streams, partition(SMS) (of the first), eclip, "
    "blocks.",
)  # fmt: skip
@model.mechanism_options
@model.hypothetical_option
@model.model_options
@model.contention_option
@model.memory_option
@shared.suite_options
@model.wall_option
@shared.details_option
@shared.format_option
def command(*, stores: tuple[Path, ...], **options: Any) -> int | None:
    """Bound the speedup over serialized launches on a GPU, and compare mechanisms.

    Prints the serial time, critical path, work, the lower bound on the makespan, the upper bound on
    the speedup, and what block-level dataflow schedules reach: with all dependences, and with RAW
    only, as if every buffer were renamed.

    With --mechanism it compares synchronisation mechanisms instead, one row each: makespan,
    speedup, share of the bound, slot utilization, and what was assumed.

    Of several stores, a folder of stores, or a suite file (TOML) it prints one table with a row
    for each program, and geometric means. A program that fails is a row that says why; the exit
    code is 1 then.

    Two programs with --share run side by side on one GPU: a stream each, a stream each on SMs of
    its own, groups of kernels on as many SMs as they need (ECLIP), or all blocks in one pool.

    Of a profile alone (PyTorch, nsys) it says what needs no trace: how long a step takes now and as
    a CUDA graph, and why the GPU is idle.
    """
    from depgraph.cli.suite import policies_step, run_suite, suite_of

    if options["share"] is not None:
        shared.print_report(_share_report(stores, options))
        return None
    if any(map(_is_profile, stores)):
        shared.print_report(_report_of_profile(stores, options))
        return None
    suite = suite_of(stores, jobs=options["jobs"], scheduler=options["scheduler"])
    if suite is not None:
        from depgraph.reports.tables.suite_table import suite_report

        done = run_suite(suite)
        has_policies = bool(options["mechanisms"])
        steps = [] if has_policies else [policies_step(suite)]
        report = suite_report(done.suite, has_policies=has_policies, steps=steps)
        shared.print_report(report)
        return done.exit_code()
    shared.print_report(_report(stores[0], options))
    return None


_TWO = 2
_NOT_SHARED = {"mechanisms", "hypothetical", "costs", "jobs", "scheduler", "wall"}


def _share_report(stores: tuple[Path, ...], options: Mapping[str, Any]) -> Report:
    from depgraph.analysis.share import share_gpu
    from depgraph.cli.suite import scenarios_of
    from depgraph.reports.tables.side_by_side_tables import share_report

    model.refuse_given(_NOT_SHARED, "does not go with --share")
    is_twice = len(stores) == _TWO and len(set(stores)) == 1

    def check(count: int) -> None:
        found = count * (1 + is_twice)
        if found != _TWO:
            raise click.UsageError(f"--share needs two programs, not {found}")

    programs = scenarios_of(stores[:1] if is_twice else stores, options, check)
    if is_twice:
        ((name, program),) = programs
        programs = [(f"{name} ({which})", program) for which in ("first", "second")]
    first, second = programs
    sizes = model.sizes_or_default(first[1], options["sms"])
    return share_report(share_gpu(first, second, sizes, options["share"]))


def _is_profile(path: Path) -> bool:
    if not path.is_file():
        return False
    from depgraph.parsers.profiles import is_profile

    return is_profile(path)


_OF_A_PROFILE = {
    "details", "quiet", "verbose", "debug", "device", "process", "context", "stream", "iteration",
    "gpu", "gpu_file", "launch", "wall", "form", "sms", "stores",
}  # fmt: skip


def _report_of_profile(profiles: tuple[Path, ...], options: Mapping[str, Any]) -> Report:
    from depgraph.analysis.profiled_step import profiled_step
    from depgraph.parsers.profiles import read_kernel_profile
    from depgraph.reports.tables.profiled_step_table import profiled_step_report
    from depgraph.scenario.of_store import named_gpu

    given = {each.name or "" for each in click.get_current_context().command.params}
    model.refuse_given(
        given - _OF_A_PROFILE, "needs a trace or a recording: a profile has no dependences"
    )
    path, *others = sorted(profiles, key=_is_profile, reverse=True)
    sizes = options["sms"] or (None,)
    if others or len(sizes) > 1 or sizes[0] == math.inf:
        message = (
            f"{path} is a profile: give it alone, or with --timing beside a store, and one size"
        )
        raise click.UsageError(message)
    where, gpu = model.where_from(options), model.gpu_of(options)
    if options["launch"].base == "measured":
        raise click.UsageError("--launch measured needs a trace or a recording")
    found = profiled_step(
        read_kernel_profile(path).only(
            device=where.device, process=where.process, context=where.context, stream=where.stream
        ),
        gpu=None if gpu is None else named_gpu(gpu),
        sms=None if sizes[0] is None else int(sizes[0]),
        launch=options["launch"] if model.is_given("launch") else None,
        iteration=where.iteration,
        wall=options["wall"],
    )
    return profiled_step_report(found, path)


def _report(path: Path, options: Mapping[str, Any]) -> Report:
    with step_progress(quiet=shared.is_quiet()) as steps:
        _, found = _answer(path, steps, options)
        from depgraph.reports.tables.answer_report import answer_report

        sms = found.conclusion.sms
        return answer_report(found, () if options["mechanisms"] else _page_step(sms, path))


def suite_results(task: Task, options: Mapping[str, Any]) -> tuple[list[ProgramResult], list[str]]:
    """Return what a suite shows of one program, for each GPU size."""
    from depgraph.analysis.answer import program_results

    scenario, found = _answer(options["stores"][0], NOBODY, options)
    return program_results(task.program.name, task.program.store, scenario, found), []


def _answer(
    path: Path, steps: Steps, options: Mapping[str, Any]
) -> tuple[Scenario, Answer[BoundTable] | Answer[Comparison]]:
    """Work out what one store answers."""
    from depgraph.analysis.answer import answer_bound, answer_mechanisms

    names, costs, hypothetical = (options[o] for o in ("mechanisms", "costs", "hypothetical"))
    if costs and not names:
        raise click.UsageError("--cost needs --mechanism")
    if hypothetical and "all" not in names:
        message = "--hypothetical needs --mechanism all; a mechanism that is named always has a row"
        raise click.UsageError(message)
    known: Sequence[Mechanism] = ()
    if names:
        from depgraph.mechanisms import find_mechanisms

        known = find_mechanisms(names, hypothetical=hypothetical)
    scenario = model.timed_scenario_of(path, options)
    sizes, words = model.sizes_or_default(scenario, options["sms"]), model.invocation_of(path)
    if not known:
        return scenario, answer_bound(scenario, sizes, invocation=words, steps=steps)
    return scenario, answer_mechanisms(
        scenario, sizes, known, costs=model.parse_costs(costs), invocation=words, steps=steps
    )


def _page_step(sms: float, path: Path) -> list[Step]:
    if math.isinf(sms):
        return []
    return [
        Step("see it on a page:", model.invocation_of(path).command("report", "--sms", f"{sms:g}"))
    ]
