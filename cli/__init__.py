"""The command line: arguments, files and messages, one module per command."""

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from depgraph.system.interrupts import end_on_signals

__all__ = ["main"]

# Modules make many objects that stay; looking through them again and again takes as long as a
# sixth of the start.
_OBJECTS_BETWEEN_COLLECTIONS = 2_000_000


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the program and exit: 0 done, 1 failed, 2 wrong usage, 3 threshold, 130 interrupted."""
    end_on_signals()  # before the imports, which take most of the time of a short run
    if arguments is None:  # the process is ours alone
        gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    from depgraph.cli.app import main as run

    try:
        run(arguments)
    except SystemExit as end:
        if arguments is None and type(end.code) is int:
            _end_at_once(end.code)
        raise


def _end_at_once(code: int) -> None:
    """End without taking apart what the process gives back anyway: a sixth of a short run."""
    atexit._run_exitfuncs()  # noqa: SLF001  nothing else is said to run them
    with suppress(OSError, ValueError):  # a reader that has gone: the usual end tells of it
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
