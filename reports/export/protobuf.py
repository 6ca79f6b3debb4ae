"""Messages in the wire format of Protocol Buffers, as much of it as exports need.

Source: Protocol Buffers documentation, "Encoding".
"""

import struct
from collections.abc import Iterable

_VARINT, _FIXED64, _LENGTH_DELIMITED = 0, 1, 2
_MORE = 0x80
_LOW = 0x7F
_BITS = 64


def varint(value: int) -> bytes:
    """Encode a whole number, of 64 bits where it is negative."""
    value %= 1 << _BITS
    found = bytearray()
    while value > _LOW:
        found.append(value & _LOW | _MORE)
        value >>= 7
    return bytes([*found, value])


def _tag(number: int, wire_type: int) -> bytes:
    return varint(number << 3 | wire_type)


def whole(number: int, value: int) -> bytes:
    """Encode a field that holds a whole number, a bool or a name of an enumeration."""
    return _tag(number, _VARINT) + varint(value)


def real(number: int, value: float) -> bytes:
    """Encode a field that holds a double."""
    return _tag(number, _FIXED64) + struct.pack("<d", value)


def embedded(number: int, content: bytes | str) -> bytes:
    """Encode a field that holds a text, bytes or a message."""
    encoded = content.encode("utf-8", "replace") if isinstance(content, str) else content
    return _tag(number, _LENGTH_DELIMITED) + varint(len(encoded)) + encoded


def packed(number: int, values: Iterable[int]) -> bytes:
    """Encode a repeated field of whole numbers; nothing where there are none."""
    encoded = b"".join(map(varint, values))
    return embedded(number, encoded) if encoded else b""


def delimited(message: bytes) -> bytes:
    """Put the length of a message in front of it, as files of several do."""
    return varint(len(message)) + message
