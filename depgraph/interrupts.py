"""Interrupts that wait: for the few steps that must not be left half-done."""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Let SIGINT and SIGTERM take effect only once the body is done.

    Other threads than the main one are never interrupted, and nothing is done there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        arrived.append(number)

    with ExitStack() as restored:
        restored.callback(_raise_signals, arrived)
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if handler not in (None, signal.SIG_IGN):
                restored.callback(signal.signal, number, handler)
                signal.signal(number, note)
        yield


def _raise_signals(numbers: list[int]) -> None:
    for number in numbers:
        signal.raise_signal(number)
