"""What a TOML file may say of a GPU, and of how far predictions for it were off."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

from depgraph.system.described import fields_of, items, real, short_text, whole
from depgraph.system.limits import FASTEST_MEMORY, LARGEST_PARAMETER, MOST_SMS, SLOWEST_MEMORY
from depgraph.system.toml_file import toml_text

if TYPE_CHECKING:
    from collections.abc import Iterable

_LARGEST = 1000  # measured or predicted a thousand times too long
_Share = Annotated[float, real(0, _LARGEST, f"a share, from 0 to {_LARGEST}")]


@dataclass(frozen=True, slots=True)
class MeasuredErrors:
    """How far predictions were off for programs of a family that no constant was fitted to."""

    family: Annotated[str, short_text]
    gpu: Annotated[str, short_text]  # that ran them, as CUDA names it
    programs: Annotated[int, whole(1, LARGEST_PARAMETER)]
    mean: _Share  # relative error of the predicted time
    nine_of_ten: _Share  # of nine programs in ten at most
    worst: _Share
    direction: _Share  # of the programs told right to be faster or slower than serial
    # low, high: at least nine measured times in ten are from `low` to `high` times the predicted
    low: _Share
    high: _Share

    def to_toml(self) -> str:
        """Return the table ``[[errors]]`` of a GPU's file."""
        lines = ["[[errors]]"]
        for each in fields(self):
            value = getattr(self, each.name)
            shown = toml_text(value) if isinstance(value, str) else f"{round(value, 4):g}"
            lines.append(f"{each.name} = {shown}")
        return "\n".join(lines) + "\n"


def with_errors(file: str, errors: Iterable[MeasuredErrors]) -> str:
    """Return the text of a GPU's file with these errors, which replace those that it has."""
    rest = re.sub(r"\n*^\[\[errors\]\]\n(?:[^\[\n].*\n)*", "\n", file, flags=re.MULTILINE)
    return "\n".join([f"{rest.rstrip()}\n", *(each.to_toml() for each in errors)])


_MOST_ITEMS = 1000
_LARGEST_SIZE = 1 << 50  # bytes


@dataclass(frozen=True, slots=True)
class Source:
    """Where numbers of a GPU model come from."""

    title: str  # of the document
    numbers: tuple[str, ...]  # fields of `Gpu` that it gives
    url: str = ""


_count = whole(1, LARGEST_PARAMETER)
_rate = real(SLOWEST_MEMORY, FASTEST_MEMORY)
_texts = items(short_text, "a list of texts", most=_MOST_ITEMS)


def _share(value: object) -> float:
    share: float = _rate(value)
    if share >= 1:
        raise ValueError("a number below 1")
    return share


def _size(value: object) -> int:
    if isinstance(value, str) and (match := re.fullmatch(r"([0-9]{1,15}) ?([KMG])iB", value)):
        value = int(match[1]) << {"K": 10, "M": 20, "G": 30}[match[2]]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST_SIZE:
        raise ValueError('a number of bytes, or "N KiB" or "N MiB"')
    return value


def read_sources(value: object) -> tuple[Source, ...]:
    """Take tables that say where numbers come from."""
    expected = "tables with title, numbers (names of keys) and perhaps url"
    if not isinstance(value, list):
        raise ValueError(expected)  # noqa: TRY004 - what readers raise
    try:
        return tuple(
            Source(
                short_text(item["title"]),
                _texts(item["numbers"]),
                short_text(item["url"]) if "url" in item else "",
            )
            for item in value
        )
    except (KeyError, TypeError, AttributeError, ValueError):
        raise ValueError(expected) from None


def _errors(value: object) -> tuple[MeasuredErrors, ...]:
    if not isinstance(value, list) or len(value) > _MOST_ITEMS:
        raise ValueError("tables [[errors]], one a family of programs (calibrate anew)")
    return tuple(map(_errors_of_family, value))


def _errors_of_family(value: object) -> MeasuredErrors:
    known = {field.key: field.read for field in fields_of(MeasuredErrors)}
    if not isinstance(value, dict) or set(value) != set(known):
        raise ValueError(f"tables with {', '.join(known)}")
    read: dict[str, Any] = {}
    for name, reader in known.items():
        try:
            read[name] = reader(value[name])
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return MeasuredErrors(**read)


Text = Annotated[str, short_text]
Texts = Annotated[tuple[str, ...], _texts]
Count = Annotated[int, _count]
Counts = Annotated[
    tuple[int, ...], items(_count, "a list of whole numbers above 0", 1, _MOST_ITEMS)
]
SmCount = Annotated[int, whole(1, MOST_SMS)]
Size = Annotated[int, _size]  # in bytes
Sizes = Annotated[tuple[int, ...], items(_size, "a list of sizes", 1, _MOST_ITEMS)]
Rate = Annotated[float, _rate]
Share = Annotated[float, _share]
Errors = Annotated[tuple[MeasuredErrors, ...], _errors]
Sources = Annotated[tuple[Source, ...], read_sources]
