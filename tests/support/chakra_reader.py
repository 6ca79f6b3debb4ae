"""A reader of Chakra execution traces, written to ``et_def.proto``: names of fields by number."""

import struct

ATTRIBUTE = {
    1: ("name", "string"), 3: ("double_val", "double"), 9: ("int64_val", "int64"),
    27: ("bool_val", "bool"), 29: ("string_val", "string"),
}  # fmt: skip
METADATA = {1: ("version", "string"), 2: ("attr", ATTRIBUTE)}
NODE = {
    1: ("id", "uint64"), 2: ("name", "string"), 3: ("type", "uint64"), 4: ("ctrl_deps", "packed"),
    5: ("data_deps", "packed"), 6: ("start_time_micros", "uint64"),
    7: ("duration_micros", "uint64"), 10: ("attr", ATTRIBUTE),
}  # fmt: skip


def read_varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


def decode(data, schema):
    """Return a message as a dictionary; a field that the schema lacks is a `KeyError`."""
    found, at = {}, 0
    while at < len(data):
        tag, at = read_varint(data, at)
        name, kind = schema[tag >> 3]
        if tag & 7 == 0:
            value, at = read_varint(data, at)
            assert kind in {"uint64", "int64", "bool"}
            value = value - 2**64 if kind == "int64" and value >= 2**63 else value
        elif tag & 7 == 1:
            assert kind == "double"
            value, at = struct.unpack_from("<d", data, at)[0], at + 8
        else:
            assert tag & 7 == 2
            size, at = read_varint(data, at)
            content, at = data[at : at + size], at + size
            assert len(content) == size
            if kind == "string":
                value = content.decode()
            elif kind == "packed":
                value, place = [], 0
                while place < size:
                    number, place = read_varint(content, place)
                    value.append(number)
            else:
                value = decode(content, kind)
        if name == "attr":
            found.setdefault(name, {})[value["name"]] = next(
                each for key, each in value.items() if key != "name"
            )
        else:
            found[name] = value
    return found


def read(path):
    """Return the metadata and the nodes of a file."""
    data, at, messages = path.read_bytes(), 0, []
    while at < len(data):
        size, at = read_varint(data, at)
        messages.append(data[at : at + size])
        at += size
    assert at == len(data)
    return decode(messages[0], METADATA), [decode(message, NODE) for message in messages[1:]]
