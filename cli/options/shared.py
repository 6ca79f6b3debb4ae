"""Options that commands share, and the messages that go with them."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from depgraph.cli.options.values import JOBS, PATH, ROWS, import_numpy
from depgraph.cli.progress import announce_first_run

if TYPE_CHECKING:
    from depgraph.reports.tables.table import Report

Function = TypeVar("Function", bound="Callable[..., Any]")

FORMATS = ("table", "json", "csv", "markdown")
DEFAULT_STORE = "depgraph.out"
STORE_VARIABLE = "DEPGRAPH_STORE"
PIPED_WIDTH = 80
NARROWEST = 40
_GIVEN = "given"
_MESSAGES = "messages"


class Command(click.Command):
    """A command with the options that all commands have: -q, -v, --debug."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Stated here as well as by the group: click keeps what a command first found.
        kwargs.setdefault("context_settings", {"help_option_names": ["-h", "--help"]})
        super().__init__(*args, **kwargs)
        self.params += [
            click.Option(["-q", "--quiet"], is_flag=True, expose_value=False,
                         callback=note, help="Print only errors on stderr."),
            click.Option(["-v", "--verbose"], is_flag=True, expose_value=False,
                         callback=note, help="Print on stderr how long each phase takes."),
            click.Option(["--debug"], is_flag=True, expose_value=False,
                         help="Show the traceback of an error."),
        ]  # fmt: skip

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words of the options as they were given, and read them."""
        ctx.meta[_GIVEN] = self.make_parser(ctx).parse_args(list(args))[0]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, now that the options have said whether it may speak."""
        announce_first_run(quiet=is_quiet())
        if ctx.meta["verbose"]:
            _log_to_stderr()
        import_numpy()
        return super().invoke(ctx)


def note(ctx: click.Context, parameter: click.Parameter, value: object) -> None:
    """Keep for `chosen_form`, `wants_details` and `is_quiet` what an option says."""
    ctx.meta[parameter.name or ""] = value


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("depgraph: %(message)s"))
    logger = logging.getLogger("depgraph")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)


def given_options(names: Collection[str]) -> tuple[tuple[str, ...], ...]:
    """Return the options of the current command that the user gave, each with its value if any."""
    context = click.get_current_context()
    given = context.meta[_GIVEN]
    options: list[tuple[str, ...]] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in names or name not in given or not isinstance(parameter, click.Option):
            continue
        values = given[name] if parameter.multiple else [given[name]]
        name = parameter.opts[0]
        options += [(name,) if parameter.is_flag else (name, value) for value in values]
    return tuple(options)


def is_quiet() -> bool:
    """Tell whether the user asked for silence; of a program of a suite, that command speaks."""
    meta = click.get_current_context().meta
    return bool(meta.get("quiet")) or _MESSAGES in meta


def say(message: str) -> None:
    """Tell the user something on stderr; of a program of a suite, that command does."""
    messages: list[str] | None = click.get_current_context().meta.get(_MESSAGES)
    if messages is not None:
        messages.append(message)
    elif not is_quiet():
        click.echo(message, err=True)


def collected_messages() -> list[str]:
    """Return the list that takes what the current command says from now on."""
    messages: list[str] = click.get_current_context().meta.setdefault(_MESSAGES, [])
    return messages


def together(*decorators: Callable[[Any], Any]) -> Callable[[Function], Function]:
    """Return what adds several options, shown in this order."""

    def add(function: Function) -> Function:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return add


def _default_store(_: click.Context, __: click.Parameter, value: Path | None) -> Path:
    return value or Path(os.environ.get(STORE_VARIABLE) or DEFAULT_STORE)


def _default_stores(
    context: click.Context, parameter: click.Parameter, value: tuple[Path, ...]
) -> tuple[Path, ...]:
    return value or (_default_store(context, parameter, None),)


def chosen_form() -> str | None:
    """Return the form that --format names; None where a command has none and was given none."""
    form: str | None = click.get_current_context().meta.get("form")
    return form


