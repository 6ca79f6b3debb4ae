"""What ``depgraph calibrate`` and ``samples/validation/measure.py`` measured: one JSON file."""

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

from depgraph.analysis.measured_programs import MeasuredKernel, MeasuredProgram, Measurements
from depgraph.errors import ProfileError
from depgraph.parsers.scanning.inputs import TraceStream
from depgraph.system.described import Reader, optional, real, text, whole
from depgraph.system.text import LONGEST_TIME, MOST_SMS, clean_text, in_short

_MOST_BYTES = 256 << 20
_MOST_BLOCKS = 1 << 21
_MOST_KERNELS = 1 << 12
_MOST_THREADS = 1024
_MOST_REGISTERS = 255
_MOST_SHARED_BYTES = 1 << 20
_ARCHITECTURE = optional(whole(1, 999))
_LONGEST_NAME = 200
_DETAILS = ("driver", "cuda", "torch", "cudnn", "date")
_LONGEST_DETAIL = 40
_HINT = "give a file that depgraph calibrate --keep or samples/validation/measure.py wrote"
# A memset or a copy: what it takes of an SM is not known.
_OF_MEMORY = ((1, 1, 1), (32, 1, 1), 32, 0)
_name = partial(text, expected="a name", longest=_LONGEST_NAME)
_time = real(math.ulp(0.0), LONGEST_TIME, "a time in microseconds")
_KINDS: dict[type, str] = {dict: "a table", list: "a list", str: "text"}


class _BadError(Exception):
    """What is wrong with a value, in a few words."""


def read_measurements(path: Path) -> Measurements:
    """Read a file of measurements, compressed or not. Programs that failed are left out."""
    with TraceStream(path) as stream:
        data = bytearray()
        while len(data) <= _MOST_BYTES and (chunk := stream.read(1 << 20)):
            data += chunk
    if len(data) > _MOST_BYTES:
        raise ProfileError(path, f"has more than {_MOST_BYTES >> 20} MiB", _HINT)
    try:
        content = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise ProfileError(path, "is not JSON", _HINT) from None
    return measurements_of(content, path)


def measurements_of(content: object, source: Path | str) -> Measurements:
    """Return what a machine gave from what a file holds; `source` is named in messages."""
    try:
        return _measurements(content)
    except _BadError as error:
        raise ProfileError(source, f"holds no measurements: {error}", _HINT) from None


def _measurements(content: object) -> Measurements:
    kinds = {"machine": dict, "launches": list, "programs": list}
    machine, launches, programs = (_part(content, name, kind) for name, kind in kinds.items())
    found = [_program(each, launches) for each in programs if _was_measured(each)]
    if not found:
        raise _BadError("no program in it was measured")
    return Measurements(
        gpu=" ".join(clean_text(_read(_part(machine, "gpu", str), "gpu", _name)).split()),
        sms=_read(machine.get("sms"), "sms", whole(1, MOST_SMS)),
        programs=found,
        architecture=_read(machine.get("architecture"), "architecture", _ARCHITECTURE),
        l2_bytes=_read(machine.get("l2_bytes"), "l2_bytes", optional(whole(1, 1 << 50))),
        details={
            name: in_short(clean_text(str(machine[name])), _LONGEST_DETAIL)
            for name in _DETAILS
            if name in machine
        },
    )


def _was_measured(program: object) -> bool:
    """Tell programs that ran from those that failed, and those whose kernels were not all seen."""
    has_kernels = isinstance(program, dict) and "kernels" in program
    return has_kernels and all(isinstance(k, list) for k in _part(program, "kernels", list))


def _program(program: dict[str, Any], launches: list[Any]) -> MeasuredProgram:
    name = _read(_part(program, "name", str), "name", _name)
    rows = _part(program, "kernels", list)
    if not 0 < len(rows) <= _MOST_KERNELS:
        raise _BadError(f"{name}: {len(rows)} kernels")
    kernels = [_kernel(row, launches, name) for row in rows]
    edges, last = [], len(rows) - 1
    for edge in _part(program, "edges", list):
        source, target = _list(edge, f"{name}: an edge", 2)
        source = _read(source, f"{name}: an edge", whole(0, last))
        edges.append((source, _read(target, f"{name}: an edge", whole(source + 1, last))))
    ahead, host = "streams_primed", "streams_host"
    return MeasuredProgram(
        name=name,
        kind=_read(_part(program, "kind", str), f"{name}: kind", _name),
        half=_read(program.get("half"), f"{name}: half", whole(0, 1)),
        kernels=kernels,
        edges=edges,
        # The host may be the limit of replays back to back, not where it starts ahead of the GPU;
        # then graphs of many roots wait for each other's leaves.
        serial=min(_median(program, name, "serial"), _median(program, name, "serial_primed")),
        parallel=min(_median(program, name, "parallel"), _median(program, name, "parallel_primed")),
        streams=_median(program, name, "streams") if "streams" in program else None,
        streams_ahead=_median(program, name, ahead) if ahead in program else None,
        streams_host=_read(program[host], f"{name}: {host}", _time) if host in program else None,
    )


def _kernel(row: object, launches: list[Any], program: str) -> MeasuredKernel:
    launch, operation, in_chain, alone = _list(row, f"{program}: a kernel", 4)
    index = _read(launch, f"{program}: launch", whole(0, len(launches) - 1))
    name, grid, block, registers, static, dynamic = _list(launches[index], f"launch {index}", 6)
    where = f"{program}: kernel {in_short(str(name), 40)}"
    time = _read(alone if in_chain is None else in_chain, f"{where}: time", _time)
    number = _read(operation, f"{where}: operation", whole(0, _MOST_KERNELS))
    if grid is None:
        return MeasuredKernel(str(name), *_OF_MEMORY, time, number)
    grid, block = _sizes(grid, f"{where}: grid"), _sizes(block, f"{where}: block")
    if math.prod(grid) > _MOST_BLOCKS or math.prod(block) > _MOST_THREADS:
        raise _BadError(f"{where}: {math.prod(grid)} blocks of {math.prod(block)} threads")
    of_a_thread = _read(registers, f"{where}: registers", whole(0, _MOST_REGISTERS))
    most = whole(0, _MOST_SHARED_BYTES)
    shared = sum(_read(part, f"{where}: shared memory", most) for part in (static, dynamic))
    return MeasuredKernel(str(name), grid, block, of_a_thread, shared, time, number)


def _median(program: dict[str, Any], where: str, name: str) -> float:
    """Return the median of times, which are the median, the least and the ninth decile."""
    what = f"{where}: {name}"
    return float(_read(_list(program.get(name), what, 1)[0], what, _time))


def _part(table: object, name: str, kind: type) -> Any:
    if not isinstance(table, dict) or not isinstance(table.get(name), kind):
        raise _BadError(f"{name} is not {_KINDS[kind]}")
    return table[name]


def _list(value: object, what: str, least: int) -> list[Any]:
    if not isinstance(value, list) or len(value) < least:
        raise _BadError(f"{what} is not a list of {least}")
    return value[: least if least > 1 else None]


def _sizes(value: object, what: str) -> tuple[int, int, int]:
    x, y, z = (_read(size, what, whole(1, _MOST_BLOCKS)) for size in _list(value, what, 3))
    return x, y, z


def _read(value: object, what: str, reader: Reader) -> Any:
    try:
        return reader(value)
    except ValueError as error:
        raise _BadError(f"{what} is not {error}") from None
