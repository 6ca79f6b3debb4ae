"""Kernel times from ``nsys export --type sqlite``, and from the SQLite files of nvprof."""

from __future__ import annotations

import sqlite3
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from depgraph.errors import ProfileError
from depgraph.parsers.profiles.kernel_rows import KernelRows
from depgraph.timing.profile import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from depgraph.parsers.profiles.kernel_rows import Dim3
    from depgraph.timing.profile import KernelProfile

HINT = (
    "profile with nsys profile --trace=cuda PROGRAM, then nsys export --type sqlite REPORT.nsys-rep"
)
GRAPH_HINT = "profile again with --cuda-graph-trace=node"
_KERNEL_TABLES = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL")
_GRAPH_TABLE = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_STRINGS = {"StringIds": "id", "StringTable": "_id_"}
_NAMES = ("demangledName", "mangledName", "shortName", "name")
_COLUMNS = (
    "start",
    "end",
    "gridX",
    "gridY",
    "gridZ",
    "blockX",
    "blockY",
    "blockZ",
    "registersPerThread",
    "staticSharedMemory",
    "dynamicSharedMemory",
    "deviceId",
    "globalPid",
    "contextId",
    "streamId",
    "correlationId",
)
_CUDA_DEVICES = "TARGET_INFO_CUDA_DEVICE"
_GPUS = "TARGET_INFO_GPU"
_CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
_RANGES = "NVTX_EVENTS"
_RANGE_COLUMNS = ("start", "end", "globalTid", "eventType", "text", "textId")
# NvtxPushPopRange and NvtxStartEndRange of the table ENUM_NSYS_EVENT_TYPE; None where not stated.
_RANGE_KINDS = {59, 60, None}
_COPIES, _MEMSETS = "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"
# CUpti_ActivityMemcpyKind, as cupti_activity.h numbers them.
_COPY_KINDS = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA",
               8: "DtoD", 9: "HtoH", 10: "PtoP"}  # fmt: skip
_PID_UNIT = 0x1000000
_LARGEST_ROW = 1 << 26  # bytes
_LEAST_SECONDS = 20.0
_BYTES_A_SECOND = 1 << 20
_STEPS_BETWEEN_LOOKS = 10_000


def read_nsys_sqlite(path: Path) -> KernelProfile:
    """Read the kernels of all devices and processes; columns that are missing stay unknown.

    The file may come from anywhere: only its tables are read, no view or virtual table is, nothing
    in its schema is run, and there are limits on time and on the size of a row.
    """
    for suffix in ("-wal", "-journal"):
        beside = path.with_name(path.name + suffix)
        if beside.exists() and beside.stat().st_size:
            raise ProfileError(
                path, f"is not complete: {beside.name} holds changes to it", "export it again"
            )
    try:
        connection = sqlite3.connect(
            f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1", uri=True
        )
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
        return ProfileError(
            path,
            "takes longer to read than any sound file of its size",
            "copy or export it again",
        )
    if code == sqlite3.SQLITE_TOOBIG or isinstance(error, sqlite3.DataError):
        most = f"{_LARGEST_ROW >> 20} MiB"
        return ProfileError(path, f"holds a row of more than {most}", "export it again")
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
    rows = KernelRows(path)
    graphs = 0
    if _GRAPH_TABLE in tables:
        ((graphs,),) = _select(connection, ["count(*)"], _GRAPH_TABLE)
    if graphs:
        rows.skipped["CUDA graph launches recorded as a whole"] = graphs
        rows.notes.append(
            f"{graphs} CUDA graph launches were recorded as a whole: their kernels are not in "
            f"the file; {GRAPH_HINT}"
        )
    hint = GRAPH_HINT if graphs else HINT
    table = next((table for table in _KERNEL_TABLES if table in tables), None)
    if table is None:
        raise ProfileError(path, "has no table of kernels", hint)
    present = _columns_of(connection, table)
    if not {"start", "end"} <= present:
        raise ProfileError(path, f"its table {table} has no start and end", hint)
    strings = next((name for name in _STRINGS if name in tables), None)
    name_column = next((column for column in _NAMES if column in present), None)
    spelled = {}
    if strings is not None and name_column is not None:
        spelled = _spellings(connection, strings, table, name_column)
    columns = [column if column in present else "NULL" for column in _COLUMNS]
    for row in _select(connection, [name_column or "NULL", *columns], table):
        _add(rows, row, spelled)
    for memory_table in sorted(tables & {_COPIES, _MEMSETS}):
        _add_memory(rows, connection, memory_table)
    if _CALLS in tables:
        _add_calls(rows, connection)
    if _RANGES in tables:
        _add_ranges(rows, connection, strings)
    rows.device_names.update(_device_names(connection, tables))
    return rows.build(
        "nvprof-sqlite" if strings == "StringTable" else "nsys-sqlite",
        sms_of_device=_sms(connection, tables),
        hint=hint,
    )


