"""Where the captured graphs of a recorded program are, beside its store."""

import os
from pathlib import Path

from depgraph.apply.captured import read_captures
from depgraph.store.companions import captures_of

APPLY_STORE = "DEPGRAPH_APPLY_STORE"
APPLY_REPORT = "DEPGRAPH_APPLY_REPORT"
APPLY_MEMORY = "DEPGRAPH_APPLY_MEMORY"
RECORD_CALL = "DEPGRAPH_RECORD_CALL"
_FOLDER = "DEPGRAPH_RECORD_FOLDER"  # set by `depgraph record` for the programs that it runs
_PATCH = "DEPGRAPH_RECORD_PATCH"  # set in the run in which kernels are patched
_NAME = "captures-{}.json"


def store_of_call(named: str | Path, call: int, used: set[Path]) -> Path:
    """Return the store of a call: NAME, or NAME-CALL beside it if an earlier call uses that."""
    store = Path(named).absolute()
    captures = captures_of(store)
    is_of_earlier_calls = store in used and captures.is_file()
    if is_of_earlier_calls and all(each.call != call for each in read_captures(captures)):
        store = store.with_name(f"{store.name}-{call}")
    used.add(store)
    return store


def captures_left(folder: Path, process: int) -> Path:
    """Return where a recorded process leaves the graphs that it captures."""
    return folder / _NAME.format(process)


def recording_folder() -> Path | None:
    """Return the folder of the recording that this process is a part of, None if there is none."""
    found = os.environ.get(_FOLDER)
    return Path(found) if found else None


def is_patched() -> bool:
    """Tell whether the kernels of this process are patched."""
    return bool(os.environ.get(_PATCH))
