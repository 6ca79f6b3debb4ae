"""Kernel-level edges as JSON or CSV, and launches with streams and events as a listing."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path

from depgraph.apply.stream_code import Launch
from depgraph.system.output import new_file
from depgraph.system.text import clean_text, counted, csv_cell
from depgraph.trace.names import base_name

_PREFACE = """\
// Streams and events are made once: cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking),
// cudaEventCreateWithFlags(&e, cudaEventDisableTiming). Before the first operation every
// stream waits for what the program did before, at the end stream 0 for all others.""".splitlines()


def write_launches(
    launches: Sequence[Launch], path: Path, form: str, *, force: bool = False
) -> None:
    """Write what each kernel waits for: JSON and CSV have edges, txt streams and events, too."""
    with new_file(path, force=force) as temporary:
        if form == "json":
            text = json.dumps({"nodes": [_node(each) for each in launches]}, indent=1) + "\n"
            temporary.write_text(text, encoding="utf-8")
        elif form == "csv":
            _write_edges(launches, temporary)
        else:
            temporary.write_text("\n".join(_listing(launches)) + "\n", encoding="utf-8")


def _node(launch: Launch) -> dict[str, object]:
    kernel = launch.kernel
    return {
        "kernel": launch.number,
        "name": None if kernel is None else kernel.name,
        "grid": None if kernel is None else kernel.grid,
        "block": None if kernel is None else kernel.block,
        "depends_on": launch.needs,
        "stream": launch.stream,
        "waits_for": launch.waits,
        "keeps_place": launch.keeps_place,
    }


def _write_edges(launches: Sequence[Launch], path: Path) -> None:
    names = {each.number: _name(each) for each in launches}
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["source_kernel", "target_kernel", "source_name", "target_name"])
        for each in launches:
            for source in each.needs:
                ends = csv_cell(names[source]), csv_cell(names[each.number])
                writer.writerow([source, each.number, *ends])


def _name(launch: Launch) -> str:
    return "copy or memset" if launch.kernel is None else launch.kernel.name


def _text(number: int) -> str:
    """Return what a person calls an operation."""
    return f"kernel {number}" if number >= 0 else f"copy {-1 - number}"


def _event(number: int) -> str:
    return f"e{number}" if number >= 0 else f"c{-1 - number}"


def _listing(launches: Sequence[Launch]) -> list[str]:
    streams = 1 + max((each.stream for each in launches), default=-1)
    events = [each.number for each in launches if each.is_awaited]
    size = f"{counted(len(launches), 'operation')} on {counted(streams, 'stream')}"
    lines = [f"// {size}, in this order.", *_PREFACE]
    lines.append(f"// streams: {', '.join(f's{i}' for i in range(streams))}")
    lines.append(f"// events: {', '.join(map(_event, events)) or 'none'}")
    for each in launches:
        after = f", wait for {_and([_text(number) for number in each.waits])}" if each.waits else ""
        kept = "; not all of its accesses are known: it keeps its place" if each.keeps_place else ""
        lines += ["", f"// {_text(each.number)} on stream {each.stream}{after}{kept}"]
        lines += [f"cudaStreamWaitEvent(s{each.stream}, {_event(n)}, 0);" for n in each.waits]
        lines.append(_call(each))
        if each.is_awaited:
            lines.append(f"cudaEventRecord({_event(each.number)}, s{each.stream});")
    return lines


def _and(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _call(launch: Launch) -> str:
    kernel = launch.kernel
    if kernel is None:
        return f"cudaMemcpyAsync or cudaMemsetAsync(..., s{launch.stream});"
    grid, block = (f"dim3({', '.join(map(str, size))})" for size in (kernel.grid, kernel.block))
    shared = kernel.shared_bytes or 0
    name = clean_text(base_name(kernel.name))
    return f"{name}<<<{grid}, {block}, {shared}, s{launch.stream}>>>(...);"
