"""``depgraph export``: what a store holds, for other tools."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from depgraph.cli.options import model, shared, values

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from depgraph.scenario.scenario import Scenario
    from depgraph.schedule.policy import Schedule
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
_TABLES = ("kernels", "blocks", "pairs")  # written as the store has them
_GRAPHS = ("edges", "graph")
_FORMS = {"": "", ".gz": "perfetto", ".et": "chakra"}
_BINARY = ("parquet", "perfetto", "chakra")
_FOLDER = "accel-sim"


class _Form(_Choice):
    """A form of depgraph's own, or one that an installed package brings."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from depgraph.system.plugins import EXPORTS, installed

        if value not in self.choices and value in installed(EXPORTS):
            return value
        return super().convert(value, param, ctx)


@click.command("export", cls=shared.Command)
@shared.store_argument
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
    "-o", "--output", type=values.PATH, required=True,
    help="File to write; - for standard output, with --to. With --to accel-sim a folder.",
)  # fmt: skip
@click.option("--sms", type=values.SMS, help="SM count, for a schedule [default: the GPU's].")
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
    "--traces", type=values.PATH, metavar="FOLDER",
    help="With --to accel-sim: where the traces lie [default: where the store was made from].",
)  # fmt: skip
@click.option(
    "--as-is", is_flag=True,
    help="With --to accel-sim: mend nothing in traces; a script copies them with their streams.",
)  # fmt: skip
@model.mechanism_options
@model.model_options
@shared.force_option
def command(store: Path, what: str, form: str | None, output: Path, **options: Any) -> None:
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
    from depgraph.reports.export.accel_sim import not_for_accel_sim
    from depgraph.system.output import refuse_existing, work_folder

    _refuse_unused(what, options)
    form = _form_of(what, form, output)
    _refuse_of_traces(form, as_is=options["as_is"])
    if str(output) == "-":
        with work_folder(Path(tempfile.gettempdir()), "export") as folder:
            _write(store, what, folder / "export", form, {**options, "force": False})
            with (folder / "export").open("rb") as file:
                shutil.copyfileobj(file, sys.stdout.buffer)
        return
    not_ours = not_for_accel_sim if form == _FOLDER else None
    refuse_existing(output, force=options["force"], not_ours=not_ours)
    _write(store, what, output, form, options)
    shared.wrote(output)


def _write(path: Path, what: str, file: Path, form: str, options: Mapping[str, Any]) -> None:
    """Write what is asked for; what the store has as it is wants no scenario."""
    from depgraph.reports.export import tables
    from depgraph.store.store import Store

    store, force = Store(path), options["force"]
    if what in _TABLES:
        tables.write_table(store.table(what), file, form, force=force)
        return
    if what == "cuda-graph":
        from depgraph.apply.stream_code import stream_code
        from depgraph.reports.export.launches import write_launches

        write_launches(stream_code(store), file, form, force=force)
        return
    scenario = model.scenario_of(store, options)
    if what == "edges":
        tables.write_edges(scenario.graph, file, form, force=force)
    elif what == _OTHERS:
        from depgraph.system.output import new_file
        from depgraph.system.plugins import EXPORTS, installed, loaded

        write = loaded(installed(EXPORTS)[form])
        with new_file(file, force=force) as temporary:
            write(scenario, temporary)
    elif what == "profile":
        _write_profile(scenario, options["timing"], file, force=force)
    elif what == "graph":
        tables.write_kernel_graph(scenario, file, form, force=force)
    else:
        _write_schedule(store, model.on_size(scenario, options["sms"]), file, form, options)


