"""The command line: arguments, files and messages, one module per command."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from depgraph.system.interrupts import end_on_signals

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the program and exit: 0 done, 1 failed, 2 wrong usage, 3 threshold, 130 interrupted."""
    end_on_signals()  # before the imports, which take most of the time of a short run
    from depgraph.cli.app import main as run

    run(arguments)
