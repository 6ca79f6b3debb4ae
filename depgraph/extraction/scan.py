"""Parts scanned into files: by machines that share only these, or to be kept for another run."""

import hashlib
import io
import json
import os
import pickle
import tempfile
import uuid
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import nvtx

from depgraph.errors import OutputError
from depgraph.footprint.footprints import FileOverflow, Footprints, Run, write_run_by_start
from depgraph.system.output import Scratch, lock, one_line_errors, tool_version
from depgraph.system.workers import Workers
from depgraph.trace import records

Scanned = tuple[records.ScannedPart, list[Run]]


def without_ranges(part: records.ScannedPart) -> records.ScannedPart:
    """Return a part whose ranges were written elsewhere."""
    nothing = records.BlockTouches.empty().ranges
    return replace(part, touches=part.touches._replace(**nothing._asdict()))


def scan_to_file(task: records.PartTask, path: Path, most_ranges: int) -> Scanned:
    """Scan a part and leave its ranges in `path` and files beside it, for another machine."""
    # A worker that was taken for lost may still be writing what another one scans again.
    with (
        nvtx.annotate("scan part", domain="depgraph"),
        one_line_errors(path.parent),
        tempfile.TemporaryDirectory(prefix=".", dir=path.parent) as folder,
    ):
        mark = uuid.uuid4().hex[:12]

        def new_file() -> Path:
            return Path(folder) / f"{path.stem}-{mark}-{len(overflow.runs)}{path.suffix}"

        overflow = FileOverflow(new_file, most_ranges)
        part = task.scan(overflow)
        by_row = Footprints(*part.touches.ranges)
        written = [*overflow.runs, write_run_by_start(by_row, Path(folder) / path.name)]
        runs = [replace(run, path=run.path.replace(path.parent / run.path.name)) for run in written]
    return without_ranges(part), runs


def _scan_filed(item: tuple[Path, Path, int]) -> Scanned:
    """Scan as a task says that was left in a file: many hold more text than a scheduler takes."""
    task, path, most_ranges = item
    return scan_to_file(pickle.loads(task.read_bytes()), path, most_ranges)  # noqa: S301 - our own


def scan_remotely(
    trace: records.Trace, workers: Workers, files: Scratch, most_ranges: int
) -> Generator[Scanned]:
    """Yield the parts of a trace in its order, their ranges in files that others have written."""
    tasks: deque[Path] = deque()

    def items() -> Iterator[tuple[Path, Path, int]]:
        for task in trace.tasks():
            tasks.append(files.new_file("task"))
            tasks[-1].write_bytes(pickle.dumps(task))
            yield tasks[-1], files.new_file("part"), most_ranges

    with closing(workers.map(_scan_filed, items())) as results:
        for result in results:
            tasks.popleft().unlink()
            yield result


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
    """Scans parts, or takes what a run of this version left of the same, unchanged, in a folder."""

    folder: Path
    most_ranges: int  # how many ranges of a part may be in memory

    def __call__(self, task: records.PartTask) -> Scanned:
        """Return the part, its ranges in files."""
        kept = self.folder / f"{fingerprint(task)}.part"
        if kept.is_file():
            # What a power cut or a bad disk has changed is scanned again.
            with suppress(OSError, ValueError):
                return _load_part(kept)
        part, runs = scan_to_file(task, kept.with_suffix(".parquet"), self.most_ranges)
        # Written last: a part without it was interrupted, and is scanned again.
        _save_part(part, runs, kept)
        return part, runs


def fingerprint(task: records.PartTask) -> str:
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


def _save_part(part: records.ScannedPart, runs: list[Run], kept: Path) -> None:
    """Write what of a part is not in `runs`: a digest, then arrays, one of them JSON."""
    about = {
        "part": {name: getattr(part, name) for name in _PLAIN},
        "possible": len(part.possible),
        "runs": [(run.path.name, run.n_ranges, _sha256_of(run.path)) for run in runs],
    }
    columns: dict[str, Any] = {name: getattr(part.touches, name) for name in _ROW_COLUMNS}
    columns["about"] = np.frombuffer(json.dumps(about, default=asdict).encode(), np.uint8)
    if part.durations is not None:
        columns["durations"] = part.durations
    for i, writes in enumerate(part.possible):
        columns |= {f"{name}_{i}": column for name, column in writes._asdict().items()}
    for i, run in enumerate(runs):
        columns[f"samples_{i}"] = run.samples
    arrays = io.BytesIO()
    np.savez(arrays, **columns)
    content = arrays.getvalue()
    with one_line_errors(kept.parent):
        # Under a name of its own, as a worker taken for lost may write it, too.
        descriptor, name = tempfile.mkstemp(dir=kept.parent)
        try:
            os.close(descriptor)
            Path(name).write_bytes(_digest(kept, content) + b"\n" + content)
            Path(name).replace(kept)
        finally:
            Path(name).unlink(missing_ok=True)


def _digest(kept: Path, content: bytes) -> bytes:
    """Return what tells the content of a file from any other, and from that of another part."""
    return hashlib.sha256(kept.name.encode() + content).hexdigest().encode()


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _load_part(kept: Path) -> Scanned:
    digest, _, content = kept.read_bytes().partition(b"\n")
    if digest != _digest(kept, content):
        raise ValueError(_CHANGED)
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        columns = dict(file)
    about = json.loads(columns["about"].tobytes())
    runs = []
    for i, (name, n_ranges, checksum) in enumerate(about["runs"]):
        runs.append(Run(kept.with_name(name), n_ranges, columns[f"samples_{i}"]))
        if _sha256_of(runs[-1].path) != checksum:
            raise ValueError(_CHANGED)
    known = about["part"]
    known |= {n: [each and kind(**each) for each in known[n]] for n, kind in _OBJECTS.items()}
    known |= {name: Counter(known[name]) for name in records.COUNTERS}
    known |= {n: {int(i): text for i, text in known[n].items()} for n in ("untraced", "reach")}
    known["keys"] = list(map(tuple, known["keys"]))
    known["damaged_line"] = known["damaged_line"] and records.Damage(**known["damaged_line"])
    names, rows = records.PossibleWrites._fields, {name: columns[name] for name in _ROW_COLUMNS}
    part = records.ScannedPart(
        touches=records.BlockTouches.empty()._replace(**rows),
        durations=columns.get("durations"),
        possible=[
            records.PossibleWrites(*(columns[f"{name}_{i}"] for name in names))
            for i in range(about["possible"])
        ],
        **known,
    )
    return part, runs


def _operation(**values: Any) -> records.Operation:
    if "grid" not in values:
        return records.MemoryOperation(**values)
    sizes = {name: tuple(values[name]) for name in ("grid", "block")}
    return records.KernelLaunch(**{**values, **sizes})


_ARRAYS = {"touches", "durations", "possible"}
_PLAIN = [f.name for f in fields(records.ScannedPart) if f.name not in _ARRAYS]
_OBJECTS: dict[str, Callable[..., Any]] = {
    "launches": _operation, "allocations": records.Allocation, "host_calls": records.HostCall,
    "damage": records.Damage,
}  # fmt: skip
