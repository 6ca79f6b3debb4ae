"""Several programs in one command: each as if it were asked about alone, side by side."""

from __future__ import annotations

import importlib
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from depgraph.analysis.next_steps import Step
from depgraph.cli.options import model, shared, suite_file
from depgraph.system.text import counted, one_line

if TYPE_CHECKING:
    from depgraph.analysis.suite import Broken, ProgramResult, Suite
    from depgraph.scenario.scenario import Scenario
    from depgraph.store.store import Store

EXIT_BROKEN = 1
_OF_ONE = {"timing", "wall"}, "is of one program: state it for each in a suite file"
_ANSWERS = (
    "mechanisms", "hypothetical", "costs", "group_by", "top", "flows", "fail_below", "fail_above",
)  # fmt: skip
# What a process takes, and what each block adds: measured with the sample traces.
_BYTES_OF_A_PROCESS = 320 << 20
_BYTES_OF_A_BLOCK = {"bound": 32 << 10, "report": 160 << 10}
_MOST_BLOCKS_THAT_COUNT = 100_000


class Task(NamedTuple):
    """One program of a suite, for a process of its own."""

    verb: str  # the command
    program: suite_file.Program
    # options of the command line, by parameter, as words
    given: tuple[tuple[str, tuple[str, ...]], ...]
    folder: str = ""  # where paths start from; empty where they are absolute
    output: str = ""  # where the report of this program goes, if anywhere
    jobs: int = 0  # processors that this program may use; 0 for all
    announces: bool = False  # whether to say that something is compiled


class TaskResult(NamedTuple):
    """What became of a task."""

    results: tuple[ProgramResult | Broken, ...] = ()
    messages: tuple[str, ...] = ()  # of the command on the way
    missed: tuple[str, ...] = ()  # thresholds
    usage: str = ""  # what is wrong with the options, if anything


class SuiteRequest(NamedTuple):
    """What a command was asked about several programs."""

    verb: str
    paths: Sequence[Path]  # as the user named the programs
    programs: list[suite_file.Program]
    given: tuple[tuple[str, tuple[str, ...]], ...]
    jobs: int | None
    scheduler: str | None


class Done(NamedTuple):
    """Answers of all programs."""

    suite: Suite
    missed: tuple[str, ...]  # thresholds missed, each with its program

    def exit_code(self) -> int:
        """Say on stderr which programs failed; return the exit code."""
        broken = self.suite.broken
        if not broken:
            return 0
        count = len({r.program for r in self.suite.results})
        names = ", ".join(b.program for b in broken)
        text = f"depgraph: {len(broken)} of {counted(count, 'program')} failed: {names}"
        click.echo(one_line(text), err=True)
        return EXIT_BROKEN


def suite_of(
    paths: Sequence[Path], *, jobs: int | None, scheduler: str | None
) -> SuiteRequest | None:
    """Return what the current command was asked about several programs; None if about one."""
    context = click.get_current_context()
    programs = suite_file.programs_of(context.command, paths)
    if programs is None:
        model.refuse_given(
            {"jobs", "scheduler"}, "needs several stores, a folder of them or a suite"
        )
        return None
    model.refuse_given(*_OF_ONE)
    model.refuse_given({"pair", "coarse", "metric"}, "is of one program: name one store")
    if scheduler:
        model.refuse_given({"jobs"}, "does not go with --scheduler")
    given = _given(*suite_file.PROGRAM_OPTIONS, *_ANSWERS)
    return SuiteRequest(context.info_name or "", paths, programs, given, jobs, scheduler)


