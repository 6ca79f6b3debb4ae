"""Processes that run tests side by side compile each function once: one does, the others wait."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any


def compile_in_turn() -> None:
    """From now on let no process compile a function while another does, but load what that makes.

    No two functions call each other, so that no two processes wait for each other.
    """
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.dispatcher import Dispatcher

    compile_now = Dispatcher.compile

    def compile_when_free(self: Any, signature: Any) -> Any:
        kept = getattr(self._cache, "_cache_file", None)
        if kept is None:
            return compile_now(self, signature)
        lock = Path(f"{kept._index_path}.lock")
        lock.parent.mkdir(parents=True, exist_ok=True)
        # In this order: another thread of this process may be compiling, and need the file's.
        with global_compiler_lock, lock.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            return compile_now(self, signature)

    Dispatcher.compile = compile_when_free
