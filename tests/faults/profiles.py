"""Whole profiles of the program of five kernels, in every format, one function each."""

import csv
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
from faults.inputs import BLOCKS, KERNELS, names
from profiles_made import database_of

from depgraph.reports.export.protobuf import delimited, embedded, real, whole


def times():
    """Return (name, start, duration in ns) of two iterations, no two durations equal."""
    return [
        (name, 1000 * (KERNELS * iteration + number), 250 + 10 * number + 3 * iteration)
        for iteration in range(2)
        for number, name in enumerate(names())
    ]


def kineto():
    events = [
        {
            "ph": "X", "cat": "kernel", "name": name, "ts": 10.5 + start / 1000,
            "dur": duration / 1000,
            "args": {
                "device": 0, "stream": 7, "context": 1, "correlation": start,
                "grid": [BLOCKS, 1, 1], "block": [32, 1, 1],
                "registers per thread": 32, "shared memory": 0,
            },
        }
        for name, start, duration in times()
    ]  # fmt: skip
    device = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}
    cpu = {"ph": "X", "cat": "cpu_op", "name": "add", "ts": 1, "dur": 2}
    document = {"deviceProperties": [device], "traceEvents": [cpu, *events]}
    return json.dumps({**document, "baseTimeNanoseconds": 1000}, indent=1).encode()


def _csv(rows, quoting=csv.QUOTE_MINIMAL):
    out = io.StringIO()
    csv.writer(out, lineterminator="\n", quoting=quoting).writerows(rows)
    return out.getvalue()


def nsys_csv():
    head = [
        "Start (ns)", "Duration (ns)", "CorrId", "GrdX", "GrdY", "GrdZ", "BlkX", "BlkY", "BlkZ",
        "Reg/Trd", "StcSMem (MB)", "DymSMem (MB)", "Device", "Ctx", "Strm", "Name",
    ]  # fmt: skip
    sizes = [BLOCKS, 1, 1, 32, 1, 1, 32, "0.000", "0.000", "H100 (0)", 1, 7]
    copy = [100, 50, 1, *[""] * 10, 1, 13, "[CUDA memcpy Host-to-Device]"]
    rows = [[start, duration, start, *sizes, name] for name, start, duration in times()]
    return f"Processing [r.sqlite]...\n\n{_csv([head, copy, *rows])}".encode()


def nvprof():
    head = [
        "Start", "Duration", "Grid X", "Grid Y", "Grid Z", "Block X", "Block Y", "Block Z",
        "Registers Per Thread", "Static SMem", "Dynamic SMem", "Device", "Context", "Stream",
        "Name",
    ]  # fmt: skip
    units = ["ms", "us", *[""] * 7, "KB", "B", *[""] * 4]
    sizes = [BLOCKS, 1, 1, 32, 1, 1, 32, "0.000000", 0, "V100 (0)", 1, 7]
    rows = [
        [start / 1e6, duration / 1000, *sizes, f"{name} [{start}]"]
        for name, start, duration in times()
    ]
    return f"==1== Profiling result:\n{_csv([head, units, *rows])}".encode()


def ncu():
    head = [
        "ID", "Process ID", "Kernel Name", "Stream", "Block Size", "Grid Size",
        "gpu__time_duration.sum",
    ]  # fmt: skip
    rows = [
        [i, 5, name, 7, "(32, 1, 1)", f"({BLOCKS}, 1, 1)", duration / 1000]
        for i, (name, _, duration) in enumerate(times()[:KERNELS])
    ]
    return f"==PROF== Connected\n{_csv([head, [*[''] * 6, 'us'], *rows], csv.QUOTE_ALL)}".encode()


def ncu_details():
    head = [
        "ID", "Process ID", "Kernel Name", "Section Name", "Metric Name", "Metric Unit",
        "Metric Value",
    ]  # fmt: skip
    rows = [
        row
        for i, (name, _, duration) in enumerate(times()[:KERNELS])
        for row in (
            [i, 5, name, "Speed", "Duration", "ns", duration],
            [i, 5, name, "Launch", "Registers Per Thread", "register/thread", 32],
        )
    ]
    return _csv([head, *rows], csv.QUOTE_ALL).encode()