def _given(*names: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the options that the user gave, by parameter, as words."""
    words = {name: tuple("=".join(each) for each in shared.given_options({name})) for name in names}
    given = {name: own for name, own in words.items() if own}
    if {"gpu", "gpu_file"} <= set(given):
        raise click.UsageError(model.ONE_GPU)
    return tuple(given.items())


def scenarios_of(
    paths: Sequence[Path],
    options: Mapping[str, Any],
    check: Callable[[int], None] = lambda _: None,
    **fixed: Any,
) -> list[tuple[str, Scenario]]:
    """Return the programs that the current command is to answer about together, by name."""
    # `check` is told how many there are before any is read; `fixed` are options of all of them.
    command = click.get_current_context().command
    programs = suite_file.programs_of(command, paths)
    check(1 if programs is None else len(programs))
    if programs is None:
        return [(paths[0].stem, model.timed_scenario_of(paths[0], {**options, **fixed}))]
    model.refuse_given(*_OF_ONE)
    given, found = _given(*model.OF_SCENARIO), []
    for program in programs:
        if any(name == "sms" for name, _ in program.options):
            raise click.UsageError(f"{program.name}: sms is of all programs here: give --sms")
        with command.make_context(command.name, program.words(given)) as own:
            params = {**own.params, **fixed}
        if program.traces:
            _extract_if_needed(program)
        found.append((program.name, model.timed_scenario_of(Path(program.store), params)))
    return found


def policies_step(request: SuiteRequest) -> Step:
    """Return the command that compares policies on the same programs."""
    options = [word for _, words in request.given for word in words]
    words = ["depgraph", "bound", *map(str, request.paths), *options, "--mechanism=all"]
    return Step("compare what synchronisation mechanisms reach:", shlex.join(words))


def run_suite(request: SuiteRequest, outputs: Sequence[str] = ()) -> Done:
    """Work all programs out, side by side."""
    from depgraph.analysis.suite import Broken, Suite, is_simulator_compiled
    from depgraph.cli.progress import step_progress
    from depgraph.system.cluster import cluster_workers
    from depgraph.system.processes import Lost, Processes
    from depgraph.system.workers import available_jobs

    jobs = request.jobs or _jobs_for(request.verb, request.programs)
    tasks = [
        Task(request.verb, program, request.given, str(Path.cwd()), outputs[i] if outputs else "")
        for i, program in enumerate(request.programs)
    ]
    if request.scheduler:
        tasks = [_anywhere(task) for task in tasks]
    else:
        tasks = [
            task._replace(jobs=max(1, available_jobs() // min(jobs, len(tasks)))) for task in tasks
        ]
    answers: dict[int, TaskResult] = {}
    with (
        cluster_workers(request.scheduler)
        if request.scheduler
        else nullcontext(Processes(jobs)) as pool,
        step_progress(quiet=shared.is_quiet()) as steps,
    ):
        steps.begin("programs", len(tasks))
        alone = 0 if request.scheduler or is_simulator_compiled() else 1
        first = [task._replace(announces=not shared.is_quiet(), jobs=0) for task in tasks[:alone]]
        for offset, part in ((0, first), (alone, tasks[alone:])):
            for i, found in pool.attempt(run_task, part):
                if isinstance(found, Lost):
                    program = part[i].program
                    broken = Broken(program.name, program.store, found.reason)
                    found = TaskResult((broken,))  # noqa: PLW2901
                if found.usage:
                    raise click.UsageError(f"{part[i].program.name}: {found.usage}")
                answers[offset + i] = found
                steps.done()
    ordered = [(task.program.name, answers[i]) for i, task in enumerate(tasks)]
    for name, answer in ordered:
        for line in answer.messages:
            shared.say(f"{name}: {line}")
    return Done(
        Suite([result for _, answer in ordered for result in answer.results]),
        tuple(f"{name}: {line}" for name, answer in ordered for line in answer.missed),
    )


def run_task(task: Task) -> TaskResult:
    """Work one program out: a fault of it is a result."""
    from depgraph.analysis.suite import Broken
    from depgraph.cli.progress import announce_first_run
    from depgraph.system.workers import limit_jobs

    if task.folder:
        os.chdir(task.folder)
    if task.jobs:
        limit_jobs(task.jobs)
    announce_first_run(quiet=not task.announces)
    module = importlib.import_module(f"depgraph.cli.commands.{task.verb}")
    messages: list[str] = []
    try:
        words = task.program.words(task.given)
        with module.command.make_context(task.verb, words) as context:
            messages = shared.collected_messages()
            if task.program.traces:
                _extract_if_needed(task.program)
            results, missed = module.suite_results(task, context.params)
        return TaskResult(tuple(results), tuple(messages), tuple(missed))
    except click.UsageError as error:
        return TaskResult(usage=error.format_message())
    except Exception as error:  # noqa: BLE001 - the other programs go on
        from depgraph.cli.app import in_one_line

        reason = one_line(in_one_line(error))
        return TaskResult((Broken(task.program.name, task.program.store, reason),), tuple(messages))


def _anywhere(task: Task) -> Task:
    """Return a task whose paths hold on another machine, too."""
    context = click.get_current_context()
    options = {p.name: p for p in context.command.params}

    def absolute(name: str, words: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
        split = [word.partition("=") for word in words]
        return name, tuple(
            f"{option}={Path(value).absolute()}"
            if suite_file.is_path(options[name], value)
            else word
            for word, (option, _, value) in zip(words, split, strict=True)
        )

    program = task.program
    return task._replace(
        folder="",
        given=tuple(absolute(*each) for each in task.given),
        output=task.output and str(Path(task.output).absolute()),
        program=program._replace(
            store=str(Path(program.store).absolute()),
            traces=tuple(str(Path(trace).absolute()) for trace in program.traces),
            options=tuple(absolute(*each) for each in program.options),
        ),
    )


def _extract_if_needed(program: suite_file.Program) -> None:
    """Make the store of a program from its traces, unless an earlier run has."""
    from depgraph.errors import SuiteError
    from depgraph.extraction.pipeline import extract
    from depgraph.parsers import open_trace
    from depgraph.parsers.workload import is_workload, read_workload
    from depgraph.store.store import Store, write_store

    path = Path(program.store)
    if os.path.lexists(path):
        _refuse_others(Store(path), program.traces)
        return
    if any(map(is_workload, program.traces)):
        if len(program.traces) > 1:
            raise SuiteError(program.traces[0], "a described program is one file")
        write_store(read_workload(program.traces[0]), path)
    else:
        extract(open_trace(program.traces), path)


def _refuse_others(store: Store, traces: Sequence[str]) -> None:
    """Refuse a store that was made from other files than the suite names."""
    from depgraph.errors import StoreError
    from depgraph.extraction.pipeline import describe_source

    sources = store.metadata.get("sources", [])
    files = [Path(trace) for trace in traces if Path(trace).is_file()]
    if len(files) != len(sources):
        return  # a list of kernel files, or a folder
    known = {source.get("sha256") for source in sources}
    for file in files:
        if describe_source(file)["sha256"] not in known:
            hint = "remove it to have it made again, or name another store"
            raise StoreError(store.path, f"was not made from {file}", hint)


def _jobs_for(verb: str, programs: Sequence[suite_file.Program]) -> int:
    """Return how many programs may run at a time: one per processor, as far as there is memory."""
    from depgraph.system.workers import available_jobs, default_limit

    largest = max(_blocks_in(program) for program in programs)
    blocks = min(largest, _MOST_BLOCKS_THAT_COUNT)
    needed = _BYTES_OF_A_PROCESS + _BYTES_OF_A_BLOCK[verb] * blocks
    return max(1, min(available_jobs(), default_limit() // needed))


def _blocks_in(program: suite_file.Program) -> int:
    """Return the number of thread blocks of a program; 0 where it is not known yet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return int(pq.read_metadata(Path(program.store) / "blocks.parquet").num_rows)
    except (OSError, ValueError, pa.ArrowException):
        return 0
