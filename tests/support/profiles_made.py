"""Small timelines as profilers write them: kernels with starts, steps that the host marked."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np

from depgraph.timing.profile import KernelProfile


def profile_of(kernels, duration, **columns):
    """Return a profile of these kernels, in nanoseconds."""
    return KernelProfile(
        Path("run.json"), "kineto", "ns", tuple(kernel.name for kernel in kernels),
        np.array(duration, float),
        grid=np.array([kernel.grid for kernel in kernels], np.int32).reshape(-1, 3),
        block=np.array([kernel.block for kernel in kernels], np.int32).reshape(-1, 3),
        **columns,
    )  # fmt: skip


def kineto(path, kernels, *, steps=(), copies=(), rank=None, sms=132):
    """Write a PyTorch profiler trace.

    Parameters
    ----------
    kernels : list of (name, start, duration, blocks)
        In microseconds; launched 5 us before.
    steps : list of (name, start, end)
    copies : list of (start, duration)
        Between GPUs.
    """
    events = [
        {"ph": "X", "cat": "user_annotation", "name": name, "ts": start, "dur": end - start,
         "pid": 1, "tid": 1, "args": {}}
        for name, start, end in steps
    ]  # fmt: skip
    for correlation, (name, start, duration, blocks) in enumerate(kernels, 1):
        args = {"device": 0, "stream": 7, "correlation": correlation, "grid": [blocks, 1, 1],
                "block": [128, 1, 1]}  # fmt: skip
        events += [
            {"ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": duration, "args": args},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": start - 5,
             "dur": 1, "pid": 1, "tid": 1, "args": {"correlation": correlation}},
        ]  # fmt: skip
    events += [
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy PtoP (Device -> Device)", "ts": start,
         "dur": duration, "args": {"fromDevice": 0, "inDevice": 0, "toDevice": 1, "stream": 9}}
        for start, duration in copies
    ]  # fmt: skip
    found = {"deviceProperties": [{"id": 0, "numSms": sms}], "traceEvents": events}
    if rank is not None:
        found["distributedInfo"] = {"rank": rank, "world_size": 2}
    path.write_text(json.dumps(found))
    return path


def nsys(path, kernels, *, steps=(), copies=()):
    """Write an SQLite export of Nsight Systems, as `kineto` does, with a process each kernel.

    Parameters
    ----------
    kernels : list of (name, start, duration, blocks, process)
    steps : list of (name, start, end, process)
    copies : list of (start, duration, process)
    """

    def thread(process):
        return (process << 24) + 1

    tables = {
        "StringIds": [{"id": i, "value": name} for i, (name, *_) in enumerate(kernels)],
        "CUPTI_ACTIVITY_KIND_KERNEL": [
            {"start": 1000 * start, "end": 1000 * (start + duration), "demangledName": i,
             "gridX": blocks, "gridY": 1, "gridZ": 1, "blockX": 128, "blockY": 1, "blockZ": 1,
             "deviceId": 0, "globalPid": process << 24, "correlationId": i}
            for i, (_, start, duration, blocks, process) in enumerate(kernels)
        ],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            {"start": 1000 * start - 5000, "correlationId": i, "globalTid": thread(process)}
            for i, (_, start, _, _, process) in enumerate(kernels)
        ],
        "CUPTI_ACTIVITY_KIND_MEMCPY": [
            {"start": 1000 * start, "end": 1000 * (start + duration), "copyKind": 10,
             "deviceId": 0, "globalPid": process << 24}
            for start, duration, process in copies
        ],
        "NVTX_EVENTS": [
            {"start": 1000 * start, "end": 1000 * end, "globalTid": thread(process),
             "eventType": 59, "text": name}
            for name, start, end, process in steps
        ],
    }  # fmt: skip
    path.write_bytes(database_of(tables))
    return path


def database_of(tables):
    """Return an SQLite file of tables, each a list of rows by column, but of those without rows."""
    with closing(sqlite3.connect(":memory:")) as base:
        for table, rows in tables.items():
            if rows:
                columns, marks = ", ".join(rows[0]), ", ".join("?" * len(rows[0]))
                base.execute(f"CREATE TABLE {table} ({columns})")
                values = [tuple(row.values()) for row in rows]
                base.executemany(f"INSERT INTO {table} VALUES ({marks})", values)  # noqa: S608
        base.commit()
        return base.serialize()
