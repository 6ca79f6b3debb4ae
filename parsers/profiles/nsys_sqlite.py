"""Kernel times from ``nsys export --type sqlite``, and from the SQLite files of nvprof."""

import sqlite3
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from depgraph.errors import ProfileError
from depgraph.parsers.profiles.host_spans import HostSpans
from depgraph.parsers.profiles.kernel_columns import KernelColumns
from depgraph.timing.profile import UNKNOWN, KernelProfile

HINT = (
    "profile with nsys profile --trace=cuda PROGRAM, then nsys export --type sqlite REPORT.nsys-rep"
)
GRAPH_HINT = "profile again with --cuda-graph-trace=node"
_KERNEL_TABLES = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL")
_GRAPH_TABLE = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_STRINGS = {"StringIds": "id", "StringTable": "_id_"}
_NAMES = ("demangledName", "mangledName", "shortName", "name")
_PROCESS = "global{} >> 24 & 0xffffff"  # of what nsys calls a global process or thread
_PLACE = {
    "device": "deviceId",
    "process": _PROCESS.format("Pid"),
    "context": "contextId",
    "stream": "streamId",
}
_TIMES = ('"end" - start', "start")
_GRID, _BLOCK = ("gridX", "gridY", "gridZ"), ("blockX", "blockY", "blockZ")
_LAUNCH = {
    "registers": "registersPerThread",
    "static_shared_bytes": "staticSharedMemory",
    "dynamic_shared_bytes": "dynamicSharedMemory",
    "correlation": "correlationId",
    **_PLACE,
}
_INTEGERS = (
    "start", "end", *_GRID, *_BLOCK, "registersPerThread", "staticSharedMemory",
    "dynamicSharedMemory", "deviceId", "globalPid", "globalTid", "contextId", "streamId",
    "correlationId", "copyKind",
)  # fmt: skip
_CUDA_DEVICES = "TARGET_INFO_CUDA_DEVICE"
_GPUS = "TARGET_INFO_GPU"
_CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
_RANGES = "NVTX_EVENTS"
# NvtxPushPopRange and NvtxStartEndRange of the table ENUM_NSYS_EVENT_TYPE; None where not stated.
_RANGE_KINDS = {59, 60, None}
_COPIES, _MEMSETS = "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"
# CUpti_ActivityMemcpyKind, as cupti_activity.h numbers them.
_COPY_KINDS = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA",
               8: "DtoD", 9: "HtoH", 10: "PtoP"}  # fmt: skip
_LARGEST_ROW = 1 << 26  # bytes
_LEAST_SECONDS = 20.0
_BYTES_A_SECOND = 1 << 20
_STEPS_BETWEEN_LOOKS = 10_000


def read_nsys_sqlite(path: Path) -> KernelProfile:
    """Read the kernels of all devices and processes from a file that may come from anywhere."""
    for suffix in ("-wal", "-journal"):
        beside = path.with_name(path.name + suffix)
        if beside.exists() and beside.stat().st_size:
            found = f"is not complete: {beside.name} holds changes to it"
            raise ProfileError(path, found, "export it again")
    address = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
    try:
        connection = sqlite3.connect(address, uri=True)
    except sqlite3.Error as error:
        raise ProfileError(path, f"SQLite cannot open it ({error})") from None
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    deadline = time.monotonic() + _LEAST_SECONDS + path.stat().st_size / _BYTES_A_SECOND
    connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_BETWEEN_LOOKS)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_ROW)
    try:
        for pragma in ("trusted_schema = OFF", "query_only = ON", "cell_size_check = ON"):
            connection.execute(f"PRAGMA {pragma}")
        return _read(path, connection)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise _refusal(path, error) from None
    finally:
        connection.close()


def _refusal(path: Path, error: Exception) -> ProfileError:
    code = getattr(error, "sqlite_errorcode", None)
    if code == sqlite3.SQLITE_INTERRUPT:
        found = "takes longer to read than any sound file of its size"
        return ProfileError(path, found, "copy or export it again")
    if code == sqlite3.SQLITE_TOOBIG or isinstance(error, sqlite3.DataError):
        found = f"holds a row of more than {_LARGEST_ROW >> 20} MiB"
        return ProfileError(path, found, "export it again")
    return ProfileError(path, f"SQLite cannot read it ({error})", "copy or export it again")


def _tables(connection: sqlite3.Connection) -> set[str]:
    """Return the names of the plain tables: a virtual one has no pages of its own."""
    rows = _select(connection, ["name", "type", "rootpage", "sql"], "sqlite_master")
    return {
        name
        for name, kind, page, sql in rows
        if isinstance(name, str)
        and kind == "table"
        and isinstance(page, int)
        and page > 0
        and str(sql).upper().startswith("CREATE TABLE")
    }


