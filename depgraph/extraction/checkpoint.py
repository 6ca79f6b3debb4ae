"""Scanned parts kept on disk, so that an interrupted extraction can go on where it stopped."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.errors import OutputError
from depgraph.extraction.scan import scan_to_file
from depgraph.footprint.spill import Run
from depgraph.system.output import tool_version
from depgraph.system.work_folder import lock, one_line_errors
from depgraph.trace.records import (
    COUNTERS,
    NUMBERS,
    Allocation,
    BlockTouches,
    Damage,
    KernelLaunch,
    PossibleWrites,
    ScannedPart,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from depgraph.extraction.scan import Scanned
    from depgraph.trace.records import PartTask

_ROW_COLUMNS = ("launch", "x", "y", "z", "accesses", "instructions")
_CHANGED = "it has changed since it was written"


MARK = "depgraph-partial"


def open_folder(folder: Path) -> int | None:
    """Make or check the folder of an interrupted run; return a descriptor that locks it."""
    if folder.exists() and not folder.is_dir():
        raise OutputError(folder, "is not a folder", "move it away")
    if folder.exists() and not (folder / MARK).is_file() and any(folder.iterdir()):
        raise OutputError(folder, "exists and was not made by --resume", "move it away")
    with one_line_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARK).touch()
        try:
            return lock(folder)
        except BlockingIOError:
            raise OutputError(folder, "is in use by another run", "wait for it") from None


@dataclass(frozen=True, slots=True)
class ResumableScan:
    """Scans parts, or takes what an earlier run left of them in a folder.

    A part is taken again if the version of this tool, the part's place in the trace, and size and
    time of change of its files are the same.
    """

    folder: Path
    most_ranges: int  # how many ranges of a part may be in memory

    def __call__(self, task: PartTask) -> Scanned:
        """Return the part, its ranges in files."""
        name = fingerprint(task)
        run = self.folder / f"{name}.parquet"
        rows = self.folder / f"{name}.npz"
        about = self.folder / f"{name}.json"
        if about.is_file():
            # What a power cut or a bad disk has changed is scanned again.
            with suppress(OSError, ValueError):
                return _load_part(about, rows, self.folder)
        part, runs = scan_to_file(task, run, self.most_ranges)
        _save_part(part, runs, about, rows)
        return part, runs


def fingerprint(task: PartTask) -> str:
    """Name a part by all its scan depends on: its fields, and the state of every path in them."""
    digest = hashlib.sha256(tool_version().encode())
    digest.update(pickle.dumps(task))
    for path in sorted(set(_paths_in(task))):
        try:
            status = path.stat()
        except OSError:
            continue
        state = f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"
        digest.update(f"{path} {state}\n".encode())
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


def _save_part(part: ScannedPart, runs: list[Run], about: Path, rows: Path) -> None:
    columns: dict[str, Any] = {name: getattr(part.touches, name) for name in _ROW_COLUMNS}
    if part.durations is not None:
        columns["durations"] = part.durations
    if part.possible:
        names = PossibleWrites._fields
        joined = map(np.concatenate, zip(*part.possible, strict=True))
        columns |= {f"possible_{n}": c for n, c in zip(names, joined, strict=True)}
    for i, run in enumerate(runs):
        columns[f"samples_{i}"] = run.samples
    arrays = io.BytesIO()
    np.savez(arrays, **columns)
    _write_whole(rows, arrays.getvalue())
    content = {
        "keys": part.keys,
        "launches": [launch and asdict(launch) for launch in part.launches],
        "untraced": list(part.untraced.items()),
        "reach": list(part.reach.items()),
        "allocations": [asdict(allocation) for allocation in part.allocations],
        "damage": [asdict(damage) for damage in part.damage],
        "damaged_line": part.damaged_line and asdict(part.damaged_line),
        "path": part.path,
        "shows_bulk": part.shows_bulk,
        "runs": [(run.path.name, run.n_ranges, _sha256_of(run.path)) for run in runs],
        "rows_sha256": _sha256(arrays.getvalue()),
        **{name: getattr(part, name) for name in (*COUNTERS, *NUMBERS)},
    }
    text = json.dumps(content).encode()
    # Written last: a part without it was interrupted, and is scanned again.
    _write_whole(about, _sha256(text).encode() + b"\n" + text)


def _write_whole(path: Path, content: bytes) -> None:
    """Write a file under a name of its own, as a worker taken for lost may do, and rename it."""
    with one_line_errors(path.parent):
        descriptor, name = tempfile.mkstemp(dir=path.parent)
        os.close(descriptor)
        try:
            Path(name).write_bytes(content)
            Path(name).replace(path)
        finally:
            Path(name).unlink(missing_ok=True)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _load_part(about: Path, rows: Path, folder: Path) -> Scanned:
    digest, text = about.read_text(encoding="utf-8").split("\n", 1)
    if digest != _sha256(text.encode()):
        raise ValueError(_CHANGED)
    content = json.loads(text)
    files = {rows: content["rows_sha256"]}
    files |= {folder / name: checksum for name, _, checksum in content["runs"]}
    if any(_sha256_of(file) != checksum for file, checksum in files.items()):
        raise ValueError(_CHANGED)
    with np.load(rows, allow_pickle=False) as file:
        columns = dict(file)
    touches = replace(BlockTouches.empty(), **{name: columns[name] for name in _ROW_COLUMNS})
    part = ScannedPart(
        keys=[tuple(key) for key in content["keys"]],
        launches=[launch and _launch(launch) for launch in content["launches"]],
        touches=touches,
        untraced=dict(content["untraced"]),
        reach=dict(content["reach"]),
        possible=[PossibleWrites(*(columns[f"possible_{n}"] for n in PossibleWrites._fields))]
        if "possible_block" in columns
        else [],
        allocations=[Allocation(**allocation) for allocation in content["allocations"]],
        durations=columns.get("durations"),
        damage=[Damage(**damage) for damage in content["damage"]],
        damaged_line=content["damaged_line"] and Damage(**content["damaged_line"]),
        path=content["path"],
        shows_bulk=content["shows_bulk"],
        **{name: content[name] for name in NUMBERS},
    )
    for name in COUNTERS:
        setattr(part, name, Counter(content[name]))
    runs = [
        Run(folder / name, n_ranges, columns[f"samples_{i}"])
        for i, (name, n_ranges, _) in enumerate(content["runs"])
    ]
    return part, runs


def _launch(values: dict[str, Any]) -> KernelLaunch:
    return KernelLaunch(
        **{**values, "grid": tuple(values["grid"]), "block": tuple(values["block"])}
    )
