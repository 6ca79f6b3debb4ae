"""``depgraph export``: what a store holds, for other tools."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from depgraph.cli.options.mechanisms import mechanism_options, parse_costs
from depgraph.cli.options.model import (
    OF_PROFILE,
    model_options,
    on_size,
    refuse_given,
    refuse_others,
    scenario_from,
)
from depgraph.cli.options.shared import (
    Command,
    deps_option,
    force_option,
    say,
    store_argument,
    wrote,
)
from depgraph.cli.options.values import SMS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from depgraph.cli.options.model import ModelOptions
    from depgraph.scenario.scenario import Scenario
    from depgraph.schedule.schedule import Schedule
    from depgraph.store.store import Store

    _Choice = click.Choice[str]
else:
    _Choice = click.Choice  # no generic class in its first versions

# What can be exported, and to which forms.
TARGETS = {
    "edges": ("parquet", "csv", "json"),
    "kernels": ("parquet", "csv", "json"),
    "blocks": ("parquet", "csv", "json"),
    "pairs": ("parquet", "csv", "json"),
    "schedule": ("parquet", "csv", "json", "perfetto", "chakra", "accel-sim"),
    "profile": ("kineto",),
    "graph": ("graphml", "dot", "json"),
    "cuda-graph": ("json", "csv", "txt"),
}
_OTHERS = "scenario"  # for exports that other packages bring
_GRAPHS = ("edges", "graph")
_FORMS = {"": "", ".gz": "perfetto", ".et": "chakra"}
_BINARY = ("parquet", "perfetto", "chakra")
_FOLDER = "accel-sim"


class _Form(_Choice):
    """A form of depgraph's own, or one that an installed package brings."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the form, which may be an entry point."""
        from depgraph.system.plugins import EXPORTS, installed

        if value not in self.choices and value in installed(EXPORTS):
            return value
        return super().convert(value, param, ctx)


@click.command("export", cls=Command)
@store_argument
@click.option(
    "--what", type=click.Choice([*TARGETS, _OTHERS]), required=True, help="What to write."
)
@click.option(
    "--to", "form", help="Form [default: by the name of the file].",
    type=_Form(
        ["parquet", "csv", "json", "graphml", "dot", "perfetto", "chakra", "accel-sim", "kineto",
         "txt"]
    ),
)  # fmt: skip
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True,
    help="File to write; - for standard output, with --to. With --to accel-sim a folder.",
)  # fmt: skip
@click.option("--sms", type=SMS, help="SM count, for a schedule [default: the GPU's].")
@click.option(
    "--schedule", "schedule_name", default="dataflow", show_default=True,
    type=click.Choice(["serial", "dataflow"]), help="Which schedule.",
)  # fmt: skip
@click.option(
    "--priority", default="oldest-first", show_default=True,
    type=click.Choice(["oldest-first", "newest-first", "longest-path-first", "best"]),
    help="Priority of a dataflow schedule.",
)  # fmt: skip
@click.option(
    "--traces", type=click.Path(path_type=Path), metavar="FOLDER",
    help="With --to accel-sim: where the traces lie [default: where the store was made from].",
)  # fmt: skip
@click.option(
    "--as-is", is_flag=True,
    help="With --to accel-sim: mend nothing in traces; a script copies them with their streams.",
)  # fmt: skip
@mechanism_options
@deps_option
@model_options
@force_option
def command(
    store: Path,
    what: str,
    form: str | None,
    output: Path,
    sms: int | None,
    schedule_name: str,
    priority: str,
    traces: Path | None,
    as_is: bool,
    mechanisms: tuple[str, ...],
    costs: tuple[str, ...],
    kinds: frozenset[str] | None,
    force: bool,
    **model: Unpack[ModelOptions],
) -> None:
    """Write edges, kernels, blocks, pairs, graph or schedule for other tools.

    edges: one row per distinct edge and kind, blocks numbered within their kernels, copy or
    memset i as kernel -1-i. graph: one node per kernel. Edges and tables are written as Parquet,
    CSV or JSON (one object per line), the graph as GraphML, DOT or node-link JSON, a schedule also
    for ui.perfetto.dev (gzipped JSON), as a Chakra execution trace (.et: a node per kernel or copy,
    RAW dependences as data_deps, others as ctrl_deps) or, a folder, for Accel-Sim: its
    kernelslist.g in the order of the schedule, dependences.txt, and copies of the traces that it
    can run: with streams of the schedule, and headers, opcodes and EXIT masks mended, each counted
    in mended.txt.

    cuda-graph: which kernel must wait for which, with all dependences, certain and possible, and
    without those that others imply: as JSON or CSV, or as a listing of launches with streams and
    events (txt).

    profile: the PyTorch profiler trace that --timing names, as it is, with the critical path as
    slices and false dependences (WAR and WAW without RAW) as arrows between its kernels;
    ui.perfetto.dev and Holistic Trace Analysis read it.

    scenario: whatever an installed package writes, by the name of its export (--to); see the page
    about extending depgraph.

    Names come from the trace. Parquet keeps them as they are; elsewhere they steer no terminal:
    JSON is ASCII, in other forms control and formatting characters are replaced. In CSV a text that
    a spreadsheet would take for a formula begins with an apostrophe.
    """
    from depgraph.reports.export import accel_sim, tables
    from depgraph.store.store import Store
    from depgraph.system.output import refuse_existing
    from depgraph.system.work_folder import work_folder

    is_piped = str(output) == "-"
    _refuse_unused(what, schedule_name, mechanisms)
    form = _form_of(what, form, output)
    _refuse_of_traces(form, as_is=as_is)

    def write(file: Path, *, force: bool) -> None:
        opened = Store(store)
        if what in _STORED:
            _STORED[what](opened, what, file, form, force=force)
            return
        scenario = scenario_from(opened, kinds, **model)
        graph = scenario.graph
        if what == "edges":
            tables.write_edges(graph, file, form, force=force)
            return
        if what == _OTHERS:
            _write_other(scenario, file, form, force=force)
            return
        if what == "profile":
            _write_profile(scenario, model["timing"], file, force=force)
            return
        if what == "graph":
            tables.write_kernel_graph(scenario, file, form, force=force)
            return
        sized = on_size(scenario, sms)
        is_serial = schedule_name == "serial" and not mechanisms
        names = () if is_serial else mechanisms or (f"dataflow({priority})",)
        plan = _schedule(sized, names, costs)
        if form == _FOLDER:
            _write_folder(plan, sized, opened, file, traces, as_is=as_is, force=force)
        else:
            _write_plan(plan, sized, opened, file, form, force=force)

    if is_piped:
        with work_folder(Path(tempfile.gettempdir()), "export") as folder:
            write(folder / "export", force=False)
            with (folder / "export").open("rb") as file:
                shutil.copyfileobj(file, sys.stdout.buffer)
        return
    not_ours = accel_sim.not_for_accel_sim if form == _FOLDER else None
    refuse_existing(output, force=force, not_ours=not_ours)
    write(output, force=force)
    wrote(output)