def simulator_times():
    lines = ["-gpgpu_n_clusters   80 # clusters"]
    total = 0
    for uid, (name, _, duration) in enumerate(times()[:KERNELS], 1):
        total += duration
        lines += [
            f"-kernel name = {name}", f"-grid dim = ({BLOCKS},1,1)", "-nregs = 32",
            f"launching kernel name: {name} uid: {uid} cuda_stream_id: 0",
            f"GPGPU-Sim uArch: Shader 0 bind to kernel {uid} '{name}'",
            "GPGPU-Sim uArch: core:  0, cta: 0 initialized @(5,0)",
            "GPGPU-Sim uArch: Shader 0 finished CTA #0 (55,0), 0 CTAs running",
            f"Destroy streams for kernel {uid}: size 0", f"kernel_name = {name}",
            f"kernel_launch_uid = {uid}", f"gpu_sim_cycle = {duration}",
            f"gpu_tot_sim_cycle = {total}",
        ]  # fmt: skip
    return "\n".join([*lines, ""]).encode()


def kernel_table():
    rows = [[k, duration / 1000, 80] for k, (_, _, duration) in enumerate(times()[:KERNELS])]
    return _csv([["kernel", "duration_us", "sms"], *rows]).encode()


def block_rows():
    return [[k, b, 100 + 10 * k + b, 500 * k + b] for k in range(KERNELS) for b in range(BLOCKS)]


def block_table():
    return _csv([["kernel", "block", "duration_ns", "start_ns"], *block_rows()]).encode()


def block_parquet():
    columns = zip(*block_rows(), strict=True)
    heads = ("kernel", "block", "duration_ns", "start_ns")
    table = pa.table({head: list(column) for head, column in zip(heads, columns, strict=True)})
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


def database():
    spelled = {name: number for number, name in enumerate(names(), 1)}
    kernels = [
        {"start": start, "end": start + duration, "correlationId": start,
         "demangledName": spelled[name], "gridX": BLOCKS, "gridY": 1, "gridZ": 1,
         "blockX": 32, "blockY": 1, "blockZ": 1, "registersPerThread": 32, "deviceId": 0,
         "globalPid": 5 << 24, "contextId": 1, "streamId": 7}
        for name, start, duration in times()
    ]  # fmt: skip
    return database_of(
        {
            "CUPTI_ACTIVITY_KIND_KERNEL": kernels,
            "StringIds": [{"id": number, "value": name} for name, number in spelled.items()],
            "TARGET_INFO_GPU": [{"id": 0, "name": "NVIDIA H100 PCIe"}],
            "TARGET_INFO_CUDA_DEVICE": [{"gpuId": 0, "cudaId": 0, "numMultiprocessors": 114}],
        }
    )


def rocprofv3():
    sizes = {"Workgroup_Size": (32, 1, 1), "Grid_Size": (32 * BLOCKS, 1, 1)}
    head = [
        "Kind", "Agent_Id", "Queue_Id", "Stream_Id", "Dispatch_Id", "Kernel_Name",
        "Correlation_Id", "Start_Timestamp", "End_Timestamp", "LDS_Block_Size", "VGPR_Count",
        *(f"{name}_{axis}" for name in sizes for axis in "XYZ"),
    ]  # fmt: skip
    rows = [
        ["KERNEL_DISPATCH", "Agent 4", 1, 0, number, name, number, start, start + duration, 0, 32,
         *(n for size in sizes.values() for n in size)]
        for number, (name, start, duration) in enumerate(times(), 1)
    ]  # fmt: skip
    return _csv([head, *rows], csv.QUOTE_NONNUMERIC).encode()


def chakra():
    def attribute(name, value):
        return embedded(10, embedded(1, name) + value)

    nodes = [
        b"".join(
            (
                whole(1, number), embedded(2, name), whole(3, 4), whole(6, 10 + start // 1000),
                attribute("is_cpu_op", whole(27, 0)), attribute("stream", whole(9, 7)),
                attribute("duration_us", real(3, duration / 1000)),
            )
        )
        for number, (name, start, duration) in enumerate(times(), 1)
    ]  # fmt: skip
    return b"".join(map(delimited, [embedded(1, "0.0.4"), *nodes]))


def profiles():
    """Return whole profiles by name."""
    return {
        "kineto": kineto(),
        "nsys-csv": nsys_csv(),
        "nvprof": nvprof(),
        "ncu": ncu(),
        "ncu-details": ncu_details(),
        "simlog": simulator_times(),
        "kernels-csv": kernel_table(),
        "blocks-csv": block_table(),
        "blocks-parquet": block_parquet(),
        "nsys-sqlite": database(),
        "rocprofv3": rocprofv3(),
        "chakra": chakra(),
    }
