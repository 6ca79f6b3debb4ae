"""What an interrupt does: it removes what is half-made, says so in one line, ends the process.

An exception raised from a signal handler can come up anywhere: while a module is imported, in a
callback from compiled code that cannot pass it on, or between the making of a folder and the
``try`` that would remove it. So none is raised. What has to be removed is on a list before it is
made, and the handler works through the list and leaves.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

EXIT_INTERRUPTED = 130

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MESSAGE = b"depgraph: interrupted\n"
_CLEAR_LINE_AND_SHOW_CURSOR = b"\r\x1b[K\x1b[?25h"
_ATTEMPTS = 20
_BETWEEN_ATTEMPTS = 0.01
_CLOSING_SECONDS = 5


class _State:
    owner = 0  # the process that installed the handler; one that was forked from it owns nothing
    held = 0
    is_pending = False
    scratch: dict[Path, None] = {}  # noqa: RUF012 - one process, one list
    closers: list[Callable[[], object]] = []  # noqa: RUF012


_one_change = threading.Lock()


def end_on_signals() -> None:
    """End this process at once, with exit code 130, when it is interrupted or told to end.

    A signal that whoever started the process has set to be ignored (``nohup``, a job in the
    background of a script) stays ignored.
    """
    _State.owner = os.getpid()
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _on_signal)


def _on_signal(number: int, frame: Any) -> None:
    del number, frame
    if _State.held:
        _State.is_pending = True
    else:
        _end()


def _end() -> None:
    with suppress(ValueError):  # in another thread than the main one
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
    if os.getpid() == _State.owner:
        with suppress(OSError):
            is_terminal = os.isatty(2)
            os.write(2, (_CLEAR_LINE_AND_SHOW_CURSOR if is_terminal else b"") + _MESSAGE)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # of what fails now, nobody need hear
        for close in _State.closers:
            _run_for_a_while(close)
        while _State.scratch:
            path = next(iter(_State.scratch))
            aside = path.with_name(f"{path.name}.gone")
            with suppress(OSError):
                path.rename(aside)  # other threads may still be writing into it
            remove_tree(aside)
            remove_tree(path)
            keep(path)
    os._exit(EXIT_INTERRUPTED)


def _run_for_a_while(close: Callable[[], object]) -> None:
    def run() -> None:
        with suppress(Exception):
            close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_CLOSING_SECONDS)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Let an interrupt wait for the end of the body, which must not be left half-done."""
    with _one_change:
        _State.held += 1
    try:
        yield
    finally:
        with _one_change:
            _State.held -= 1
        if _State.is_pending and not _State.held:
            _end()


@contextmanager
def closed_on_interrupt(close: Callable[[], object]) -> Iterator[None]:
    """Call a function, for a few seconds at most, if an interrupt ends the process in the body."""
    _State.closers.append(close)
    try:
        yield
    finally:
        _State.closers.remove(close)


def remove_on_interrupt(path: Path) -> None:
    """Let an interrupt remove a file or folder, until it is told to `keep`."""
    import shutil  # noqa: F401 - imported now, as an import within a handler may fail

    _State.scratch[path] = None


def keep(path: Path) -> None:
    """Let an interrupt no longer remove what is gone, or has been put in place."""
    _State.scratch.pop(path, None)


def remove_tree(path: Path) -> None:
    """Remove a file or folder that other threads or workers may still be writing into."""
    import shutil

    for attempt in range(_ATTEMPTS):
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError:
            if not os.path.lexists(path):
                return
            if attempt:
                time.sleep(_BETWEEN_ATTEMPTS)
        else:
            return