def _read(path: Path, connection: sqlite3.Connection) -> KernelProfile:
    tables = _tables(connection)
    columns = KernelColumns(path)
    graphs = 0
    if _GRAPH_TABLE in tables:
        ((graphs,),) = _select(connection, ["count(*)"], _GRAPH_TABLE)
    if graphs:
        columns.skipped["CUDA graph launches recorded as a whole"] = graphs
        found = f"{graphs} CUDA graph launches were recorded as a whole"
        columns.notes.append(f"{found}: their kernels are not in the file; {GRAPH_HINT}")
    hint = GRAPH_HINT if graphs else HINT
    table = next((table for table in _KERNEL_TABLES if table in tables), None)
    if table is None:
        if any(name.startswith("rocpd_") for name in tables):
            hint = f"convert it: rocpd convert --output-format csv -i {path.name}"
            raise ProfileError(path, "is a database of rocprofv3", hint)
        raise ProfileError(path, "has no table of kernels", hint)
    present = _columns_of(connection, table)
    if not {"start", "end"} <= present:
        raise ProfileError(path, f"its table {table} has no start and end", hint)
    strings = next((name for name in _STRINGS if name in tables), None)
    name_column = next((column for column in _NAMES if column in present), None)
    _add_kernels(columns, connection, table, name_column, strings)
    for memory_table in sorted(tables & {_COPIES, _MEMSETS}):
        _add_memory(columns.memory, connection, memory_table)
    if _CALLS in tables:
        needed = ("correlationId", "start")
        wanted = (*needed, "globalTid", _PROCESS.format("Tid"))
        for correlation, *call in _rows(connection, _CALLS, wanted, needed=needed):
            columns.add_call(correlation, *call)
    if _RANGES in tables:
        _add_ranges(columns.host, connection, strings)
    columns.device_names.update(_device_names(connection, tables))
    return columns.profile(
        "nvprof-sqlite" if strings == "StringTable" else "nsys-sqlite",
        sms_of_device=_sms(connection, tables),
        hint=hint,
    )


def _select(
    connection: sqlite3.Connection, columns: Iterable[str], source: str
) -> Iterator[tuple[Any, ...]]:
    """Query a table; every name comes from this module, never from the file."""
    return connection.execute(f"SELECT {', '.join(columns)} FROM {source}")  # noqa: S608


def _rows(
    connection: sqlite3.Connection,
    table: str,
    columns: Iterable[str],
    *,
    needed: Iterable[str] = ("start", "end"),
    others: Iterable[str] = (),
) -> Iterator[tuple[Any, ...]]:
    """Query a table that has what is needed; what is no whole number is None, but in `others`."""
    present = _columns_of(connection, table)
    if not set(needed) <= present:
        return iter(())
    known = [
        f'CASE typeof("{column}") WHEN \'integer\' THEN "{column}" END AS "{column}"'
        if column in present
        else f'NULL AS "{column}"'
        for column in _INTEGERS
    ]
    known += [column if column in present else f"NULL AS {column}" for column in others]
    return _select(connection, columns, f"(SELECT {', '.join(known)} FROM {table})")  # noqa: S608


def _texts(
    connection: sqlite3.Connection, strings: str | None, table: str, column: str | None
) -> dict[object, object]:
    if strings is None or column is None:
        return {}
    used = {number for (number,) in _select(connection, [f"DISTINCT {column}"], table)}
    texts = _select(connection, [_STRINGS[strings], "value"], strings)
    return {number: text for number, text in texts if number in used}


def _add_kernels(
    columns: KernelColumns,
    connection: sqlite3.Connection,
    table: str,
    name_column: str | None,
    strings: str | None,
) -> None:
    texts = _texts(connection, strings, table, name_column)
    names = [name_column or "NULL"]
    wanted = [*names, *_GRID, *_BLOCK, *_TIMES, *_LAUNCH.values()]
    for name, *found in _rows(connection, table, wanted, others=names if name_column else ()):
        spelled = str(texts[name]) if name in texts else name
        text = spelled if isinstance(spelled, str) else ""
        launch = dict(zip(_LAUNCH, found[8:], strict=True))
        columns.add(text, found[6], found[7], grid=found[:3], block=found[3:6], **launch)


def _add_memory(memory: KernelColumns, connection: sqlite3.Connection, table: str) -> None:
    wanted = ["copyKind", *_TIMES, *_PLACE.values()]
    for kind, duration, start, *place in _rows(connection, table, wanted):
        name = "memset" if table == _MEMSETS else f"memcpy {_COPY_KINDS.get(kind, '')}".strip()
        memory.add(name, duration, start, **dict(zip(_PLACE, place, strict=True)))


def _add_ranges(host: HostSpans, connection: sqlite3.Connection, strings: str | None) -> None:
    has_texts = "textId" in _columns_of(connection, _RANGES)
    texts = _texts(connection, strings, _RANGES, "textId" if has_texts else None)
    others = ("eventType", "text", "textId")
    wanted = ("start", '"end"', "globalTid", _PROCESS.format("Tid"), *others)
    needed = ("start", "end", "globalTid")
    rows = _rows(connection, _RANGES, wanted, needed=needed, others=others)
    for start, end, thread, process, kind, text, number in rows:
        name = text if isinstance(text, str) else texts.get(number)
        if start is not None and end is not None and kind in _RANGE_KINDS:
            where = thread, UNKNOWN if process is None else process
            host.add_range(str(name or ""), start, end, *where)


def _columns_of(connection: sqlite3.Connection, table: str) -> set[str]:
    return {str(name) for (name,) in _select(connection, ["name"], f"pragma_table_info('{table}')")}


def _device_names(connection: sqlite3.Connection, tables: set[str]) -> dict[int, str]:
    if not {_CUDA_DEVICES, _GPUS} <= tables:
        return {}
    joined = f"{_CUDA_DEVICES} JOIN {_GPUS} ON gpuId = {_GPUS}.id"
    rows = _select(connection, ["cudaId", f"{_GPUS}.name"], joined)
    return {device: str(name) for device, name in rows if isinstance(device, int)}


def _sms(connection: sqlite3.Connection, tables: set[str]) -> dict[int, int]:
    """Return the SMs of each device, unless processes mean different GPUs by one number."""
    if _CUDA_DEVICES not in tables:
        return {}
    rows = _select(connection, ["DISTINCT cudaId", "numMultiprocessors"], _CUDA_DEVICES)
    found = [(device, sms) for device, sms in rows if isinstance(sms, int) and sms > 0]
    devices = [device for device, _ in found]
    return {device: sms for device, sms in found if devices.count(device) == 1}