def _select(
    connection: sqlite3.Connection, columns: list[str], source: str
) -> Iterator[tuple[Any, ...]]:
    """Query a table; every name comes from this module, never from the file."""
    return connection.execute(f"SELECT {', '.join(columns)} FROM {source}")  # noqa: S608


def _spellings(
    connection: sqlite3.Connection, strings: str, table: str, name_column: str
) -> dict[object, str]:
    key = _STRINGS[strings]
    rows = _select(connection, [key, "value"], strings)
    used = {number for (number,) in _select(connection, [f"DISTINCT {name_column}"], table)}
    return {number: str(value) for number, value in rows if number in used}


def _add(rows: KernelRows, row: tuple[object, ...], spelled: dict[object, str]) -> None:
    name = spelled.get(row[0], row[0] if isinstance(row[0], str) else "")
    start, end, *rest = (_integer(value) for value in row[1:])
    grid, block = _sizes(rest[0:3]), _sizes(rest[3:6])
    registers, static, dynamic, device, global_pid, context, stream, correlation = rest[6:]
    rows.add(
        name,
        None if start is None or end is None else float(end - start),
        start,
        grid=grid,
        block=block,
        registers=registers,
        static_shared_bytes=static,
        dynamic_shared_bytes=dynamic,
        shared_bytes=None if static is None or dynamic is None else static + dynamic,
        device=device,
        process=_process(global_pid),
        context=context,
        stream=stream,
        correlation=correlation,
    )


def _add_memory(rows: KernelRows, connection: sqlite3.Connection, table: str) -> None:
    """Add memsets or copies, of tables that say when they began and ended."""
    present = _columns_of(connection, table)
    if not {"start", "end"} <= present:
        return
    wanted = ("start", "end", "deviceId", "globalPid", "contextId", "streamId", "copyKind")
    columns = [column if column in present else "NULL" for column in wanted]
    for row in _select(connection, columns, table):
        start, end, device, global_pid, context, stream, kind = (_integer(value) for value in row)
        rows.add_memory(
            "memset" if table == _MEMSETS else f"memcpy {_COPY_KINDS.get(kind or 0, '')}".strip(),
            None if start is None or end is None else float(end - start),
            start,
            device=device,
            process=_process(global_pid),
            context=context,
            stream=stream,
        )


def _add_calls(rows: KernelRows, connection: sqlite3.Connection) -> None:
    """Note the calls of the host; those that launched nothing share no id with a kernel."""
    present = _columns_of(connection, _CALLS)
    if not {"start", "correlationId"} <= present:
        return
    columns = ["correlationId", "start", "globalTid" if "globalTid" in present else "NULL"]
    for row in _select(connection, columns, _CALLS):
        correlation, start, thread = (_integer(value) for value in row)
        rows.add_launch_call(correlation, start, _process(thread), thread)


def _add_ranges(rows: KernelRows, connection: sqlite3.Connection, strings: str | None) -> None:
    """Note the NVTX ranges of the host."""
    present = _columns_of(connection, _RANGES)
    if not {"start", "end", "globalTid"} <= present:
        return
    texts = {}
    if strings is not None and "textId" in present:
        used = {number for (number,) in _select(connection, ["DISTINCT textId"], _RANGES)}
        named = _select(connection, [_STRINGS[strings], "value"], strings)
        texts = {number: value for number, value in named if number in used}
    columns = [name if name in present else "NULL" for name in _RANGE_COLUMNS]
    for start, end, thread, kind, text, number in _select(connection, columns, _RANGES):
        name = text if isinstance(text, str) else texts.get(number)
        if isinstance(start, int) and isinstance(end, int) and kind in _RANGE_KINDS:
            process = _process(_integer(thread))
            where = _integer(thread), UNKNOWN if process is None else process
            rows.host.add_range(str(name or ""), start, end, *where)


def _columns_of(connection: sqlite3.Connection, table: str) -> set[str]:
    return {str(name) for (name,) in _select(connection, ["name"], f"pragma_table_info('{table}')")}


def _process(identifier: int | None) -> int | None:
    """Return the process of what nsys calls a global process or thread."""
    return None if identifier is None else identifier // _PID_UNIT % _PID_UNIT


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _sizes(sizes: list[int | None]) -> Dim3 | None:
    x, y, z = sizes
    return None if x is None or y is None or z is None else (x, y, z)


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
