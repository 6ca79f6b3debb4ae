"""What all tables of a described program share: names, sizes, values for each block or launch."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from depgraph.system.described import DescribedFile, Field, any_text, real, whole
from depgraph.system.limits import LARGEST_ID, LONGEST_TIME, MOST_BLOCKS_PER_SM
from depgraph.system.text import in_short
from depgraph.system.toml_file import show_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from depgraph.system.described import Reader

_Named = TypeVar("_Named")

MOST_BLOCKS = 1 << 21
MOST_THREADS = 1024
_DIMENSIONS = 3
_NAMES_SHOWN = 20
_NAMES_WIDTH = 300


def dimensions(value: object) -> tuple[int, int, int]:
    """Take a size in one to three dimensions."""
    sizes = value if isinstance(value, list) else [value]
    if not 1 <= len(sizes) <= _DIMENSIONS or not all(
        type(n) is int and 0 < n <= MOST_BLOCKS for n in sizes
    ):
        raise ValueError(f"1 to 3 whole numbers from 1 to {MOST_BLOCKS}")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


NAME = Field("name", any_text, "what messages and other tables call it; its kind and number")
BLOCK = Field("block", dimensions, "block size", "threads", (128, 1, 1))
OF_AN_SM = (
    Field("registers", whole(1, 255), "32-bit registers", "of a thread"),
    Field("shared_bytes", whole(0, 1 << 20), "shared memory of a block", "bytes"),
    Field("occupancy", whole(1, MOST_BLOCKS_PER_SM), "most that an SM holds", "blocks"),
)
STREAM = Field("stream", whole(0, LARGEST_ID), "CUDA stream", default=0)
TIME = real(0, LONGEST_TIME)


class DescribedProgram(DescribedFile):
    """Reads the file of a described program."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._blocks = 0

    def table(self, kind: str, i: int, content: object, known: Sequence[Field]) -> dict[str, Any]:
        """Return what a table says; its name is its number where it does not say."""
        values = super().table(kind, i, content, known)
        if NAME in known and values["name"] is None:
            values["name"] = f"{kind} {i}" if kind else self.path.stem
        return values

    def tables(self, kind: str) -> list[Any]:
        """Return the tables of a kind."""
        tables = self.content.get(kind, [])
        if not isinstance(tables, list):
            found = f"{kind} {show_value(tables)}"
            self.fail("", 0, kind, found, f"write [[{kind}]] tables")
        return tables

    def count_blocks(self, i: int, key: str, blocks: int) -> None:
        """Refuse more blocks than a program may have."""
        self._blocks += blocks
        if self._blocks > MOST_BLOCKS:
            found = f"{show_value(self._blocks)} blocks"
            self.fail("kernel", i, key, found, f"at most {MOST_BLOCKS} in all kernels together")

    def check_threads(self, i: int, block: tuple[int, int, int]) -> None:
        """Refuse blocks of more threads than a GPU launches."""
        if prod(block) > MOST_THREADS:
            found = f"{show_value(prod(block))} threads in a block"
            self.fail("kernel", i, "block", found, f"at most {MOST_THREADS}")

    def column(
        self, kind: str, i: int, key: str, given: object, n: int, reader: Reader
    ) -> NDArray[Any]:
        """Return n values of a key, one for all or a list; a fault names the first that is none."""
        each, all_of_them = ("launch", "launches") if kind == "launch" else ("block", "blocks")
        read = []
        for place, value in enumerate(given if isinstance(given, list) else [given]):
            try:
                read.append(reader(value))
            except ValueError as error:
                where = f"{each} {place}: " if isinstance(given, list) else ""
                self.wrong(kind, i, key, value, f"{error}, or a list of them", where)
        if isinstance(given, list) and len(given) != n:
            found = f"{len(given)} values of {key} for {n} {all_of_them}"
            self.fail(kind, i, key, found, f"give one for each {each}, or one for all")
        values = np.array(read, None if read else np.int64)  # none of them are no numbers otherwise
        return np.broadcast_to(values, n).copy()

    def named(
        self, kind: str, i: int, key: str, table: dict[str, Any], known: Mapping[str, _Named]
    ) -> _Named:
        """Return what a key of a table names."""
        name = table.get(key)
        if not isinstance(name, str) or name not in known:
            found = f"{key} = {show_value(name)}" if key in table else f"no {key!r}"
            names = in_short(", ".join(list(known)[:_NAMES_SHOWN]), _NAMES_WIDTH)
            hint = f"give one of {names}" if known else f"describe it: [[{key}]]"
            self.fail(kind, i, key, found, hint)
        return known[name]
