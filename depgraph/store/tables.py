"""The files of a store: what they are called, and their tables, if they are what was written.

The checksums stand in a file that ``sha256sum -c`` reads as well::

    # depgraph store 5f0c...           the id, which the metadata of every file holds, too
    9d2e...  blocks.parquet
    ...
    # 41aa...                          SHA-256 of the lines above
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from io import FileIO
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq

from depgraph.errors import StoreError
from depgraph.footprint.footprints import GRANULARITIES
from depgraph.graph.dependences import KIND_NAMES
from depgraph.graph.program import Communication
from depgraph.store.schema import (
    OLDEST_VERSION,
    SCHEMA_VERSION,
    STORED_TABLES,
    TABLES,
    arrow_schema,
    stored_tables,
)
from depgraph.system.described import (
    REQUIRED,
    Field,
    any_text,
    fault_of_json,
    items,
    one_of,
    optional,
    real,
    record,
    values_of,
    whole,
)
from depgraph.system.output import foreign_file_in, recover
from depgraph.system.text import LARGEST_ID, in_short

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

CHECKSUMS = "SHA256SUMS"

_BEGINNING = "# depgraph store "
_FIRST_LINE = re.compile(rf"{_BEGINNING}([0-9a-f]{{32}})")
_LINE = re.compile(r"([0-9a-f]{64})  ([a-z]+\.parquet)")


class Checksums(NamedTuple):
    """What the files of a store are."""

    identity: str  # of the extraction; equal for equal results of equal inputs and options
    digests: Mapping[str, str]  # SHA-256 of each file, in hexadecimal, by its name

    def write(self, folder: Path) -> None:
        """Write the file of checksums into a folder."""
        (folder / CHECKSUMS).write_text(self._text(), encoding="ascii", newline="\n")

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the file of checksums of a folder; `ValueError` if it is damaged."""
        text = (folder / CHECKSUMS).read_text(encoding="ascii")
        first, *lines = text.split("\n")[:-2]
        about = _FIRST_LINE.fullmatch(first)
        found = [_LINE.fullmatch(line) for line in lines]
        if about is not None:
            checksums = cls(about[1], {line[2]: line[1] for line in found if line})
            if checksums._text() == text:
                return checksums
        raise ValueError("its own checksum is wrong")

    def _text(self) -> str:
        lines = [f"{digest}  {name}\n" for name, digest in sorted(self.digests.items())]
        above = "".join([f"{_BEGINNING}{self.identity}\n", *lines])
        return f"{above}# {hashlib.sha256(above.encode()).hexdigest()}\n"


def has_checksums(folder: Path) -> bool:
    """Tell whether a folder has a file of checksums that depgraph wrote."""
    try:
        with (folder / CHECKSUMS).open("rb") as file:
            return file.read(len(_BEGINNING)) == _BEGINNING.encode()
    except OSError:
        return False


