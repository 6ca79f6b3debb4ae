"""Scanned parts kept on disk, so that an interrupted extraction can go on where it stopped."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from depgraph.errors import OutputError
from depgraph.footprint import Footprints
from depgraph.gather import RunFile, without_ranges
from depgraph.records import BlockTouches, Damage, KernelLaunch, ScannedPart
from depgraph.shards import sample_starts
from depgraph.spill import write_run_by_start
from depgraph.version import tool_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from depgraph.gather import Scratch
    from depgraph.records import PartTask

_ROW_COLUMNS = ("launch", "x", "y", "z", "accesses", "instructions")
_COUNTERS = ("skipped", "opcodes", "warnings")
# A dask scheduler warns of tasks of more than 10 MB, and holds what is sent until it is done.
_SENT_BYTES = 1 << 20
_NUMBERS = ("shows_bulk", "damaged_lines", "access_lines", "lines", "bytes")


MARK = "depgraph-partial"


def open_folder(folder: Path) -> None:
    """Make the folder of an interrupted run, or check that an existing one is such a folder.

    Raises
    ------
    OutputError
        If it exists and depgraph did not make it.
    """
    if folder.exists() and not (folder / MARK).is_file():
        raise OutputError(folder, "exists and was not made by --resume", "move it away")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).touch()


def scan_to_file(task: PartTask, path: Path) -> tuple[ScannedPart, RunFile]:
    """Scan a part and leave its ranges in a file, for whoever reads it on another machine."""
    part = task.scan()
    touches = part.touches
    by_row = Footprints(touches.row, touches.kind, touches.start, touches.end)
    # A worker that was taken for lost may still be writing what another one scans again.
    with tempfile.TemporaryDirectory(prefix=".", dir=path.parent) as folder:
        whole = Path(folder) / path.name
        write_run_by_start(by_row, whole)
        whole.replace(path)
    return without_ranges(part), RunFile(path, len(by_row), sample_starts(by_row))


@dataclass(frozen=True, slots=True)
class FiledTask:
    """A task that holds much text, left in a file instead of being sent."""

    path: Path
    input_bytes: int

    def scan(self) -> ScannedPart:
        """Scan the part."""
        task: PartTask = pickle.loads(self.path.read_bytes())  # noqa: S301 - our own file
        return task.scan()


def file_large_task(task: PartTask, files: Scratch) -> PartTask:
    """Return a task that can be sent: as it is if it is small, else what reads it from a file."""
    pickled = pickle.dumps(task)
    if len(pickled) <= _SENT_BYTES:
        return task
    path = files.new_file("text")
    path.write_bytes(pickled)
    return FiledTask(path, task.input_bytes)


@dataclass(frozen=True, slots=True)
class ResumableScan:
    """Scans parts, or takes what an earlier run left of them in a folder.

    A part is taken again if the version of this tool, the part's place in the trace, and size and
    time of change of its files are the same.

    Attributes
    ----------
    folder : Path
    """

    folder: Path

    def __call__(self, task: PartTask) -> tuple[ScannedPart, RunFile]:
        """Return the part, its ranges in a file."""
        name = fingerprint(task)
        run = self.folder / f"{name}.parquet"
        rows = self.folder / f"{name}.npz"
        about = self.folder / f"{name}.json"
        if about.is_file():
            return _load_part(about, rows, run)
        part, run_file = scan_to_file(task, run)
        _save_part(part, run_file, about, rows)
        return part, run_file


def fingerprint(task: PartTask) -> str:
    """Name a part by all that its scan depends on.

    Parameters
    ----------
    task : PartTask
        A dataclass; the size and time of change of every path in it count as well.
    """
    digest = hashlib.sha256(tool_version().encode())
    digest.update(pickle.dumps(task))
    for path in sorted(set(_paths_in(task))):
        try:
            status = path.stat()
        except OSError:
            continue
        digest.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:32]


def _paths_in(value: Any) -> Iterator[Path]:
    if isinstance(value, Path):
        yield value
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _paths_in(getattr(value, field.name))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _paths_in(item)


def _save_part(part: ScannedPart, run: RunFile, about: Path, rows: Path) -> None:
    columns = {name: getattr(part.touches, name) for name in _ROW_COLUMNS}
    if part.durations is not None:
        columns["durations"] = part.durations
    _write_whole(rows, lambda file: np.savez(file, samples=run.samples, **columns))
    content = {
        "keys": part.keys,
        "launches": [launch and asdict(launch) for launch in part.launches],
        "unseen": list(part.unseen.items()),
        "damage": [asdict(damage) for damage in part.damage],
        "damaged_line": part.damaged_line and asdict(part.damaged_line),
        "n_ranges": run.n_ranges,
        **{name: getattr(part, name) for name in (*_COUNTERS, *_NUMBERS)},
    }
    # Written last: a part without it was interrupted, and is scanned again.
    _write_whole(about, lambda file: file.write(json.dumps(content).encode()))


def _write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _load_part(about: Path, rows: Path, run: Path) -> tuple[ScannedPart, RunFile]:
    content = json.loads(about.read_bytes())
    with np.load(rows, allow_pickle=False) as file:
        columns = dict(file)
    empty = BlockTouches.empty()
    touches = BlockTouches(
        **{name: columns[name] for name in _ROW_COLUMNS},
        row=empty.row,
        kind=empty.kind,
        start=empty.start,
        end=empty.end,
    )
    part = ScannedPart(
        keys=[tuple(key) for key in content["keys"]],
        launches=[launch and _launch(launch) for launch in content["launches"]],
        touches=touches,
        unseen=dict(content["unseen"]),
        durations=columns.get("durations"),
        damage=[Damage(**damage) for damage in content["damage"]],
        damaged_line=content["damaged_line"] and Damage(**content["damaged_line"]),
        **{name: content[name] for name in _NUMBERS},
    )
    for name in _COUNTERS:
        setattr(part, name, Counter(content[name]))
    return part, RunFile(run, content["n_ranges"], columns["samples"])


def _launch(values: dict[str, Any]) -> KernelLaunch:
    return KernelLaunch(
        **{**values, "grid": tuple(values["grid"]), "block": tuple(values["block"])}
    )