def wants_details() -> bool:
    """Tell whether all is to be shown; commands without --details always show all."""
    return bool(click.get_current_context().meta.get("details", True))


def _parse_kinds(_: click.Context, __: click.Parameter, value: str | None) -> frozenset[str] | None:
    if value is None:
        return None
    kinds = frozenset(part.strip().upper() for part in value.split(","))
    if not kinds <= {"RAW", "WAR", "WAW", "REUSE"}:
        raise click.BadParameter(f"{value!r} is not a list of raw, war, waw, reuse")
    return kinds


store_argument = click.argument("store", required=False, type=PATH, callback=_default_store)
stores_argument = click.argument(
    "stores", nargs=-1, type=PATH, metavar="[STORE]...", callback=_default_stores
)
output_option = click.option(
    "-o", "--output", type=PATH, default=DEFAULT_STORE, show_default=True,
    envvar=STORE_VARIABLE, metavar="STORE", help="Folder to write.",
)  # fmt: skip
jobs_option = click.option("-j", "--jobs", type=JOBS, help="Threads [default: all processors].")
outside_option = click.option(
    "--allow-outside", is_flag=True,
    help="Read kernel files that a kernelslist names outside its own folder.",
)  # fmt: skip
empty_option = click.option(
    "--allow-empty", is_flag=True,
    help="Accept a trace without any access to global memory.",
)  # fmt: skip
format_option = click.option(
    "--format", "form", type=click.Choice(FORMATS), default="table", show_default=True,
    expose_value=False, callback=note, help="How to write the result.",
)  # fmt: skip
details_option = click.option(
    "--details", is_flag=True, expose_value=False, callback=note,
    help="Show all tables and assumptions, not only the first screen.",
)  # fmt: skip
top_option = click.option(
    "--top", type=ROWS, default=20, show_default=True, metavar="N",
    help="Rows of each table in Markdown and on a terminal.",
)  # fmt: skip
force_option = click.option("-f", "--force", is_flag=True, help="Replace an existing output.")
deps_option = click.option(
    "--deps", "kinds", callback=_parse_kinds, metavar="KINDS",
    help="Kinds of dependence to count, from raw,war,waw,reuse [default: all].",
)  # fmt: skip

suite_options = together(
    click.option(
        "-j", "--jobs", type=JOBS,
        help="Of several stores: how many at a time [default: all processors, as far as there "
        "is memory].",
    ),
    click.option(
        "--scheduler", metavar="ADDRESS",
        help="Of several stores: work on a dask scheduler (tcp://host:port), or on local:N "
        "processes. Its workers must see the stores under the same paths.",
    ),
)  # fmt: skip


def group_option(default: str | None) -> Callable[[Function], Function]:
    """Add --group-by; without a default, for a command that groups if it is asked to."""
    return click.option(
        "--group-by", type=click.Choice(["name", "op", "module", "line", "range"]), default=default,
        show_default=default is not None,
        help="Add kernels up by function name, or by what a profile with the CPU side says: "
        "operator, module, line of the program, annotation or NVTX range.",
    )  # fmt: skip


def print_report(report: Report, *, details: bool | None = None) -> None:
    """Write a report to standard output, in the form and as detailed as the command was asked."""
    from depgraph.reports.tables.render import render

    form, is_terminal = chosen_form() or "table", sys.stdout.isatty()
    color = form == "table" and is_terminal and not os.environ.get("NO_COLOR")
    width = shutil.get_terminal_size((PIPED_WIDTH, 0)).columns if is_terminal else PIPED_WIDTH
    details = wants_details() if details is None else details
    text = render(report, form, color=color, width=max(width, NARROWEST), details=details)
    click.echo(text, nl=False)


def wrote(path: Path) -> None:
    """Tell where a result is and how large."""
    from depgraph.system.output import folder_bytes
    from depgraph.system.text import show_bytes

    size = folder_bytes(path) if path.is_dir() else path.stat().st_size
    say(f"Wrote {path} ({show_bytes(size)})")
