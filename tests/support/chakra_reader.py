"""A reader of Chakra execution traces, generated from their schema: ``et_def.proto``.

What the schema does not have, or has as another type, is an error.
"""

import re
import struct
from pathlib import Path

SCHEMA = Path(__file__).parents[1] / "reports" / "data" / "et_def.proto"
_BLOCK = re.compile(r"^(message|enum) (\w+) \{(.*?)^\}", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^\s*(repeated )?(\w+) (\w+) = (\d+);", re.MULTILINE)
_NAME = re.compile(r"^\s*(\w+) = (\d+);", re.MULTILINE)
_VARINT, _BITS64, _SIZED, _BITS32 = 0, 1, 2, 5


def signed(number):
    return number - 2**64 if number >= 2**63 else number


def zigzag(number):
    return number >> 1 ^ -(number & 1)


_VARINTS = {
    "int32": signed, "int64": signed, "uint32": int, "uint64": int, "sint32": zigzag,
    "sint64": zigzag, "bool": bool,
}  # fmt: skip
_FIXED = {
    "double": (_BITS64, "<d"), "fixed64": (_BITS64, "<Q"), "sfixed64": (_BITS64, "<q"),
    "float": (_BITS32, "<f"), "fixed32": (_BITS32, "<I"), "sfixed32": (_BITS32, "<i"),
}  # fmt: skip


class Schema:
    """The messages of a schema, each with its fields by number, and its enumerations."""

    def __init__(self, text):
        blocks = _BLOCK.findall(text)
        self.messages = {
            name: {int(n): (field, kind, many) for many, kind, field, n in _FIELD.findall(body)}
            for what, name, body in blocks
            if what == "message"
        }  # fmt: skip
        self.enums = {
            name: {int(n): value for value, n in _NAME.findall(body)}
            for what, name, body in blocks
            if what == "enum"
        }

    def decode(self, data, message):
        """Return a message as a dictionary."""
        found, at = {}, 0
        while at < len(data):
            tag, at = read_varint(data, at)
            name, kind, is_repeated = self.messages[message][tag >> 3]
            if tag & 7 == _SIZED and is_repeated and self._wire_type(kind) != _SIZED:
                size, at = read_varint(data, at)  # packed
                end = at + size
                while at < end:
                    value, at = self._value(data, at, kind)
                    found.setdefault(name, []).append(value)
                assert at == end
                continue
            assert tag & 7 == self._wire_type(kind), f"{message}.{name} is no {kind}"
            value, at = self._value(data, at, kind)
            if is_repeated:
                found.setdefault(name, []).append(value)
            else:
                found[name] = value
        return found

    def _wire_type(self, kind):
        if kind in _VARINTS or kind in self.enums:
            return _VARINT
        return _FIXED[kind][0] if kind in _FIXED else _SIZED

    def _value(self, data, at, kind):
        """Read a value of a type; return it and where the next one begins."""
        if kind in _FIXED:
            _, code = _FIXED[kind]
            return struct.unpack_from(code, data, at)[0], at + struct.calcsize(code)
        number, at = read_varint(data, at)
        if self._wire_type(kind) == _VARINT:
            return self.enums[kind][number] if kind in self.enums else _VARINTS[kind](number), at
        content, at = data[at : at + number], at + number
        assert len(content) == number
        if kind in {"bytes", "string"}:
            return content if kind == "bytes" else content.decode(), at
        return self.decode(content, kind), at


def read_varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


def read(path):
    """Return the metadata and the nodes of a file, the attributes of each by name."""
    data, at, messages = path.read_bytes(), 0, []
    while at < len(data):
        size, at = read_varint(data, at)
        messages.append(data[at : at + size])
        at += size
    assert at == len(data)
    schema = Schema(SCHEMA.read_text())
    metadata = schema.decode(messages[0], "GlobalMetadata")
    nodes = [schema.decode(message, "Node") for message in messages[1:]]
    for each in (metadata, *nodes):
        each["attr"] = {
            attribute.pop("name"): next(iter(attribute.values()))
            for attribute in each.get("attr", [])
        }
    return metadata, nodes
