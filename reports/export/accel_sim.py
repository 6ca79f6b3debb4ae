"""A schedule for Accel-Sim: its list of commands, streams for its traces, what waits for what."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import NotApplicableError
from depgraph.graph.block_graph import BlockGraph, dependent_operations
from depgraph.graph.program import Copy, Kernel
from depgraph.scenario.scenario import Scenario
from depgraph.schedule.policy import Schedule
from depgraph.system.output import foreign_file_in, new_folder
from depgraph.trace.records import SOMEWHERE, TO_DEVICE

Mend = Callable[[str, Path, int], Mapping[str, int]]

LIST, DEPENDENCES, SCRIPT = "kernelslist.g", "dependences.txt", "set-streams.sh"
MENDED = "mended.txt"
_UNLISTED = "unlisted:"
_FROM_HOST = (TO_DEVICE, SOMEWHERE)
_TRACE = re.compile(r"kernel-(\d{1,9})(?:-ctx_\w{1,20})?\.traceg?(?:\.(?:xz|gz|zst))?")
_SCRIPT = """\
#!/bin/sh
# Copies the traces of kernels from the folder FROM to this one, each with its stream in the header.
# Usage: {name} FROM
set -eu
from=$(cd "$1" && pwd -P)
cd "$(dirname "$0")"
die() {{
    echo "{name}: $1" >&2
    exit 1
}}
[ "$from" != "$(pwd -P)" ] || die "$from: give the folder that the traces come from, not this one"
with() {{ # FILE STREAM COMPRESS DECOMPRESS
    [ -r "$from/$1" ] || die "cannot read $from/$1"
    {{ $4 < "$from/$1" || : > "$1.bad"; }} |
        sed "1,/^#/s/^-cuda stream id = .*/-cuda stream id = $2/" | $3 > "$1"
    [ ! -e "$1.bad" ] || {{ rm -f "$1" "$1.bad"; die "cannot unpack $from/$1"; }}
}}
trace() {{ # FILE STREAM
    case $1 in
    *.xz) with "$1" "$2" "xz -0" "xz -dc" ;;
    *.gz) with "$1" "$2" "gzip -1" "gzip -dc" ;;
    *.zst) with "$1" "$2" "zstd -q" "zstd -dcq" ;;
    *) with "$1" "$2" cat cat ;;
    esac
}}
"""


def not_for_accel_sim(folder: Path) -> str:
    """Say what keeps a folder from being what `write_accel_sim` wrote, "" if nothing does."""
    known = {LIST, DEPENDENCES, SCRIPT, MENDED}
    if not (folder / DEPENDENCES).is_file():
        return f"has no {DEPENDENCES}"
    return foreign_file_in(folder, lambda e: e.name in known or bool(_TRACE.fullmatch(e.name)))


def write_accel_sim(
    schedule: Schedule,
    scenario: Scenario,
    copies: Sequence[Copy],
    path: Path,
    *,
    force: bool = False,
    mend: Mend | None = None,
) -> int:
    """Write a folder from which Accel-Sim runs a schedule; count dependences it does not know."""
    graph = scenario.graph
    if schedule.children is not None:
        message = "Accel-Sim launches no child kernels: take a mechanism without, such as flat"
        raise NotApplicableError(message)
    begin, end = schedule.of_operations(graph.first_block)
    source, target = dependent_operations(graph)
    stream = streams_of(begin, end, np.stack([source, target], axis=1), scenario.is_kernel)
    names = _trace_names(scenario.kernels, scenario.metadata)
    commands = [names.get(operation, "") for operation in range(graph.n_operations)]
    for copy in copies:
        commands[copy.operation] = _command(copy)
    listed = np.array([not command.startswith(_UNLISTED) for command in commands], np.bool_)
    order = np.lexsort((np.arange(len(begin)), begin))
    order = order[listed[order]]
    between = scenario.is_kernel[source] & scenario.is_kernel[target]
    with new_folder(path, force=force, not_ours=not_for_accel_sim) as folder:
        (folder / LIST).write_text("".join(f"{commands[k]}\n" for k in order), encoding="ascii")
        traces = [(commands[k], int(stream[k])) for k in order if scenario.is_kernel[k]]
        if mend is None:
            _write_script(traces, folder / SCRIPT)
        else:
            _write_traces(traces, folder, mend)
        with (folder / DEPENDENCES).open("w", encoding="ascii") as file:
            write_dependences(graph, commands, stream, file)
    return int((between & (stream[source] != stream[target])).sum())


def _write_script(traces: Sequence[tuple[str, int]], script: Path) -> None:
    lines = [f"trace {name} {stream}\n" for name, stream in traces]
    script.write_text(_SCRIPT.format(name=SCRIPT) + "".join(lines), encoding="ascii")
    script.chmod(0o755)


def _write_traces(traces: Sequence[tuple[str, int]], folder: Path, mend: Mend) -> None:
    """Copy traces, and list what was mended in each."""
    with (folder / MENDED).open("w", encoding="ascii") as file:
        for name, stream in traces:
            for what, times in sorted(mend(name, folder / name, stream).items()):
                file.write(f"{name}: {what}: {times}\n")


def _command(copy: Copy) -> str:
    """Return what stands for a copy: of those to the GPU the command of Accel-Sim's lists."""
    if copy.what in _FROM_HOST and copy.address is not None:
        return f"MemcpyHtoD,0x{copy.address:016x},{copy.size}"
    return f"{_UNLISTED}{copy.what.replace(' ', '-')},{copy.size}"