def _write_schedule(
    store: Store, scenario: Scenario, file: Path, form: str, options: Mapping[str, Any]
) -> None:
    from depgraph.reports.export import tables

    names, force = options["mechanisms"], options["force"]
    if not names and options["schedule_name"] != "serial":
        names = (f"dataflow({options['priority']})",)
    plan = _schedule(scenario, names, options["costs"])
    if form == _FOLDER:
        _write_folder(plan, scenario, store, file, options)
    elif form == "perfetto":
        from depgraph.analysis.study import timeline_of
        from depgraph.reports.export.perfetto import write_perfetto
        from depgraph.system.output import new_file

        with new_file(file, force=force) as temporary:
            write_perfetto(timeline_of(scenario, plan), temporary)
    elif form == "chakra":
        from depgraph.reports.export.chakra import write_chakra

        alone = _schedule(scenario, (), ())
        unit = write_chakra(plan, alone, scenario, store.copies, file, force=force)
        if unit != "us":
            shared.say(
                f"durations are {unit}, which readers take for microseconds: --timing gives times"
            )
    else:
        tables.write_schedule(plan, scenario.graph, scenario.unit, file, form, force=force)


def _form_of(what: str, form: str | None, output: Path) -> str:
    """Return the form that is asked for, by the name of the file if it is not said."""
    if what == "profile" and output.suffix in {"", ".json", ".gz"}:
        form = form or "kineto"  # .json or .json.gz, as the profiler itself
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
        model.refuse_given({"traces", "as_is"}, f"needs --to {_FOLDER}")
    elif as_is:
        model.refuse_given({"traces"}, "does not go with --as-is")


def _forms(what: str) -> Collection[str]:
    if what != _OTHERS:
        return TARGETS[what]
    from depgraph.system.plugins import EXPORTS, installed

    return installed(EXPORTS)


def _write_folder(
    plan: Schedule, scenario: Scenario, store: Store, folder: Path, options: Mapping[str, Any]
) -> None:
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
        plan, scenario, store.copies, folder, force=options["force"],
        mend=_mender(store, options["traces"], mended)
        if has_traces and not options["as_is"] else None,
    )  # fmt: skip
    if not has_traces:
        shared.say(
            f"the store is of no Accel-Sim traces: the names in {accel_sim.LIST} are made up, "
            "no such files exist"
        )
    if mended:
        listed = ", ".join(f"{what} {times}" for what, times in sorted(mended.items()))
        shared.say(f"mended in copies of the traces: {listed}; {accel_sim.MENDED} says where")
    if across:
        shared.say(
            f"{counted(across, 'dependence')} between kernels of different streams: "
            f"Accel-Sim knows them only if it reads {accel_sim.DEPENDENCES}"
        )
    shared.say(
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
    from depgraph.parsers.scanning.inputs import TraceStream
    from depgraph.reports.export.kineto import write_annotated

    opened = None if timing is None else partial(TraceStream, timing)
    left_out = write_annotated(scenario, opened, file, force=force)
    if left_out:
        shared.say(left_out)


def _refuse_unused(what: str, options: Mapping[str, Any]) -> None:
    """Refuse options that would not change what is written."""
    if what != "schedule":
        if what != _OTHERS:
            used = ("what_ifs", "kinds") if what in (*_GRAPHS, "profile") else ()
            model.refuse_others(
                f"--what {what}", *used, *model.OF_PROFILE * (what in {"graph", "profile"})
            )
        names = {"sms", "schedule_name", "priority", "mechanisms", "costs"}
        model.refuse_given(names, f"does not go with --what {what}")
    elif options["mechanisms"]:
        model.refuse_given({"schedule_name", "priority"}, "does not go with --mechanism")
    else:
        model.refuse_given({"costs"}, "needs --mechanism")
        if options["schedule_name"] == "serial":
            model.refuse_given({"priority"}, "needs a dataflow schedule")


def _schedule(scenario: Scenario, names: tuple[str, ...], costs: tuple[str, ...]) -> Schedule:
    """Return the schedule of a mechanism; without one, of serialized launches."""
    from depgraph.analysis.compare_mechanisms import schedule_of
    from depgraph.mechanisms import find_mechanisms

    found = find_mechanisms(names)
    if names and len(found) != 1:
        raise click.UsageError("a schedule needs one mechanism: name one, with its parameters")
    return schedule_of(scenario, found[0] if names else None, model.parse_costs(costs))
