"""JSON as depgraph writes it: each key once, finite numbers, nothing nested without end.

`restore` makes dataclasses of it, by their annotations.
"""

import json
import types
from dataclasses import is_dataclass
from functools import cache
from typing import Any, NoReturn, Union, get_args, get_origin, get_type_hints

from depgraph.system.text import in_short, shown_in_short

_LEAST, _LARGEST = -(1 << 63), (1 << 64) - 1
_UNIONS = (Union, types.UnionType)
_COLLECTIONS = (tuple, list, frozenset)


def read_json(text: bytes | str) -> Any:
    """Parse a text; raise ValueError where `json` would go on, or raise something else."""
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen = set[str]()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"{in_short(repr(key))} is there twice")
            seen.add(key)
    return found


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


def restore(kind: Any, value: Any) -> Any:
    """Return what JSON data hold of a type; raise ValueError if they are of another.

    Takes dataclasses with all their fields and no others, collections, plain values and None.
    Whole numbers have 64 bits, with a sign or without.
    """
    if (fields := _fields_of(kind)) is not None:
        _demand(isinstance(value, dict) and value.keys() == fields.keys(), kind, value)
        return kind(**{name: restore(each, value[name]) for name, each in fields.items()})
    origin, parts = get_origin(kind), get_args(kind)
    if origin in _UNIONS:
        (other,) = (part for part in parts if part is not types.NoneType)
        return None if value is None else restore(other, value)
    if origin is dict:
        _demand(isinstance(value, dict), kind, value)
        return {restore(parts[0], k): restore(parts[1], each) for k, each in value.items()}
    if origin in _COLLECTIONS:
        _demand(isinstance(value, list), kind, value)
        if origin is tuple and parts[-1] is not Ellipsis:
            _demand(len(value) == len(parts), kind, value)
            return tuple(map(restore, parts, value))
        return origin(restore(parts[0], each) for each in value)
    return _plain(kind, value)


def _plain(kind: type, value: Any) -> Any:
    if kind is float:
        _demand(type(value) in (int, float) and abs(value) <= _LARGEST, kind, value)
        return float(value)
    _demand(type(value) is kind, kind, value)
    if kind is int:
        _demand(_LEAST <= value <= _LARGEST, kind, value)
    if kind is str:
        value.encode()  # UnicodeEncodeError is a ValueError
    return value


def _demand(holds: object, kind: Any, value: Any) -> None:
    if not holds:
        kind = getattr(kind, "__name__", kind)
        raise ValueError(f"{shown_in_short(value)} is no {kind}")


@cache
def _fields_of(kind: Any) -> dict[str, Any] | None:
    return get_type_hints(kind) if is_dataclass(kind) else None