def _form_of(what: str, form: str | None, output: Path) -> str:
    """Return the form that is asked for, by the name of the file if it is not said."""
    if what == "profile" and form is None:
        return "kineto"  # .json or .json.gz, as the profiler itself
    form = form or _FORMS.get(output.suffix, output.suffix.lstrip(".").lower())
    is_piped = str(output) == "-"
    message = ""
    if is_piped and not form:
        message = "-o - needs --to: there is no name that tells the form"
    elif form not in _forms(what):
        known = ", ".join(_forms(what)) or "nothing: no installed package has an export"
        message = f"{what} can be written as {known}, not {form!r}"
    elif is_piped and form == _FOLDER:
        message = f"{_FOLDER} is a folder: name one with -o"
    elif is_piped and form in _BINARY and sys.stdout.isatty():
        message = f"{form} is not for a terminal: send it to a file or another program"
    if message:
        raise click.UsageError(message)
    return form


def _refuse_of_traces(form: str, *, as_is: bool) -> None:
    """Refuse options that say what becomes of traces where none are written."""
    if form != _FOLDER:
        refuse_given({"traces", "as_is"}, f"needs --to {_FOLDER}")
    elif as_is:
        refuse_given({"traces"}, "does not go with --as-is")


def _forms(what: str) -> Collection[str]:
    """Return the forms that something can be written in."""
    if what != _OTHERS:
        return TARGETS[what]
    from depgraph.system.plugins import EXPORTS, installed

    return installed(EXPORTS)


def _write_other(scenario: Scenario, file: Path, form: str, *, force: bool) -> None:
    """Let an installed package write a scenario."""
    from depgraph.system.output import new_file
    from depgraph.system.plugins import EXPORTS, installed, loaded

    write = loaded(installed(EXPORTS)[form])
    with new_file(file, force=force) as temporary:
        write(scenario, temporary)


def _write_plan(
    plan: Schedule, scenario: Scenario, store: Store, file: Path, form: str, *, force: bool
) -> None:
    """Write a schedule into one file."""
    from depgraph.reports.export import tables
    from depgraph.reports.export.chakra import write_chakra

    if form == "perfetto":
        _write_timeline(plan, scenario, file, force=force)
    elif form == "chakra":
        alone = _schedule(scenario, (), ())
        write_chakra(plan, alone, scenario, store.copies, file, force=force)
    else:
        tables.write_schedule(plan, scenario.graph, scenario.unit, file, form, force=force)


