"""Processes that test side by side compile each function once: one does, the others load that."""

from __future__ import annotations

import fcntl
from typing import Any

from depgraph.system.compiled import CompiledFunction


def compile_in_turn() -> None:
    """From now on let no process compile a function while another does, but load what that makes.

    What a function calls is compiled with it, so that no two processes wait for each other.
    """
    compile_now = CompiledFunction._compile

    def compile_when_free(self: CompiledFunction, types: Any, arguments: tuple[Any, ...]) -> Any:
        kept = self._kept
        if kept is None:
            return compile_now(self, types, arguments)
        with (kept.folder / f"{self._kept_as}.lock").open("w") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                fcntl.flock(held, fcntl.LOCK_EX)
                if made := kept.load(types):
                    return made
            return compile_now(self, types, arguments)

    CompiledFunction._compile = compile_when_free  # type: ignore[method-assign]
