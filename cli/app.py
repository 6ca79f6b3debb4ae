"""The program itself: finds the command, runs it, turns failures into one line and an exit code."""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from depgraph.errors import DepgraphError
from depgraph.system.text import did_you_mean, in_short, one_line

EXIT_FAILED = 1

# Command -> what it does. Modules are imported when their command is run: help stays fast.
COMMANDS = {
    "record": "Run a program on this machine's GPU, record what it touches, write a store.",
    "apply": "Run a program as CUDA graphs that have only its real edges, and check them.",
    "extract": "Read a trace, find which block depends on which, write a store.",
    "bound": "Bound the speedup over serialized launches on a GPU, and compare mechanisms.",
    "report": "Write plots, an HTML page, a timeline and a summary for one GPU size.",
    "compare": "Say what changed between two stores: kernels, dependences, bound, utilization.",
    "show": "Look inside a store: kernels, pairs, the critical path, buffers, a block.",
    "export": "Write edges, kernels, blocks, pairs, graph or schedule for other tools.",
    "reproduce": "Compute what papers published, from packaged programs, and show both.",
    "mechanisms": "List the synchronisation mechanisms that bound and export know.",
    "sweep-hints": "Say what a kilobyte of filter over software hints buys, and which hints are "
    "worth it.",
    "timing": "Show which measured kernel of FILE is which kernel of STORE.",
    "overlap": "Say how much communication ran beside computation, and what that gained.",
    "gpus": "List the GPU models that --gpu takes.",
    "calibrate": "Measure this machine's GPU and fit the constants of predictions to it.",
    "check": "Read a trace, say what is in it and what is wrong with it, write nothing.",
    "demo": "Run the main job on a packaged real trace.",
}


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order that a user meets them."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"depgraph.cli.commands.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the first word names, or say which one it may have meant."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            known = ", ".join(COMMANDS)
            hint = did_you_mean(name, COMMANDS) or f"; there are {known}"
            ctx.fail(f"no such command {in_short(name)!r}{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        from depgraph.system.output import tool_version

        click.echo(f"depgraph {tool_version()}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
    help="Print the version and exit.",
)  # fmt: skip
def depgraph() -> None:
    """Find which thread blocks of a GPU program depend on which, and what overlap could save.

    \b
      depgraph extract trace.log      trace -> ./depgraph.out
      depgraph bound --sms 80         upper bound on the speedup on an 80-SM GPU
      depgraph report --sms 80        plots, an HTML page, a timeline for Perfetto
      depgraph demo                   both, on a packaged real trace
    """  # noqa: D301 - click takes the character, not two of them


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the program and exit: 0 done, 1 failed, 2 wrong usage, 3 threshold."""
    words = (sys.argv[1:] if arguments is None else list(arguments)) or ["--help"]
    debug = "--debug" in words
    try:
        code = depgraph.main(args=words, prog_name="depgraph", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.message = one_line(error.message)  # type: ignore[misc, unused-ignore]
        error.show()
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of our output has gone: say nothing more, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)
    except Exception as error:
        if debug:
            raise
        click.echo(one_line(f"depgraph: error: {in_one_line(error)}"), err=True)
        sys.exit(error.exit_code if isinstance(error, DepgraphError) else EXIT_FAILED)
    sys.exit(code if isinstance(code, int) else 0)


def in_one_line(error: Exception) -> str:
    """Return what a user is told of an error."""
    if isinstance(error, DepgraphError):
        return str(error)
    if isinstance(error, MemoryError):
        return "out of memory; pick fewer kernels with --kernels A:B, or a larger machine"
    if isinstance(error, OSError):
        return (f"{error.filename}: " if error.filename else "") + str(error.strerror or error)
    return f"{type(error).__name__}: {error}; this is a bug in depgraph (see --debug)"