def _write_folder(
    plan: Schedule, scenario: Scenario, store: Store, folder: Path, traces: Path | None,
    *, as_is: bool, force: bool,
) -> None:  # fmt: skip
    """Write a schedule for Accel-Sim, and say what it needs to know of it."""
    from depgraph.errors import NotApplicableError
    from depgraph.parsers.accelsim.trace import FORMAT
    from depgraph.reports.export import accel_sim
    from depgraph.system.text import counted

    if len(scenario.kernels) < len(store.kernels):
        message = "merged kernels have no trace that Accel-Sim could run: leave out merge="
        raise NotApplicableError(message)
    has_traces = store.metadata.get("format") == FORMAT
    mended: Counter[str] = Counter()
    across = accel_sim.write_accel_sim(
        plan, scenario, store.copies, folder, force=force,
        mend=_mender(store, traces, mended) if has_traces and not as_is else None,
    )  # fmt: skip
    if not has_traces:
        say(
            f"the store is of no Accel-Sim traces: the names in {accel_sim.LIST} are made up, "
            "no such files exist"
        )
    if mended:
        listed = ", ".join(f"{what} {times}" for what, times in sorted(mended.items()))
        say(f"mended in copies of the traces: {listed}; {accel_sim.MENDED} says where")
    if across:
        say(
            f"{counted(across, 'dependence')} between kernels of different streams: "
            f"Accel-Sim knows them only if it reads {accel_sim.DEPENDENCES}"
        )
    say(
        "-gpgpu_concurrent_kernel_sm 1 makes Accel-Sim of before commit 0842752 drop kernels with "
        "exit code 0: compare the kernels of its log with the list, as depgraph timing does"
    )


def _mender(
    store: Store, traces: Path | None, mended: Counter[str]
) -> Callable[[str, Path, int], Counter[str]]:
    """Return what copies the trace of a name, mended, and counts what was."""
    from depgraph.errors import InputError
    from depgraph.parsers.accelsim.mend import mend_trace

    sources = {Path(s["path"]).name: Path(s["path"]) for s in store.metadata["sources"]}

    def mend(name: str, target: Path, stream: int) -> Counter[str]:
        source = sources.get(name, Path(name)) if traces is None else traces / name
        if not source.is_file():
            hint = "name the folder of the traces with --traces, or mend nothing with --as-is"
            raise InputError(source, "no such trace to copy", hint)
        found = mend_trace(source, target, stream)
        mended.update(found)
        return found

    return mend


def _write_profile(scenario: Scenario, timing: Path | None, file: Path, *, force: bool) -> None:
    from depgraph.errors import NotApplicableError
    from depgraph.parsers.scanning.compression import TraceStream
    from depgraph.reports.export.kineto import write_annotated

    if timing is None:
        message = "--what profile needs --timing PROFILE, a trace of PyTorch's profiler"
        raise NotApplicableError(message)
    write_annotated(scenario, lambda: TraceStream(timing), file, force=force)


def _write_table(store: Store, what: str, file: Path, form: str, *, force: bool) -> None:
    from depgraph.reports.export.tables import write_table

    write_table(store.table(what), file, form, force=force)


def _write_launches(store: Store, _: str, file: Path, form: str, *, force: bool) -> None:
    from depgraph.apply.stream_code import stream_code
    from depgraph.reports.export.launches import write_launches

    write_launches(stream_code(store), file, form, force=force)


# What is written as the store has it: options about the program do not count.
_STORED = {
    "kernels": _write_table,
    "blocks": _write_table,
    "pairs": _write_table,
    "cuda-graph": _write_launches,
}


def _write_timeline(plan: Schedule, scenario: Scenario, file: Path, *, force: bool) -> None:
    from depgraph.analysis.timeline import timeline_of
    from depgraph.reports.export.perfetto import write_perfetto
    from depgraph.system.output import new_file

    with new_file(file, force=force) as temporary:
        write_perfetto(timeline_of(scenario, plan), temporary)


def _refuse_unused(what: str, schedule_name: str, mechanisms: tuple[str, ...]) -> None:
    """Refuse options that would not change what is written."""
    if what != "schedule":
        if what != _OTHERS:
            used = ("what_ifs", "kinds") if what in (*_GRAPHS, "profile") else ()
            refuse_others(f"--what {what}", *used, *OF_PROFILE * (what in {"graph", "profile"}))
        names = {"sms", "schedule_name", "priority", "mechanisms", "costs"}
        refuse_given(names, f"does not go with --what {what}")
    elif mechanisms:
        refuse_given({"schedule_name", "priority"}, "does not go with --mechanism")
    else:
        refuse_given({"costs"}, "needs --mechanism")
        if schedule_name == "serial":
            refuse_given({"priority"}, "needs a dataflow schedule")


def _schedule(scenario: Scenario, names: tuple[str, ...], costs: tuple[str, ...]) -> Schedule:
    """Return the schedule of a mechanism; without one, of serialized launches."""
    from depgraph.analysis.compare_mechanisms import schedule_of
    from depgraph.mechanisms import find_mechanisms

    found = find_mechanisms(names)
    if names and len(found) != 1:
        message = "a schedule needs one mechanism: name one, with its parameters"
        raise click.UsageError(message)
    return schedule_of(scenario, found[0] if names else None, parse_costs(costs))