class HashingFile(FileIO):
    """A new file whose checksum is at hand as it is written."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "x")
        self._digest = hashlib.sha256()

    def write(self, data: ReadableBuffer) -> int:
        """Append all of it, as only a file with a buffer does by itself."""
        view = memoryview(data)
        self._digest.update(view)
        written = 0
        while written < len(view):
            written += super().write(view[written:]) or 0
        return written

    def hexdigest(self) -> str:
        """Return the SHA-256 of what has been written so far."""
        return self._digest.hexdigest()


METADATA_KEY = b"depgraph"
IDENTITY_KEY = b"depgraph_store"
_SUFFIX = ".parquet"


def file_name(table: str) -> str:
    """Return the name of the file that holds a table."""
    return f"{table}{_SUFFIX}"


FILES = (*map(file_name, STORED_TABLES), CHECKSUMS)


def is_store(path: Path) -> bool:
    """Tell whether a folder looks like a store, of whatever version, whole or not."""
    if (path / file_name("kernels")).is_file() and (path / file_name("joins")).is_file():
        return True
    return has_checksums(path)


def not_a_store(path: Path) -> str:
    """Say what keeps a folder from being a store and nothing else, "" if nothing does."""
    if not is_store(path):
        return "was not written by depgraph"
    return foreign_file_in(path, lambda e: e.name in FILES and e.is_file() and not e.is_symlink())


_READABLE = range(OLDEST_VERSION, SCHEMA_VERSION + 1)
_UNREADABLE = (OSError, ValueError, pa.ArrowException)
_WORTH_THREADS = 1 << 20  # bytes: of a smaller file threads take more than they save
_ADVICE = "copy the store again, or extract the trace again"


class StoredTables:
    """The files of a store, looked through as it is opened."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.name:
            recover(self.path)
        if not is_store(self.path):
            what = "is not a depgraph store" if self.path.exists() else "no such store"
            raise StoreError(self.path, what, "make one with: depgraph extract TRACE")
        self._version = self._version_on_disk()
        try:
            self._checksums = self._read_checksums()
        except StoreError:
            with suppress(*_UNREADABLE):  # the files of another version may be others
                self._metadata_in(pq.read_schema(self.file("kernels")))
            raise
        self._refuse_files_of_other_stores()
        self.metadata = self._metadata_in(self._kernels.schema)
        check_metadata(self.file("kernels"), self.metadata)

    def _read_checksums(self) -> Checksums:
        files = [*map(file_name, stored_tables(self._version)), CHECKSUMS]
        missing = [name for name in files if not (self.path / name).is_file()]
        if missing:
            raise StoreError(self.path, f"lacks {missing[0]}", _ADVICE)
        try:
            checksums = Checksums.read(self.path)
        except (OSError, ValueError) as error:
            raise self._damaged(self.path / CHECKSUMS, error) from None
        if {*checksums.digests, CHECKSUMS} != set(files):
            raise StoreError(self.path / CHECKSUMS, "names other files than a store has", _ADVICE)
        return checksums

    def _version_on_disk(self) -> int:
        """Return the schema version that a file names, the present one if it cannot be read."""
        with suppress(StoreError, *_UNREADABLE):
            metadata = self._metadata_in(pq.read_schema(self.file("kernels")))
            return int(metadata["schema_version"])
        return SCHEMA_VERSION

    def _metadata_in(self, schema: pa.Schema) -> dict[str, Any]:
        try:
            metadata: dict[str, Any] = json.loads((schema.metadata or {})[METADATA_KEY])
            found = metadata["schema_version"]
        except (KeyError, ValueError, TypeError, RecursionError):
            raise StoreError(
                self.path, "holds Parquet files that depgraph did not write", "extract again"
            ) from None
        if type(found) is not int or found not in _READABLE:
            raise StoreError(
                self.path,
                f"has schema version {in_short(str(found))}, "
                f"this depgraph reads version {SCHEMA_VERSION}",
                "extract the trace again with --force",
            )
        return metadata

    def _refuse_files_of_other_stores(self) -> None:
        """Refuse files of other stores by what stands at their end, without reading them whole."""
        for table in stored_tables(self._version):
            try:
                metadata = pq.read_metadata(self.file(table)).metadata or {}
            except _UNREADABLE as error:
                raise self._damaged(self.file(table), error) from None
            if metadata.get(IDENTITY_KEY) != self._checksums.identity.encode():
                raise StoreError(
                    self.file(table), f"is not of the store that {CHECKSUMS} describes", _ADVICE
                )

    @property
    def identity(self) -> str:
        """Of the extraction; equal for equal results of equal inputs and options."""
        return self._checksums.identity

    def file(self, table: str) -> Path:
        """Return the file of a table."""
        return self.path / file_name(table)

    def _damaged(self, file: Path, error: Exception) -> StoreError:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return StoreError(file, f"is damaged ({reason})", _ADVICE)

    @cached_property
    def _kernels(self) -> pa.Table:
        return self._read("kernels")

    def table(self, name: str) -> pa.Table:
        """Return a table as Arrow data.

        Raises
        ------
        StoreError
            If there is no such table, its file has changed since it was written, or its columns
            are not the schema's.
        """
        if name not in STORED_TABLES:
            raise StoreError(
                self.path, f"has no table {name!r}", f"it has {', '.join(STORED_TABLES)}"
            )
        if name not in stored_tables(self._version):
            return arrow_schema(name).empty_table()
        return self._kernels if name == "kernels" else self._read(name)

    def _read(self, name: str) -> pa.Table:
        file = self.file(name)
        try:
            content = file.read_bytes()
            if hashlib.sha256(content).hexdigest() != self._checksums.digests[file.name]:
                raise StoreError(
                    file, f"is damaged (its checksum is not the one in {CHECKSUMS})", _ADVICE
                )
            with pq.ParquetFile(pa.BufferReader(content)) as opened:
                table = opened.read(use_threads=len(content) >= _WORTH_THREADS)
        except _UNREADABLE as error:
            raise self._damaged(file, error) from None
        expected = arrow_schema(name, self._version)
        if [*map(_kind_of, table.schema)] != [*map(_kind_of, expected)]:
            raise StoreError(file, "has columns that the schema does not name", "extract again")
        _refuse_nulls(file, table, expected)
        return _with_defaults(table, name)