def streams_of(
    begin: NDArray[np.float64],
    end: NDArray[np.float64],
    pairs: NDArray[np.int32],
    is_kernel: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """Deal kernels, behind what they depend on, to as few streams as they need; -1 for copies."""
    stream = np.full(len(begin), -1, np.int64)
    by_target = pairs[np.argsort(pairs[:, 1], kind="stable")]
    parents = np.split(by_target[:, 0], np.searchsorted(by_target[:, 1], range(1, len(begin))))
    last: list[int] = []
    for kernel in np.lexsort((np.arange(len(begin)), begin)):
        if not is_kernel[kernel]:
            continue
        free = [s for s, before in enumerate(last) if end[before] <= begin[kernel]]
        waited_for = set(parents[kernel].tolist())
        followed = [s for s in free if last[s] in waited_for]
        chosen = (followed or free or [len(last)])[0]
        if chosen == len(last):
            last.append(-1)
        last[chosen] = int(kernel)
        stream[kernel] = chosen
    return stream


def write_dependences(
    graph: BlockGraph, commands: Sequence[str], stream: NDArray[np.int64], file: TextIO
) -> None:
    """Write what waits for what, block by block, in factored form: see docs/accel-sim.md."""
    sizes = np.diff(graph.first_block)
    n_sets, n_joins = len(graph.set_operation), len(graph.join_kind)
    file.write(f"depgraph-dependences 1\n{len(sizes)} {n_sets} {n_joins}\n")
    operations = zip(sizes, stream, commands, strict=True)
    file.writelines(f"operation {n} {s} {command}\n" for n, s, command in operations)
    sets = _lists(graph.set_offsets, graph.set_blocks)
    file.writelines(f"set {_counted(members)}\n" for members in sets)
    joins = zip(
        graph.join_certain,
        _lists(graph.source_offsets, graph.sources),
        _lists(graph.target_offsets, graph.targets),
        strict=True,
    )
    file.writelines(f"join {int(c)} {_counted(s)} {_counted(t)}\n" for c, s, t in joins)


def _lists(offsets: NDArray[np.int64], items: NDArray[Any]) -> Iterator[NDArray[Any]]:
    return (items[low:high] for low, high in pairwise(offsets))


def _counted(items: NDArray[Any]) -> str:
    return " ".join(map(str, [len(items), *items.tolist()]))


def _trace_names(kernels: Sequence[Kernel], metadata: Mapping[str, Any]) -> dict[int, str]:
    """Return the trace file of each kernel, as the source has it or as Accel-Sim names them."""
    found = {}
    for source in metadata.get("sources", ()):
        name = PurePath(str(source.get("path", ""))).name
        if match := _TRACE.fullmatch(name):
            found[int(match[1])] = name
    names = {}
    for kernel in kernels:
        number = kernel.kernel + 1 if kernel.trace_id is None else kernel.trace_id
        names[kernel.operation] = found.get(number, f"kernel-{number}.traceg")
    return names
