"""Chakra execution traces: times and streams of the nodes that ran on a GPU.

Source: ``schema/protobuf/et_def.proto`` of mlcommons/chakra (field numbers) and its converter for
PyTorch (``is_cpu_op``, ``stream``). A file is a `GlobalMetadata` and `Node` after `Node`, each with
its length in front.
"""

import io
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from depgraph.errors import ProfileError
from depgraph.parsers.profiles.kernel_columns import KernelColumns
from depgraph.parsers.profiles.source import HEAD_BYTES
from depgraph.parsers.scanning.inputs import TraceStream
from depgraph.timing.profile import KernelProfile

Fields = dict[int, list[int | bytes]]

HINT = "give the .et file of the rank, as chakra_converter writes it from a host and device trace"
_MOST_BYTES = 64 << 20
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
_ID, _NAME, _TYPE, _START, _DURATION, _ATTRIBUTE = 1, 2, 3, 6, 7, 10
_METADATA_FIELDS, _NODE_FIELDS = {1, 2}, {*range(1, 12)}
_COMPUTES, _COLLECTIVE = 4, 7
_GPU_TYPES = {*range(_COMPUTES, _COLLECTIVE + 1)}  # COMP_NODE to COMM_COLL_NODE
_NUMBERS = (27, 13, 11, 9, 7, 3)  # of AttributeProto: bool, 64 and 32 bits, double
_NS_PER_US = 1000.0
_IN_UNIT, _EXACT = "duration_", "duration_us"  # as depgraph's own export has them


def is_chakra(head: bytes) -> bool:
    """Tell whether a file begins with the metadata and a node of an execution trace."""
    stream = io.BytesIO(head)
    try:
        metadata, node = (_fields(_message(stream) or b"\0") for _ in range(2))
    except (ValueError, EOFError):
        return False
    version = metadata.get(1, [b""])[-1]
    is_named = isinstance(version, bytes) and version.isascii()
    return is_named and {*metadata} <= _METADATA_FIELDS and {*node} <= _NODE_FIELDS


def read_chakra(path: Path) -> KernelProfile:
    """Read the nodes that ran on a GPU, in the order of the file."""
    columns = KernelColumns(path)
    rows: list[tuple[str, float, float, int | None]] = []
    places: set[int] = set()
    is_rounded = False
    for node in _nodes(path):
        attributes = node.attributes
        if attributes.get("is_cpu_op", 1) or node.type not in _GPU_TYPES:
            columns.skipped["nodes of the host, copies and metadata"] += 1
            continue
        if node.place and node.place in places:
            raise ProfileError(path, f"node {node.place} is there twice", HINT)
        places.add(node.place)
        if units := {name for name in attributes if name.startswith(_IN_UNIT)} - {_EXACT}:
            found = f"its durations are {units.pop().removeprefix(_IN_UNIT)}, no times"
            raise ProfileError(path, found, "export it with --timing FILE")
        stream, exact = attributes.get("stream"), attributes.get(_EXACT)
        is_rounded |= exact is None
        duration = float(node.duration) if exact is None else exact
        number = stream if isinstance(stream, int) else None
        rows.append((node.name, duration * _NS_PER_US, _NS_PER_US * node.start, number))
    # Traces that PyTorch's converter makes have no starts.
    has_starts = any(start for _, _, start, _ in rows)
    for number, (name, duration, start, stream_number) in enumerate(rows):
        began = int(start) if has_starts else None
        columns.add(name, duration, began, kernel=number, stream=stream_number)
    if is_rounded:
        columns.notes.append("times are whole microseconds, as the schema has them")
    return columns.profile("chakra", hint=HINT)


class _Node(NamedTuple):
    place: int
    name: str
    type: int
    start: int
    duration: int
    attributes: dict[str, int | float]


def _nodes(path: Path) -> Iterator[_Node]:
    """Yield the nodes of a file, whose first message is about the file."""
    with TraceStream(path) as raw:
        stream = io.BufferedReader(raw, HEAD_BYTES)
        number = 0
        try:
            while (message := _message(stream)) is not None:
                if number:
                    yield _node(_fields(message))
                number += 1
        except (ValueError, EOFError, struct.error) as error:
            found = f"node {number} is damaged ({error})"
            raise ProfileError(path, found, "copy the file again") from None


def _node(fields: Fields) -> _Node:
    place, kind, start, duration = (_number(fields, n) for n in (_ID, _TYPE, _START, _DURATION))
    return _Node(place, _text(fields, _NAME), kind, start, duration, _attributes(fields))


def _message(stream: io.BufferedIOBase) -> bytes | None:
    """Read a message and its length; None at the end of the file."""
    size = _read_varint(stream)
    if size is None:
        return None
    if size > _MOST_BYTES:
        raise ValueError(f"of {size} bytes")
    message = stream.read(size)
    if len(message) < size:
        raise EOFError("it ends early")
    return message


def _read_varint(stream: io.BufferedIOBase) -> int | None:
    value = 0
    for place in range(_LONGEST_VARINT):
        byte = stream.read(1)
        if not byte:
            if place:
                raise EOFError("it ends early")
            return None
        value |= (byte[0] & 0x7F) << 7 * place
        if byte[0] < 0x80:  # noqa: PLR2004 - the bit that says that more follow
            return value
    raise ValueError("a number of more than 64 bits")


def _fields(message: bytes) -> Fields:
    stream, found = io.BytesIO(message), dict[int, list[int | bytes]]()
    while (tag := _read_varint(stream)) is not None:
        number, wire_type = tag >> 3, tag & 7
        if not number or wire_type not in {_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32}:
            raise ValueError("no field of a message")
        value: int | bytes | None
        if wire_type == _VARINT:
            value = _read_varint(stream)
        elif wire_type == _LENGTH_DELIMITED:
            value = _message(stream)
        else:
            size = 8 if wire_type == _FIXED64 else 4
            value = stream.read(size)
            value = value if len(value) == size else None
        if value is None:
            raise EOFError("it ends early")
        found.setdefault(number, []).append(value)
    return found


def _number(node: Fields, field: int) -> int:
    value = node.get(field, [0])[-1]
    if isinstance(value, bytes):
        raise ValueError("text where a number should be")  # noqa: TRY004 - as other damage
    return value


def _text(node: Fields, field: int) -> str:
    value = node.get(field, [b""])[-1]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _attributes(node: Fields) -> dict[str, int | float]:
    found: dict[str, int | float] = {}
    for attribute in node.get(_ATTRIBUTE, []):
        fields = _fields(attribute) if isinstance(attribute, bytes) else {}
        for value in (value for kind in _NUMBERS for value in fields.get(kind, [])):
            number = struct.unpack("<d", value)[0] if isinstance(value, bytes) else value
            found[_text(fields, 1)] = number
    return found
