"""Kernel times of AMD GPUs: ``kernel_trace.csv`` of rocprofv3.

Source: ROCm documentation, "Using rocprofv3", kernel trace and agent info; columns of today's
version and of the first, and those of rocpd2csv.
"""

import re
from collections.abc import Callable
from pathlib import Path

from depgraph.parsers.profiles.kernel_columns import KernelColumns
from depgraph.parsers.profiles.source import Header, cells_of, header_of, integer, open_text
from depgraph.timing.profile import KernelProfile
from depgraph.trace.records import Dim3

Agents = dict[int, tuple[str, int | None]]  # name and compute units of GPUs, by logical node

HINT = "write it with: rocprofv3 --kernel-trace --output-format csv -- PROGRAM"
_NEEDED = ("agent_id", "kernel_name", "start_timestamp", "end_timestamp", "workgroup_size_x")
_SHARED = ("lds_block_size", "group_segment_size")
_AGENT = re.compile(r"(?:(GPU)\s+)?\D*(\d{1,9})", re.IGNORECASE)
_TRACE, _AGENTS = "kernel_trace.csv", "agent_info.csv"
_ASSUMED = "AMD Instinct MI300X"


def recognises(line: str) -> bool:
    """Tell whether a line is the header of a kernel trace."""
    return all(name in line.lower() for name in _NEEDED)


def read_rocprof(path: Path) -> KernelProfile:
    """Read the dispatches of a kernel trace; the agents' names are those of the file beside it."""
    columns = KernelColumns(path)
    header: Header | None = None
    agents = _agents_file(path)
    with open_text(path) as text:
        for line in text:
            if header is None:
                header = header_of(line.lower()) if recognises(line) else None
            elif line.strip():
                _add(columns, header, cells_of(line), agents)
    if not agents.keys() >= columns.device_names.keys():
        found = f"no {_AGENTS} beside it names the GPU"
        columns.notes.append(f"{found}: taken for an {_ASSUMED} (--gpu)")
    sms = {number: units for number, (_, units) in agents.items() if units}
    return columns.profile("rocprofv3", sms_of_device=sms, hint=HINT)


def _add(columns: KernelColumns, header: Header, cells: list[str], agents: Agents) -> None:
    if header.cell(cells, "kind") != "KERNEL_DISPATCH" or len(cells) != len(header.names):
        columns.skipped["rows that are no whole kernel dispatch"] += 1
        return

    def number(*names: str) -> int | None:
        found = (integer(header.cell(cells, name)) for name in names)
        return next((value for value in found if value is not None), None)

    start, end = number("start_timestamp"), number("end_timestamp")
    block, grid = _sizes(number, "workgroup_size"), _sizes(number, "grid_size")
    if block is not None and grid is not None:  # a grid counts threads here
        x, y, z = (-(-threads // size) for threads, size in zip(grid, block, strict=True))
        grid = x, y, z
    vectors, accumulators = number("vgpr_count"), number("accum_vgpr_count")
    device = _device(header.cell(cells, "agent_id"), agents)
    if device is not None:
        columns.device_names[device] = agents.get(device, (_ASSUMED, None))[0]
    columns.add(
        header.cell(cells, "kernel_name"),
        None if start is None or end is None else float(end - start),
        start,
        grid=grid,
        block=block,
        registers=None if vectors is None else vectors + (accumulators or 0),
        shared_bytes=number(*_SHARED),
        device=device,
        stream=number("stream_id", "queue_id"),
        correlation=number("correlation_id"),
    )


def _sizes(number: Callable[[str], int | None], name: str) -> Dim3 | None:
    x, y, z = (number(f"{name}_{axis}") for axis in "xyz")
    return None if not x or not y or not z else (x, y, z)


def _device(text: str, agents: Agents) -> int | None:
    """Return the logical node of an agent: ``GPU 1``, ``Agent 3`` or ``3``."""
    found = _AGENT.match(text)
    if found is None:
        return None
    number = int(found[2])
    # Counted among the GPUs alone by --agent-index=type-relative.
    return [*agents][number] if found[1] and number < len(agents) else number


def _agents_file(path: Path) -> Agents:
    found: Agents = {}
    beside = path.with_name(path.name.replace(_TRACE, _AGENTS))
    if beside != path and beside.is_file():
        with open_text(beside) as text:
            header = header_of(next(iter(text), "").lower())
            for line in text:
                cells = cells_of(line)
                if header.cell(cells, "agent_type") == "GPU":
                    name = header.cell(cells, "product_name") or header.cell(cells, "name")
                    number = integer(header.cell(cells, "logical_node_id"))
                    if number is not None:
                        found[number] = name, integer(header.cell(cells, "cu_count"))
    return found
