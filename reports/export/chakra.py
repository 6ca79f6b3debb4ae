"""Chakra execution traces: a node a kernel or copy, with the dependences that its bytes show.

Source: ``schema/protobuf/et_def.proto`` of mlcommons/chakra (field numbers), and the names of
attributes that its converter for PyTorch and ASTRA-sim's feeder use. A file is a `GlobalMetadata`
and one `Node` after the other, each with its length in front.
"""

from collections.abc import Iterator
from pathlib import Path

from depgraph.graph.program import Copy, Kernel
from depgraph.reports.export.protobuf import delimited, embedded, packed, real, whole
from depgraph.scenario.scenario import Scenario
from depgraph.schedule.policy import Schedule
from depgraph.system.arrays import grouped
from depgraph.system.output import new_file
from depgraph.system.text import clean_text, convert_time
from depgraph.trace.records import TO_DEVICE, TO_HOST

_VERSION = "0.0.4"
_COMPUTES, _LOADS, _STORES = 4, 2, 3  # NodeType: COMP_NODE, MEM_LOAD_NODE, MEM_STORE_NODE
_TYPES = {TO_DEVICE: _LOADS, TO_HOST: _STORES}
_DOUBLE, _INT64, _BOOL, _STRING = 3, 9, 27, 29  # of AttributeProto


def write_chakra(
    plan: Schedule,
    alone: Schedule,
    scenario: Scenario,
    copies: list[Copy],
    path: Path,
    *,
    force: bool,
) -> str:
    """Write a schedule as nodes that take as long as in the schedule `alone`; return their unit."""
    # Of blocks that wait within a kernel a simulator would count twice what they wait.
    before = grouped(scenario.pairs, lambda pair: pair.target)
    scale, unit = convert_time(1.0, scenario.unit, "us", scenario.clock_mhz), "us"
    if scale is None:
        scale, unit = 1.0, scenario.unit
    begins, _ = plan.of_operations(scenario.graph.first_block)
    start = (begins * scale).tolist()
    begins, ends = alone.of_operations(scenario.graph.first_block)
    duration = (ends * scale - begins * scale).tolist()
    kernels = {kernel.kernel: kernel for kernel in scenario.kernels}
    sizes = {copy.number: copy for copy in copies}
    place = {number: i for i, number in enumerate(scenario.graph.kernel.tolist())}
    with new_file(path, force=force) as temporary, temporary.open("wb") as out:
        out.write(delimited(_metadata(scenario)))
        for number, i in place.items():
            needs = before.get(number, [])
            node = b"".join(
                (
                    whole(1, i),
                    *_described(kernels.get(number), sizes.get(number)),
                    packed(4, sorted(place[p.source] for p in needs if not p.raw)),
                    packed(5, sorted(place[p.source] for p in needs if p.raw)),
                    whole(6, round(start[i])),
                    whole(7, round(duration[i])),
                    _attribute(f"duration_{unit}", real(_DOUBLE, duration[i])),
                )
            )
            out.write(delimited(node))
    return unit


def _metadata(scenario: Scenario) -> bytes:
    facts = {
        "generator": "depgraph",
        "durations": scenario.timing.source,
        "unit": scenario.unit,
        "gpu": scenario.resources.gpu.name,
        "dependences": scenario.dependences,
    }
    attributes = (
        embedded(2, embedded(1, name) + embedded(_STRING, clean_text(text)))
        for name, text in facts.items()
    )
    return b"".join((embedded(1, _VERSION), *attributes))


def _attribute(name: str, value: bytes) -> bytes:
    return embedded(10, embedded(1, name) + value)


def _described(kernel: Kernel | None, copy: Copy | None) -> Iterator[bytes]:
    """Yield name, type and attributes of a node."""
    if kernel is not None:
        yield embedded(2, clean_text(kernel.name))
        yield whole(3, _COMPUTES)
        facts = {"stream": kernel.stream, "tensor_size": kernel.read_bytes + kernel.written_bytes}
        for axis in "xyz":
            facts[f"grid_{axis}"] = getattr(kernel, f"grid_{axis}")
            facts[f"block_{axis}"] = getattr(kernel, f"block_{axis}")
    elif copy is not None:
        yield embedded(2, copy.what)
        yield whole(3, _TYPES.get(copy.what, _COMPUTES))
        facts = {"tensor_size": copy.size}
    else:
        yield embedded(2, "memory operation") + whole(3, _COMPUTES)
        facts = {}
    yield _attribute("is_cpu_op", whole(_BOOL, 0))
    for name, value in facts.items():
        yield _attribute(name, whole(_INT64, value))
