"""What a damaged input says, read slowly and plainly: the answer that a run is compared with.

A reading that gives up raises; then there is nothing to compare with.
"""

import csv
import io
import json
import math
import sqlite3
from itertools import takewhile
from pathlib import Path
from urllib.parse import quote

import naive
import naive_accelsim
from faults import inputs

MOST_BYTES = 30_000
_CELLS_OF_TEXT = 4


class UnreadableError(Exception):
    """The slow reading cannot tell what this input says."""


def edges_of(program):
    """Return the edges of a program in the words of an export, if it is small enough."""
    touched = sum(len(a) + len(b) for operation in program for a, b in operation.values())
    if touched > MOST_BYTES:
        raise UnreadableError
    return {(*s, *t, kind) for s, t, kind in naive.dependences(program)}


def nvbit_edges(data, _folder):
    """Return the edges of a log whose every line is either whole or no line of the tracer's."""
    try:
        log = naive.Log(data)
    except KeyError as error:
        if isinstance(error.args[0], str):
            raise UnreadableError from None  # an opcode that is in none of its tables
        raise
    if log.counts["malformed"] or not log.launches:
        raise UnreadableError
    program = []
    for kernel, launch in enumerate(log.launches):
        gx, gy, gz = launch["grid"]
        if not all(0 <= block < gx * gy * gz for block in launch["touched"]):
            raise UnreadableError
        program.append(
            {
                (kernel, block): (reads.union(*other_reads), writes)
                for block, (reads, writes, *other_reads) in launch["touched"].items()
            }
        )
    return edges_of(program)


def accelsim_edges(data, folder):
    """Return the edges of a list of kernel files and copies to the GPU."""
    program = []
    copies = kernels = 0
    for line in data.decode("utf-8", "replace").splitlines():
        if line.startswith("MemcpyHtoD"):
            _, address, size, *file = line.split(",")
            if file and "." not in file[-1]:
                raise ValueError(line)
            copies += 1
            first, n_bytes = int(address, 16), int(size)
            if n_bytes > MOST_BYTES:
                raise UnreadableError
            program.append({(-copies, 0): (set(), set(range(first, first + n_bytes)))})
        elif line.startswith("kernel-"):
            data = inputs.unpacked((folder / line.strip()).read_bytes())
            header, blocks = naive_accelsim.read_kernel(data.decode("utf-8", "replace"))
            grid = header["grid dim"].strip("()").split(",")
            gx, gy, gz = (int(size) for size in grid)
            operation = {}
            for (x, y, z), block in blocks.items():
                if not (x < gx and y < gy and z < gz):
                    raise UnreadableError
                key = kernels, x + gx * (y + gy * z)
                operation[key] = block.read, block.written
            program.append(operation)
            kernels += 1
        elif line.strip():
            raise UnreadableError(line)
    return edges_of(program)


def chain_edges(_data, folder):
    """Return the edges of a folder of kernel files, one of which is damaged."""
    return accelsim_edges((folder / "kernelslist.g").read_bytes(), folder)


TRACES = {
    "nvbit": ("nvbit", nvbit_edges),
    "nvbit chain": ("nvbit", nvbit_edges),
    "chain list": ("accelsim", accelsim_edges),
    "chain kernel": ("accelsim", chain_edges),
}
"""The slow reading of some traces, and the format for which it holds."""


# Profiles: durations in nanoseconds, in the order of the file


def kineto_times(path):
    document = json.loads(_text(path), strict=False, parse_int=float)
    events = document if isinstance(document, list) else document["traceEvents"]
    return [
        1000 * _time(event["dur"])
        for event in events
        if str(event.get("cat")).lower() == "kernel" and event.get("ph") == "X"
    ]


def nsys_csv_times(path):
    lines = _text(path).split("\n")
    (header,) = [n for n, line in enumerate(lines) if line.startswith("Start (ns),")]
    table = list(takewhile(lambda line: line[:1].isdigit(), lines[header + 1 :]))
    if any(line.count(",") > _CELLS_OF_TEXT for line in lines[header + 1 + len(table) :]):
        raise UnreadableError  # is this a row, or what the program printed?
    rows = csv.DictReader([lines[header], *table])
    return [_time(float(row["Duration (ns)"])) for row in rows if row["GrdX"]]


def kernel_table_times(path):
    rows = csv.DictReader(io.StringIO(_text(path)))
    return [1000 * _time(float(row["duration_us"])) for row in rows]


def block_table_times(path):
    rows = csv.DictReader(io.StringIO(_text(path)))
    return [_time(float(row["duration_ns"])) for row in rows]


def sqlite_times(path):
    connection = sqlite3.connect(f"file:{quote(str(Path(path).absolute()))}?mode=ro", uri=True)
    try:
        kind = "SELECT type FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_KERNEL'"
        if connection.execute(kind).fetchall() != [("table",)]:
            raise UnreadableError
        query = "SELECT start, end FROM CUPTI_ACTIVITY_KIND_KERNEL"
        return [_time(end - start) for start, end in connection.execute(query)]
    finally:
        connection.close()


def _text(path):
    return path.read_text(encoding="utf-8", errors="replace")


def _time(value):
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(value)
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(value)
    return float(value)


PROFILES = {
    "kineto": kineto_times,
    "nsys-csv": nsys_csv_times,
    "kernels-csv": kernel_table_times,
    "blocks-csv": block_table_times,
    "nsys-sqlite": sqlite_times,
}
