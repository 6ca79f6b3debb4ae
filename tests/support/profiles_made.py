"""Small timelines as profilers write them: kernels with starts, steps that the host marked."""

import json
import sqlite3
from contextlib import closing


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

    with closing(sqlite3.connect(path)) as base, base:
        base.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        base.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, demangledName, gridX, gridY, "
            "gridZ, blockX, blockY, blockZ, deviceId, globalPid, correlationId)"
        )
        base.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, correlationId, globalTid)")
        base.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start, end, copyKind, deviceId, globalPid)"
        )
        base.execute("CREATE TABLE NVTX_EVENTS (start, end, globalTid, eventType, text)")
        for i, (name, start, duration, blocks, process) in enumerate(kernels):
            begin, end = 1000 * start, 1000 * (start + duration)
            base.execute("INSERT INTO StringIds VALUES (?, ?)", (i, name))
            base.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, 1, 1, 128, 1, 1, 0, "
                "?, ?)",
                (begin, end, i, blocks, process << 24, i),
            )
            call = begin - 5000, i, thread(process)
            base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?)", call)
        for start, duration, process in copies:
            row = 1000 * start, 1000 * (start + duration), process << 24
            base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, 10, 0, ?)", row)
        for name, start, end, process in steps:
            row = 1000 * start, 1000 * end, thread(process), name
            base.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, 59, ?)", row)
    return path
