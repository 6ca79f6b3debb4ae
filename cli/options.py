"""Options that commands share, and the messages that go with them."""

from __future__ import annotations

import logging
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from depgraph.cli.first_run import announce_first_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from depgraph.reports.tables import Report

Function = TypeVar("Function", bound="Callable[..., Any]")

DEFAULT_STORE = "depgraph.out"
STORE_VARIABLE = "DEPGRAPH_STORE"


class Command(click.Command):
    """A command with the options that all commands have: -q, -v, --debug."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Stated here as well as by the group: click keeps what a command first found.
        kwargs.setdefault("context_settings", {"help_option_names": ["-h", "--help"]})
        super().__init__(*args, **kwargs)
        self.params += [
            click.Option(["-q", "--quiet"], is_flag=True, expose_value=False,
                         callback=_set_quiet, help="Say nothing on stderr but errors."),
            click.Option(["-v", "--verbose"], is_flag=True, expose_value=False,
                         callback=_set_verbose, help="Say on stderr how long each phase takes."),
            click.Option(["--debug"], is_flag=True, expose_value=False,
                         help="Show the traceback of an error."),
        ]  # fmt: skip

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, now that the options have said whether it may speak."""
        announce_first_run(quiet=is_quiet())
        return super().invoke(ctx)


def _set_quiet(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    ctx.meta["quiet"] = value


def _set_verbose(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    ctx.meta["verbose"] = value
    if value:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("depgraph: %(message)s"))
        logger = logging.getLogger("depgraph")
        logger.handlers = [handler]
        logger.setLevel(logging.INFO)


def is_quiet() -> bool:
    """Tell whether the user asked for silence."""
    return bool(click.get_current_context().meta.get("quiet"))


def say(message: str) -> None:
    """Tell the user something on stderr."""
    if not is_quiet():
        click.echo(message, err=True)


def store_argument(function: Function) -> Function:
    """Add the optional argument STORE."""
    return click.argument(
        "store", required=False, type=click.Path(path_type=Path), callback=_default_store
    )(function)


def _default_store(_: click.Context, __: click.Parameter, value: Path | None) -> Path:
    return value or Path(os.environ.get(STORE_VARIABLE) or DEFAULT_STORE)


def format_option(function: Function) -> Function:
    """Add --format."""
    return click.option(
        "--format", "form", type=click.Choice(["table", "json", "csv", "markdown"]),
        default="table", show_default=True, help="How to write the result.",
    )(function)  # fmt: skip


def force_option(function: Function) -> Function:
    """Add --force."""
    return click.option("--force", is_flag=True, help="Replace an existing output.")(function)


def deps_option(function: Function) -> Function:
    """Add --deps."""
    return click.option(
        "--deps", "kinds", callback=_parse_kinds, metavar="KINDS",
        help="Dependences that count: some of raw,war,waw [default: all].",
    )(function)  # fmt: skip


def _parse_kinds(_: click.Context, __: click.Parameter, value: str | None) -> frozenset[str] | None:
    if value is None:
        return None
    kinds = frozenset(part.strip().upper() for part in value.split(","))
    if not kinds <= {"RAW", "WAR", "WAW"}:
        message = f"{value!r} is not a list of raw, war, waw"
        raise click.BadParameter(message)
    return kinds


class SmCounts(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """SM counts: ``80``, ``8,16,80``, ``8:132``, ``8:132:4``, ``inf``."""

    name = "N[,N...]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        """Return the counts in the order given."""
        if not isinstance(value, str):
            return tuple(value)
        counts: list[float] = []
        for part in value.split(","):
            try:
                counts += self._one(part.strip().lower())
            except ValueError:
                self.fail(
                    f"{part!r} is no number of SMs: give N, FIRST:LAST[:STEP] or inf", param, ctx
                )
        return tuple(counts)

    @staticmethod
    def _one(part: str) -> list[float]:
        if part in {"inf", "unlimited"}:
            return [math.inf]
        bounds = [int(number) for number in part.split(":")]
        if len(bounds) > len(("first", "last", "step")) or min(bounds) < 1:
            raise ValueError(part)
        if len(bounds) == 1:
            return [float(bounds[0])]
        first, last, step = (*bounds, 1)[:3]
        if last < first:
            raise ValueError(part)
        return [float(n) for n in range(first, last + 1, step)]


class KernelRange(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """Kernels in launch order: ``A:B``, ``A:``, ``:B``, or one number."""

    name = "A:B"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int | None, int | None]:
        """Return the first kernel and the last one plus one."""
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        first, colon, last = value.partition(":")
        try:
            low = int(first) if first.strip() else None
            high = (int(last) if last.strip() else None) if colon else (low or 0) + 1
        except ValueError:
            self.fail(f"{value!r} is no range of kernels: give A:B", param, ctx)
        if (low is not None and low < 0) or (high is not None and high <= (low or 0)):
            self.fail(f"{value!r} names no kernel: give A:B with A below B", param, ctx)
        return low, high


def print_report(report: Report, form: str) -> None:
    """Write a report to standard output."""
    from depgraph.reports.tables import render

    color = form == "table" and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    click.echo(render(report, form, color=color), nl=False)


def wrote(path: Path) -> None:
    """Tell where a result is and how large."""
    from depgraph.output import folder_bytes
    from depgraph.reports.tables import show_bytes

    size = folder_bytes(path) if path.is_dir() else path.stat().st_size
    say(f"Wrote {path} ({show_bytes(size)})")
