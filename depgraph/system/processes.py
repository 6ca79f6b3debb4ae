"""Work side by side in processes, one for each item: what one of them does harms no other."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, TypeVar

from depgraph.system.interrupts import closed_on_interrupt

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Lost:
    """What came of an item whose process did not return."""

    reason: str


class Processes:
    """Processes of this machine, `jobs` at a time."""

    remote = False

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        # A process that is forked from a small server with all modules loaded starts at once, and
        # is forked from no thread, unlike one that is forked from this process.
        methods = multiprocessing.get_all_start_methods()
        self._context = multiprocessing.get_context(
            "forkserver" if "forkserver" in methods else "spawn"
        )
        self._running: dict[Connection, tuple[int, BaseProcess]] = {}

    def attempt(
        self, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> Generator[tuple[int, Result | Lost]]:
        """Yield the number of each item and its result; all must pass between processes."""
        if hasattr(self._context, "set_forkserver_preload"):
            self._context.set_forkserver_preload([function.__module__])
        waiting = deque(enumerate(items))
        with closed_on_interrupt(self._end):
            try:
                while waiting or self._running:
                    while waiting and len(self._running) < self.jobs:
                        self._start(function, *waiting.popleft())
                    for receiver in wait(list(self._running)):
                        if isinstance(receiver, Connection):
                            yield self._received(receiver)
            finally:
                self._end()

    def _start(self, function: Callable[[Item], Result], index: int, item: Item) -> None:
        receiver, sender = self._context.Pipe(duplex=False)
        process: BaseProcess = self._context.Process(  # type: ignore[attr-defined]
            target=_run, args=(function, item, sender)
        )
        process.start()
        sender.close()
        self._running[receiver] = index, process

    def _received(self, receiver: Connection) -> tuple[int, Any]:
        index, process = self._running[receiver]
        try:
            result = receiver.recv()
        except (EOFError, OSError):
            result = None
        process.join()
        receiver.close()
        del self._running[receiver]
        return index, Lost(_ending(process.exitcode)) if result is None else result[0]

    def _end(self) -> None:
        for _, process in list(self._running.values()):
            process.kill()
        self._running.clear()


def _run(function: Callable[[Any], Any], item: Any, sender: Connection) -> None:
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal sends them to all its processes
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sender.send((function(item),))
    sender.close()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return f"its process was ended by {name}" + (
            ": it may have taken more memory than there is" if name == "SIGKILL" else ""
        )
    return f"its process ended with exit code {code}"