def _refuse_nulls(file: Path, table: pa.Table, expected: pa.Schema) -> None:
    for field in expected:
        column = table[field.name]
        nulls = 0 if field.nullable else column.null_count
        if hasattr(field.type, "value_field"):
            nulls += sum(chunk.values.null_count for chunk in column.chunks)
        if nulls:
            found = f"makes no sense (column {field.name} has nulls)"
            raise StoreError(file, found, "extract the trace again")


def _with_defaults(table: pa.Table, name: str) -> pa.Table:
    """Add the columns that stores of an older version lack."""
    for place, (field, column) in enumerate(zip(arrow_schema(name), TABLES[name], strict=True)):
        if column.name not in table.column_names:
            values = pa.repeat(pa.scalar(column.default, field.type), len(table))
            table = table.add_column(place, field, values)
    return table


def _kind_of(field: pa.Field) -> tuple[str, pa.DataType]:
    """Return name and type; how wide the indices of a dictionary are is up to who reads it."""
    is_dictionary = pa.types.is_dictionary(field.type)
    return field.name, field.type.value_type if is_dictionary else field.type


def _granularity(value: object) -> object:
    if value not in GRANULARITIES:
        raise ValueError("a granularity")
    return value


_COUNT = whole(0, LARGEST_ID)
_COUNTS = values_of(_COUNT)
_SPACE = whole(-1, (1 << 31) - 1)
_SOURCE = record(
    Field("path", any_text, "as it was given", default=REQUIRED),
    Field("size", _COUNT, "of the file", "bytes", REQUIRED),
    Field("sha256", any_text, "of what was read"),
)
_OPTIONS = record(
    Field("kinds", items(one_of(KIND_NAMES), "kinds"), "of dependence", default=REQUIRED),
    Field("granularity", _granularity, "of addresses", "bytes", REQUIRED),
)
_ENTRIES = (
    Field("format", any_text, "of the input"),
    Field("options", _OPTIONS, "that edges depend on", default=REQUIRED),
    Field("tool_version", any_text, "that wrote it"),
    Field("sources", items(_SOURCE, "files"), "what was read"),
    Field("lines", _COUNT, "read"),
    Field("input_bytes", _COUNT, "read", "bytes"),
    Field("text_bytes", _COUNT, "the same, not compressed", "bytes"),
    Field("opcodes", _COUNTS, "instructions of each"),
    Field("skipped", _COUNTS, "instructions of each sort"),
    Field("warnings", _COUNTS, "how often each"),
    Field("blind_spots", items(any_text, "texts"), "what the input cannot show"),
    Field("false_edges", optional(_COUNT), "found by comparing", "edges"),
    Field("address_spaces", optional(items(_SPACE, "spaces")), "of each operation"),
    Field("remarks", values_of(items(_COUNT, "kernels")), "kernels of each"),
    Field("duration_unit", any_text, "of blocks"),
    Field("position_step", real(0, 1), "of a block's work", "share"),
)


def check_metadata(file: Path, metadata: Mapping[str, Any]) -> None:
    """Refuse metadata that no extraction writes, by the name of the entry."""
    if found := fault_of_json(metadata, _ENTRIES):
        raise _refused(file, found)
    try:
        known = Communication.from_metadata(metadata)
        numbers = [each.time for each in known.collectives.values()]
        for link in known.links.values():
            numbers += [link.bandwidth, link.alpha, link.dma_bandwidth, link.dma_alpha]
            numbers += [link.engines, link.computation_slowed, link.communication_slowed]
        is_finite = all(map(isfinite, numbers))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        is_finite = False
    if not is_finite:
        raise _refused(file, "describes communication in a way that depgraph does not write")


def _refused(file: Path, found: str) -> StoreError:
    message = f"holds what no extraction writes: its metadata {found}"
    return StoreError(file, message, "extract again")
